"""One summary for each turn."""

from __future__ import annotations

from ..ports import CacheBackend, Summarizer
from .units import UnitBook


class TurnSummarizer(UnitBook):
    """Keeps a summary for each turn that was left out, several of them made in one call of the model."""

    def __init__(
        self,
        backend: Summarizer,
        cache: CacheBackend,
        *,
        target_ratio: float = 0.3,
        max_calls: int = 6,
        max_seconds: float = 120.0,
        short_tokens: int = 60,
    ) -> None:
        super().__init__(
            backend,
            cache,
            kind="summary-turn",
            size=1,
            target_ratio=target_ratio,
            max_calls=max_calls,
            max_seconds=max_seconds,
            short_tokens=short_tokens,
        )
