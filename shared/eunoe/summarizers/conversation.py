"""One summary of the conversation so far, carried on with what is new."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ..bonds import Turn
from ..conversation import Message
from ..ports import CacheBackend, Summarizer
from ..tokens import counter_for
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
from .checks import fitted
from .extract import extract_of
from .transcript import tokens_of
from .writer import LEAST_ROOM, CallTally, room_for

_LIFE = 7 * 86_400
_MOST_LISTED = {BY_MODEL: 16, BY_EXTRACT: 8}  # beginnings of a chat that are found again; older ones fall out
_MOST_LOOKED_UP = 6
_LISTED_BY = 4  # turns; by fewer, all chats that a bot begins alike would push each other off one list
# Tokens of new turns that are worth a call; until then their own words stand behind the summary.
_LEAST_NEW = 240
_SUMMARY_SHARE = 0.7  # of the room, where words of newer turns stand behind it


@dataclass(frozen=True, slots=True)
class _Known:
    """A summary of the first `turns` turns."""

    turns: int
    kept: KeptSummary


_NOTHING = _Known(0, KeptSummary("", BY_MODEL, 0))


class ConversationSummarizer:
    """Keeps one summary of a conversation's first turns for a week, and carries it on with those that follow.

    A summary is found by the content of the turns it stands for, so an edited chat, a branch and a copy
    each find the longest one that is true for them. Its length is `target_ratio` of what it stands for, at
    most the room that `write` is given. Less than some 240 tokens of new turns are not worth a call: their
    own words stand behind the summary until there are more.
    """

    takes_prefix = True

    def __init__(
        self,
        backend: Summarizer,
        cache: CacheBackend,
        *,
        target_ratio: float = 0.3,
        max_calls: int = 6,
        max_seconds: float = 120.0,
        least_new_tokens: int = _LEAST_NEW,
    ) -> None:
        self._writer = writer_for(backend)
        self._ratio, self._least_new = target_ratio, least_new_tokens
        self._max_calls, self._max_seconds = max(1, max_calls), max_seconds
        self._shelf = Shelf(cache, "summary-chat", _LIFE, backend.name(), f"{target_ratio:g}")
        self._at_work = KeysAtWork()

    async def ready(self, turns: Sequence[Turn], scope: str) -> Sequence[Summary]:
        """Give the summary of the longest beginning of the conversation that has one."""
        chain = await asyncio.to_thread(prefix_chain, turns)
        known = await self._longest(chain, scope, BY_MODEL, BY_EXTRACT)
        if not known.turns:
            return ()
        covered = turns[: known.turns]
        return (Summary(known.kept.text, digests_of(covered), known.turns, known.kept.source),)

    async def write(self, turns: Sequence[Turn], scope: str, *, room_tokens: int) -> SummaryReport:
        """Carry the longest summary on to the last of the turns, a call for each window of new messages."""
        chain = await asyncio.to_thread(prefix_chain, turns)
        if not chain or room_tokens < LEAST_ROOM:
            return SummaryReport()
        with self._at_work.taken(self._list_keys(chain, scope)[-1:]) as free:
            return await self._carry_on(turns, chain, scope, room_tokens) if free else SummaryReport()

    async def _carry_on(
        self, turns: Sequence[Turn], chain: Sequence[str], scope: str, room: int
    ) -> SummaryReport:
        known = await self._longest(chain, scope, BY_MODEL)
        tally = CallTally.of(self._max_calls, self._max_seconds)
        made, problem = 0, ""
        while known.turns < len(turns) and tally.may_call:
            if await self._tokens(_messages_of(turns[known.turns :])) < self._least_new:
                break
            step, problem = await self._step(turns, known, room, tally)
            if step is None:
                break
            known, made = step, made + 1
            await self._keep(known, chain, scope)
        if known.turns < len(turns):
            await self._keep_words(turns, chain, scope, known, room)
        return SummaryReport(made, tuple(tally.usages), problem)

    async def _step(
        self, turns: Sequence[Turn], known: _Known, room: int, tally: CallTally
    ) -> tuple[_Known | None, str]:
        """Carry a summary on to the next border between two turns; None if it can't be done, and why."""
        text, tokens = known.kept.text, known.kept.tokens
        borders = _borders(turns[known.turns :])
        messages = _messages_of(turns[known.turns :])
        room = min(room, room_for(tokens + await self._tokens(messages), self._ratio))
        taken = 0
        while taken not in borders:
            if not tally.may_call:
                return None, ""
            first = min(border for border in borders if border > taken) - taken
            written = await self._writer.carry_on(
                text, messages[taken:], tally, room=room, replaced=tokens, first=first
            )
            if not written.text:
                return None, str(written.failure or "")
            text, tokens = written.text, tokens + await self._tokens(messages[taken : taken + written.taken])
            taken += written.taken
        return _Known(known.turns + borders[taken], KeptSummary(text, BY_MODEL, tokens)), ""

    async def _keep(self, known: _Known, chain: Sequence[str], scope: str) -> None:
        """Keep a summary, and put it on the list of those of chats that begin like this one."""
        name, source = chain[known.turns - 1], known.kept.source
        await self._shelf.put(self._shelf.key(scope, name), known.kept)
        list_key = self._list_keys(chain[: known.turns], scope)[-1]
        listed = {
            by: [n for n in names if n != name] for by, names in (await self._listed([list_key])).items()
        }
        listed[source].append(name)
        await self._shelf.save(list_key, {by: names[-_MOST_LISTED[by] :] for by, names in listed.items()})

    async def _keep_words(
        self, turns: Sequence[Turn], chain: Sequence[str], scope: str, known: _Known, room: int
    ) -> None:
        """Keep, until a model has read them, the last turns' own words behind the summary."""
        kept = await asyncio.to_thread(self._with_words, turns, known, room)
        if kept is not None:
            await self._keep(_Known(len(turns), kept), chain, scope)

    def _with_words(self, turns: Sequence[Turn], known: _Known, room: int) -> KeptSummary | None:
        counter = counter_for(self._writer.name())
        new = _messages_of(turns[known.turns :])
        tokens = tokens_of(new, counter)
        total = known.kept.tokens + tokens
        wanted = int(known.kept.tokens * self._ratio) + max(self._least_new, room_for(tokens, self._ratio))
        room = min(room, wanted, max(LEAST_ROOM, total - 1))
        before = fitted(known.kept.text, int(room * _SUMMARY_SHARE), counter)
        words = extract_of(new, room - counter.count_text(before) - 1, counter, before)
        text = "\n".join(part for part in (before, words) if part)
        if not words or counter.count_text(text) >= total:
            return None
        return KeptSummary(text, BY_EXTRACT, total)

    async def _longest(self, chain: Sequence[str], scope: str, *sources: str) -> _Known:
        """Find the summary of the longest beginning that has one from one of the sources."""
        if not chain:
            return _NOTHING
        places = {name: turns for turns, name in enumerate(chain, start=1)}
        listed = await self._listed(self._list_keys(chain, scope))
        known = {places[name] for source in sources for name in listed[source] if name in places}
        for turns in sorted(known, reverse=True)[:_MOST_LOOKED_UP]:
            kept = await self._shelf.get(self._shelf.key(scope, chain[turns - 1]))
            if kept is not None and kept.source in sources:
                return _Known(turns, kept)
        return _NOTHING

    def _list_keys(self, chain: Sequence[str], scope: str) -> list[str]:
        """Name the lists that a chat's summaries may stand on, the one of the longest beginning last."""
        return [self._shelf.key(scope, "list", name) for name in chain[:_LISTED_BY]]

    async def _listed(self, list_keys: Sequence[str]) -> dict[str, list[str]]:
        """Give the names of beginnings that have a summary, by its source, newest last."""
        lists = await asyncio.gather(*map(self._shelf.load, list_keys))
        listed: dict[str, list[str]] = {source: [] for source in _MOST_LISTED}
        for source, found in itertools.product(listed, filter(None, lists)):
            names = found.get(source) if isinstance(found, dict) else None
            listed[source] += map(str, names) if isinstance(names, list) else ()
        return listed

    async def _tokens(self, messages: Sequence[Message]) -> int:
        counter = await asyncio.to_thread(counter_for, self._writer.name())
        return await asyncio.to_thread(tokens_of, messages, counter)


def prefix_chain(turns: Sequence[Turn]) -> list[str]:
    """Name each beginning of a conversation by the content of its turns, the shortest first."""
    names: list[str] = []
    name = ""
    for turn in turns:
        name = hashlib.blake2b(f"{name} {turn_digest(turn)}".encode(), digest_size=16).hexdigest()
        names.append(name)
    return names


def _messages_of(turns: Sequence[Turn]) -> list[Message]:
    return [message for turn in turns for message in turn.messages]


def _borders(turns: Sequence[Turn]) -> dict[int, int]:
    """Say after how many messages how many whole turns have passed."""
    borders, messages = {}, 0
    for n, turn in enumerate(turns, start=1):
        messages += len(turn.messages)
        borders[messages] = n
    return borders
