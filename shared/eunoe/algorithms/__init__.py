"""Ways to choose what stays within a budget."""

from .dependency import DependencyAwareAlgorithm
from .greedy import GreedyByWeightAlgorithm
from .prefix import PrefixCacheOptimizedAlgorithm
from .recency import RecencyBiasedAlgorithm

__all__ = [
    "DependencyAwareAlgorithm",
    "GreedyByWeightAlgorithm",
    "PrefixCacheOptimizedAlgorithm",
    "RecencyBiasedAlgorithm",
]
