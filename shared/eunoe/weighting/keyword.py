"""Relevance by the words a message shares with the question."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..conversation import Conversation, Message
from ..terms import Terms, read_terms, terms_of

# BM25's usual constants fit documents; on chat messages these kept more of the evidence (LoCoMo).
_K1, _B = 0.9, 0.4
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
    """Score messages against `query`; the question itself is no document, or it would dwarf the others."""
    others = [message for message in messages if question is None or message.id != question.id]
    documents = [terms_of(message.digest, message.text) for message in others]
    raw = bm25(documents, read_terms(query))
    best = max(raw, default=0.0)
    scores = {
        m.id: floor + (1 - floor) * s / best if best else floor for m, s in zip(others, raw, strict=True)
    }
    if question is not None:
        scores[question.id] = 1.0
    return scores


def bm25(documents: Sequence[Terms], query: Terms) -> list[float]:
    """Score documents by Okapi BM25 (Robertson and Zaragoza 2009), with an inverse frequency above 0."""
    scores = [0.0] * len(documents)
    lengths = [document.length for document in documents]
    mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
    for term in query.counts:
        holders = [(i, count) for i, document in enumerate(documents) if (count := document.counts.get(term))]
        if not holders:
            continue
        rarity = math.log(1 + (len(documents) - len(holders) + 0.5) / (len(holders) + 0.5))
        for i, count in holders:
            scores[i] += rarity * count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * lengths[i] / mean))
    return scores
