"""From settings to an orchestrator, with what a host can give: its models, and a folder for files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .algorithms.dependency import DependencyAwareAlgorithm
from .algorithms.greedy import GreedyByWeightAlgorithm
from .algorithms.prefix import PrefixCacheOptimizedAlgorithm
from .algorithms.recency import RecencyBiasedAlgorithm
from .budget import CompositeBudget, CostBudget, TokenBudget, read_model_budgets
from .cache.memory import InMemoryCache
from .cache.redis import RedisCache
from .cache.sqlite import SqliteCache
from .endpoint import OpenAIChatModel, OpenAIEmbedder
from .errors import BadSetting
from .events import Capture
from .orchestrator import ContextOrchestrator
from .ports import CacheBackend, ChatModel, Embedder, SelectionAlgorithm, Sink, Summarizer, WeightingStrategy
from .sent import SentLog
from .settings import Settings, read_extra_body
from .summarizers.book import SummaryBook
from .summarizers.conversation import ConversationSummarizer
from .summarizers.llm import LLMSummarizer
from .summarizers.segment import SegmentSummarizer
from .summarizers.turn import TurnSummarizer
from .weighting.composite import CompositeWeightStrategy
from .weighting.embedding import EmbeddingSimilarityStrategy
from .weighting.hybrid import HybridWeightingStrategy
from .weighting.keyword import KeywordRelevanceStrategy
from .weighting.llm_analyzer import LLMContextAnalyzer
from .weighting.smart import SmartWeightingStrategy
from .weighting.static import StaticWeightStrategy

CACHE_FILE = "eunoe-cache.sqlite"
PRICES_FILE = "eunoe-openrouter-prices.json"


@dataclass(frozen=True, slots=True)
class HostModels:
    """The models of a host, for settings that name no address of their own; None: it has none.

    `chat` is asked for the model that `summary_model` names, `embedder` for whatever the host embeds with.
    """

    chat: ChatModel | None = None
    embedder: Embedder | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What remembers: a strategy with its vectors and labels, and a book of summaries. Costly to lose."""

    weighting: WeightingStrategy
    summaries: SummaryBook | None


# The settings that `Parts` are made of; the others may change without a loss.
PART_FIELDS = frozenset(
    {
        *("weighting", "tool_penalty", "pair_coherence", "embedding_api_base", "embedding_api_key"),
        *("embedding_model", "llm_analysis", "llm_analysis_weight", "use_entry_logic", "summary_model"),
        *("summary_api_base", "summary_api_key", "summary_extra_body", "summary_window", "summary_level"),
        *(
            "summary_target_ratio",
            "nosum_by_default",
            "retry_attempts",
            "cache_backend",
            "redis_url",
            "store_path",
        ),
    }
)


def parts_for(settings: Settings, models: HostModels | None = None, folder: Path | None = None) -> Parts:
    """Make the parts that the settings name; `folder` is where files go that `store_path` names no place for.

    Raises:
        BadSetting: two settings do not go together, or a package is missing that one needs.
    """
    models, cache = models or HostModels(), cache_for(settings, folder)
    return Parts(_weighting_for(settings, models, cache), _summaries_for(settings, models, cache))


def orchestrator_for(
    settings: Settings,
    sink: Sink | None = None,
    *,
    models: HostModels | None = None,
    folder: Path | None = None,
    parts: Parts | None = None,
    sent: SentLog | None = None,
) -> ContextOrchestrator:
    """Build an orchestrator as the settings say, with `parts` and `sent` where they are there already.

    Raises:
        BadSetting: two settings do not go together, or a package is missing that one needs.
    """
    parts = parts or parts_for(settings, models, folder)
    return ContextOrchestrator(
        CompositeBudget(TokenBudget(settings.max_tokens), CostBudget(settings.max_cost_usd)),
        algorithm=_algorithm_for(settings),
        weighting=parts.weighting,
        summaries=parts.summaries,
        model_budgets=read_model_budgets(settings.model_budgets),
        sink=sink,
        capture=Capture(settings.observer_content),
        log_level=settings.observer_log_level,
        sent=sent,
    )


