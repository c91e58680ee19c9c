"""Keyword relevance that knows how chats go: answers belong to questions, tool output is a means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..conversation import Conversation, Message, traits_in
from ..relevance import Features, relevance
from .keyword import scores_of

# Evidence kept rose with the power; from 3 on hardly. The newest messages count as a third more relevant then.
SHARPNESS = 3
LEAST = 0.001  # of what has nothing of the question, so that base weight and recency tell such messages apart


class SmartWeightingStrategy:
    """Multiplies relevance, raised to the question's for answers, by a penalty for tool messages.

    relevance = max(own, pair_coherence x that of the question before) x tool_penalty where it is a tool
    message or calls one; `own` looks at words, neighbors, the stretch, who spoke and when, and is `sharpened`.
    """

    def __init__(self, tool_penalty: float = 0.5, pair_coherence: float = 0.8, floor: float = LEAST) -> None:
        self._tool_penalty, self._pair_coherence, self._floor = tool_penalty, pair_coherence, floor

    async def score(
        self,
        messages: Sequence[Message],
        query: str,
        conversation: Conversation,
        context: Mapping[str, Any] | None = None,
    ) -> Mapping[str, float]:
        """Give each message its relevance; `context` may override `tool_penalty` and `pair_coherence`."""
        overrides = context or {}
        penalty = float(overrides.get("tool_penalty", self._tool_penalty))
        coherence = float(overrides.get("pair_coherence", self._pair_coherence))

        def weighed() -> dict[str, float]:
            own = scores_of(messages, conversation.question, self._floor, sharpened(query))
            return paired(messages, own, coherence, penalty)

        return await asyncio.to_thread(weighed)

    def name(self) -> str:
        """Name the strategy."""
        return "smart"


def sharpened(query: str) -> Callable[[Sequence[Features]], list[float]]:
    """Score by a power of relevance, so that recency, which comes on top, decides between what fits alike only."""
    return lambda features: [score**SHARPNESS for score in relevance(features, query)]


def paired(
    messages: Sequence[Message], own: Mapping[str, float], coherence: float, penalty: float
) -> dict[str, float]:
    """Give answers at least `coherence` of their question's score, and tool messages `penalty` of theirs."""
    names = [message.id for message in messages]
    scores, asked = [], 0.0
    for known, score in zip(traits_in(messages), map(own.__getitem__, names), strict=True):
        if known.role == "user":
            asked = coherence * score
        elif asked > score and not known.is_instruction:
            score = asked  # noqa: PLW2901
        scores.append(score * penalty if known.is_result or known.calls_tools else score)
    return dict(zip(names, scores, strict=True))
