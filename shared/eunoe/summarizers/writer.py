"""Who writes summaries for the books: a model with windows, or any summarizer that somebody plugs in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..conversation import Message, digest_of
from ..errors import AnswerRefused, EunoeError, ModelFailed
from ..ports import ChatReply, Summarizer
from ..tokens import TokenCounter, counter_for
from ..usage import Usage
from .checks import checked_summary
from .source import facts_of
from .transcript import tokens_of

LEAST_ROOM = 40  # tokens; a summary that must be shorter says nothing


@dataclass(frozen=True, slots=True)
class WrittenSummary:
    """What came of asking for a summary: `text` is empty where there is none, and `failure` says why.

    `taken` is how many of the messages it covers, `usages` are those of all calls that were answered.
    """

    text: str = ""
    taken: int = 0
    failure: EunoeError | None = None
    usages: tuple[Usage, ...] = ()
    calls: int = 0


@dataclass(frozen=True, slots=True)
class WrittenSections:
    """What came of asking for summaries of several parts; a text is empty where there is none."""

    texts: tuple[str, ...]
    failure: EunoeError | None = None
    usages: tuple[Usage, ...] = ()
    calls: int = 0


class SummaryWriter(Protocol):
    """Writes summaries that have been checked, in a bounded number of calls; never raises an EunoeError."""

    async def carry_on(
        self,
        previous: str,
        messages: Sequence[Message],
        *,
        room: int,
        calls: int,
        replaced: int = 0,
        first: int = 0,
        context: Sequence[Message] = (),
    ) -> WrittenSummary:
        """Carry a summary on with the first of the messages, as many as one call takes.

        `room` is the most tokens of the new summary, `replaced` how many tokens of messages `previous`
        stands for. The `first` messages must find room in `calls` calls, however much has to be shortened.
        `context` stands before the messages and is not summarized.
        """
        ...

    async def sections(
        self, parts: Sequence[Sequence[Message]], *, ratio: float, calls: int
    ) -> WrittenSections:
        """Summarize each part by itself, several in one call where that can be done."""
        ...

    def name(self) -> str:
        """Name who writes, for cache keys."""
        ...


class PluggedWriter:
    """Writes with any summarizer, one call for a summary; what it gives is checked like a model's."""

    def __init__(self, backend: Summarizer) -> None:
        self._backend = backend

    def name(self) -> str:
        """Name the summarizer."""
        return self._backend.name()

    async def carry_on(
        self,
        previous: str,
        messages: Sequence[Message],
        *,
        room: int,
        calls: int,  # noqa: ARG002  it takes one
        replaced: int = 0,
        first: int = 0,  # noqa: ARG002  it takes all messages at once
        context: Sequence[Message] = (),
    ) -> WrittenSummary:
        """Carry a summary on with all messages."""
        counter = await asyncio.to_thread(counter_for, "")
        total = replaced + await asyncio.to_thread(tokens_of, messages, counter)
        noted = [_as_message(previous)] if previous else []
        ratio = min(0.9, room / max(1, total))
        try:
            text = await _summarized(self._backend, [*noted, *messages], ratio, context)
            text = await asyncio.to_thread(self._checked, text, previous, messages, total, room, counter)
        except EunoeError as failure:
            return WrittenSummary(failure=failure, calls=1)
        return WrittenSummary(text, len(messages), calls=1)

    async def sections(
        self, parts: Sequence[Sequence[Message]], *, ratio: float, calls: int
    ) -> WrittenSections:
        """Summarize as many parts as there are calls, the last ones first."""
        counter = await asyncio.to_thread(counter_for, "")
        texts, used = [""] * len(parts), 0
        failure: EunoeError | None = None
        for i in reversed(range(len(parts))):
            if used >= calls or failure:
                break
            room = room_for(await asyncio.to_thread(tokens_of, parts[i], counter), ratio)
            written = await self.carry_on("", parts[i], room=room, calls=1)
            texts[i], failure = written.text, written.failure
            used += 1
        return WrittenSections(tuple(texts), failure, calls=used)

    def _checked(
        self,
        text: str,
        previous: str,
        messages: Sequence[Message],
        tokens: int,
        room: int,
        counter: TokenCounter,
    ) -> str:
        facts = facts_of(previous, messages, tokens)
        return checked_summary(ChatReply(text), facts, room, counter, self.name())


def room_for(tokens: int, ratio: float) -> int:
    """Say how many tokens a summary of `tokens` may have."""
    return max(LEAST_ROOM, int(tokens * ratio))


async def written_whole(
    writer: SummaryWriter,
    messages: Sequence[Message],
    *,
    room: int,
    calls: int,
    context: Sequence[Message] = (),
) -> WrittenSummary:
    """Write one summary of all messages, piece by piece where they are too many for one call."""
    counter = await asyncio.to_thread(counter_for, "")
    done = WrittenSummary()
    while done.taken < len(messages):
        left, rest = calls - done.calls, messages[done.taken :]
        if left < 1:
            failure = AnswerRefused(writer.name(), "its summary took too many calls")
            return replace(done, text="", failure=failure)
        replaced = await asyncio.to_thread(tokens_of, messages[: done.taken], counter)
        step = await writer.carry_on(
            done.text, rest, room=room, calls=left, replaced=replaced, first=len(rest), context=context
        )
        usages, used = (*done.usages, *step.usages), done.calls + step.calls
        if not step.text:
            return WrittenSummary("", done.taken, step.failure, usages, used)
        done = WrittenSummary(step.text, done.taken + step.taken, None, usages, used)
    return done


def _as_message(text: str) -> Message:
    raw = {"role": "assistant", "content": text}
    digest = digest_of(raw)
    return Message(raw, 0, digest, digest)


async def _summarized(
    backend: Summarizer, messages: Sequence[Message], ratio: float, context: Sequence[Message]
) -> str:
    """Ask a summarizer that somebody plugged in, whose faults must not stop a chat."""
    try:
        return str(await backend.summarize(messages, target_ratio=ratio, context_messages=context or None))
    except EunoeError:
        raise
    except Exception as error:  # noqa: BLE001  it is not ours, and may raise anything
        raise ModelFailed(backend.name(), f"it failed ({type(error).__name__})") from None
