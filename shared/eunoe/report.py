"""A plan as an event: what the observer gets, with as much text as the administrator allows."""

from __future__ import annotations

from typing import Any

from .conversation import Message, calls_of, function_of
from .events import Capture, DecisionBody, PlanBody
from .flags import FLAGS, Directives, Scope
from .plan import SENTENCES, Decision, Plan

PREVIEW = 200  # characters


def plan_body(
    plan: Plan, *, call: int, elapsed_ms: float, capture: Capture, with_decisions: bool = True
) -> PlanBody:
    """Report a plan; without decisions it is numbers only."""
    bound = plan.bound
    decisions = [decision_body(d, capture) for d in plan.decisions] if with_decisions else []
    return PlanBody(
        call=call,
        algorithm=plan.algorithm,
        weighting=plan.weighting,
        limit=bound.tokens,
        limit_source=bound.source,
        reply_reserve=bound.reply_reserve,
        tokens_before=plan.tokens_before,
        tokens_after=plan.tokens_after,
        tokens_fixed=plan.overhead_tokens + plan.instruction_tokens,
        tokens_tools=plan.tools_tokens,
        tokens_inserted=plan.inserted_tokens,
        counter=plan.counter,
        over_limit=plan.over_limit,
        elapsed_ms=round(elapsed_ms, 2),
        flags=flags_report(plan.directives, capture),
        notices=list(plan.notices),
        decisions=decisions,
    )


def decision_body(decision: Decision, capture: Capture) -> DecisionBody:
    """Report what became of one message."""
    message = decision.message
    text = "" if capture is Capture.NONE else writable(message.text)
    return DecisionBody(
        key=message.id,
        position=message.position,
        role=writable(message.role),
        fate=decision.fate,
        reason=decision.reason,
        why=SENTENCES[decision.reason],
        weight=round(decision.weight, 4),
        parts={name: round(value, 4) for name, value in decision.parts.items()},
        scores={name: round(value, 4) for name, value in decision.scores.items()},
        tokens_before=decision.tokens_before,
        tokens_after=decision.tokens_after,
        pinned=message.pinned,
        preview=None if capture is Capture.NONE else text[:PREVIEW],
        content=text if capture is Capture.FULL else None,
        tool_calls=_called(message),
    )


def flags_report(directives: Directives, capture: Capture) -> list[dict[str, Any]]:
    """Report the flags in force: those of the turn with their values, and how many messages are marked."""
    turn = [
        {
            "name": name,
            "value": _told(value, capture),
            "lasting": name in directives.lasting,
            "scope": str(Scope.TURN),
        }
        for name, value in directives.turn.items()
        if name in FLAGS
    ]
    pins = sum(mark.pinned for mark in directives.marks.values())
    return turn + (
        [{"name": "pin", "value": pins, "lasting": True, "scope": str(Scope.MESSAGE)}] if pins else []
    )


def _told(value: Any, capture: Capture) -> Any:
    """Give a flag's value; the name of a tag is text of the user's."""
    if not isinstance(value, str):
        return value
    return None if capture is Capture.NONE else writable(value)


def writable(text: str) -> str:
    """Give text that can be written as UTF-8: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _called(message: Message) -> list[str]:
    return [writable(str(function_of(call).get("name") or "?")) for call in calls_of(message.raw)]
