"""Models that help, through a real Open WebUI: summaries after the answer, labels and embeddings before it."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eunoe.events import EventKind
from install import SOURCE, Wish, install
from processes import free_port

from .client import Client
from .collector import Collector
from .conftest import TOKEN, Valves
from .hosting import Hosted, hosted, tell
from .story import assert_valid, passage, turns
from .test_embedding import minilm
from .upstream import Call, Upstream, text_of

pytestmark = pytest.mark.e2e

# As long as the turns beside it, and without a word of the question that is asked about it.
COMPLAINT = (
    "The physician measured twice and says that I suffer from hypertension. She wants me to eat less salt, to walk "
    "every morning, to sleep longer, and to take a small white pill with breakfast. The cardiologist expects me in "
    "spring, when the new readings are in, and until then coffee and late shifts are off the menu, which will be hard."
)
ADVICE = (
    "Hypertension is common, and a pill with less salt usually brings the readings down within weeks. Write them down "
    "each morning before breakfast, so that the cardiologist sees how they move. Dizziness, a headache that does not "
    "pass or trouble with seeing are reasons to call the physician at once and not to wait until spring."
)
FRAME = "<summary_of_earlier_turns>"


def helping(upstream: Upstream, mark: str, sign: str) -> list[Call]:
    """The calls about a chat whose first message holds `sign`."""
    return [call for call in upstream.about(mark) if sign in text_of(call.messages[0])]


def answers(upstream: Upstream, mark: str, question: str) -> list[Call]:
    """The calls that a question was answered with."""
    return [call for call in upstream.about(mark) if call.question.startswith(f"{mark} {question}")]


def wait_until(ready: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def framed(call: Call) -> list[str]:
    """The summaries in a request."""
    return [text_of(message) for message in call.messages if text_of(message).startswith(FRAME)]


@pytest.mark.parametrize("level", ["conversation", "segment", "turn"])
def test_a_summary_is_written_after_the_answer_and_sent_with_the_next(
    level: str, client: Client, valves: Valves, upstream: Upstream, collector: Collector, mark: str
) -> None:
    valves.set(max_tokens=2000, summary_model="second", summary_level=level)
    chat = client.import_chat(turns(24, 60, mark))
    client.say(chat, f"{mark} first?")
    usages = [e.data for e in collector.wait_for(mark, EventKind.USAGE, 2)]
    helped = [usage for usage in usages if usage.get("purpose") == "summary"]
    asked = helping(upstream, mark, "Write the notes")
    assert 1 <= len(asked) <= 6
    assert {call.model for call in asked} == {"second"}
    assert helped[0]["prompt_tokens"] == asked[0].tokens
    (first,) = answers(upstream, mark, "first?")
    assert first.at < asked[0].at, "the answer waited for the summary"
    assert framed(first) == []

    wait_until(lambda: sum(e.event == EventKind.USAGE and e.data.get("purpose") == "summary"
                           for run in collector.runs(mark) for e in run) == len(asked))  # fmt: skip
    stored = {key: message["content"] for key, message in client.messages(chat).items()}
    client.say(chat, f"{mark} second?")
    (second,) = answers(upstream, mark, "second?")
    (summary,) = framed(second)
    assert re.search(r"^- \w+: \w+ (was|needs|stands) ", summary, re.MULTILINE)
    assert second.tokens <= 2000
    assert_valid(second.messages)
    plan = collector.wait_for(mark, EventKind.PLAN, 2)[1].data
    fates = [decision["fate"] for decision in plan["decisions"]]
    assert "summarized" in fates
    assert plan["tokens_inserted"] > 0
    now = client.messages(chat)
    assert {key: now[key]["content"] for key in stored} == stored
    assert helping(upstream, "no such mark", "Write the notes") == []


def test_a_summary_model_that_is_not_there_costs_nothing(
    client: Client, valves: Valves, upstream: Upstream, collector: Collector, mark: str
) -> None:
    valves.set(max_tokens=2000, summary_model="no-such-model", retry_attempts=1)
    chat = client.import_chat(turns(12, 60, mark))
    for number in range(2):
        assert client.say(chat, f"{mark} number {number}?").text.endswith(f"{mark} number {number}?")
    assert all(call.tokens <= 2000 for call in upstream.about(mark))
    assert not [e for run in collector.runs(mark) for e in run if e.event == EventKind.FAILED]


def test_nosum_makes_none(client: Client, valves: Valves, upstream: Upstream, mark: str) -> None:
    valves.set(max_tokens=2000, summary_model="second")
    chat = client.import_chat(turns(12, 60, mark))
    client.say(chat, f"!nosum {mark} first?")
    time.sleep(2)
    assert helping(upstream, mark, "Write the notes") == []


def test_the_task_model_labels_messages(
    client: Client, valves: Valves, upstream: Upstream, collector: Collector, mark: str
) -> None:
    valves.set(max_tokens=2000, llm_analysis=True, llm_analysis_weight=1.0, summary_model="second")
    told = turns(14, 60, mark)
    told[5] = (f"{mark} KEEPME {passage(905, 50)}", f"KEEPME {passage(955, 50)}")
    chat = client.import_chat(told)
    client.say(chat, f"!nosum {mark} first?")
    asked = helping(upstream, mark, "Reply with JSON alone")
    assert asked
    (first,) = answers(upstream, mark, "first?")
    assert asked[-1].at < first.at
    kept = [text_of(message) for message in first.messages]
    assert sum("KEEPME" in text for text in kept) == 2
    plan = collector.wait_for(mark, EventKind.PLAN)[0].data
    assert plan["weighting"].startswith("composite(")
    scores = {d["position"]: d["scores"]["llm_analyzer"] for d in plan["decisions"] if d.get("scores")}
    assert scores[10] == max(scores.values())
    usages = [e.data for e in collector.wait_for(mark, EventKind.USAGE, 2)]
    assert sum(usage.get("purpose") == "labels" for usage in usages) == len(asked)


# With an embedding model of the host's own


@pytest.fixture(scope="module")
def embedding_host(
    upstream: Upstream, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Hosted, Valves]]:
    """An Open WebUI that embeds with a real model, and the filter's settings in it."""
    folder: Path = tmp_path_factory.mktemp("embedding")
    with minilm(free_port(), folder / "embedder.log") as address:
        extra = {
            "RAG_EMBEDDING_ENGINE": "openai",
            "RAG_OPENAI_API_BASE_URL": address,
            "RAG_OPENAI_API_KEY": "none",
            "RAG_EMBEDDING_MODEL": "all-minilm-l6-v2",
        }
        with hosted(folder, upstream.url, extra) as running:
            wish = Wish(
                SOURCE.read_text(encoding="utf-8"), observer_url=collector.address, observer_token=TOKEN
            )
            install(running.api, wish, tell)
            always = {"observer_url": collector.address, "observer_token": TOKEN, "observer_content": "full"}
            yield running, Valves(running.api, always)


