"""What a plan says of a chat: the messages there are, and which of them the model sees whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from ..conversation import RawMessage
from ..fingerprint import chain_of
from ..insertion import is_summary
from ..plan import Fate, Plan

# Which messages a model call held, by fingerprint, and whether it saw them whole.
Sight = Mapping[str, bool]


class Told(NamedTuple):
    """A message of the chat: its name, its place without instructions, and what became of it."""

    message: str
    position: int
    raw: RawMessage
    in_context: bool
    fate: str
    reason: str


class ChatRecord(NamedTuple):
    """All that is to be stored of one model call."""

    told: tuple[Told, ...]
    run: str
    model: str
    tokens_before: int
    tokens_after: int


def record_of(plan: Plan, run: str = "", model: str = "") -> ChatRecord:
    """Read a plan. Instructions are left out: they are always sent, and hosts change them every day."""
    chain = chain_of([decision.message for decision in plan.decisions])
    told = list[Told]()
    for fingerprint, decision in zip(chain, plan.decisions, strict=True):
        if decision.message.is_instruction or is_summary(decision.message.raw):
            continue
        seen = decision.fate is Fate.KEPT
        row = (len(told) + 1, decision.message.raw, seen, str(decision.fate), str(decision.reason))
        told.append(Told(fingerprint, *row))
    return ChatRecord(tuple(told), run, model, plan.tokens_before, plan.tokens_after)


def sight_of(record: ChatRecord) -> Sight:
    """Give what the model call saw, by message."""
    return {told.message: told.in_context for told in record.told}


def usual_reason(reasons: list[str]) -> str:
    """Give the reason that most messages have; empty if there is none."""
    return Counter(reasons).most_common(1)[0][0] if reasons else ""
