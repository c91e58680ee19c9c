"""How near each message is to the question by an embedding model, which may be slow, dear or away."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from ..cache.keys import cache_key
from ..conversation import Message
from ..endpoint import ends_of
from ..errors import ModelFailed
from ..ports import CacheBackend, Clock, Embedder, SystemClock
from .vectors import VectorMemory, cosines, packed_vector, unit_vector, unpacked_vector

logger = logging.getLogger("eunoe")

# A longer message is embedded in pieces and is as near as its nearest: one vector for all of a long answer
# says little, and small models read no more than their first 256 to 512 tokens.
PIECE_LENGTH, MOST_PIECES = 1_500, 4
_LONGEST_QUESTION = 4_000  # characters

MOST_IN_TURN = 256  # texts that a turn waits for: half a second at an API, a few seconds on a small machine
_MOST_BEHIND = 4_096  # texts that are embedded behind a turn's back, for the next one
_VECTOR_LIFE = 30 * 86_400  # seconds in the cache
_CACHE_CALLS = 64  # at once

# What models want before questions and before texts; without it they do not tell one from the other.
_PREFIXES = {
    "nomic-embed": ("search_query: ", "search_document: "),
    "e5-": ("query: ", "passage: "),
}

_NOT_COMPARED = "The embedding model gave no answer; messages were weighed by their words."

Lexical = Callable[[], Awaitable[Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """What is compared: the key of the question, those of each message's pieces, and their texts."""

    asked: str
    pieces: Mapping[str, Sequence[str]]  # keys by message id
    texts: Mapping[str, str]  # by key


class Similarity:
    """Compares messages with a question; each text is embedded once and its vector kept in memory and `cache`.

    A turn waits for the `most` texts that matter most, for at most `patience` seconds; the rest is
    embedded behind its back and is there for the next turn. After a failure the model is left alone for
    `rest` seconds. Failures never leave this class: one line in the log when they begin, one when they end.
    """

    def __init__(
        self,
        embedder: Embedder,
        cache: CacheBackend | None = None,
        *,
        most: int = MOST_IN_TURN,
        patience: float = 10.0,
        rest: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self._embedder, self._cache, self._memory = embedder, cache, VectorMemory()
        self._most, self._patience, self._rest = most, patience, rest
        self._clock = clock or SystemClock()
        self._failed_at: float | None = None
        self._is_failing = False
        self._coming: set[str] = set()  # keys of what is being embedded
        self._tasks: set[asyncio.Task[bool]] = set()

    async def cosines(
        self, messages: Sequence[Message], query: str, context: Mapping[str, Any] | None, lexical: Lexical
    ) -> Mapping[str, float] | None:
        """Give the cosine with the question of each message that has a vector, by id.

        None if there is no question or the model failed, which `context["notices"]`, if it is a list, is told.
        `lexical` is asked for scores by words where it must be decided which messages come first.
        """
        if not query.strip():
            return None
        context = context or {}
        comparison = await asyncio.to_thread(self._comparison, messages, query, str(context.get("scope", "")))
        known = await self._recalled(comparison)
        if not await self._complete(comparison, messages, known, lexical):
            if isinstance(notices := context.get("notices"), list):
                notices.append(_NOT_COMPARED)
            return None
        return await asyncio.to_thread(_nearness, comparison, known)

    def _comparison(self, messages: Sequence[Message], query: str, scope: str) -> _Comparison:
        model = self._embedder.name()
        to_query, to_text = next((p for name, p in _PREFIXES.items() if name in model.lower()), ("", ""))

        def key_of(text: str) -> str:
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
            return cache_key("vector", scope, model, digest)

        asked_text = to_query + ends_of(query.strip(), _LONGEST_QUESTION)
        texts, pieces = {key_of(asked_text): asked_text}, {}
        for message in messages:
            of_message = {key_of(to_text + piece): to_text + piece for piece in pieces_of(message.text)}
            texts |= of_message
            pieces[message.id] = tuple(of_message)
        return _Comparison(next(iter(texts)), pieces, texts)

    async def _recalled(self, comparison: _Comparison) -> dict[str, array[float]]:
        """Give the vectors that are in memory or in the cache, by key."""
        known = await asyncio.to_thread(self._memory.all_of, comparison.texts)
        if self._cache is not None:
            absent = [key for key in comparison.texts if key not in known]
            for start in range(0, len(absent), _CACHE_CALLS):
                keys = absent[start : start + _CACHE_CALLS]
                found = await asyncio.gather(*map(self._cache.get, keys))
                for key, text in zip(keys, found, strict=True):
                    if text and (vector := unpacked_vector(text)):
                        self._memory.put(key, vector)
                        known[key] = vector
        return known

    async def _complete(
        self,
        comparison: _Comparison,
        messages: Sequence[Message],
        known: dict[str, array[float]],
        lexical: Lexical,
    ) -> bool:
        """Embed what is missing from `known` and put it there; says whether the question can be compared."""
        missing = self._missing(comparison.texts, comparison, known)
        if not missing:
            return True
        if self._failed_at is not None and self._clock.seconds() < self._failed_at + self._rest:
            return False
        if len(missing) > self._most:
            ordered = _by_urgency(missing, comparison, messages, await lexical())
            missing = self._missing(ordered, comparison, known)
        now, later = missing[: self._most], missing[self._most :][:_MOST_BEHIND]
        if not await self._is_done_in_time(self._start(comparison, now)):
            return False
        known.update((key, vector) for key in now if (vector := self._memory.get(key)))
        size = len(known.get(comparison.asked, ()))
        foreign = [
            key for key, vector in known.items() if len(vector) != size
        ]  # of a model that had this name
        if behind := [*self._missing(later, comparison, known), *foreign]:
            self._start(comparison, behind)
        return size > 0

    async def _is_done_in_time(self, task: asyncio.Task[bool]) -> bool:
        """Wait for a task as long as a turn may; it goes on if that is not enough."""
        done, _ = await asyncio.wait({task}, timeout=self._patience)
        if not done:
            self._note_failure(f"{self._embedder.name()}: no vectors within {self._patience:g} s")
        return bool(done) and task.result()

    def _missing(
        self, keys: Iterable[str], comparison: _Comparison, known: dict[str, array[float]]
    ) -> list[str]:
        """List the keys without a vector that nobody is embedding; the question's is never left to others."""
        missing = []
        for key in keys:
            if key not in known:
                if vector := self._memory.get(key):  # another turn was quicker
                    known[key] = vector
                elif key == comparison.asked or key not in self._coming:
                    missing.append(key)
        return missing

    def _start(self, comparison: _Comparison, keys: Sequence[str]) -> asyncio.Task[bool]:
        """Embed texts in a task of its own, which goes on when nobody waits for it any more."""
        task = asyncio.create_task(self._embed({key: comparison.texts[key] for key in keys}))
        self._coming.update(keys)
        self._tasks.add(task)  # an event loop alone would let it be collected
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._coming.difference_update(keys))
        return task

    async def _embed(self, texts: Mapping[str, str]) -> bool:
        """Embed texts by key and remember their vectors; says whether that worked."""
        keys = list(texts)
        for start in range(0, len(keys), self._most):
            part = keys[start : start + self._most]
            try:
                found = await self._embedder.embed([texts[key] for key in part])
            except ModelFailed as error:
                self._note_failure(str(error))
                return False
            vectors = await asyncio.to_thread(_unit_vectors, found)
            if len(vectors) != len(part) or len({len(vector) for vector in vectors}) != 1 or not vectors[0]:
                self._note_failure(f"{self._embedder.name()}: its vectors do not fit the texts")
                return False
            await self._keep(part, vectors)
        self._note_success()
        return True

    async def _keep(self, keys: Sequence[str], vectors: Sequence[array[float]]) -> None:
        for key, vector in zip(keys, vectors, strict=True):
            self._memory.put(key, vector)
        if self._cache is not None:
            packed = await asyncio.to_thread(lambda: [packed_vector(vector) for vector in vectors])
            for start in range(0, len(keys), _CACHE_CALLS):
                pairs = zip(
                    keys[start : start + _CACHE_CALLS], packed[start : start + _CACHE_CALLS], strict=True
                )
                await asyncio.gather(*(self._cache.set(key, text, _VECTOR_LIFE) for key, text in pairs))

    def _note_failure(self, problem: str) -> None:
        self._failed_at = self._clock.seconds()
        if not self._is_failing:
            logger.warning("Messages are weighed by their words alone: %s", problem)
        self._is_failing = True

    def _note_success(self) -> None:
        if self._is_failing:
            logger.info("Messages are compared again by %s", self._embedder.name())
        self._failed_at, self._is_failing = None, False


