"""The book of summaries: what is kept of earlier turns, found by their content and written in the background."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ..bonds import Turn
from ..cache.keys import cache_key
from ..ports import CacheBackend, Summarizer
from ..usage import Usage
from .llm import LLMSummarizer
from .prompts import SUMMARY_VERSION
from .writer import PluggedWriter, SummaryWriter

logger = logging.getLogger("eunoe")

BY_MODEL, BY_EXTRACT = "model", "extract"
_MOST_AT_ONCE = 32  # look-ups


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of earlier turns: what it says, and the digests of the messages it stands for.

    `source` is `model`, or `extract` where it is made of the messages' own words.
    """

    text: str
    covers: frozenset[str]
    turns: int
    source: str


@dataclass(frozen=True, slots=True)
class SummaryReport:
    """What a write did: how many summaries a model made, what its calls were billed, and what went wrong.

    `problem` is a sentence that names the model and holds no message text; empty if nothing went wrong.
    """

    made: int = 0
    usages: tuple[Usage, ...] = ()
    problem: str = ""


class SummaryBook(Protocol):
    """Keeps summaries of a conversation's earlier turns. Never raises because of a model or a cache.

    Several writes may run at once: what one of them is making, the others leave alone.
    """

    async def ready(self, turns: Sequence[Turn], scope: str) -> Sequence[Summary]:
        """Give the summaries that there are for all earlier turns, in their order, without overlaps.

        No model is called. `scope` is whose chat it is: nothing is found from another scope.
        """
        ...

    async def write(self, turns: Sequence[Turn], scope: str, *, room_tokens: int) -> SummaryReport:
        """Make the summaries that are missing, in a bounded number of model calls and a bounded time.

        `turns` are what the summaries are for: for books that say `takes_prefix` all earlier turns up to
        the newest dropped one, for others those that were dropped. `room_tokens` is what all summaries of
        them together may take. A failure is told in the report and tried again with the next write.
        """
        ...


@dataclass(frozen=True, slots=True)
class KeptSummary:
    """A summary as it is kept: its text, whether a model wrote it, and how many tokens it stands for."""

    text: str
    source: str
    tokens: int


class Shelf:
    """Keeps summaries of one kind in a cache, for `ttl` seconds each."""

    def __init__(self, cache: CacheBackend, kind: str, ttl: int, *made_by: str) -> None:
        self._cache, self._kind, self._ttl = cache, kind, ttl
        self._made_by = (SUMMARY_VERSION, *made_by)

    def key(self, scope: str, *content: str) -> str:
        """Name the summary of a content."""
        return cache_key(self._kind, scope, *self._made_by, *content)

    async def get(self, key: str) -> KeptSummary | None:
        """Give a summary, None if there is none."""
        value = await self.load(key)
        if not isinstance(value, dict):
            return None
        text, source, tokens = value.get("text"), value.get("source"), value.get("tokens")
        if not isinstance(text, str) or not text or source not in {BY_MODEL, BY_EXTRACT}:
            return None
        return KeptSummary(text, source, tokens if isinstance(tokens, int) else 0)

    async def get_all(self, keys: Sequence[str]) -> list[KeptSummary | None]:
        """Give several summaries, a bounded number of look-ups at once."""
        found: list[KeptSummary | None] = []
        for at in range(0, len(keys), _MOST_AT_ONCE):
            found += await asyncio.gather(*map(self.get, keys[at : at + _MOST_AT_ONCE]))
        return found

    async def put(self, key: str, kept: KeptSummary) -> None:
        """Keep a summary."""
        await self.save(key, {"text": kept.text, "source": kept.source, "tokens": kept.tokens})

    async def load(self, key: str) -> Any:
        """Give the JSON value of a key, None if there is none."""
        try:
            text = await self._cache.get(key)
            return json.loads(text) if text else None
        except Exception as error:  # noqa: BLE001  a cache that somebody plugged in; a lost summary is made again
            logger.warning("A summary can't be read from the cache: %s", type(error).__name__)
            return None

    async def save(self, key: str, value: Any) -> None:
        """Keep a JSON value."""
        try:
            await self._cache.set(key, json.dumps(value), self._ttl)
        except Exception as error:  # noqa: BLE001  see above
            logger.warning("A summary can't be kept in the cache: %s", type(error).__name__)


class KeysAtWork:
    """The keys that are being worked on, each by one write at a time, on whichever thread or event loop."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, keys: Iterable[str]) -> Iterator[frozenset[str]]:
        """Take those of the keys that nobody works on, and let them go at the end, however it comes."""
        with self._lock:
            free = frozenset(keys) - self._keys
            self._keys |= free
        try:
            yield free
        finally:
            with self._lock:
                self._keys -= free


def writer_for(backend: Summarizer) -> SummaryWriter:
    """Give who writes with a summarizer."""
    return backend if isinstance(backend, LLMSummarizer) else PluggedWriter(backend)


def digests_of(turns: Sequence[Turn]) -> frozenset[str]:
    """Give the digests of all messages of turns."""
    return frozenset(message.digest for turn in turns for message in turn.messages)


def turn_digest(turn: Turn) -> str:
    """Name a turn by the content of its messages."""
    return " ".join(message.digest for message in turn.messages)
