"""From a job to a plan: weigh, give places, and write down what became of each message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .algorithms.greedy import forms_of, turn_weight
from .algorithms.prefix import PREFIX_CACHE
from .anchors import Layout
from .bonds import Repair, Turn
from .compress import LEAST_TOKENS, is_lean
from .conversation import Message
from .draft import Draft
from .flags import flags_help
from .job import Job
from .plan import UNYIELDING, Decision, Fate, Plan, Reason
from .ports import SelectionResult
from .scoring import Scoring


def weigh(job: Job, scores: Mapping[str, float]) -> tuple[Message, ...]:
    """Give each message its weight: base times relevance. Recency comes with the choice."""
    return tuple(m.weighing(m.base_weight * scores.get(m.id, 1.0)) for m in job.kept)


def keep_all(job: Job) -> Draft:
    """Give every message its place."""
    draft = Draft(None, job.overhead, job.counter)
    draft.claim(job.kept, Reason.ALL_FIT)
    return draft


def refuse_duplicates(draft: Draft, layout: Layout) -> None:
    """Refuse instructions that stand word for word before; providers would bill them twice."""
    seen: set[str] = set()
    for message in layout.instructions:
        if message.digest in seen:
            draft.refuse([message], Reason.DUPLICATE)
        seen.add(message.digest)


def fill(draft: Draft, layout: Layout, choice: SelectionResult) -> None:
    """Give the chosen turns their places, the heaviest first, and name the reason for all others."""
    turns = sorted(
        layout.earlier, key=lambda t: (turn_weight(t, choice.recency), t.messages[0].position), reverse=True
    )
    for turn in turns:
        if any(message.id in choice.keep for message in turn.messages):
            place_turn(draft, turn, choice)
    for turn in turns:
        if draft.room >= LEAST_TOKENS:
            _place_lean(draft, turn)
        _refuse_rest(draft, turn)


def place_turn(draft: Draft, turn: Turn, choice: SelectionResult) -> None:
    """Give a turn its places, as much of it as was chosen but never a question without its answer."""
    forms = forms_of(turn)
    whole = all(m.id in choice.keep or draft.has(m) for m in turn.messages)
    usable = [
        form for form in (forms if whole else forms[-1:]) if not any(m.id in draft.refused for m in form)
    ]
    if not any(draft.claim(form, Reason.WEIGHT) for form in usable):
        return
    for block in turn.blocks:
        if all(m.id in choice.keep and m.id not in draft.refused for m in block.messages):
            draft.claim(block.messages, Reason.WEIGHT)


def _place_lean(draft: Draft, turn: Turn) -> None:
    """Keep a turn that did not fit whole without its thinking and raw data, if that fits."""
    ends = forms_of(turn)[-1]
    if any(draft.has(m) or m.id in draft.refused for m in ends) or all(
        is_lean(m.digest, m.raw) for m in ends
    ):
        return
    draft.claim_lean(ends, Reason.PAIR)


def _refuse_rest(draft: Draft, turn: Turn) -> None:
    """Name the reason for what got no place: the rest of a kept turn, or a turn the others outweigh."""
    if any(draft.has(message) for message in turn.messages):
        draft.refuse(turn.messages, Reason.STEPS)
    draft.refuse([message for message in turn.messages if message.pinned], Reason.NO_ROOM)
    draft.refuse(turn.messages, Reason.LOW_WEIGHT)


def finish(
    job: Job,
    draft: Draft,
    scoring: Scoring,
    recency: Mapping[str, float],
    names: tuple[str, str],
) -> Plan:
    """Write the plan down, one decision for each message; `names` are those of algorithm and weighting."""
    repairs = {r.message.id: r for r in job.repairs}
    weight = {m.id: _weight_parts(m, scoring.scores, recency) for m in job.conversation.messages}
    decisions = [_decision(m, draft, repairs.get(m.id), weight[m.id]) for m in job.conversation.messages]
    if scoring.parts:
        decisions = [replace(d, scores=scoring.parts_of(d.message.id)) for d in decisions]
    return Plan(
        conversation=job.conversation,
        decisions=tuple(decisions),
        bound=job.bound,
        overhead_tokens=job.overhead,
        tools_tokens=job.tools_tokens,
        counter=job.counter.name,
        algorithm=names[0],
        weighting=names[1],
        directives=job.directives,
        notices=(*_notices(job, draft, names[0]), *scoring.notices),
        insertion=draft.insertion,
    )


def _weight_parts(
    message: Message, scores: Mapping[str, float], recency: Mapping[str, float]
) -> dict[str, float]:
    parts = {"base": message.base_weight}
    if message.id in scores:
        parts["relevance"] = scores[message.id]
    if message.id in recency:
        parts["recency"] = recency[message.id]
    return parts


def _decision(message: Message, draft: Draft, fault: Repair | None, parts: Mapping[str, float]) -> Decision:
    weight = 1.0
    for part in parts.values():
        weight *= part
    place = draft.places.get(message.id)
    if place is None and message.id in draft.summarized:
        return Decision(
            message, Fate.SUMMARIZED, Reason.IN_SUMMARY, message.token_count, 0, None, weight, parts
        )
    if place is None:
        reason = Reason(fault.reason) if fault else draft.refused.get(message.id, Reason.NO_ROOM)
        return Decision(message, Fate.DROPPED, reason, message.token_count, 0, None, weight, parts)
    fate, reason = place.fate, place.reason
    if fault is not None:
        fate = Fate.COMPRESSED
        reason = reason if reason in UNYIELDING else Reason(fault.reason)
    return Decision(message, fate, reason, message.token_count, place.tokens, place.sent, weight, parts)


def _notices(job: Job, draft: Draft, algorithm: str) -> tuple[str, ...]:
    notices = [*job.directives.rejected, *job.notices]
    if "help" in job.directives.turn:
        notices.append(flags_help())
    if "undo" in job.directives.turn and algorithm != PREFIX_CACHE:
        notices.append("!undo: there is no cut to take back, each question gets a choice of its own.")
    if draft.room < 0:
        notices.append("The question and the instructions alone are over the limit.")
    if job.full_refused and job.must_choose:
        notices.append("!full: the whole history is over the limit.")
    asked_for = {Reason.ONLY, Reason.EXCLUDED}
    unkept = [m for m in job.kept if m.pinned and not draft.keeps(m)]
    if any(draft.refused.get(m.id) not in asked_for for m in unkept):
        notices.append("Not all pinned messages fit.")
    return tuple(notices)
