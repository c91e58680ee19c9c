"""How much of a prompt is what was sent last time, what broke it, and what that costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from .cache_rules import CacheRules, cached_share, is_warm
from .conversation import INSTRUCTION_ROLES
from .pricing import Price, prompt_cost
from .prompt import SentPrompt, common_tokens, same_messages, served_tokens


class PrefixBreak(StrEnum):
    """What keeps a provider from serving the beginning of a prompt from its cache; a code to group by."""

    EXPIRED = "cache_expired"
    MODEL = "other_model"
    TOOLS = "tools_changed"
    SYSTEM = "system_changed"
    EDITED = "message_changed"
    CUT = "new_cut"
    SUMMARY = "summary_changed"
    RECALL = "recall"
    REWRITTEN = "sent_otherwise"


PREFIX_SENTENCES: Mapping[PrefixBreak, str] = {
    PrefixBreak.EXPIRED: "The last call was too long ago for the provider's cache.",
    PrefixBreak.MODEL: "Another model answered before; each has its own cache.",
    PrefixBreak.TOOLS: "The tools changed, and they stand before everything else.",
    PrefixBreak.SYSTEM: "A system or developer message changed.",
    PrefixBreak.EDITED: "A message was edited, deleted or regenerated.",
    PrefixBreak.CUT: "What was sent before is left out by a new cut.",
    PrefixBreak.SUMMARY: "What stands for earlier turns changed.",
    PrefixBreak.RECALL: "What was quoted before an earlier question changed.",
    PrefixBreak.REWRITTEN: "A message is sent in another form than before, such as shortened.",
}


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """What a prompt has in common with the one before it.

    `lost_tokens` are billed anew although the provider would have served them from its cache; 0 where
    nothing broke, or where it would have cached none of it.
    """

    tokens: int  # at the beginning, the same as before
    served_tokens: int  # of these, those that the provider's cache likely has
    cause: PrefixBreak | None = None  # None: it is the one before with more behind it, or a part of it
    position: int | None = None  # of the first message that differs, among those sent; None: no message does
    message: str = ""  # that message's name in the chat; empty for what we added
    lost_tokens: int = 0
    lost_usd: float | None = None  # None: no price is known


def prefix_report(
    before: SentPrompt,
    now: SentPrompt,
    rules: CacheRules,
    *,
    present: Collection[str] = (),
    new_cut: bool = False,
    price: Price | None = None,
) -> PrefixReport:
    """Compare a prompt with the one before it.

    `present` names the messages that the chat has now, sent or not; `new_cut` says that a cut was just made.
    """
    tokens = common_tokens(before, now)
    served = served_tokens(before, now, rules)
    cause, position = _break(before, now, rules, present, new_cut=new_cut)
    if cause is None:
        return PrefixReport(tokens, served, lost_usd=_cost(0, price))
    key = "" if position is None else _key_at(before, position) or _key_at(now, position)
    lost = max(0, min(cached_share(rules, before.size), now.size) - served)
    return PrefixReport(tokens, served, cause, position, key, lost, _cost(lost, price))


def nearest(known: Iterable[SentPrompt], now: SentPrompt) -> SentPrompt | None:
    """Find the prompt that went before this one in its chat: one that it carries on, or that has most in common.

    One to the same model goes before all others. Of those that are alike the newest.
    """

    def likeness(before: SentPrompt) -> tuple[bool, bool, int, float]:
        shared = len(set(before.keys) & set(now.keys))
        return before.model == now.model, _is_carried_on(before, now), shared, before.at

    return max(known, key=likeness, default=None)


def _break(
    before: SentPrompt, now: SentPrompt, rules: CacheRules, present: Collection[str], *, new_cut: bool
) -> tuple[PrefixBreak | None, int | None]:
    """Find what broke the beginning, and at which message."""
    if before.model != now.model:
        return PrefixBreak.MODEL, None
    if rules.minimum is not None and not is_warm(rules, now.at - before.at):
        return PrefixBreak.EXPIRED, None
    if before.tools != now.tools:
        return PrefixBreak.TOOLS, None
    if _is_carried_on(before, now):
        return None, None
    place = same_messages(before, now)
    return _cause_at(before, now, place, present, new_cut=new_cut), place


def _cause_at(
    before: SentPrompt, now: SentPrompt, place: int, present: Collection[str], *, new_cut: bool
) -> PrefixBreak:
    old, new = before.keys[place], now.keys[place]
    if before.roles[place] in INSTRUCTION_ROLES or now.roles[place] in INSTRUCTION_ROLES:
        return PrefixBreak.SYSTEM
    if old and old not in present and old not in now.keys:
        return PrefixBreak.EDITED
    if new_cut or (old and old not in now.keys):
        return PrefixBreak.CUT
    if not old or not new:
        return PrefixBreak.SUMMARY
    if old == new:
        quoted = old in before.quoted or old in now.quoted
        return PrefixBreak.RECALL if quoted else PrefixBreak.REWRITTEN
    return PrefixBreak.EDITED  # both are there, in another order or with one between them


def _is_carried_on(before: SentPrompt, now: SentPrompt) -> bool:
    """Say whether one prompt is the beginning of the other: nothing that both could have in common differs."""
    shorter = min(len(before.digests), len(now.digests))
    return before.tools == now.tools and same_messages(before, now) == shorter


def _key_at(prompt: SentPrompt, place: int) -> str:
    return prompt.keys[place] if place < len(prompt.keys) else ""


def _cost(tokens: int, price: Price | None) -> float | None:
    """Give what tokens cost more as input than from the cache, in USD."""
    plain, cached = prompt_cost(tokens, price), prompt_cost(tokens, price, tokens)
    return None if plain is None or cached is None else plain - cached
