"""What is kept before anything is weighed: instructions, the question, the present turn, pins, the task.

Everything but instructions, the question and an unfinished reply yields where the bound leaves no room.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .bonds import Block, Turn, messages_in
from .conversation import Message, traits_in
from .draft import Draft
from .flags import Directives
from .insertion import is_summary
from .plan import Reason

# Shares of the room that is left when their turn comes.
NEWEST_STEP_SHARE = 0.8
LAST_TURN_SHARE = 0.6
OPENING_SHARE = 0.25
PARTNER_SHARE = 0.12  # for the answer to a pinned or opening message, which is shortened to it
LEAST_PARTNER = 60

_EXCLUDED, _PINNED = operator.attrgetter("excluded"), operator.attrgetter("pinned")


@dataclass(frozen=True, slots=True)
class Layout:
    """A conversation cut up: instructions, the turns before the question, the present turn."""

    instructions: tuple[Message, ...]
    earlier: tuple[Turn, ...]
    present: Turn | None

    @property
    def unfinished(self) -> Message | None:
        """Find the reply that is being continued: an assistant's text at the very end."""
        if self.present is None:
            return None
        message = self.present.blocks[-1].messages[-1]
        return message if message.is_answer else None

    @property
    def steps(self) -> tuple[Block, ...]:
        """Give what the present turn holds besides the question and the unfinished reply."""
        if self.present is None:
            return ()
        ends = {id(self.present.opener), id(self.unfinished)}
        return tuple(block for block in self.present.blocks if id(block.messages[0]) not in ends)


def layout_of(instructions: Sequence[Message], turns: Sequence[Turn]) -> Layout:
    """Lay a conversation out; the last turn is the present one."""
    return Layout(tuple(instructions), tuple(turns[:-1]), turns[-1] if turns else None)


def place_anchors(draft: Draft, layout: Layout, directives: Directives) -> None:
    """Give places to what is kept before anything is weighed, the most needed first."""
    for message in layout.instructions:
        draft.force(message, Reason.INSTRUCTION)
    _place_ends(draft, layout)
    layout = _without_refused(draft, layout, directives)
    context = directives.turn.get("context")
    # The present turn is one of the turns that !context counts.
    too_old = 0 if context is None else max(0, len(layout.earlier) + 1 - context)
    _place_newest_step(draft, layout)
    _place_pinned(draft, layout, directives)
    if layout.earlier and too_old == 0:
        _place_opening(draft, layout)
    _place_summaries(draft, layout)
    _place_steps(draft, layout)
    _place_recent(draft, layout, directives)
    if too_old < len(layout.earlier):
        _place_last_turn(draft, layout.earlier[-1])
    for turn in layout.earlier[:too_old]:
        draft.refuse(turn.messages, Reason.CONTEXT_FLAG)


def _without_refused(draft: Draft, layout: Layout, directives: Directives) -> Layout:
    """Refuse the turns that flags take out, whatever else speaks for them."""
    if "only" in directives.turn:
        draft.refuse(messages_in(layout.earlier), Reason.ONLY)
        return replace(layout, earlier=())
    if not any(map(_EXCLUDED, messages_in(layout.earlier))):
        return layout
    remaining = []
    for turn in layout.earlier:
        if any(map(_EXCLUDED, turn.messages)):
            draft.refuse(turn.messages, Reason.EXCLUDED)
        else:
            remaining.append(turn)
    return replace(layout, earlier=tuple(remaining))


def _place_ends(draft: Draft, layout: Layout) -> None:
    if layout.present is None:
        return
    if layout.present.opener is not None:
        draft.force(layout.present.opener, Reason.QUESTION)
    if layout.unfinished is not None:
        draft.force(layout.unfinished, Reason.UNFINISHED)


def _place_newest_step(draft: Draft, layout: Layout) -> None:
    if not layout.steps:
        return
    newest = layout.steps[-1].messages
    if draft.claim(newest, Reason.NEWEST_STEP):
        return
    if not draft.claim_shortened(newest, Reason.NEWEST_STEP, within=int(draft.room * NEWEST_STEP_SHARE)):
        draft.claim_shortened(newest, Reason.NEWEST_STEP, within=draft.room)
    draft.refuse(newest, Reason.NO_ROOM)


