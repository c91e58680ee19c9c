"""Summaries of fixed units of a conversation, each found by its content alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ..bonds import Turn
from ..conversation import Message
from ..ports import CacheBackend, Summarizer
from ..tokens import TokenCounter, counter_for
from .book import (
    BY_EXTRACT,
    BY_MODEL,
    KeptSummary,
    KeysAtWork,
    Shelf,
    Summary,
    SummaryReport,
    digests_of,
    turn_digest,
    writer_for,
)
from .extract import extract_of
from .prompts import disarmed
from .transcript import plain_text, tokens_of
from .writer import LEAST_ROOM, CallTally, room_for

DAY = 86_400
_FEW_UNITS = 3  # that find room together, however long they are
_MOST_UNITS = 128  # that are looked up, the newest ones


@dataclass(frozen=True, slots=True)
class SummaryUnit:
    """Turns that get one summary; `words` is their own text where that is as short as a summary."""

    turns: tuple[Turn, ...]
    messages: tuple[Message, ...]
    key: str
    tokens: int
    words: str = ""


class UnitBook:
    """Keeps a summary for each unit of `size` turns, for a day; units of a conversation begin at its first turn.

    Only whole units are summarized, so that a summary stays the same while the chat grows. Units under
    `short_tokens` are their own summary, word for word, and cost no call.
    """

    takes_prefix = False

    def __init__(
        self,
        backend: Summarizer,
        cache: CacheBackend,
        *,
        kind: str,
        size: int,
        target_ratio: float = 0.3,
        max_calls: int = 6,
        max_seconds: float = 120.0,
        short_tokens: int = 60,
    ) -> None:
        self._writer = writer_for(backend)
        self._size, self._ratio, self._short = max(1, size), target_ratio, short_tokens
        self._max_calls, self._max_seconds = max(1, max_calls), max_seconds
        self._shelf = Shelf(cache, kind, DAY, backend.name(), f"{target_ratio:g}")
        self._at_work = KeysAtWork()

    async def ready(self, turns: Sequence[Turn], scope: str) -> Sequence[Summary]:
        """Give the summaries that are kept for the newest units, oldest first."""
        units = await asyncio.to_thread(self._units, turns, scope)
        kept = iter(await self._shelf.get_all([unit.key for unit in units if not unit.words]))
        summaries = []
        for unit in units:
            found = KeptSummary(unit.words, BY_EXTRACT, unit.tokens) if unit.words else next(kept)
            if found is not None:
                covers = digests_of(unit.turns)
                summaries.append(Summary(found.text, covers, len(unit.turns), found.source))
        return summaries

    async def write(self, turns: Sequence[Turn], scope: str, *, room_tokens: int) -> SummaryReport:
        """Make the summaries that are missing for the newest units, as many as find room, in a few calls."""
        units = await asyncio.to_thread(self._units, turns, scope)
        with self._at_work.taken(unit.key for unit in units) as free:
            ratio = self._ratio_within(units, room_tokens)
            missing = await self._missing(units, room_tokens, ratio)
            mine = [unit for unit in missing if unit.key in free]
            return await self._make(mine, ratio) if mine else SummaryReport()

    def _ratio_within(self, units: Sequence[SummaryUnit], room: int) -> float:
        """Lower the ratio where the newest few units would not find room with it."""
        tokens = sum(unit.tokens for unit in units[-_FEW_UNITS:])
        return min(self._ratio, room / tokens) if tokens else self._ratio

    async def _make(self, units: Sequence[SummaryUnit], ratio: float) -> SummaryReport:
        tally = CallTally.of(self._max_calls, self._max_seconds)
        written = await self._writer.sections([unit.messages for unit in units], tally, ratio=ratio)
        for unit, text in zip(units, written.texts, strict=True):
            if text:
                await self._shelf.put(unit.key, KeptSummary(text, BY_MODEL, unit.tokens))
            elif await self._shelf.get(unit.key) is None:
                await self._keep_extract(unit, ratio)
        problem = str(written.failure) if written.failure else ""
        return SummaryReport(sum(map(bool, written.texts)), tuple(tally.usages), problem)

    async def _keep_extract(self, unit: SummaryUnit, ratio: float) -> None:
        """Keep the unit's own words until a model has summarized it."""
        text = await asyncio.to_thread(self._extract, unit, ratio)
        if text:
            await self._shelf.put(unit.key, KeptSummary(text, BY_EXTRACT, unit.tokens))

    async def _missing(self, units: Sequence[SummaryUnit], room: int, ratio: float) -> list[SummaryUnit]:
        """Find the units that no model has summarized, the newest that find room with the others, oldest first."""
        kept = await self._shelf.get_all([unit.key for unit in units])
        missing: list[SummaryUnit] = []
        counter = await asyncio.to_thread(counter_for, self._writer.name())
        for unit, found in reversed(list(zip(units, kept, strict=True))):
            text = unit.words or (found.text if found and found.source == BY_MODEL else "")
            room -= counter.count_text(text) if text else room_for(unit.tokens, ratio)
            if room < 0:
                break
            if not text:
                missing.append(unit)
        return missing[::-1]

    def _units(self, turns: Sequence[Turn], scope: str) -> list[SummaryUnit]:
        """Cut the newest turns into units, oldest first; of those that say the same only the newest counts."""
        counter = counter_for(self._writer.name())
        whole = len(turns) - len(turns) % self._size
        begins = range(0, whole, self._size)[-_MOST_UNITS:]
        units = [self._unit(tuple(turns[at : at + self._size]), scope, counter) for at in reversed(begins)]
        return list({unit.key: unit for unit in units}.values())[::-1]

    def _unit(self, turns: tuple[Turn, ...], scope: str, counter: TokenCounter) -> SummaryUnit:
        messages = tuple(message for turn in turns for message in turn.messages)
        tokens = tokens_of(messages, counter)
        words = own_words(messages) if tokens < self._short else ""
        if words and counter.count_text(words) >= tokens:
            words = ""
        return SummaryUnit(turns, messages, self._shelf.key(scope, *map(turn_digest, turns)), tokens, words)

    def _extract(self, unit: SummaryUnit, ratio: float) -> str:
        counter = counter_for(self._writer.name())
        room = max(LEAST_ROOM, room_for(unit.tokens, ratio))
        text = extract_of(unit.messages, room, counter)
        return text if counter.count_text(text) < unit.tokens else ""


def own_words(messages: Sequence[Message]) -> str:
    """Give what messages say word for word, each behind who said it."""
    texts = ((message.role, disarmed(plain_text(message))) for message in messages)
    return "\n".join(f"{role}: {text}" for role, text in texts if text)
