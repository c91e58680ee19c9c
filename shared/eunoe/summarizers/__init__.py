"""Summaries of what no longer fits: written by a model, checked, kept by content, with an extract to fall back on."""

from .book import Summary, SummaryBook, SummaryReport
from .conversation import ConversationSummarizer
from .llm import LLMSummarizer
from .segment import SegmentSummarizer
from .turn import TurnSummarizer

__all__ = [
    "ConversationSummarizer",
    "LLMSummarizer",
    "SegmentSummarizer",
    "Summary",
    "SummaryBook",
    "SummaryReport",
    "TurnSummarizer",
]
