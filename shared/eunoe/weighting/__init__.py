"""How much each message matters for the question."""

from .composite import CompositeWeightStrategy
from .embedding import EmbeddingSimilarityStrategy
from .hybrid import HybridWeightingStrategy
from .keyword import KeywordRelevanceStrategy
from .llm_analyzer import LLMContextAnalyzer
from .smart import SmartWeightingStrategy
from .static import StaticWeightStrategy

__all__ = [
    "CompositeWeightStrategy",
    "EmbeddingSimilarityStrategy",
    "HybridWeightingStrategy",
    "KeywordRelevanceStrategy",
    "LLMContextAnalyzer",
    "SmartWeightingStrategy",
    "StaticWeightStrategy",
]