def test_open_webuis_own_embeddings_find_what_shares_no_word(
    embedding_host: tuple[Hosted, Valves], upstream: Upstream, collector: Collector, mark: str
) -> None:
    running, valves = embedding_host
    client = Client(running.api)
    told = turns(24, 40, "note")
    told[4] = (COMPLAINT, ADVICE)

    def ask(weighting: str) -> tuple[bool, dict[str, Any]]:
        """Whether the complaint was sent, and the plan."""
        valves.set(max_tokens=1200, weighting=weighting, algorithm="greedy_by_weight")
        chat, asked = client.import_chat(told), f"{mark} {uuid.uuid4().hex[:6]} {weighting}:"
        client.say(chat, f"{asked} is there anything about my blood pressure or health?")
        (call,) = (call for call in upstream.about(mark) if call.question.startswith(asked))
        plan = collector.wait_for(asked, EventKind.PLAN)[0].data
        return any("hypertension" in text_of(message) for message in call.messages), plan

    found, plan = ask("hybrid")
    for _ in range(3):
        if not plan.get("notices"):
            break
        time.sleep(31)  # on a busy machine the model was too slow, and is left alone for half a minute
        found, plan = ask("hybrid")
    assert (plan["weighting"], plan.get("notices", [])) == ("hybrid", [])
    assert found
    assert not ask("keyword")[0]
