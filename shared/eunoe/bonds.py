"""What lives and dies together: a tool call with its results, a question with its answer.

`repair` makes a list that providers accept out of one they may refuse; `turns_of` cuts a conversation
into turns, the smallest things that may be dropped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from .conversation import Message, RawMessage, Traits, calls_of, is_blank, traits_in

ORPHAN_RESULT = "orphan_result"
UNANSWERED_CALL = "unanswered_call"
EMPTY_MESSAGE = "empty_message"


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a turn that can only go as a whole: a tool call with its results, or one message."""

    messages: tuple[Message, ...]

    @property
    def is_exchange(self) -> bool:
        """Say whether it is a tool call with its results."""
        return self.messages[0].calls_tools or self.messages[0].is_result

    @property
    def tokens(self) -> int:
        """Add up the tokens of its messages."""
        return sum(message.token_count for message in self.messages)


class Turn(NamedTuple):
    """A user message and all that came of it, or what stands before the first user message.

    `opener` is the user message, if any, `answer` the last text of the assistant that calls no tool. A
    named tuple for the reason that `Message` is one.
    """

    messages: tuple[Message, ...]
    opener: Message | None
    answer: Message | None

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Give its parts in order; none reaches beyond a turn."""
        return tuple(_blocks_of(self.messages))

    @property
    def ends(self) -> tuple[Message, ...]:
        """Give its question and its answer, as far as it has them."""
        return tuple(end for end in (self.opener, self.answer) if end is not None)

    @property
    def steps(self) -> tuple[Block, ...]:
        """Give what lies between the opener and the answer."""
        ends = {id(end) for end in self.ends}
        return tuple(block for block in self.blocks if id(block.messages[0]) not in ends)


@dataclass(frozen=True, slots=True)
class Repair:
    """What `repair` did to one message: `raw` is its new form, or None if it is not sent."""

    message: Message
    raw: RawMessage | None
    reason: str


def repair(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Repair, ...]]:
    """Take out what providers refuse: results without calls, calls without results, empty replies.

    Gives the messages that remain, the changed ones with a new `raw`, and what was done to which.
    """
    if False not in [known.is_sound for known in traits_in(messages)]:
        return tuple(messages), ()
    outcomes: list[Message | Repair] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        if message.role == "tool":
            outcomes.append(Repair(message, None, ORPHAN_RESULT))
        elif message.role == "assistant" and message.raw.get("tool_calls"):
            end = index
            while end < len(messages) and messages[end].role == "tool":
                end += 1
            outcomes += _repaired_exchange(message, messages[index:end])
            index = end
        elif message.role == "assistant" and is_blank(message.raw):
            outcomes.append(Repair(message, None, EMPTY_MESSAGE))
        else:
            outcomes.append(message)
    repairs = tuple(outcome for outcome in outcomes if isinstance(outcome, Repair))
    return tuple(kept for outcome in outcomes if (kept := _remaining(outcome))), repairs


def _remaining(outcome: Message | Repair) -> Message | None:
    if isinstance(outcome, Message):
        return outcome
    return None if outcome.raw is None else outcome.message.with_raw(outcome.raw)


def _repaired_exchange(call: Message, results: Sequence[Message]) -> list[Message | Repair]:
    asked = [c.get("id") if isinstance(c, dict) else None for c in calls_of(call.raw)]
    answers: dict[str, Message] = {}
    for result in results:
        answered = result.raw.get("tool_call_id")
        if isinstance(answered, str) and answered in asked:
            answers.setdefault(answered, result)
    good = [i for i, name in enumerate(asked) if name in answers and asked.index(name) == i]
    whole = bool(good) and len(good) == len(asked)
    first: Message | Repair = call if whole else Repair(call, _without_calls(call.raw, good), UNANSWERED_CALL)
    kept = {id(answer) for answer in answers.values()}
    return [first, *(r if id(r) in kept else Repair(r, None, ORPHAN_RESULT) for r in results)]


def _without_calls(raw: RawMessage, good: Sequence[int]) -> RawMessage | None:
    calls = calls_of(raw)
    if good:
        return {**raw, "tool_calls": [calls[i] for i in good]}
    rest = {key: value for key, value in raw.items() if key != "tool_calls"}
    return None if is_blank(rest) else rest


def turns_of(messages: Iterable[Message]) -> tuple[Turn, ...]:
    """Cut messages into turns; system and developer messages belong to none."""
    members = tuple(messages)
    traits = traits_in(members)
    if True in [known.is_instruction for known in traits]:
        members = tuple([m for m, known in zip(members, traits, strict=True) if not known.is_instruction])
        traits = traits_in(members)
    starts = [i for i, known in enumerate(traits) if known.role == "user"]
    if members and starts[:1] != [0]:
        starts.insert(0, 0)
    return tuple(
        [
            _turn_of(members[start:end], traits[start:end])
            for start, end in zip(starts, [*starts[1:], len(members)], strict=False)
        ]
    )


def _turn_of(members: tuple[Message, ...], traits: Sequence[Traits]) -> Turn:
    last = len(members) - 1
    while last > 0 and not traits[last].is_answer:
        last -= 1
    opener = members[0] if traits[0].role == "user" else None
    return _made_turn((members, opener, members[last] if traits[last].is_answer else None))


# Makes a turn of a tuple of its fields, at the speed of C.
_made_turn: Callable[[Iterable[Any]], Turn] = partial(tuple.__new__, Turn)


def messages_in(turns: Iterable[Turn]) -> list[Message]:
    """Give the messages of turns, in order."""
    return list(chain.from_iterable(map(_MESSAGES, turns)))


_MESSAGES: Callable[[Turn], tuple[Message, ...]] = operator.itemgetter(0)


def turns_holding(messages: Sequence[Message], places: Iterable[int]) -> tuple[Turn, ...]:
    """Give the turns that hold the messages at `places`, which ascend; the last turn of all is left out."""
    roles = [known.role for known in traits_in(messages)]
    found: list[Turn] = []
    end = 0
    for place in places:
        if place < end:
            continue
        start = place
        while start > end and roles[start] != "user":
            start -= 1
        try:
            end = roles.index("user", place + 1)
        except ValueError:
            break
        found += turns_of(messages[start:end])
    return tuple(found)


def _blocks_of(messages: Sequence[Message]) -> list[Block]:
    blocks: list[list[Message]] = []
    for message in messages:
        if message.is_result and blocks and (blocks[-1][0].calls_tools or blocks[-1][0].is_result):
            blocks[-1].append(message)
        else:
            blocks.append([message])
    return [Block(tuple(block)) for block in blocks]
