"""What was sent with earlier calls: the beginning of a prompt that a provider is likely to have in its cache."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .cache_rules import rules_for
from .conversation import Conversation
from .plan import Plan
from .ports import Clock, SystemClock
from .prefix import PrefixReport, nearest, prefix_report
from .pricing import Price
from .prompt import SentPrompt, extends, prompt_of, served_tokens

_MOST_CHATS, _MOST_PROMPTS = 2_000, 8


@dataclass(frozen=True, slots=True)
class PromptNote:
    """How a prompt compares with those before it: the tokens that are likely cached, and what broke the rest."""

    cached_tokens: int
    prefix: PrefixReport | None = None  # None: no earlier prompt of the chat is known


class SentLog:
    """Remembers the newest prompts of each chat, by content: no text is kept, and losing it costs nothing.

    A chat is known by whose it is and its first message, so chats that begin alike share an entry of a few
    prompts; the one that fits best is used. Threads may share a log. How long a prompt counts as cached, and
    from which length on, is the model's provider's rule; a cache that needs a hint is taken to get it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._chats: OrderedDict[str, tuple[SentPrompt, ...]] = OrderedDict()

    def note(self, scope: str, model: str, plan: Plan, tools: Sequence[Any] = ()) -> int:
        """Remember what a plan sends; gives what `cached_tokens` said of it before."""
        return self.noted(scope, model, plan, tools).cached_tokens

    def noted(
        self,
        scope: str,
        model: str,
        plan: Plan,
        tools: Sequence[Any] = (),
        *,
        new_cut: bool = False,
        price: Price | None = None,
    ) -> PromptNote:
        """Remember what a plan sends, and say how it compares with what was sent before."""
        key = _chat_key(scope, plan.conversation)
        prompt = prompt_of(plan, self._clock.seconds(), model, tools)
        with self._lock:
            older = self._chats.pop(key, ())
            self._chats[key] = (*(p for p in older if not extends(prompt, p)), prompt)[-_MOST_PROMPTS:]
            while len(self._chats) > _MOST_CHATS:
                self._chats.popitem(last=False)
        rules, before = rules_for(model), nearest(older, prompt)
        if before is None:
            return PromptNote(0)
        present = {message.id for message in plan.conversation.messages}
        prefix = prefix_report(before, prompt, rules, present=present, new_cut=new_cut, price=price)
        return PromptNote(_served(older, prompt), prefix)

    def cached_tokens(self, scope: str, model: str, plan: Plan, tools: Sequence[Any] = ()) -> int:
        """Say how many tokens at the beginning of a plan's prompt the provider has likely in its cache.

        0 where they are fewer than it caches, or where they were sent too long ago.
        """
        prompt = prompt_of(plan, self._clock.seconds(), model, tools)
        return _served(self._known(scope, plan.conversation), prompt)

    def idle_seconds(self, scope: str, model: str, conversation: Conversation) -> float | None:
        """Say how long ago this chat last sent something to this model; None if that is not known.

        What a chat that begins alike sent counts only where nothing of this very chat is known.
        """
        present = {message.id for message in conversation.messages}
        known = [p for p in self._known(scope, conversation) if p.model == model]
        newest = max(known, key=lambda p: (present.issuperset(p.ids), p.at), default=None)
        return None if newest is None else max(0.0, self._clock.seconds() - newest.at)

    def sent_before(self, scope: str, model: str, conversation: Conversation) -> frozenset[str]:
        """Give the ids that the newest prompt of this very chat held, up to where the chat was changed since.

        The newest one that is all there counts; of those that are not, the one with the longest beginning.
        """
        present = {message.id for message in conversation.messages}
        best: tuple[str, ...] = ()
        for prompt in reversed(self._known(scope, conversation)):
            if prompt.model != model:
                continue
            still = prompt.ids[: next((i for i, name in enumerate(prompt.ids) if name not in present), None)]
            if len(still) == len(prompt.ids):
                return frozenset(still)
            best = still if len(still) > len(best) else best
        return frozenset(best)

    def _known(self, scope: str, conversation: Conversation) -> tuple[SentPrompt, ...]:
        with self._lock:
            return self._chats.get(_chat_key(scope, conversation), ())


def _chat_key(scope: str, conversation: Conversation) -> str:
    first = next((m.digest for m in conversation.messages if not m.is_instruction), "")
    text = f"{scope}\x00{first}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _served(known: Iterable[SentPrompt], prompt: SentPrompt) -> int:
    rules = rules_for(prompt.model)
    return max((served_tokens(before, prompt, rules) for before in known), default=0)
