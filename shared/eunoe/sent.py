"""What was sent with earlier calls: the beginning of a prompt that a provider is likely to have in its cache."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from .cache_rules import rules_for
from .conversation import Conversation
from .plan import Plan
from .ports import Clock, SystemClock
from .prefix import PrefixReport, nearest, prefix_report
from .pricing import Price
from .prompt import SentPrompt, extends, prompt_of, served_tokens

_MOST_CHATS, _MOST_PROMPTS = 2_000, 8


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
        key = _chat_key(scope, plan.conversation)
        prompt = prompt_of(plan, self._clock.seconds(), model, tools)
        with self._lock:
            older = self._chats.pop(key, ())
            self._chats[key] = (*(p for p in older if not extends(prompt, p)), prompt)[-_MOST_PROMPTS:]
            while len(self._chats) > _MOST_CHATS:
                self._chats.popitem(last=False)
        return _served(older, prompt)

    def cached_tokens(self, scope: str, model: str, plan: Plan, tools: Sequence[Any] = ()) -> int:
        """Say how many tokens at the beginning of a plan's prompt the provider has likely in its cache.

        0 where they are fewer than it caches, or where they were sent too long ago.
        """
        prompt = prompt_of(plan, self._clock.seconds(), model, tools)
        return _served(self._known(scope, plan.conversation), prompt)

    def report(
        self,
        scope: str,
        model: str,
        plan: Plan,
        tools: Sequence[Any] = (),
        *,
        new_cut: bool = False,
        price: Price | None = None,
    ) -> PrefixReport | None:
        """Compare a plan's prompt with the one before it in its chat; None if none is known. Call it before `note`."""
        now = prompt_of(plan, self._clock.seconds(), model, tools)
        before = nearest(self._known(scope, plan.conversation), now)
        if before is None:
            return None
        present = {message.id for message in plan.conversation.messages}
        return prefix_report(before, now, rules_for(model), present=present, new_cut=new_cut, price=price)

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
