"""Weights all messages alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..conversation import Conversation, Message


class StaticWeightStrategy:
    """Gives every message relevance 1, so that only flags and recency tell them apart."""

    async def score(
        self,
        messages: Sequence[Message],
        query: str,  # noqa: ARG002  part of the port
        conversation: Conversation,  # noqa: ARG002
        context: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> Mapping[str, float]:
        """Give 1 to each."""
        return {message.id: 1.0 for message in messages}

    def name(self) -> str:
        """Name the strategy."""
        return "static"
