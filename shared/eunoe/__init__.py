"""Eunoe: keeps what a chat's next answer needs inside a token budget, and says why."""

from .algorithms import (
    DependencyAwareAlgorithm,
    GreedyByWeightAlgorithm,
    PrefixCacheOptimizedAlgorithm,
    RecencyBiasedAlgorithm,
)
from .budget import CompositeBudget, CostBudget, TokenBudget, TokenTargetBudget
from .cache import InMemoryCache, RedisCache, SqliteCache
from .conversation import Conversation, Message
from .endpoint import OpenAIChatModel, OpenAIEmbedder
from .errors import EunoeError
from .events import Capture
from .job import Request
from .observability import LogSink, configure_logging
from .orchestrator import ContextOrchestrator, OrchestratorResult, Settlement
from .plan import Decision, Fate, Plan, Reason
from .ports import ConstraintSet, SelectionResult
from .settings import Settings
from .sink import HttpSink
from .summarizers import (
    ConversationSummarizer,
    LLMSummarizer,
    SegmentSummarizer,
    Summary,
    SummaryReport,
    TurnSummarizer,
)
from .usage import Usage
from .weighting import (
    CompositeWeightStrategy,
    EmbeddingSimilarityStrategy,
    HybridWeightingStrategy,
    KeywordRelevanceStrategy,
    LLMContextAnalyzer,
    SmartWeightingStrategy,
    StaticWeightStrategy,
)

__all__ = [
    "Capture",
    "CompositeBudget",
    "CompositeWeightStrategy",
    "ConstraintSet",
    "ContextOrchestrator",
    "Conversation",
    "ConversationSummarizer",
    "CostBudget",
    "Decision",
    "DependencyAwareAlgorithm",
    "EmbeddingSimilarityStrategy",
    "EunoeError",
    "Fate",
    "GreedyByWeightAlgorithm",
    "HttpSink",
    "HybridWeightingStrategy",
    "InMemoryCache",
    "KeywordRelevanceStrategy",
    "LLMContextAnalyzer",
    "LLMSummarizer",
    "LogSink",
    "Message",
    "OpenAIChatModel",
    "OpenAIEmbedder",
    "OrchestratorResult",
    "Plan",
    "PrefixCacheOptimizedAlgorithm",
    "Reason",
    "RecencyBiasedAlgorithm",
    "RedisCache",
    "Request",
    "SegmentSummarizer",
    "SelectionResult",
    "Settings",
    "Settlement",
    "SmartWeightingStrategy",
    "SqliteCache",
    "StaticWeightStrategy",
    "Summary",
    "SummaryReport",
    "TokenBudget",
    "TokenTargetBudget",
    "TurnSummarizer",
    "Usage",
    "configure_logging",
]
