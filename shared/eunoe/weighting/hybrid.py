"""Relevance by words and by meaning together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ..conversation import Conversation, Message
from ..ports import CacheBackend, Clock, Embedder
from ..relevance import relevance
from .embedding import embedder_for, nearness_of
from .keyword import scores_of
from .similarity import MOST_IN_TURN, Similarity
from .smart import LEAST, SHARPNESS, SmartWeightingStrategy, paired

# What meaning counts beside words. Fused ranks kept as much of the evidence in long chats, but in a chat of a
# dozen messages ranks are all alike, however far apart what they rank is.
_MEANING_SHARE = 0.7


class HybridWeightingStrategy:
    """Adds up relevance by words and by embeddings, then weighs answers and tools as `SmartWeightingStrategy` does.

    Needs an `embedder`, or the address and name of one. If the model fails, messages are weighed as that strategy
    weighs them, and `context["notices"]`, a list, gets a sentence. `most`, `patience` and `rest` are those
    of `EmbeddingSimilarityStrategy`.
    """

    def __init__(
        self,
        api_base: str = "",
        api_key: str = "",
        model: str = "",
        *,
        embedder: Embedder | None = None,
        cache: CacheBackend | None = None,
        tool_penalty: float = 0.5,
        pair_coherence: float = 0.8,
        floor: float = LEAST,
        most: int = MOST_IN_TURN,
        patience: float = 10.0,
        rest: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        """Take an embedder, or make one of an OpenAI-compatible address.

        Raises:
            BadSetting: there is neither.
        """
        chosen = embedder_for(api_base, api_key, model, embedder)
        self._similarity = Similarity(chosen, cache, most=most, patience=patience, rest=rest, clock=clock)
        self._fallback = SmartWeightingStrategy(tool_penalty, pair_coherence, floor)
        self._tool_penalty, self._pair_coherence, self._floor = tool_penalty, pair_coherence, floor

    async def score(
        self,
        messages: Sequence[Message],
        query: str,
        conversation: Conversation,
        context: Mapping[str, Any] | None = None,
    ) -> Mapping[str, float]:
        """Give each message its relevance; `context` may override `tool_penalty` and `pair_coherence`."""
        overrides, question = context or {}, conversation.question
        others = [message for message in messages if question is None or message.id != question.id]
        words: dict[str, float] = {}

        async def by_words() -> Mapping[str, float]:
            if not words:
                words.update(await asyncio.to_thread(_by_words, messages, query, question))
            return words

        cosines = await self._similarity.cosines(others, query, context, by_words)
        if cosines is None:
            return await self._fallback.score(messages, query, conversation, context)
        penalty = float(overrides.get("tool_penalty", self._tool_penalty))
        coherence = float(overrides.get("pair_coherence", self._pair_coherence))
        fitting = await by_words()

        def weighed() -> dict[str, float]:
            own = _fused(others, fitting, cosines, self._floor)
            if question is not None:
                own[question.id] = 1.0
            return paired(messages, own, coherence, penalty)

        return await asyncio.to_thread(weighed)

    def name(self) -> str:
        """Name the strategy."""
        return "hybrid"


def _by_words(messages: Sequence[Message], query: str, question: Message | None) -> dict[str, float]:
    return scores_of(messages, question, 0.0, lambda features: relevance(features, query))


def _fused(
    messages: Sequence[Message], words: Mapping[str, float], cosines: Mapping[str, float], floor: float
) -> dict[str, float]:
    """Add up words and meaning, from `floor` to 1; of what has no vector yet, words count for both.

    The power is there so that recency, which comes on top, decides between what fits alike only.
    """
    near = nearness_of(messages, cosines)
    nearest = max((value for value in near if value is not None), default=0.0) or 1.0
    fused = [
        words[m.id] + _MEANING_SHARE * (words[m.id] if value is None else value / nearest)
        for m, value in zip(messages, near, strict=True)
    ]
    best = max(fused, default=0.0) or 1.0
    return {
        m.id: floor + (1 - floor) * (value / best) ** SHARPNESS
        for m, value in zip(messages, fused, strict=True)
    }
