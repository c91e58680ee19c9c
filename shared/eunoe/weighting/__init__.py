"""How much each message matters for the question."""

from .keyword import KeywordRelevanceStrategy
from .smart import SmartWeightingStrategy
from .static import StaticWeightStrategy

__all__ = ["KeywordRelevanceStrategy", "SmartWeightingStrategy", "StaticWeightStrategy"]
