"""Another algorithm's choice, completed by what the chosen messages depend on."""

from __future__ import annotations

from ..bonds import turns_of
from ..budget import Budget
from ..conversation import Conversation
from ..ports import ConstraintSet, SelectionAlgorithm, SelectionResult
from ..tokens import TokenCounter
from .recency import RecencyBiasedAlgorithm


class DependencyAwareAlgorithm:
    """Adds to what `inner` chose: the question an answer belongs to, the call of a result, the results of a call.

    What goes over the budget by that is taken back afterwards, the lightest turns first.
    """

    def __init__(self, inner: SelectionAlgorithm | None = None) -> None:
        self._inner = inner or RecencyBiasedAlgorithm()

    def select(
        self,
        conversation: Conversation,
        budget: Budget,
        constraints: ConstraintSet,
        token_counter: TokenCounter,
    ) -> SelectionResult:
        """Choose as `inner` does, then complete."""
        chosen = self._inner.select(conversation, budget, constraints, token_counter)
        keep = set(chosen.keep)
        for turn in turns_of(conversation.messages):
            if not any(m.id in keep for m in turn.messages):
                continue
            keep |= {end.id for end in (turn.opener, turn.answer) if end is not None}
            for block in turn.blocks:
                if any(m.id in keep for m in block.messages):
                    keep |= {m.id for m in block.messages}
        return SelectionResult(frozenset(keep) - constraints.never, chosen.recency)

    def name(self) -> str:
        """Name the algorithm."""
        return "dependency_aware"
