"""From a job to a plan: weigh, give places, and write down what became of each message."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from itertools import repeat

from .algorithms.greedy import by_weight, forms_of
from .algorithms.prefix import PREFIX_CACHE
from .anchors import Layout
from .bonds import Repair, Turn, messages_in
from .compress import LEAST_TOKENS, are_lean
from .conversation import Message, RawMessage, with_column
from .draft import Draft, Place
from .flags import flags_help
from .job import Job
from .plan import NO_SCORES, UNYIELDING, Decision, Fate, Plan, Reason, decision_of
from .ports import SelectionResult
from .scoring import Scoring


def weigh(job: Job, scores: Mapping[str, float]) -> tuple[Message, ...]:
    """Give each message its weight: base times relevance. Recency comes with the choice."""
    return with_column(job.kept, "weight", [m.base_weight * scores.get(m.id, 1.0) for m in job.kept])


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
    for turn in by_weight(_turns_with(choice.keep, layout.earlier), choice.recency):
        place_turn(draft, turn, choice)
    if draft.room >= LEAST_TOKENS:
        for turn in by_weight(_fatty(draft, layout.earlier), choice.recency):
            if draft.room >= LEAST_TOKENS:
                draft.claim_lean(forms_of(turn)[-1], Reason.PAIR)
    _refuse_rest(draft, layout.earlier)


def _turns_with(names: Container[str], turns: Sequence[Turn]) -> list[Turn]:
    """Find the turns that hold at least one of the named messages."""
    found = []
    for turn in turns:
        for message in turn.messages:  # written out, since hardly a turn does
            if message.id in names:
                found.append(turn)
                break
    return found


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


def _fatty(draft: Draft, turns: Sequence[Turn]) -> list[Turn]:
    """Find the turns that got no place but may fit without their thinking and raw data."""
    messages = messages_in(turns)
    leanness = are_lean(messages)
    if all(leanness):
        return []
    fat = {message.id for message, lean in zip(messages, leanness, strict=True) if not lean}
    return [
        turn
        for turn in _turns_with(fat, turns)
        if not all(m.id not in fat for m in forms_of(turn)[-1])
        and not any(draft.has(m) or m.id in draft.refused for m in forms_of(turn)[-1])
    ]


def _refuse_rest(draft: Draft, turns: Sequence[Turn]) -> None:
    """Name the reason for what got no place: the rest of a kept turn, or a turn the others outweigh."""
    for turn in _turns_with(draft.places, turns):
        draft.refuse(turn.messages, Reason.STEPS)
    messages = messages_in(turns)
    draft.refuse([message for message in messages if message.pinned], Reason.NO_ROOM)
    draft.refuse(messages, Reason.LOW_WEIGHT)


def finish(
    job: Job,
    draft: Draft,
    scoring: Scoring,
    recency: Mapping[str, float],
    names: tuple[str, str],
) -> Plan:
    """Write the plan down, one decision for each message; `names` are those of algorithm and weighting."""
    decisions = _decisions(job, draft, scoring.scores, recency)
    if scoring.parts:
        decisions = [d._replace(scores=scoring.parts_of(d.message.id)) for d in decisions]
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


def _decisions(
    job: Job, draft: Draft, scores: Mapping[str, float], recency: Mapping[str, float]
) -> list[Decision]:
    messages = job.conversation.messages
    names = [message.id for message in messages]
    refused = map(draft.refused.get, names, repeat(Reason.NO_ROOM))
    columns = zip(
        messages,
        repeat(Fate.DROPPED),  # what most of a long chat becomes; the others are put in below
        refused,
        [message.token_count for message in messages],
        repeat(0),
        repeat(None),
        *_weights(messages, names, scores, recency),
        repeat(NO_SCORES),
        strict=False,
    )
    decisions = list(map(decision_of, columns))
    repairs = {r.message.id: r for r in job.repairs}
    place_of = dict(zip(names, range(len(names)), strict=True))
    for name in draft.places.keys() | draft.summarized | repairs.keys():
        place = draft.places.get(name)
        outcome = _gone(name, draft, repairs) if place is None else _placed(place, repairs.get(name))
        fate, reason, tokens, sent = outcome
        i = place_of[name]
        decisions[i] = decisions[i]._replace(fate=fate, reason=reason, tokens_after=tokens, sent=sent)
    return decisions


def _weights(
    messages: Sequence[Message],
    names: Sequence[str],
    scores: Mapping[str, float],
    recency: Mapping[str, float],
) -> tuple[list[float], list[dict[str, float]]]:
    """Give the weight of each message, and the parts it is the product of."""
    bases = [message.base_weight for message in messages]
    wanted = set(names)
    if not (wanted <= scores.keys() and wanted <= recency.keys()):
        found = zip(bases, map(scores.get, names), map(recency.get, names), strict=True)
        parts = [_known_parts(*known) for known in found]
        return [math.prod(part.values()) for part in parts], parts
    known = list(zip(bases, map(scores.__getitem__, names), map(recency.__getitem__, names), strict=True))
    return [b * r * n for b, r, n in known], [{"base": b, "relevance": r, "recency": n} for b, r, n in known]


def _known_parts(base: float, relevance: float | None, recency: float | None) -> dict[str, float]:
    parts = {"base": base, "relevance": relevance, "recency": recency}
    return {name: part for name, part in parts.items() if part is not None}


def _gone(
    name: str, draft: Draft, repairs: Mapping[str, Repair]
) -> tuple[Fate, Reason, int, RawMessage | None]:
    """Say what became of a message that got no place."""
    if name in draft.summarized:
        return Fate.SUMMARIZED, Reason.IN_SUMMARY, 0, None
    if name in repairs:
        return Fate.DROPPED, Reason(repairs[name].reason), 0, None
    return Fate.DROPPED, draft.refused.get(name, Reason.NO_ROOM), 0, None


def _placed(place: Place, fault: Repair | None) -> tuple[Fate, Reason, int, RawMessage | None]:
    """Say what became of a message that got a place, repaired or not."""
    if fault is None:
        return place.fate, place.reason, place.tokens, place.sent
    reason = place.reason if place.reason in UNYIELDING else Reason(fault.reason)
    return Fate.COMPRESSED, reason, place.tokens, place.sent


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
