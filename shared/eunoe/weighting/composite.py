"""Several strategies at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..conversation import Conversation, Message
from ..errors import BadSetting
from ..ports import WeightingStrategy


class CompositeWeightStrategy:
    """Gives the weighted mean of what inner strategies score; they run at the same time."""

    def __init__(self, strategies: Sequence[tuple[WeightingStrategy, float]]) -> None:
        """Take strategies with their weights, which are brought to a sum of 1.

        Raises:
            BadSetting: a weight is negative, or their sum is not above 0.
        """
        weights = [float(weight) for _, weight in strategies]
        total = sum(weights)
        if not (0 < total < math.inf) or min(weights) < 0:
            raise BadSetting(
                "strategies", "the weights are no shares", "Give weights from 0, not all of them 0."
            )
        self._strategies = [strategy for strategy, _ in strategies]
        self._shares = [weight / total for weight in weights]

    async def score(
        self,
        messages: Sequence[Message],
        query: str,
        conversation: Conversation,
        context: Mapping[str, Any] | None = None,
    ) -> Mapping[str, float]:
        """Give each message the mean of its scores; where a strategy has none for it, 1 counts.

        If `context["parts"]` is a dictionary, each inner strategy's scores are put there by its name.
        """
        found = await asyncio.gather(
            *(strategy.score(messages, query, conversation, context) for strategy in self._strategies)
        )
        parts = (context or {}).get("parts")
        if isinstance(parts, dict):
            for strategy, scores in zip(self._strategies, found, strict=True):
                parts[_free_name(strategy.name(), parts)] = scores
        return {
            m.id: sum(share * s.get(m.id, 1.0) for share, s in zip(self._shares, found, strict=True))
            for m in messages
        }

    def name(self) -> str:
        """Name the strategy by what it is made of, such as `composite(smart 0.4, embedding 0.6)`."""
        named = (f"{s.name()} {share:.2g}" for s, share in zip(self._strategies, self._shares, strict=True))
        return f"composite({', '.join(named)})"


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    """Give a name that is not taken: of two strategies of one kind the second has a number."""
    number = 1
    while (free := name if number == 1 else f"{name} {number}") in taken:
        number += 1
    return free