def data_file(settings: Settings, folder: Path | None, name: str) -> Path:
    """Say where a file of ours lies: beside `store_path`, else in the host's.

    Raises:
        BadSetting: there is neither.
    """
    if path := settings.store_path.strip():
        return Path(path).expanduser().parent / name
    if folder is None:
        raise BadSetting("store_path", "there is no folder for Eunoe's own files", "Give a path.")
    return folder / name


def cache_for(settings: Settings, folder: Path | None) -> CacheBackend:
    """Make the cache that the settings name.

    Raises:
        BadSetting: its package is missing, its address is none, or there is no folder for its file.
    """
    if settings.cache_backend == "sqlite":
        return SqliteCache(data_file(settings, folder, CACHE_FILE))
    if settings.cache_backend == "redis":
        return RedisCache.from_url(settings.redis_url, prefix="eunoe:")
    return InMemoryCache()


def _algorithm_for(settings: Settings) -> SelectionAlgorithm:
    recency = RecencyBiasedAlgorithm(settings.recency_factor)
    match settings.algorithm:
        case "greedy_by_weight":
            return GreedyByWeightAlgorithm()
        case "dependency_aware":
            return DependencyAwareAlgorithm(recency)
        case "prefix_cache_optimized":
            return PrefixCacheOptimizedAlgorithm(recency)
        case _:
            return recency


def _weighting_for(settings: Settings, models: HostModels, cache: CacheBackend) -> WeightingStrategy:
    own = _own_weighting(settings, models, cache)
    if not settings.llm_analysis or settings.llm_analysis_weight == 0:
        return own
    analyzer = LLMContextAnalyzer(
        chat=_chat_for(settings, models, "llm_analysis"),
        cache=cache,
        use_entry_logic=settings.use_entry_logic,
        window_tokens=settings.summary_window,
        fallback=own,
    )
    share = settings.llm_analysis_weight
    return CompositeWeightStrategy([(own, 1 - share), (analyzer, share)])


def _own_weighting(settings: Settings, models: HostModels, cache: CacheBackend) -> WeightingStrategy:
    penalty, coherence = settings.tool_penalty, settings.pair_coherence
    match settings.weighting:
        case "static":
            return StaticWeightStrategy()
        case "keyword":
            return KeywordRelevanceStrategy()
        case "embedding":
            fallback = SmartWeightingStrategy(penalty, coherence)
            return EmbeddingSimilarityStrategy(
                embedder=_embedder_for(settings, models), cache=cache, fallback=fallback
            )
        case "hybrid":
            return HybridWeightingStrategy(
                embedder=_embedder_for(settings, models),
                cache=cache,
                tool_penalty=penalty,
                pair_coherence=coherence,
            )
        case _:
            return SmartWeightingStrategy(penalty, coherence)


def _summaries_for(settings: Settings, models: HostModels, cache: CacheBackend) -> SummaryBook | None:
    if settings.nosum_by_default or not settings.summary_model.strip():
        return None
    backend: Summarizer = LLMSummarizer(
        chat=_chat_for(settings, models, "summary_model"), window_tokens=settings.summary_window
    )
    ratio = settings.summary_target_ratio
    match settings.summary_level:
        case "turn":
            return TurnSummarizer(backend, cache, target_ratio=ratio)
        case "segment":
            return SegmentSummarizer(backend, cache, target_ratio=ratio)
        case _:
            return ConversationSummarizer(backend, cache, target_ratio=ratio)


def _chat_for(settings: Settings, models: HostModels, wanted_by: str) -> ChatModel:
    if base := settings.summary_api_base.strip():
        return OpenAIChatModel(
            base,
            settings.summary_api_key.strip(),
            settings.summary_model.strip(),
            extra_body=read_extra_body(settings.summary_extra_body),
            attempts=settings.retry_attempts,
        )
    if models.chat is None:
        fix = "Set summary_api_base to an OpenAI-compatible address."
        raise BadSetting(wanted_by, "there is no model to ask", fix)
    return models.chat


def _embedder_for(settings: Settings, models: HostModels) -> Embedder:
    if base := settings.embedding_api_base.strip():
        return OpenAIEmbedder(
            base,
            settings.embedding_api_key.strip(),
            settings.embedding_model.strip(),
            attempts=settings.retry_attempts,
        )
    if models.embedder is None:
        fix = "Set embedding_api_base to an OpenAI-compatible address."
        raise BadSetting("weighting", f"{settings.weighting} needs an embedding model", fix)
    return models.embedder
