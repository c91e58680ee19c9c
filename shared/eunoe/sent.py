"""What was sent with earlier calls: the beginning of a prompt that a provider is likely to have in its cache."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from .conversation import Conversation, all_traits
from .plan import Plan
from .ports import Clock, SystemClock

LEAST_CACHED_TOKENS = 1_024  # OpenAI and Anthropic cache no shorter prompt
CACHE_SECONDS = 300.0  # the shortest life of a cache that is common: Anthropic's, and OpenAI's least
_MOST_CHATS, _MOST_PROMPTS = 2_000, 8


@dataclass(frozen=True, slots=True)
class SentPrompt:
    """One prompt as it was sent: which messages of the chat, what they became, and how long it was up to each."""

    ids: tuple[str, ...]
    digests: tuple[str, ...]
    sizes: tuple[int, ...]  # tokens up to the end of each message, with what stands before the messages
    at: float


class SentLog:
    """Remembers the newest prompts of each chat, by content: no text is kept, and losing it costs nothing.

    A chat is known by whose it is, its model and its first message, so chats that begin alike share an
    entry of a few prompts; the one that fits best is used. Threads may share a log.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._chats: OrderedDict[str, tuple[SentPrompt, ...]] = OrderedDict()

    def note(self, scope: str, model: str, plan: Plan) -> int:
        """Remember what a plan sends; gives what `cached_tokens` said of it before."""
        key = _chat_key(scope, model, plan.conversation)
        prompt = _prompt_of(plan, self._clock.seconds())
        with self._lock:
            older = self._chats.pop(key, ())
            self._chats[key] = (*(p for p in older if not _extends(prompt, p)), prompt)[-_MOST_PROMPTS:]
            while len(self._chats) > _MOST_CHATS:
                self._chats.popitem(last=False)
        return _cached_tokens(older, prompt.digests, prompt.at)

    def cached_tokens(self, scope: str, model: str, plan: Plan) -> int:
        """Say how many tokens at the beginning of a plan's prompt were sent just so in the last five minutes.

        0 where they are fewer than providers cache.
        """
        known = self._known(scope, model, plan.conversation)
        return _cached_tokens(known, _sent_digests(plan), self._clock.seconds())

    def sent_before(self, scope: str, model: str, conversation: Conversation) -> frozenset[str]:
        """Give the ids that the newest prompt of this very chat held, up to where the chat was changed since.

        The newest one that is all there counts; of those that are not, the one with the longest beginning.
        """
        present = {message.id for message in conversation.messages}
        best: tuple[str, ...] = ()
        for prompt in reversed(self._known(scope, model, conversation)):
            still = prompt.ids[: next((i for i, name in enumerate(prompt.ids) if name not in present), None)]
            if len(still) == len(prompt.ids):
                return frozenset(still)
            best = still if len(still) > len(best) else best
        return frozenset(best)

    def _known(self, scope: str, model: str, conversation: Conversation) -> tuple[SentPrompt, ...]:
        with self._lock:
            return self._chats.get(_chat_key(scope, model, conversation), ())


def _chat_key(scope: str, model: str, conversation: Conversation) -> str:
    first = next((m.digest for m in conversation.messages if not m.is_instruction), "")
    text = "\x00".join((scope, model, first))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _prompt_of(plan: Plan, at: float) -> SentPrompt:
    ids = tuple(decision.message.id for decision in plan.kept)
    sizes = accumulate(plan.sent_tokens, initial=plan.overhead_tokens)
    return SentPrompt(ids, _sent_digests(plan), tuple(sizes)[1:], at)


def _sent_digests(plan: Plan) -> tuple[str, ...]:
    return tuple(known.digest for known in all_traits(plan.messages))


def _cached_tokens(known: Iterable[SentPrompt], digests: Sequence[str], now: float) -> int:
    alive = (prompt for prompt in known if prompt.at >= now - CACHE_SECONDS)
    cached = max((_common_tokens(prompt, digests) for prompt in alive), default=0)
    return cached if cached >= LEAST_CACHED_TOKENS else 0


def _common_tokens(prompt: SentPrompt, digests: Sequence[str]) -> int:
    tokens = 0
    for known, new, size in zip(prompt.digests, digests, prompt.sizes, strict=False):
        if known != new:
            break
        tokens = size
    return tokens


def _extends(prompt: SentPrompt, older: SentPrompt) -> bool:
    """Say whether a prompt begins with all of an older one, which is then not needed any more."""
    return prompt.digests[: len(older.digests)] == older.digests
