"""Summaries in a plan: which turns they may stand for, what room they get, and where they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .bonds import Turn, turns_of
from .conversation import Conversation, Message, RawMessage
from .draft import Draft
from .insertion import SUMMARY_SHARE, Insertion, insertion_of, is_summary
from .job import Job
from .plan import Fate, Plan, Reason
from .summarizers.book import Summary
from .tokens import TokenCounter

# Why a message may be missing and yet its summary be sent. What a user took out stays out.
_REPLACEABLE = frozenset(
    {Reason.LOW_WEIGHT, Reason.NO_ROOM, Reason.STEPS, Reason.IN_SUMMARY, Reason.OLD_THINKING}
)
# Of the room, what is asked for: the next question may be longer, and the summary's model may count otherwise.
_ASKED_SHARE = 0.8


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

    The room is what instructions and the question leave. 0 where not one of the summaries would fit.
    """
    if not summaries or job.bound.tokens is None:
        return 0
    most = min(int(_room_of(job) * SUMMARY_SHARE), draft.room)
    least = min(_tokens_with([summary], job.counter) for summary in summaries)
    return min(most, _tokens_with(summaries, job.counter)) if least <= most else 0


def insert_summaries(
    draft: Draft, messages: Sequence[Message], summaries: Sequence[Summary], most: int, counter: TokenCounter
) -> None:
    """Add the summaries of turns that got no place, the newest first while they fit in `most` and the room."""
    left_out = [
        m for m in messages if not draft.has(m) and draft.refused.get(m.id, Reason.NO_ROOM) in _REPLACEABLE
    ]
    useful = [s for s in summaries if any(m.digest in s.covers for m in left_out)]
    chosen: list[Summary] = []
    insertion: Insertion | None = None
    for summary in reversed(useful):
        told = [m for m in left_out if any(m.digest in s.covers for s in (summary, *chosen))]
        longer = insertion_of([s.text for s in (summary, *chosen)], _turn_start(messages, told[0]), counter)
        if sum(longer.tokens) <= min(most, draft.room):
            insertion, chosen = longer, [summary, *chosen]
    if insertion is not None:
        covered = frozenset(m.id for m in left_out if any(m.digest in s.covers for s in chosen))
        draft.summarize(insertion, covered)


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
    frame = sum(insertion_of([], 0, job.counter).tokens)
    room = int(_room_of(job) * SUMMARY_SHARE * _ASKED_SHARE) - frame
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


def _tokens_with(summaries: Sequence[Summary], counter: TokenCounter) -> int:
    return sum(insertion_of([summary.text for summary in summaries], 0, counter).tokens)


def _turn_start(messages: Sequence[Message], member: Message) -> int:
    """Find where the turn of a message begins."""
    for turn in turns_of(messages):
        if any(m.position == member.position for m in turn.messages):
            return turn.messages[0].position
    return member.position
