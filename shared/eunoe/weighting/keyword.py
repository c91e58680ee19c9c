"""Relevance by the words a message shares with the question."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..conversation import Conversation, Message
from ..relevance import Features, all_features, bm25
from ..terms import read_terms

FLOOR = 0.05  # what shares no word still weighs something, so that recency can tell such messages apart


class KeywordRelevanceStrategy:
    """Scores messages with BM25 against the question, scaled so that the best has 1."""

    def __init__(self, floor: float = FLOOR) -> None:
        self._floor = floor

    async def score(
        self,
        messages: Sequence[Message],
        query: str,
        conversation: Conversation,
        context: Mapping[str, Any] | None = None,  # noqa: ARG002  part of the port
    ) -> Mapping[str, float]:
        """Give `floor` to a message without a word of the question, 1 to the best."""
        return await asyncio.to_thread(keyword_scores, messages, query, conversation.question, self._floor)

    def name(self) -> str:
        """Name the strategy."""
        return "keyword"


def keyword_scores(
    messages: Sequence[Message], query: str, question: Message | None, floor: float
) -> dict[str, float]:
    """Score messages by the words they share with `query`, the best with 1."""
    return scores_of(
        messages, question, floor, lambda features: bm25([f.terms for f in features], read_terms(query))
    )


def scores_of(
    messages: Sequence[Message],
    question: Message | None,
    floor: float,
    score: Callable[[Sequence[Features]], Sequence[float]],
) -> dict[str, float]:
    """Score all but the question, which as a document would dwarf the others, and scale from `floor` to 1."""
    others = [message for message in messages if question is None or message.id != question.id]
    raw = score(all_features(others))
    best = max(raw, default=0.0)
    if not best:
        scores = dict.fromkeys([message.id for message in others], floor)
    else:
        scores = {m.id: floor + (1 - floor) * s / best for m, s in zip(others, raw, strict=True)}
    if question is not None:
        scores[question.id] = 1.0
    return scores