def pieces_of(text: str) -> list[str]:
    """Cut a text into at most four pieces, evenly spread from its beginning to its end; none if it is blank."""
    text = text.strip()
    count = min(MOST_PIECES, math.ceil(len(text) / PIECE_LENGTH))
    if count < 2:
        return [text] if text else []
    step = (len(text) - PIECE_LENGTH) / (count - 1)
    return [text[round(i * step) : round(i * step) + PIECE_LENGTH] for i in range(count)]


def _by_urgency(
    missing: Sequence[str],
    comparison: _Comparison,
    messages: Sequence[Message],
    lexical: Mapping[str, float],
) -> list[str]:
    """Order keys: the question, then in turn the newest message and the one that fits best by its words."""
    newest = [message.id for message in reversed(messages)]
    fitting = sorted(newest, key=lambda name: -lexical.get(name, 0.0))
    ids = chain.from_iterable(zip_longest(newest, fitting))
    keys = chain([comparison.asked], *(comparison.pieces[name] for name in ids if name))
    wanted = set(missing)
    return [key for key in dict.fromkeys(keys) if key in wanted]


def _unit_vectors(vectors: Iterable[Sequence[float]]) -> list[array[float]]:
    return [unit_vector(vector) for vector in vectors]


def _nearness(comparison: _Comparison, known: Mapping[str, array[float]]) -> dict[str, float]:
    """Give each message the cosine of its nearest piece, as far as vectors are known."""
    asked = known[comparison.asked]
    keys = [key for key in comparison.texts if key in known and len(known[key]) == len(asked)]
    nearness = dict(zip(keys, cosines(asked, [known[key] for key in keys]), strict=True))
    found = {
        name: [nearness[key] for key in keys if key in nearness] for name, keys in comparison.pieces.items()
    }
    return {name: max(near) for name, near in found.items() if near}
