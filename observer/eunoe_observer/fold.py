"""Folding: from the events of one run to the rows that show it.

A pure function of the set of events, so their order of arrival does not matter and everything can be rebuilt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eunoe.events import (
    BODIES,
    EventBody,
    EventKind,
    FailedBody,
    OutletBody,
    PlanBody,
    Purpose,
    RunEvent,
    StartBody,
    UsageBody,
)

PREVIEW_CHARACTERS = 200
# Their tokens are part of a plan's `tokens_fixed`, which the bars show as one piece.
FIXED_ROLES = frozenset({"system", "developer"})
# A summary that one call of a turn was sent stands among the messages that its next call is made of.
MET_SUMMARY = "summary"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """One event of the log."""

    seq: int
    at: float
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """What is shown of one run."""

    run: Row
    decisions: list[Row]
    calls: list[Row]


@dataclass(frozen=True, slots=True)
class Told:
    """One event with its body read."""

    at: float
    event: RunEvent
    body: EventBody


def rows_of(run_id: str, events: Sequence[Stored]) -> Rows | None:
    """Fold the events of one run; None if they tell of no run."""
    told = sorted((_told(each) for each in events), key=lambda each: (each.at, each.event.event_id))
    told = [each for each in told if each.event.event is not EventKind.LOST]
    if not told:
        return None
    plans = _by_call(told, PlanBody)
    usages = _by_call([each for each in told if not _is_of_helper(each)], UsageBody)
    decisions = _decisions(run_id, plans)
    calls = [
        _call(run_id, number, plans.get(number), usages.get(number)) for number in sorted({*plans, *usages})
    ]
    run = {
        "run_id": run_id,
        "first_seq": min(each.seq for each in events),
        "last_seq": max(each.seq for each in events),
        "events": len(events),
        "started_at": told[0].at,
        "last_at": told[-1].at,
        **_context(told),
        **_settings(told, plans),
        **_tokens(plans, decisions),
        **_outcome(told, calls),
        "helpers": _helpers(told),
    }
    return Rows(run, decisions, calls)


def _told(stored: Stored) -> Told:
    event = RunEvent.model_validate(stored.body)
    return Told(stored.at, event, BODIES[event.event].model_validate(event.data))


def _by_call(told: Iterable[Told], kind: type[PlanBody] | type[UsageBody]) -> dict[int, Told]:
    """Sort the reports about model calls by call; the newest one about a call holds."""
    return {each.body.call: each for each in told if isinstance(each.body, kind)}


def _is_of_helper(told: Told) -> bool:
    return isinstance(told.body, UsageBody) and told.body.purpose is not Purpose.ANSWER


def _helpers(told: Iterable[Told]) -> list[Row]:
    """Add up what models that helped took, by purpose: each report is a call of its own."""
    helpers = []
    for purpose in (Purpose.LABELS, Purpose.SUMMARY):
        usages = [
            each.body for each in told if isinstance(each.body, UsageBody) and each.body.purpose is purpose
        ]
        if usages:
            helpers.append(
                {
                    "purpose": purpose.value,
                    "calls": len(usages),
                    **{name: _total(getattr(usage, name) for usage in usages) for name in HELPED},
                }
            )
    return helpers


def _newest(told: Sequence[Told], kind: type[EventBody]) -> Any:
    return next((each.body for each in reversed(told) if isinstance(each.body, kind)), None)


def _context(told: Sequence[Told]) -> Row:
    def first(name: str) -> Any:
        return next((value for each in told if (value := getattr(each.event, name))), None)

    outlet = _newest(told, OutletBody)
    return {
        "host": first("host") or "",
        "model": first("model") or "",
        "chat_id": first("chat_id"),
        "message_id": first("message_id"),
        "user_id": first("user"),
        "title": outlet.title if outlet else None,
    }


def _settings(told: Sequence[Told], plans: Mapping[int, Told]) -> Row:
    start = _newest(told, StartBody)
    plan: Any = plans[max(plans)].body if plans else None
    return {
        "algorithm": plan.algorithm if plan else start.algorithm if start else None,
        "weighting": plan.weighting if plan else start.weighting if start else None,
        "messages": start.messages if start else None,
        "max_tokens": start.max_tokens if start else None,
        "context_window": _either(plan, start, "context_window"),
        "reply_reserve": _either(plan, start, "reply_reserve"),
        "token_limit": plan.limit if plan else None,
        "limit_source": plan.limit_source if plan else None,
        "counter": plan.counter if plan else None,
    }


def _either(first: Any, second: Any, name: str) -> Any:
    value = getattr(first, name, None)
    return getattr(second, name, None) if value is None else value


def _decisions(run_id: str, plans: Mapping[int, Told]) -> list[Row]:
    """Follow each message through the calls: the newest call that saw it decides what is shown of it.

    Later calls see the survivors and what is new; a message they no longer see stays as it was left. Two
    messages of one plan may have one key (the same words twice), so they are told apart by counting.
    """
    rows: dict[tuple[str, int], Row] = {}
    for number in sorted(plans):
        seen: Counter[str] = Counter()
        plan: Any = plans[number].body
        for decision in sorted(plan.decisions, key=lambda each: each.position):
            identity = (decision.key, seen[decision.key])
            seen[decision.key] += 1
            position = rows[identity]["position"] if identity in rows else len(rows)
            rows[identity] = _decision(run_id, position, number, decision)
    return list(rows.values())


def _decision(run_id: str, position: int, number: int, decision: Any) -> Row:
    preview = decision.preview
    if preview is None and decision.content is not None:
        preview = decision.content[:PREVIEW_CHARACTERS]
    return {
        "run_id": run_id,
        "position": position,
        "call": number,
        "preview": preview,
        **decision.model_dump(
            include={
                *("key", "role", "fate", "reason", "why", "weight", "parts", "scores"),
                *("tokens_before", "tokens_after", "pinned", "content", "tool_calls"),
            }
        ),
    }


PLANNED = (
    *("algorithm", "weighting", "limit_source", "context_window", "reply_reserve", "counter", "over_limit"),
    *("tokens_before", "tokens_after", "tokens_fixed", "tokens_tools", "tokens_inserted", "tokens_cached"),
    "estimated_cost_usd",
)
HELPED = ("prompt_tokens", "completion_tokens", "cost_usd")
REPORTED = ("prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens", "cost_usd")


def _call(run_id: str, number: int, planned: Told | None, reported: Told | None) -> Row:
    plan: Any = planned.body if planned else None
    usage = reported.body if reported else None
    return {
        "run_id": run_id,
        "call": number,
        "planned_at": planned.at if planned else None,
        "token_limit": plan.limit if plan else None,
        "filter_ms": plan.elapsed_ms if plan else None,
        "flags": plan.flags if plan else [],
        "notices": plan.notices if plan else [],
        **{name: getattr(plan, name, None) for name in PLANNED},
        "reported_at": reported.at if reported else None,
        **{name: getattr(usage, name, None) for name in REPORTED},
    }


def _tokens(plans: Mapping[int, Told], decisions: Sequence[Row]) -> Row:
    """Say how big the last call was, and how big it would have been with everything in it."""
    question = next((each["preview"] for each in reversed(decisions) if each["role"] == "user"), None)
    tokens = {"question": question, "fates": _fates(decisions), "over_limit": False}
    if not plans:
        return {
            **tokens,
            "tokens_before": None,
            "tokens_after": None,
            "tokens_fixed": None,
            "tokens_tools": None,
            "tokens_inserted": None,
        }
    first: Any = plans[min(plans)].body
    last: Any = plans[max(plans)].body
    met = [each for each in decisions if each["reason"] == MET_SUMMARY]
    later = sum(
        each["tokens_before"] for each in decisions[len(first.decisions) :] if each["reason"] != MET_SUMMARY
    )
    return {
        **tokens,
        "over_limit": any(plan.body.over_limit for plan in plans.values() if isinstance(plan.body, PlanBody)),
        "tokens_before": first.tokens_before + later,
        "tokens_after": last.tokens_after,
        "tokens_fixed": last.tokens_fixed,
        "tokens_tools": last.tokens_tools,
        "tokens_inserted": last.tokens_inserted + sum(each["tokens_after"] for each in met),
    }


def _fates(decisions: Iterable[Row]) -> dict[str, dict[str, int]]:
    """Count messages and tokens by fate; the tokens of fixed messages and summaries are counted elsewhere."""
    fates: dict[str, dict[str, int]] = {}
    for each in decisions:
        fate = fates.setdefault(each["fate"], {"messages": 0, "tokens_before": 0, "tokens_after": 0})
        fate["messages"] += 1
        if each["role"] not in FIXED_ROLES and each["reason"] != MET_SUMMARY:
            fate["tokens_before"] += each["tokens_before"]
            fate["tokens_after"] += each["tokens_after"]
    return dict(sorted(fates.items()))


def _outcome(told: Sequence[Told], calls: Sequence[Row]) -> Row:
    outlet = _newest(told, OutletBody)
    reported = [each for each in calls if each["reported_at"] is not None]
    estimated = _total(each["estimated_cost_usd"] for each in calls if each["planned_at"] is not None)

    def sum_of(name: str, column: str) -> Any:
        value = getattr(outlet, name, None)
        return _known_total(each[column] for each in reported) if value is None else value

    cost, source = _cost(outlet, calls, estimated)
    prompt = getattr(outlet, "prompt_tokens", None)
    return {
        "calls": outlet.calls if outlet else len(calls),
        "prompt_tokens": reported[-1]["prompt_tokens"] if prompt is None and reported else prompt,
        "billed_prompt_tokens": sum_of("billed_prompt_tokens", "prompt_tokens"),
        "completion_tokens": sum_of("completion_tokens", "completion_tokens"),
        "cached_tokens": sum_of("cached_tokens", "cached_tokens"),
        "estimated_cost_usd": estimated,
        "cost_usd": cost,
        "cost_source": source,
        "filter_ms": outlet.elapsed_ms
        if outlet and outlet.elapsed_ms is not None
        else _known_total(each["filter_ms"] for each in calls),
        "failures": sum(isinstance(each.body, FailedBody) for each in told),
        "finished": outlet is not None,
    }


def _cost(outlet: Any, calls: Sequence[Row], estimated: float | None) -> tuple[float | None, str | None]:
    """Return the best known cost and where it comes from."""
    if outlet and outlet.cost_usd is not None:
        return outlet.cost_usd, outlet.cost_source
    told = _total(each["cost_usd"] for each in calls)
    if told is not None:
        return told, "provider"
    return estimated, None if estimated is None else "estimate"


def _total(values: Iterable[Any]) -> Any:
    """Add up; None if one is not known, since a part of a bill is not the bill."""
    known = list(values)
    return sum(known) if known and None not in known else None


def _known_total(values: Iterable[Any]) -> Any:
    """Add up what is known so far; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
