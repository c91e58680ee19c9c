"""Who writes summaries for the books: a model with windows, or any summarizer that somebody plugs in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..conversation import Message, digest_of
from ..errors import AnswerRefused, EunoeError, ModelFailed
from ..ports import ChatReply, Summarizer
from ..tokens import counter_for
from ..usage import Usage
from .checks import checked_summary
from .source import facts_of
from .transcript import tokens_of

LEAST_ROOM = 60  # tokens; a summary that must be shorter has no place for values


@dataclass(slots=True)
class CallTally:
    """The model calls that may still be made, and what those made were billed.

    `until` is a time of the monotonic clock. A call whose bill nobody knows counts as an empty `Usage`.
    """

    left: int
    until: float
    usages: list[Usage] = field(default_factory=list)

    @classmethod
    def of(cls, calls: int, seconds: float) -> CallTally:
        """Allow so many calls in so many seconds from now."""
        return cls(calls, time.monotonic() + seconds)

    @property
    def may_call(self) -> bool:
        """Say whether there is a call and time left."""
        return self.left > 0 and time.monotonic() < self.until

    async def reply(self, model: str, ask: Callable[[], Awaitable[ChatReply]]) -> ChatReply:
        """Make a call and wait for its answer, as long as there is time.

        Raises:
            ModelFailed: there is none. Somebody else's client may raise anything; it ends here.
        """
        self.left -= 1
        try:
            async with asyncio.timeout(self.until - time.monotonic()):
                reply = await ask()
            reply = replace(reply, text=reply.text or "")
        except EunoeError:
            raise
        except TimeoutError:
            self.usages.append(Usage())
            raise ModelFailed(model, "it gave no answer in time", passing=True) from None
        except Exception as error:  # noqa: BLE001  see above
            raise ModelFailed(model, f"it failed ({type(error).__name__})") from None
        self.usages.append(reply.usage)
        return reply


@dataclass(frozen=True, slots=True)
class WrittenSummary:
    """What came of asking for a summary: `text` is empty where there is none, and `failure` says why.

    `taken` is how many of the messages it covers.
    """

    text: str = ""
    taken: int = 0
    failure: EunoeError | None = None


@dataclass(frozen=True, slots=True)
class WrittenSections:
    """What came of asking for summaries of several parts; a text is empty where there is none."""

    texts: tuple[str, ...]
    failure: EunoeError | None = None


class SummaryWriter(Protocol):
    """Writes summaries that have been checked, with the calls of a tally; never raises an EunoeError."""

    async def carry_on(
        self,
        previous: str,
        messages: Sequence[Message],
        tally: CallTally,
        *,
        room: int,
        replaced: int = 0,
        first: int = 0,
        context: Sequence[Message] = (),
    ) -> WrittenSummary:
        """Carry a summary on with the first of the messages, as many as one call takes.

        `room` is the most tokens of the new summary, `replaced` how many tokens of messages `previous`
        stands for. The `first` messages must find room in the calls there are, however much has to be
        shortened. `context` stands before the messages and is not summarized.
        """
        ...

    async def sections(
        self, parts: Sequence[Sequence[Message]], tally: CallTally, *, ratio: float
    ) -> WrittenSections:
        """Summarize each part by itself, several in one call where that can be done, the last ones first."""
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
        tally: CallTally,
        *,
        room: int,
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
            reply = await tally.reply(
                self.name(), lambda: self._summarized([*noted, *messages], ratio, context)
            )
            facts = await asyncio.to_thread(facts_of, previous, messages, total)
            text = await asyncio.to_thread(checked_summary, reply, facts, room, counter, self.name())
        except EunoeError as failure:
            return WrittenSummary(failure=failure)
        return WrittenSummary(text, len(messages))

    async def sections(
        self, parts: Sequence[Sequence[Message]], tally: CallTally, *, ratio: float
    ) -> WrittenSections:
        """Summarize as many parts as there are calls, the last ones first; a failure ends it."""
        counter = await asyncio.to_thread(counter_for, "")
        texts = [""] * len(parts)
        failure: EunoeError | None = None
        for i in reversed(range(len(parts))):
            if failure or not tally.may_call:
                break
            room = room_for(await asyncio.to_thread(tokens_of, parts[i], counter), ratio)
            written = await self.carry_on("", parts[i], tally, room=room)
            texts[i], failure = written.text, written.failure
        return WrittenSections(tuple(texts), failure)

    async def _summarized(
        self, messages: Sequence[Message], ratio: float, context: Sequence[Message]
    ) -> ChatReply:
        before = context or None
        text = await self._backend.summarize(messages, target_ratio=ratio, context_messages=before)
        return ChatReply(str(text))


def room_for(tokens: int, ratio: float) -> int:
    """Say how many tokens a summary of `tokens` may have."""
    return max(LEAST_ROOM, int(tokens * ratio))


async def written_whole(
    writer: SummaryWriter,
    messages: Sequence[Message],
    tally: CallTally,
    *,
    room: int,
    context: Sequence[Message] = (),
) -> WrittenSummary:
    """Write one summary of all messages, piece by piece where they are too many for one call."""
    counter = await asyncio.to_thread(counter_for, "")
    text, taken = "", 0
    while taken < len(messages):
        if not tally.may_call:
            return WrittenSummary(
                failure=AnswerRefused(writer.name(), "its summary took too many calls or too long")
            )
        rest = messages[taken:]
        replaced = await asyncio.to_thread(tokens_of, messages[:taken], counter)
        step = await writer.carry_on(
            text, rest, tally, room=room, replaced=replaced, first=len(rest), context=context
        )
        if not step.text:
            return step
        text, taken = step.text, taken + step.taken
    return WrittenSummary(text, taken)


def _as_message(text: str) -> Message:
    raw = {"role": "assistant", "content": text}
    digest = digest_of(raw)
    return Message(raw, 0, digest, digest)
