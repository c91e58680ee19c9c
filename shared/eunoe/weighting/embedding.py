"""Relevance by meaning: how near a message is to the question for an embedding model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ..conversation import Conversation, Message
from ..endpoint import OpenAIEmbedder
from ..errors import BadSetting
from ..ports import CacheBackend, Clock, Embedder, WeightingStrategy
from ..relevance import features_of, with_lent
from .keyword import FLOOR
from .similarity import MOST_IN_TURN, Similarity
from .smart import SmartWeightingStrategy

# What a message lends of its nearness to those after it, and to those before it: the answer to a question
# about "it" seldom says what "it" is. Three quarters of what is lent by words, since vectors blur already.
_LENT_ON, _LENT_BACK = (0.45, 0.26, 0.15, 0.09), (0.3, 0.19, 0.09, 0.045)


class EmbeddingSimilarityStrategy:
    """Scores messages by the cosine of their vectors with the question's, scaled so that the best has 1.

    Needs an `embedder`, or the address and name of one. Vectors are kept in memory and in `cache`, so a turn
    costs what is new in it; of more than `most` new texts the newest and the best by words come first,
    the rest is embedded behind the turn's back, and until then `fallback` scores it. If the model fails or takes
    more than `patience` seconds, `fallback` scores all, `context["notices"]`, a list, gets a sentence, and the
    model is left alone for `rest` seconds.
    """

    def __init__(
        self,
        api_base: str = "",
        api_key: str = "",
        model: str = "",
        *,
        embedder: Embedder | None = None,
        cache: CacheBackend | None = None,
        fallback: WeightingStrategy | None = None,
        floor: float = FLOOR,
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
        self._fallback: WeightingStrategy = fallback or SmartWeightingStrategy()
        self._floor = floor

    async def score(
        self,
        messages: Sequence[Message],
        query: str,
        conversation: Conversation,
        context: Mapping[str, Any] | None = None,
    ) -> Mapping[str, float]:
        """Give each message its nearness to the question, from `floor` to 1; never raises because of the model."""
        question = conversation.question
        others = [message for message in messages if question is None or message.id != question.id]
        words: dict[str, float] = {}

        async def by_words() -> Mapping[str, float]:
            if not words:
                words.update(await self._fallback.score(messages, query, conversation, context))
            return words

        cosines = await self._similarity.cosines(others, query, context, by_words)
        if cosines is None:
            return await by_words()
        scores = await asyncio.to_thread(self._scaled, others, cosines)
        if len(scores) < len(others):
            scores = {**await by_words(), **scores}
        if question is not None:
            scores[question.id] = 1.0
        return scores

    def _scaled(self, messages: Sequence[Message], cosines: Mapping[str, float]) -> dict[str, float]:
        """Scale nearness from `floor` to 1; leaves out what has no vector yet."""
        near = nearness_of(messages, cosines)
        best = max((value for value in near if value is not None), default=0.0) or 1.0
        return {
            message.id: self._floor + (1 - self._floor) * value / best
            for message, value in zip(messages, near, strict=True)
            if value is not None
        }

    def name(self) -> str:
        """Name the strategy."""
        return "embedding"


def embedder_for(api_base: str, api_key: str, model: str, embedder: Embedder | None) -> Embedder:
    """Give the embedder, or make one of an address.

    Raises:
        BadSetting: there is neither.
    """
    if embedder is None and not api_base:
        raise BadSetting("api_base", "there is no embedding model", "Give an address, or `embedder`.")
    return embedder or OpenAIEmbedder(api_base, api_key, model)


def nearness_of(messages: Sequence[Message], cosines: Mapping[str, float]) -> list[float | None]:
    """Say how near each message is, with what its neighbors lend; None where a vector is still missing.

    Cosines of one model lie between 0.7 and 0.9, those of another between 0 and 0.6, so what counts is how far
    one is above their mean; the square tells the best from the good.
    """
    mean = sum(cosines.values()) / len(cosines) if cosines else 0.0
    span = max(cosines.values(), default=0.0) - mean
    own = [
        (max(0.0, cosines[m.id] - mean) / span) ** 2 if m.id in cosines and span > 1e-6 else 0.0
        for m in messages
    ]
    features = [features_of(m.digest, m.text) for m in messages]
    near: list[float | None] = list(with_lent(own, features, _LENT_ON, _LENT_BACK))
    for i, message in enumerate(messages):
        if message.id not in cosines and message.text.strip():
            near[i] = None
    return near
