"""One summary for every few turns."""

from __future__ import annotations

from ..ports import CacheBackend, Summarizer
from .units import UnitBook


class SegmentSummarizer(UnitBook):
    """Keeps a summary for each segment of `segment_turns` turns, counted from the conversation's first.

    A segment that does not fit the model's window is summarized piece by piece, the summary carried on.
    """

    takes_prefix = True

    def __init__(
        self,
        backend: Summarizer,
        cache: CacheBackend,
        *,
        segment_turns: int = 8,
        target_ratio: float = 0.3,
        max_calls: int = 6,
        max_seconds: float = 120.0,
    ) -> None:
        super().__init__(
            backend,
            cache,
            kind="summary-segment",
            size=segment_turns,
            target_ratio=target_ratio,
            max_calls=max_calls,
            max_seconds=max_seconds,
        )
