"""Summaries in a plan: which turns they may stand for, what room they get, and where they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .bonds import Turn, turns_of
from .conversation import Conversation, Message, RawMessage
from .draft import NO_LIMIT, Draft
from .insertion import SUMMARY_SHARE, Insertion, insertion_of, is_summary
from .job import Job
from .plan import Fate, Plan, Reason
from .summarizers.book import Summary
from .tokens import TokenCounter

# Why a message may be missing and yet its summary be sent. What a user took out stays out.
_REPLACEABLE = frozenset(
    {Reason.LOW_WEIGHT, Reason.NO_ROOM, Reason.STEPS, Reason.IN_SUMMARY, Reason.OLD_THINKING}
)
_LEAST_ROOM = 60  # tokens; a frame alone takes about as many


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
    """Give the turns before the present one that summaries may tell of; none if the user wants none."""
    if "nosum" in job.directives.turn:
        return ()
    return tuple(turn for turn in turns_of(job.kept)[:-1] if _may_be_told(turn))


def held_room(draft: Draft, summaries: Sequence[Summary], counter: TokenCounter) -> int:
    """Say how many tokens to keep free for summaries: what they take, at most a fifth of the room."""
    if not summaries or draft.room >= NO_LIMIT // 2:
        return 0
    wanted = sum(insertion_of([summary.text for summary in summaries], 0, counter).tokens)
    most = int(draft.room * SUMMARY_SHARE)
    return min(wanted, most) if most >= _LEAST_ROOM else 0


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
    bound = job.bound.tokens or plan.tokens_after
    room = int(max(0, bound - job.overhead - plan.instruction_tokens) * SUMMARY_SHARE)
    return Recap(tuple(message.raw for message in messages), places, room)


def turns_to_tell(recap: Recap, *, all_of_them: bool) -> tuple[Turn, ...]:
    """Give the turns of a recap again: all of them, or those of which something was left out."""
    turns, places = turns_of(Conversation.from_openai_messages(recap.messages).messages), set(recap.left_out)
    return turns if all_of_them else tuple(t for t in turns if any(m.position in places for m in t.messages))


def _may_be_told(turn: Turn) -> bool:
    return not is_summary(turn.messages[0].raw) and not any(m.excluded for m in turn.messages)


def _turn_start(messages: Sequence[Message], member: Message) -> int:
    """Find where the turn of a message begins."""
    for turn in turns_of(messages):
        if any(m.position == member.position for m in turn.messages):
            return turn.messages[0].position
    return member.position
