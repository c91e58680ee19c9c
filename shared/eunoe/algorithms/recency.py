"""Greedy, with newer messages raised."""

from __future__ import annotations

from ..budget import Budget
from ..conversation import Conversation
from ..ports import ConstraintSet, SelectionResult
from ..tokens import TokenCounter
from .greedy import fill_by_weight


class RecencyBiasedAlgorithm:
    """Multiplies each weight by 1 + recency_factor x position, from 0 for the oldest to 1 for the newest."""

    def __init__(self, recency_factor: float = 1.5) -> None:
        self._factor = recency_factor

    def select(
        self,
        conversation: Conversation,
        budget: Budget,
        constraints: ConstraintSet,
        token_counter: TokenCounter,  # noqa: ARG002  part of the port; the messages carry their counts
    ) -> SelectionResult:
        """Choose by weight and recency."""
        last = max(1, len(conversation.messages) - 1)
        names = [message.id for message in conversation.messages]
        recency = dict(zip(names, [1 + self._factor * i / last for i in range(len(names))], strict=True))
        return SelectionResult(fill_by_weight(conversation, budget, constraints, recency), recency)

    def name(self) -> str:
        """Name the algorithm."""
        return "recency_biased"
