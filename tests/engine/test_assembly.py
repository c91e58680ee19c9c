"""From settings to an orchestrator: each setting reaches what it names, and what is missing is said."""

import asyncio
import json
import typing
from pathlib import Path

import pytest

from eunoe.assembly import (
    CACHE_FILE,
    PART_FIELDS,
    HostModels,
    cache_for,
    data_file,
    orchestrator_for,
    parts_for,
)
from eunoe.cache.memory import InMemoryCache
from eunoe.cache.redis import RedisCache
from eunoe.cache.sqlite import SqliteCache
from eunoe.conversation import Conversation
from eunoe.errors import BadSetting
from eunoe.job import Request
from eunoe.ports import ChatReply
from eunoe.settings import Settings
from eunoe.summarizers.conversation import ConversationSummarizer
from eunoe.summarizers.segment import SegmentSummarizer
from eunoe.summarizers.turn import TurnSummarizer

from .scripted import ScriptedServer, chat_answer, embeddings

CHAT = [
    {"role": role, "content": f"{role} {i} " + "about the harbor and its boats " * 6}
    for i in range(20)
    for role in ("user", "assistant")
]
QUESTION = {"role": "user", "content": "How deep is it?"}


class HostChat:
    """A host's model that labels all messages alike."""

    def __init__(self):
        self.asked = 0

    async def complete(self, messages, *, max_tokens, tools=()):
        self.asked += 1
        count = messages[-1]["content"].count("\n")
        return ChatReply(json.dumps({"labels": ["M"] * count}))

    def name(self):
        return "host chat"


class HostEmbedder:
    """A host's embedder that tells texts apart by their length."""

    def __init__(self):
        self.asked = 0

    async def embed(self, texts):
        self.asked += 1
        return [[len(text), 1.0] for text in texts]

    def name(self):
        return "host embedder"


def process(orchestrator, messages=(*CHAT, QUESTION)):
    return asyncio.run(orchestrator.process(Conversation.from_openai_messages(messages), Request())).plan


@pytest.mark.parametrize("weighting", ["embedding", "hybrid"])
def test_embeddings_come_from_the_host_or_from_an_address(weighting):
    embedder = HostEmbedder()
    settings = Settings(max_tokens=500, weighting=weighting)
    plan = process(orchestrator_for(settings, models=HostModels(embedder=embedder)))
    assert (plan.weighting, plan.notices) == (weighting, ())
    assert embedder.asked
    with ScriptedServer(embeddings) as server:
        given = settings.model_copy(
            update={"embedding_api_base": server.url, "embedding_api_key": "k", "embedding_model": "e"}
        )
        asked = embedder.asked
        process(orchestrator_for(given, models=HostModels(embedder=embedder)))
        assert embedder.asked == asked
        assert {(a.path, a.headers["Authorization"], a.body["model"]) for a in server.asked} == {
            ("/v1/embeddings", "Bearer k", "e")
        }


def test_labels_come_from_the_host_or_from_an_address():
    chat = HostChat()
    settings = Settings(max_tokens=500, llm_analysis=True, llm_analysis_weight=0.25)
    plan = process(orchestrator_for(settings, models=HostModels(chat=chat)))
    assert plan.weighting == "composite(smart 0.75, llm_analyzer 0.25)"
    assert chat.asked
    [scores] = {tuple(d.scores) for d in plan.decisions}
    assert scores == ("smart", "llm_analyzer")
    for decision in plan.decisions:
        mixed = 0.75 * decision.scores["smart"] + 0.25 * decision.scores["llm_analyzer"]
        assert decision.parts["relevance"] == pytest.approx(mixed)
    with ScriptedServer(chat_answer('{"labels": []}')) as server:
        given = settings.model_copy(
            update={
                "summary_api_base": server.url,
                "summary_api_key": "s",
                "summary_model": "m",
                "summary_extra_body": '{"seed": 7}',
            }
        )
        asked = chat.asked
        process(orchestrator_for(given, models=HostModels(chat=chat)))
        assert chat.asked == asked
        assert {(a.headers["Authorization"], a.body["model"], a.body["seed"]) for a in server.asked} == {
            ("Bearer s", "m", 7)
        }


