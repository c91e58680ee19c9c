"""Append only, as long as that fits: a provider bills what it has in its cache at a fraction of the price."""

from __future__ import annotations

from dataclasses import replace

from ..budget import Budget, TokenBudget, bound_of
from ..conversation import Conversation
from ..errors import BadSetting
from ..ports import ConstraintSet, SelectionAlgorithm, SelectionResult
from ..tokens import TokenCounter
from .recency import RecencyBiasedAlgorithm

PREFIX_CACHE = "prefix_cache_optimized"


class PrefixCacheOptimizedAlgorithm:
    """Keeps what was sent last time and adds what is new; chooses afresh only when that does not fit any more.

    Then `inner` chooses within `trim_to` of the budget, so that the following turns fit again without a
    change: each fresh choice rewrites the prompt, and the provider's cache is lost with it.
    """

    def __init__(self, inner: SelectionAlgorithm | None = None, trim_to: float = 0.6) -> None:
        """Take the algorithm for fresh choices.

        Raises:
            BadSetting: `trim_to` is no share.
        """
        if not 0 < trim_to <= 1:
            raise BadSetting("trim_to", "it is no share", "Use a number above 0, up to 1.")
        self._inner, self._trim_to = inner or RecencyBiasedAlgorithm(), trim_to

    def select(
        self,
        conversation: Conversation,
        budget: Budget,
        constraints: ConstraintSet,
        token_counter: TokenCounter,
    ) -> SelectionResult:
        """Choose what `constraints.sent` names and all that follows it, else afresh."""
        limit = bound_of(budget).tokens
        if limit is None or constraints.afresh:
            return self._inner.select(conversation, budget, constraints, token_counter)
        if kept := _appended(conversation, constraints, limit):
            return SelectionResult(kept)
        fixed = sum(m.token_count for m in conversation.messages if m.id in constraints.keep)
        trimmed = TokenBudget(max(1, fixed, int(limit * self._trim_to)))
        return self._inner.select(
            conversation, trimmed, replace(constraints, sent=frozenset()), token_counter
        )

    def name(self) -> str:
        """Name the algorithm."""
        return PREFIX_CACHE


def _appended(conversation: Conversation, constraints: ConstraintSet, limit: int) -> frozenset[str]:
    """Give what was sent and all that came after it, if that fits; empty if it does not."""
    sent = [m.position for m in conversation.messages if m.id in constraints.sent and not m.is_instruction]
    if not sent:
        return frozenset()
    newest = max(sent)
    kept = [
        m
        for m in conversation.messages
        if m.id not in constraints.never
        and (m.id in constraints.sent or m.id in constraints.keep or m.position > newest)
    ]
    return frozenset(m.id for m in kept) if sum(m.token_count for m in kept) <= limit else frozenset()