def _place_steps(draft: Draft, layout: Layout) -> None:
    """Keep the older steps of the present turn as far back as they fit, without a gap."""
    going = True
    for block in reversed(layout.steps[:-1]):
        going = going and draft.claim(block.messages, Reason.TOOL_LOOP)
        draft.refuse(block.messages, Reason.OLDER_STEP)


def _place_pinned(draft: Draft, layout: Layout, directives: Directives) -> None:
    tag = directives.turn.get("keep_tag")
    if tag is None and not any(map(_PINNED, messages_in(layout.earlier))):
        return
    for turn in reversed(layout.earlier):
        for message in turn.messages:
            tagged = tag is not None and tag in message.tags
            if message.pinned or tagged:
                _place_with_partner(draft, turn, message, Reason.PIN if message.pinned else Reason.TAG)


def _place_summaries(draft: Draft, layout: Layout) -> None:
    """Keep what an earlier call of the turn was sent in place of the turns it left out."""
    firsts = traits_in([turn.messages[0] for turn in layout.earlier])
    for turn, known in zip(layout.earlier, firsts, strict=True):
        if known.opening == "<" and is_summary(turn.messages[0].raw):  # hardly a message begins so
            draft.claim(turn.messages, Reason.SUMMARY)


def _place_opening(draft: Draft, layout: Layout) -> None:
    first = layout.earlier[0]
    if is_summary(first.messages[0].raw):
        return
    opener = first.opener or (layout.earlier[1].opener if len(layout.earlier) > 1 else None)
    if opener is None:
        return
    turn = first if first.opener else layout.earlier[1]
    share = int(draft.room * OPENING_SHARE)
    if opener.token_count <= share:
        _place_with_partner(draft, turn, opener, Reason.OPENING_TASK)
    else:
        ends = [opener] if turn.answer is None else [opener, turn.answer]
        draft.claim_shortened(ends, Reason.OPENING_TASK, within=share)


def _place_with_partner(draft: Draft, turn: Turn, message: Message, reason: Reason) -> None:
    partner = turn.answer if message is turn.opener else turn.opener
    share = max(LEAST_PARTNER, int(draft.room * PARTNER_SHARE))
    draft.claim_pair(message, partner, reason, share)


def _place_recent(draft: Draft, layout: Layout, directives: Directives) -> None:
    """Keep the turns that hold the last so many messages, the newest first, while they fit."""
    wanted = directives.turn.get("recent", 0) - (len(layout.present.messages) if layout.present else 0)
    for turn in reversed(layout.earlier):
        if wanted <= 0 or not draft.claim(turn.messages, Reason.RECENT):
            break
        wanted -= len(turn.messages)


def _place_last_turn(draft: Draft, turn: Turn) -> None:
    """Keep the turn before the question: whole, or its question and answer with shortened tool steps.

    A tool's newest results are what the question is likely about: with them it may take all the room.
    """
    has_results = any(block.is_exchange for block in turn.steps)
    share = draft.room if has_results else int(draft.room * LAST_TURN_SHARE)
    if draft.claim(turn.messages, Reason.LAST_TURN, within=share):
        return
    if draft.claim_lean(turn.messages, Reason.LAST_TURN, within=share):
        return
    if not _place_last_pair(draft, turn):
        return
    for block in reversed(turn.steps):
        if not draft.claim_shortened(block.messages, Reason.LAST_TURN, within=int(draft.room * 0.5)):
            break
    draft.refuse(turn.messages, Reason.STEPS)


def _place_last_pair(draft: Draft, turn: Turn) -> bool:
    ends = [message for message in (turn.opener, turn.answer) if message is not None]
    if draft.claim(ends, Reason.LAST_TURN) or draft.claim_lean(ends, Reason.LAST_TURN):
        return bool(ends)
    return draft.claim_shortened(ends, Reason.LAST_TURN, within=int(draft.room * LAST_TURN_SHARE))
