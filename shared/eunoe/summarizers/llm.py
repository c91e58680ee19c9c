"""Summaries by a chat model: one call where messages fit its window, else carried on piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..conversation import Message, RawMessage
from ..endpoint import OpenAIChatModel
from ..errors import AnswerRefused, BadSetting, EunoeError, ModelFailed
from ..ports import ChatModel, ChatReply
from ..reply import without_reasoning
from ..tokens import TokenCounter, counter_for
from .checks import checked_summary, fitted, was_cut
from .prompts import REQUEST_TOKENS, sections_request, summary_request
from .sections import read_sections
from .source import SourceFacts, facts_of
from .transcript import first_quotations, most_shown, quoted, share_shown, tokens_of
from .writer import LEAST_ROOM, CallTally, WrittenSections, WrittenSummary, room_for, written_whole

Result = TypeVar("Result")

_FIT_SHARE = 0.9  # of the window; the model may count otherwise than we do
_REPLY_SHARE = 6  # the most of the window that a summary takes
_NOTES_SHARE = 4  # the most that the summary so far takes
_SPARE_SHARE, _MOST_SPARE = 8, 1_024  # of the window, for models that think before they write
_LEAST_QUOTED = 120  # tokens; with less a call is not worth its instructions
_PART_TOKENS = 24  # what frames a part
_BEFORE_SHARE = 8  # of the window, for context that is not summarized
_MOST_SECTIONS = 8  # models lose count in longer lists
_LEAST_WINDOW = 1_024
_TOO_LARGE_PROMPT = frozenset({400, 413, 422})  # what servers answer to a prompt over their window


@dataclass(frozen=True, slots=True)
class _Task:
    """What is to be summarized, as `carry_on` is told it."""

    previous: str
    messages: Sequence[Message]
    room: int
    replaced: int
    first: int
    context: Sequence[Message]


@dataclass(frozen=True, slots=True)
class _Ask:
    """A request for one summary, and what the reply is checked against."""

    previous: str
    chat: str
    before: str
    room: int
    taken: int
    max_tokens: int
    longest: int  # what `max_tokens` may be at most
    facts: SourceFacts

    def request(self, room: int) -> list[RawMessage]:
        """Ask for a summary of about `room` tokens."""
        return summary_request(self.previous, self.chat, room, self.before, self.facts.language)


@dataclass(frozen=True, slots=True)
class _Part:
    """One of several parts that are summarized in one call."""

    place: int
    chat: str
    tokens: int  # of its quotations and its summary
    room: int
    facts: SourceFacts


class LLMSummarizer:
    """Writes summaries with a chat model, `chat` or the one at `api_base`.

    No request is larger than `window_tokens`, and `summarize` takes at most `max_calls` calls and
    `max_seconds`. A summary that was cut off is asked for once more, shorter and with twice the room. A
    server that finds a prompt too large is asked once more with half the window, and from then on at once.

    Raises:
        BadSetting: there is neither an address nor a `chat`.
    """

    def __init__(
        self,
        api_base: str = "",
        api_key: str = "",
        model: str = "",
        *,
        chat: ChatModel | None = None,
        extra_body: Mapping[str, Any] | None = None,
        window_tokens: int = 8_192,
        max_calls: int = 6,
        max_seconds: float = 120.0,
        attempts: int = 3,
        timeout: float = 60.0,
    ) -> None:
        if chat is None and not api_base:
            raise BadSetting(
                "summary_api_base", "there is no address", "Give one, or a chat model as `chat`."
            )
        self._chat = chat or OpenAIChatModel(
            api_base, api_key, model, extra_body=extra_body, timeout=timeout, attempts=attempts
        )
        self._window = max(_LEAST_WINDOW, window_tokens)
        self._max_calls, self._max_seconds = max(1, max_calls), max_seconds

    def name(self) -> str:
        """Name the model."""
        return self._chat.name()

    async def summarize(
        self,
        messages: Sequence[Message],
        *,
        target_ratio: float = 0.3,
        context_messages: Sequence[Message] | None = None,
    ) -> str:
        """Give a summary of about `target_ratio` of the messages' length, in their language.

        `context_messages` stand before them and are not summarized.

        Raises:
            ModelFailed: the model gave no answer.
            AnswerRefused: its answer is no summary.
        """
        counter = await asyncio.to_thread(counter_for, self.name())
        room = room_for(await asyncio.to_thread(tokens_of, messages, counter), target_ratio)
        written = await written_whole(
            self,
            messages,
            CallTally.of(self._max_calls, self._max_seconds),
            room=room,
            context=context_messages or (),
        )
        if written.failure is not None:
            raise written.failure
        return written.text

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
        """Carry a summary on with as many of the messages as one call takes; a failure is told, not raised."""
        task = _Task(previous, messages, room, replaced, first, context)
        try:
            text, taken = await self._sized(lambda window: self._carried_on(task, window, tally), tally)
        except EunoeError as failure:
            return WrittenSummary(failure=failure)
        return WrittenSummary(text, taken)

    async def sections(
        self, parts: Sequence[Sequence[Message]], tally: CallTally, *, ratio: float
    ) -> WrittenSections:
        """Summarize each part by itself, several in one call, the last ones first."""
        texts = [""] * len(parts)
        failure: EunoeError | None = None
        try:
            await self._sized(lambda window: self._fill(texts, parts, ratio, window, tally), tally)
        except EunoeError as error:
            failure = error
        return WrittenSections(tuple(texts), failure)

    async def _sized(self, work: Callable[[int], Awaitable[Result]], tally: CallTally) -> Result:
        """Do what makes requests for a window, and once more for half of it if the server finds them too large."""
        window = self._window
        try:
            return await work(window)
        except ModelFailed as refusal:
            if refusal.status not in _TOO_LARGE_PROMPT or window // 2 < _LEAST_WINDOW or not tally.may_call:
                raise
        done = await work(window // 2)
        self._window = min(self._window, window // 2)
        return done

    async def _carried_on(self, task: _Task, window: int, tally: CallTally) -> tuple[str, int]:
        ask = await asyncio.to_thread(self._ask, task, window, tally.left)
        reply = await self._reply(ask.request(ask.room), ask.max_tokens, tally)
        if was_cut(reply) and tally.may_call:
            more = max(ask.max_tokens, min(2 * ask.max_tokens, ask.longest))
            reply = await self._reply(ask.request(max(LEAST_ROOM, ask.room // 2)), more, tally)
        return await asyncio.to_thread(self._checked, reply, ask.facts, ask.room), ask.taken

    async def _fill(
        self,
        texts: list[str],
        parts: Sequence[Sequence[Message]],
        ratio: float,
        window: int,
        tally: CallTally,
    ) -> None:
        """Put summaries of parts in their places; the first failure of a whole batch ends it."""
        places = [i for i, text in enumerate(texts) if not text]
        failure: EunoeError | None = None
        for batch in await asyncio.to_thread(self._batches, parts, places, ratio, window):
            if not tally.may_call:
                break
            found, problem = await self._sections_of(batch, parts, window, tally)
            for part, text in zip(batch, found, strict=True):
                texts[part.place] = text
            failure = failure or problem
            if not any(found):
                break
        if failure is not None:
            raise failure

    async def _sections_of(
        self, batch: Sequence[_Part], parts: Sequence[Sequence[Message]], window: int, tally: CallTally
    ) -> tuple[list[str], EunoeError | None]:
        """Summarize a batch; one part by itself is summarized like any other messages."""
        if len(batch) == 1:
            part = batch[0]
            whole = await written_whole(self, parts[part.place], tally, room=part.room)
            return [whole.text], whole.failure
        languages = {part.facts.language for part in batch} - {""}
        language = languages.pop() if len(languages) == 1 else ""
        request = sections_request([part.chat for part in batch], [part.room for part in batch], language)
        room = sum(part.room for part in batch)
        reply = await self._reply(request, room * 3 // 2 + _spare(window), tally)
        return await asyncio.to_thread(self._checked_sections, reply, batch)

    async def _reply(self, request: list[RawMessage], max_tokens: int, tally: CallTally) -> ChatReply:
        return await tally.reply(self.name(), lambda: self._chat.complete(request, max_tokens=max_tokens))

    def _ask(self, task: _Task, window: int, calls: int) -> _Ask:
        """Make the request for the first of the messages that fit a window."""
        counter = counter_for(self.name())
        room = min(task.room, window // _REPLY_SHARE)
        max_tokens = min(room * 3 // 2 + _spare(window), window // 4)
        before = _ending(task.context, window // _BEFORE_SHARE, counter)
        notes = fitted(task.previous, window // _NOTES_SHARE, counter)  # written for a larger window, maybe
        fixed = REQUEST_TOKENS + counter.count_text(before) + counter.count_text(notes) * 9 // 8
        usable = max(_LEAST_QUOTED, int(window * _FIT_SHARE) - max_tokens - fixed)
        share = self._share(task.messages[: task.first], usable, max(1, calls - 1), room, counter)
        quotations = first_quotations(task.messages, usable, share, counter)
        shown = sum(q.tokens for q in quotations)
        messages = [q.message for q in quotations]
        return _Ask(
            notes,
            "\n".join(q.text for q in quotations),
            before,
            room,
            len(quotations),
            max_tokens,
            int(window * _FIT_SHARE) - fixed - shown,
            facts_of(task.previous, messages, task.replaced + tokens_of(messages, counter)),
        )

    def _share(
        self, must: Sequence[Message], usable: int, calls: int, room: int, counter: TokenCounter
    ) -> float:
        """Say how much of each message to show so that all have room in so many calls.

        Raises:
            AnswerRefused: they have not, so that it is better not to begin.
        """
        share = share_shown(must, usable, 1, counter)
        if share < 1 and calls > 1:  # later calls show the summary so far
            later = max(_LEAST_QUOTED, usable - room * 9 // 8)
            share = max(share, share_shown(must, later, calls, counter))
        if not share:
            raise AnswerRefused(self.name(), "the messages are too many for its window")
        return share

    def _batches(
        self, parts: Sequence[Sequence[Message]], places: Sequence[int], ratio: float, window: int
    ) -> list[list[_Part]]:
        """Cut parts into batches that fit a window each, the last parts first."""
        counter = counter_for(self.name())
        usable = int(window * _FIT_SHARE) - REQUEST_TOKENS - _spare(window)
        batches: list[list[_Part]] = []
        for place in reversed(places):
            part = _part_of(place, parts[place], ratio, usable, counter)
            last = batches[-1] if batches else []
            full = len(last) == _MOST_SECTIONS or sum(p.tokens for p in last) + part.tokens > usable
            if not last or full:
                batches.append([])
            batches[-1].append(part)
        return [batch[::-1] for batch in batches]

    def _checked(self, reply: ChatReply, facts: SourceFacts, room: int) -> str:
        return checked_summary(reply, facts, room, counter_for(self.name()), self.name())

    def _checked_sections(
        self, reply: ChatReply, batch: Sequence[_Part]
    ) -> tuple[list[str], EunoeError | None]:
        found = read_sections(without_reasoning(reply.text), len(batch))
        last = max((i for i, text in enumerate(found) if text), default=-1)
        texts: list[str] = []
        failure: EunoeError | None = None
        for i, (text, part) in enumerate(zip(found, batch, strict=True)):
            section = ChatReply(text, reply.finish_reason if i == last else "stop")
            try:
                texts.append(self._checked(section, part.facts, part.room))
            except AnswerRefused as refusal:
                texts.append("")
                failure = failure or refusal
        return texts, failure


def _spare(window: int) -> int:
    return min(_MOST_SPARE, window // _SPARE_SHARE)


def _ending(messages: Sequence[Message], tokens: int, counter: TokenCounter) -> str:
    """Quote the last of the messages, as many as fit."""
    texts: list[str] = []
    for message in reversed(messages):
        quotation = quoted(message, most_shown(message, tokens), counter)
        tokens -= quotation.tokens
        if tokens < 0:
            break
        texts.append(quotation.text)
    return "\n".join(reversed(texts))


def _part_of(
    place: int, messages: Sequence[Message], ratio: float, usable: int, counter: TokenCounter
) -> _Part:
    quotations = [quoted(m, most_shown(m, usable), counter) for m in messages]
    tokens = tokens_of(messages, counter)
    room = room_for(tokens, ratio)
    size = sum(q.tokens for q in quotations) + room * 3 // 2 + _PART_TOKENS
    return _Part(place, "\n".join(q.text for q in quotations), size, room, facts_of("", messages, tokens))
