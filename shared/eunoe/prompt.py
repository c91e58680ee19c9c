"""One prompt as it was sent: what it was made of and how long it was up to each message. No text is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from .cache_rules import CacheRules, cached_share, is_warm
from .conversation import all_traits
from .plan import Plan
from .tokens import compact_json


@dataclass(frozen=True, slots=True)
class SentPrompt:
    """Which messages of a chat a prompt held, what they became, and how long it was up to each.

    `keys`, `digests`, `roles` and `sizes` have one item for each message that was sent; `ids` leaves out what
    we added.
    """

    ids: tuple[str, ...]
    digests: tuple[str, ...]
    sizes: tuple[int, ...]  # tokens up to the end of each message, with what stands before the messages
    at: float
    model: str = ""
    tools: str = ""  # a digest of the tool definitions, which stand before everything else
    keys: tuple[str, ...] = ()  # the message's id in the chat; empty for what we added
    roles: tuple[str, ...] = ()
    tools_tokens: int = 0
    quoted: frozenset[str] = frozenset()  # messages that were sent with a quotation before them

    @property
    def size(self) -> int:
        """Give the tokens of all of it."""
        return self.sizes[-1] if self.sizes else 0


def prompt_of(plan: Plan, at: float, model: str = "", tools: Sequence[Any] = ()) -> SentPrompt:
    """Note what a plan sends at a time; without `tools` their number of tokens stands for them."""
    ids = tuple(decision.message.id for decision in plan.kept)
    messages, keys = plan.messages, ids
    if plan.insertion is not None:
        by_object = {id(decision.sent): decision.message.id for decision in plan.kept}
        keys = tuple(by_object.get(id(raw), "") for raw in messages)
    traits = all_traits(messages)
    sizes = accumulate(plan.sent_tokens, initial=plan.overhead_tokens)
    return SentPrompt(
        ids,
        tuple(known.digest for known in traits),
        tuple(sizes)[1:],
        at,
        model,
        _digest_of_tools(tools) if tools else str(plan.tools_tokens),
        keys,
        tuple(known.role for known in traits),
        plan.tools_tokens,
    )


def same_messages(before: SentPrompt, now: SentPrompt) -> int:
    """Say how many messages at the beginning of two prompts are the same; none where the tools are not."""
    if before.tools != now.tools:
        return 0
    pairs = enumerate(zip(before.digests, now.digests, strict=False))
    shorter = min(len(before.digests), len(now.digests))
    return next((place for place, (old, new) in pairs if old != new), shorter)


def common_tokens(before: SentPrompt, now: SentPrompt) -> int:
    """Say how many tokens at the beginning of two prompts are the same, tools first."""
    return _tokens_up_to(before, same_messages(before, now), before.tools == now.tools)


def served_tokens(before: SentPrompt, now: SentPrompt, rules: CacheRules) -> int:
    """Say how many tokens of a prompt a provider likely has in its cache from an earlier one."""
    if before.model != now.model or not is_warm(rules, now.at - before.at):
        return 0
    same = same_messages(before, now)
    if rules.entry_roles is not None:
        places = (place for place in range(same, 0, -1) if before.roles[place - 1] in rules.entry_roles)
        same = next(places, 0)
    anywhere = rules.automatic and rules.entry_roles is None
    return cached_share(rules, _tokens_up_to(before, same, anywhere and before.tools == now.tools))


def _tokens_up_to(prompt: SentPrompt, messages: int, with_tools: bool) -> int:
    if messages:
        return prompt.sizes[messages - 1]
    return prompt.tools_tokens if with_tools else 0


def extends(prompt: SentPrompt, older: SentPrompt) -> bool:
    """Say whether a prompt begins with all of an older one, which is then not needed any more."""
    return (prompt.model, prompt.tools, prompt.digests[: len(older.digests)]) == (
        older.model,
        older.tools,
        older.digests,
    )


def _digest_of_tools(tools: Sequence[Any]) -> str:
    return hashlib.blake2b(compact_json([*tools]).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
