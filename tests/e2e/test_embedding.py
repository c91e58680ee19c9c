"""The engine's model clients against real models: a sentence-embedding model and llama.cpp."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import operator
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import environments
from eunoe.conversation import Conversation
from eunoe.endpoint import OpenAIChatModel, OpenAIEmbedder
from eunoe.weighting import vectors
from eunoe.weighting.embedding import EmbeddingSimilarityStrategy
from eunoe.weighting.hybrid import HybridWeightingStrategy
from eunoe.weighting.smart import SmartWeightingStrategy
from processes import Server, free_port, stop

pytestmark = pytest.mark.e2e

FILTER = Path(environments.__file__).parent

# Known cosines of these sentences with the first one.
HAPPY = {
    "That is a happy person": 1.0,
    "That is a happy dog": 0.695,
    "That is a very happy person": 0.943,
    "Today is a sunny day": 0.257,
}
SMALL_TALK = ["The weather was fine on Sunday.", "I bought a green lamp.", "My sister plays chess."]
CHAT = [
    *SMALL_TALK,
    "It turned out that I have hypertension.",
    *SMALL_TALK,
    "We went to see a film.",
    "The rent is due.",
    "Is there anything about my health that I mentioned?",
]
ILLNESS = 3


@contextlib.contextmanager
def minilm(port: int, log: Path) -> Iterator[str]:
    """Run the embedding model; gives its address."""
    python = environments.embedding() / "bin" / "python"
    command = [str(python), str(FILTER / "embedder.py"), "--port", str(port)]
    server = Server.start("The embedding model", command, log, os.environ)
    try:
        server.wait(f"http://127.0.0.1:{port}/health", 60)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        stop([server])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running embedding model."""
    with minilm(free_port(), tmp_path_factory.mktemp("minilm") / "embedder.log") as address:
        yield address


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(map(operator.mul, a, b)) / math.hypot(*a) / math.hypot(*b)


def scores(strategy: Any, context: dict[str, Any] | None = None) -> list[float]:
    roles = ("user", "assistant")
    chat = Conversation.from_openai_messages(
        {"role": roles[i % 2] if i < len(CHAT) - 1 else "user", "content": text}
        for i, text in enumerate(CHAT)
    )
    found = asyncio.run(strategy.score(chat.messages, CHAT[-1], chat, context))
    return [found[message.id] for message in chat.messages]


def test_real_vectors_arrive_in_order_and_mean_what_they_should(address: str) -> None:
    embedder = OpenAIEmbedder(address, model="all-minilm-l6-v2", batch=3)
    found = asyncio.run(embedder.embed([*HAPPY, *HAPPY]))
    assert {len(vector) for vector in found} == {384}
    assert found[0] == pytest.approx(found[4], abs=1e-6)
    near = {text: cosine(found[0], vector) for text, vector in zip(HAPPY, found, strict=False)}
    assert near == pytest.approx(HAPPY, abs=1e-3)


def test_a_text_of_any_length_has_a_vector(address: str) -> None:
    found = asyncio.run(OpenAIEmbedder(address).embed(["word " * 40_000, "", "数据库 " * 3_000, "\ud83d"]))
    assert [math.hypot(*vector) for vector in found] == pytest.approx([1, 1, 1, 1])


@pytest.mark.parametrize("kind", [EmbeddingSimilarityStrategy, HybridWeightingStrategy])
def test_an_illness_is_found_by_a_question_about_health(address: str, kind: Any) -> None:
    found = scores(kind(address, "", "all-minilm-l6-v2"))
    assert max(found[:-1]) == found[ILLNESS]
    assert scores(SmartWeightingStrategy())[ILLNESS] < 0.5, "its words alone would not have found it"


def test_a_model_that_goes_and_comes_back_costs_the_turns_between(tmp_path: Path) -> None:
    port, told = free_port(), list[str]()
    strategy = HybridWeightingStrategy(f"http://127.0.0.1:{port}", "", "all-minilm-l6-v2", rest=0)
    without = scores(strategy, {"notices": told})
    assert without == scores(SmartWeightingStrategy())
    assert told == ["The embedding model gave no answer; messages were weighed by their words."]
    with minilm(port, tmp_path / "embedder.log"):
        found = scores(strategy, {"notices": told})
    assert len(told) == 1
    assert max(found[:-1]) == found[ILLNESS]
    assert scores(strategy, {"notices": told}) == found, "what is known needs no model"


def test_cosines_are_the_same_with_numpy() -> None:
    """The model's environment has numpy, the engine's own may not."""
    program = """
import importlib.util, json, math, sys
spec = importlib.util.spec_from_file_location("vectors", sys.argv[1])
vectors = importlib.util.module_from_spec(spec)
spec.loader.exec_module(vectors)
assert vectors.numpy is not None
units = [vectors.unit_vector([math.sin(i * j) for j in range(1, 400)]) for i in range(1, 60)]
assert vectors.cosines(units[0], []) == []
print(json.dumps([vectors.cosines(units[0], units), vectors.plain_cosines(units[0], units)]))
"""
    python = environments.embedding() / "bin" / "python"
    command = [str(python), "-c", program, str(vectors.__file__)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    with_numpy, without = json.loads(ran.stdout)
    assert with_numpy == without
    assert with_numpy[0] == 1.0


def test_llama_answers_the_helping_model(tmp_path: Path) -> None:
    port, python = free_port(), environments.llama() / "bin" / "python"
    command = [str(python), str(FILTER / "llama.py"), "--port", str(port), "--context", "1024"]
    server = Server.start("The local model", command, tmp_path / "llama.log", os.environ)
    try:
        server.wait(f"http://127.0.0.1:{port}/health", 120)
        model = OpenAIChatModel(f"http://127.0.0.1:{port}", "", "gemma3-270m", extra_body={"temperature": 0})
        question = [{"role": "user", "content": "Count: one, two, three,"}]
        reply = asyncio.run(model.complete(question, max_tokens=6))
    finally:
        stop([server])
    assert reply.finish_reason == "length"
    assert reply.text
    assert reply.usage.completion_tokens == 6
    assert reply.usage.prompt_tokens is not None
    assert reply.usage.prompt_tokens > 5
