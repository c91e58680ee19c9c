"""What lives and dies together: a tool call with its results, a question with its answer.

`repair` makes a list that providers accept out of one they may refuse; `turns_of` cuts a conversation
into turns, the smallest things that may be dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .conversation import Message, RawMessage, calls_of, is_blank

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


@dataclass(frozen=True, slots=True)
class Turn:
    """A user message and all that came of it, or what stands before the first user message."""

    blocks: tuple[Block, ...]
    messages: tuple[Message, ...]  # those of all blocks, in order

    @property
    def opener(self) -> Message | None:
        """Give the user message it opens with, if any."""
        first = self.blocks[0].messages[0]
        return first if first.role == "user" else None

    @property
    def answer(self) -> Message | None:
        """Give the last text of the assistant that calls no tool."""
        texts = (b.messages[0] for b in reversed(self.blocks) if not b.is_exchange)
        return next((m for m in texts if m.is_answer), None)

    @property
    def steps(self) -> tuple[Block, ...]:
        """Give what lies between the opener and the answer."""
        ends = {id(end) for end in (self.opener, self.answer) if end is not None}
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


def turns_of(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """Cut messages into turns; system and developer messages belong to none."""
    turns: list[list[Block]] = []
    for block in _blocks_of([m for m in messages if not m.is_instruction]):
        if not turns or block.messages[0].role == "user":
            turns.append([])
        turns[-1].append(block)
    return tuple(Turn(tuple(blocks), tuple(m for b in blocks for m in b.messages)) for blocks in turns)


def _blocks_of(messages: Sequence[Message]) -> list[Block]:
    blocks: list[list[Message]] = []
    for message in messages:
        if message.is_result and blocks and (blocks[-1][0].calls_tools or blocks[-1][0].is_result):
            blocks[-1].append(message)
        else:
            blocks.append([message])
    return [Block(tuple(block)) for block in blocks]
