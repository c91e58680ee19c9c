"""The heaviest turns first, as long as they fit."""

from __future__ import annotations

from collections.abc import Mapping

from ..bonds import Turn, turns_of
from ..budget import Budget, bound_of
from ..conversation import Conversation, Message
from ..ports import ConstraintSet, SelectionResult
from ..tokens import TokenCounter


class GreedyByWeightAlgorithm:
    """Takes turns by weight, whole or without their tool steps, and skips what does not fit."""

    def select(
        self,
        conversation: Conversation,
        budget: Budget,
        constraints: ConstraintSet,
        token_counter: TokenCounter,  # noqa: ARG002  part of the port; the messages carry their counts
    ) -> SelectionResult:
        """Choose by the messages' weights."""
        return SelectionResult(fill_by_weight(conversation, budget, constraints, {}))

    def name(self) -> str:
        """Name the algorithm."""
        return "greedy_by_weight"


def turn_weight(turn: Turn, recency: Mapping[str, float]) -> float:
    """Give a turn the weight of its heaviest message, raised by recency."""
    return max(message.weight * recency.get(message.id, 1.0) for message in turn.messages)


def fill_by_weight(
    conversation: Conversation, budget: Budget, constraints: ConstraintSet, recency: Mapping[str, float]
) -> frozenset[str]:
    """Fill the budget with turns, the heaviest first; of two alike the newer."""
    kept = set(constraints.keep)
    spent = sum(m.token_count for m in conversation.messages if m.id in kept)
    limit = bound_of(budget).tokens
    room = None if limit is None else limit - spent
    turns = turns_of(conversation.messages)
    for turn in sorted(turns, key=lambda t: (turn_weight(t, recency), t.messages[0].position), reverse=True):
        for part in forms_of(turn):
            new = [m for m in part if m.id not in kept]
            if any(m.id in constraints.never for m in new):
                continue
            cost = sum(m.token_count for m in new)
            if room is None or cost <= room:
                kept |= {m.id for m in new}
                room = None if room is None else room - cost
                break
    return frozenset(kept)


def forms_of(turn: Turn) -> tuple[tuple[Message, ...], ...]:
    """Give the forms a turn may be kept in: whole, then its question and answer alone."""
    ends = tuple(message for message in (turn.opener, turn.answer) if message is not None)
    return (turn.messages, ends) if ends and len(ends) < len(turn.messages) else (turn.messages,)