@pytest.mark.parametrize(
    ("level", "kind"),
    [("conversation", ConversationSummarizer), ("segment", SegmentSummarizer), ("turn", TurnSummarizer)],
)
def test_summaries_are_made_as_the_settings_say(level, kind):
    models = HostModels(chat=HostChat())
    settings = Settings(summary_model="m", summary_level=level)
    assert isinstance(orchestrator_for(settings, models=models).summaries, kind)
    assert orchestrator_for(Settings(summary_level=level), models=models).summaries is None
    off = settings.model_copy(update={"nosum_by_default": True})
    assert orchestrator_for(off, models=models).summaries is None


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"weighting": "embedding"}, "weighting"),
        ({"weighting": "hybrid"}, "weighting"),
        ({"llm_analysis": True}, "llm_analysis"),
        ({"summary_model": "m"}, "summary_model"),
        ({"cache_backend": "sqlite"}, "store_path"),
        ({"cache_backend": "redis", "redis_url": "nonsense"}, "redis_url"),
    ],
)
def test_what_is_missing_is_named(settings, field):
    with pytest.raises(BadSetting) as caught:
        orchestrator_for(Settings(**settings))
    assert caught.value.field == field
    assert caught.value.fix


def test_the_cache_is_the_one_of_the_settings(tmp_path):
    assert isinstance(cache_for(Settings(), None), InMemoryCache)
    assert isinstance(cache_for(Settings(cache_backend="redis"), None), RedisCache)
    cache = cache_for(Settings(cache_backend="sqlite"), tmp_path)
    assert isinstance(cache, SqliteCache)
    asyncio.run(cache.set("key", "text"))
    assert (tmp_path / CACHE_FILE).exists()


def test_every_setting_that_a_part_is_made_of_makes_new_parts():
    """A setting that is read for a part but missing in the list would keep the old part alive."""
    read = set()

    class Noting(Settings):
        def __getattribute__(self, name):
            if name in Settings.model_fields:
                read.add(name)
            return super().__getattribute__(name)

    models = HostModels(HostChat(), HostEmbedder())
    for weighting in typing.get_args(Settings.model_fields["weighting"].annotation):
        for base in ("", "http://localhost:1/v1"):
            for level in typing.get_args(Settings.model_fields["summary_level"].annotation):
                settings = Noting(
                    weighting=weighting, llm_analysis=True, summary_model="m", summary_level=level,
                    summary_api_base=base, embedding_api_base=base,
                )  # fmt: skip
                parts_for(settings, models)
    parts_for(Noting(cache_backend="redis"), models)
    parts_for(Noting(cache_backend="sqlite", store_path="/nowhere/x"), models)
    assert read == PART_FIELDS


def test_files_lie_beside_the_store_or_in_the_hosts_folder():
    assert data_file(Settings(store_path="/data/eunoe.sqlite3"), Path("/host"), "x") == Path("/data/x")
    assert data_file(Settings(), Path("/host"), "x") == Path("/host/x")


def test_all_parts_go_together_as_users_of_the_field_write_it(caplog):
    """A cache that is down and models that answer nonsense cost features, not the plan."""
    from eunoe import ContextOrchestrator, Conversation, TokenBudget  # noqa: PLC0415  it is the example
    from eunoe.algorithms import DependencyAwareAlgorithm, RecencyBiasedAlgorithm  # noqa: PLC0415
    from eunoe.cache import RedisCache  # noqa: PLC0415
    from eunoe.ports import ConstraintSet  # noqa: PLC0415
    from eunoe.summarizers import LLMSummarizer, TurnSummarizer  # noqa: PLC0415
    from eunoe.weighting import CompositeWeightStrategy, SmartWeightingStrategy  # noqa: PLC0415
    from eunoe.weighting.embedding import EmbeddingSimilarityStrategy  # noqa: PLC0415

    with ScriptedServer(embeddings) as server:
        cache = RedisCache.from_url("redis://127.0.0.1:1/0")
        weighting = CompositeWeightStrategy([
            (EmbeddingSimilarityStrategy(api_base=server.url, api_key="k", model="e", cache=cache), 0.7),
            (SmartWeightingStrategy(), 0.3),
        ])  # fmt: skip
        backend = LLMSummarizer(api_base=server.url, api_key="k", model="m", attempts=1)
        orchestrator = ContextOrchestrator(
            budget=TokenBudget(max_tokens=1_200),
            algorithm=DependencyAwareAlgorithm(inner=RecencyBiasedAlgorithm(recency_factor=2.0)),
            weighting=weighting,
            turn_summarizer=TurnSummarizer(backend=backend, cache=cache),
            constraints=ConstraintSet(require_last_user=True),
        )

        async def turn():
            request = Request(model="m")
            result = await orchestrator.process(Conversation.from_openai_messages([*CHAT, QUESTION]), request)
            return result, await orchestrator.write_summaries(request, result.recap)

        result, report = asyncio.run(turn())
    assert result.plan.weighting == "composite(embedding 0.7, smart 0.3)"
    assert 900 < result.token_count <= 1_200
    assert report.made == 0
    assert "m" in report.problem
    assert "harbor" not in caplog.text
