"""Summaries in a plan: which turns they may stand for, what room they get, and where they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .bonds import Turn, turns_of
from .conversation import Conversation, Message, RawMessage
from .draft import Draft
from .insertion import SUMMARY_SHARE, Insertion, insertion_of, is_summary
from .job import Job
from .plan import Fate, Plan, Reason
from .summarizers.book import Summary
from .summarizers.checks import fitted
from .tokens import TokenCounter

# Why a message may be missing and yet its summary be sent. What a user took out stays out.
_REPLACEABLE = frozenset(
    {Reason.LOW_WEIGHT, Reason.NO_ROOM, Reason.STEPS, Reason.IN_SUMMARY, Reason.OLD_THINKING}
)
# Of the room, what is asked for: the next question may be longer, and the summary's model may count otherwise.
_ASKED_SHARE = 0.8
LEAST_SUMMARY = 24  # tokens; what is shorter tells nothing


@dataclass(frozen=True, slots=True)
class Recap:
    """Turns that are to be summarized once the answer is there: plain messages, and the room for it."""

    messages: tuple[RawMessage, ...]  # all earlier turns, up to the newest that was left out
    left_out: tuple[int, ...]  # which of them were left out, by their place in `messages`
    room_tokens: int

    def as_plain(self) -> dict[str, Any]:
        """Write as a plain dictionary, for a host that carries it from hook to hook."""
        return {"messages": [*self.messages], "left_out": [*self.left_out], "room": self.room_tokens}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Recap:
        """Read what `as_plain` wrote."""
        return cls(tuple(plain["messages"]), tuple(plain["left_out"]), int(plain["room"]))


def summarizable(job: Job) -> tuple[Turn, ...]:
    """Give the turns before the present one that summaries may tell of.

    None if the user wants none, or if an earlier call of the turn has put a summary among the messages.
    """
    if "nosum" in job.directives.turn or any(is_summary(message.raw) for message in job.kept):
        return ()
    return tuple(turn for turn in turns_of(job.kept)[:-1] if not any(m.excluded for m in turn.messages))


def held_room(job: Job, draft: Draft, summaries: Sequence[Summary]) -> int:
    """Say how many tokens to keep free for summaries: what they take, at most a fifth of the room.

    The room is what instructions and the question leave. 0 where not even a shortened summary would fit.
    """
    if not summaries or job.bound.tokens is None:
        return 0
    most = min(int(_room_of(job) * SUMMARY_SHARE), draft.room)
    wanted = sum(insertion_of([summary.text for summary in summaries], 0, job.counter).tokens)
    return min(most, wanted) if most >= _frame_tokens(job.counter) + LEAST_SUMMARY else 0


def insert_summaries(
    draft: Draft, messages: Sequence[Message], summaries: Sequence[Summary], most: int, counter: TokenCounter
) -> None:
    """Add the summaries of turns that got no place, the newest first while they fit in `most` and the room.

    Where none fits whole, as after a change to a tighter limit, the newest is shortened.
    """
    most, turns = min(most, draft.room), turns_of(messages)
    told = [(summary, _left_out_of(draft, turns, summary)) for summary in summaries]
    told = [(summary, left_out) for summary, left_out in told if left_out]
    chosen: list[tuple[Summary, Sequence[Message]]] = []
    for each in reversed(told):
        if sum(_inserted(turns, [each, *chosen], counter).tokens) <= most:
            chosen.insert(0, each)
    if told and not chosen:
        newest, left_out = told[-1]
        text = fitted(newest.text, most - _frame_tokens(counter), counter)
        chosen = [(replace(newest, text=text), left_out)]
    if chosen and sum((insertion := _inserted(turns, chosen, counter)).tokens) <= most:
        draft.summarize(insertion, frozenset(m.id for _, left_out in chosen for m in left_out))


def recap_of(job: Job, plan: Plan) -> Recap | None:
    """Say what is to be summarized after a plan; None if nothing was left out for want of room."""
    turns = summarizable(job)
    replaced = {
        d.message.id
        for d in plan.decisions
        if d.fate is Fate.SUMMARIZED or (d.fate is Fate.DROPPED and d.reason in _REPLACEABLE)
    }
    missing = [i for i, turn in enumerate(turns) if any(m.id in replaced for m in turn.messages)]
    if not missing:
        return None
    messages = [message for turn in turns[: missing[-1] + 1] for message in turn.messages]
    places = tuple(i for i, message in enumerate(messages) if message.id in replaced)
    room = int(_room_of(job) * SUMMARY_SHARE * _ASKED_SHARE) - _frame_tokens(job.counter)
    return Recap(tuple(message.raw for message in messages), places, max(0, room))


def turns_to_tell(recap: Recap, *, all_of_them: bool) -> tuple[Turn, ...]:
    """Give the turns of a recap again: all of them, or those of which something was left out."""
    turns, places = turns_of(Conversation.from_openai_messages(recap.messages).messages), set(recap.left_out)
    return turns if all_of_them else tuple(t for t in turns if any(m.position in places for m in t.messages))


def _room_of(job: Job) -> int:
    """Say how many tokens instructions and the question leave."""
    bound = job.tokens if job.bound.tokens is None else job.bound.tokens
    question = job.conversation.question
    fixed = sum(m.token_count for m in job.kept if m.is_instruction or (question and m.id == question.id))
    return max(0, bound - job.overhead - fixed)


def _frame_tokens(counter: TokenCounter) -> int:
    return sum(insertion_of([], 0, counter).tokens)


def _left_out_of(draft: Draft, turns: Sequence[Turn], summary: Summary) -> Sequence[Message]:
    """Give what got no place of the turns that a summary tells of."""
    return [
        message
        for turn in turns
        if all(message.digest in summary.covers for message in turn.messages)
        for message in turn.messages
        if not draft.has(message) and draft.refused.get(message.id, Reason.NO_ROOM) in _REPLACEABLE
    ]


def _inserted(
    turns: Sequence[Turn], told: Sequence[tuple[Summary, Sequence[Message]]], counter: TokenCounter
) -> Insertion:
    """Frame summaries, before the first turn that one of them tells of and of which something is missing."""
    first = min(left_out[0].position for _, left_out in told)
    starts = [turn.messages[0].position for turn in turns if turn.messages[0].position <= first]
    return insertion_of([summary.text for summary, _ in told], starts[-1], counter)
