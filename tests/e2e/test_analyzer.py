"""With a real model server: whatever a small base model says, a turn goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import environments
from eunoe.conversation import Conversation
from eunoe.endpoint import OpenAIChatModel
from eunoe.weighting.labels import LABEL_WEIGHTS
from eunoe.weighting.llm_analyzer import LLMContextAnalyzer
from eunoe.weighting.smart import SmartWeightingStrategy
from processes import Server, free_port, stop

from .story import passage

pytestmark = pytest.mark.e2e

MODEL, WINDOW = "gemma3-270m", 1024
SECONDS = 300.0  # on two busy cores a token can take more than a second
QUESTION = "What is the code word?"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a llama.cpp server with a small model."""
    port = free_port()
    python = environments.llama() / "bin" / "python"
    script = Path(environments.__file__).with_name("llama.py")
    command = [str(python), str(script), "--port", str(port), "--context", str(WINDOW), "--reply", "200"]
    log = tmp_path_factory.mktemp("llama") / "llama.log"
    server = Server.start("The local model", command, log, os.environ)
    try:
        server.wait(f"http://127.0.0.1:{port}/health", 120)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        stop([server])


def a_chat(turns: int) -> Conversation:
    """A chat about rivers and bridges, in which one turn says what is asked for at the end."""
    messages: list[dict[str, Any]] = []
    for number in range(turns):
        told = "The code word is swordfish." if number == turns // 2 else passage(number, 30)
        messages += [{"role": "user", "content": told}, {"role": "assistant", "content": "I see."}]
    return Conversation.from_openai_messages([*messages, {"role": "user", "content": QUESTION}])


def weighed(analyzer: LLMContextAnalyzer, context: dict[str, list[Any]]) -> list[tuple[float, float]]:
    """Weigh a chat with labels and without; the weights of each message side by side."""

    async def both() -> list[tuple[float, float]]:
        chat = a_chat(20)
        found = await analyzer.score(chat.messages, QUESTION, chat, context)
        plain = await SmartWeightingStrategy().score(chat.messages, QUESTION, chat)
        assert found.keys() == plain.keys()
        return [(found[name], plain[name]) for name in plain]

    return asyncio.run(both())


@pytest.mark.parametrize("entry", [False, True], ids=["messages", "topics first"])
def test_whatever_a_real_model_says_the_turn_goes_on_with_labels_of_the_five(llama: str, entry: bool) -> None:
    context: dict[str, list[Any]] = {"usages": [], "notices": []}
    chat = OpenAIChatModel(llama, "", MODEL, extra_body={"max_tokens": 40}, timeout=SECONDS)
    analyzer = LLMContextAnalyzer(
        chat=chat, window_tokens=WINDOW, use_entry_logic=entry, max_calls=2, max_seconds=SECONDS
    )
    weights = weighed(analyzer, context)
    assert all(weight in LABEL_WEIGHTS.values() or weight == plain for weight, plain in weights)
    assert weights[-1] == (1.0, 1.0)
    assert len(context["notices"]) <= 1
    assert len(context["usages"]) == 2
    for usage in context["usages"]:
        assert 0 < usage.prompt_tokens < WINDOW, "by the model's own tokenizer"


def test_where_no_model_server_is_the_turn_goes_on_without() -> None:
    context: dict[str, list[Any]] = {"usages": [], "notices": []}
    analyzer = LLMContextAnalyzer(f"http://127.0.0.1:{free_port()}/v1", "", MODEL)
    assert all(weight == plain for weight, plain in weighed(analyzer, context))
    assert len(context["notices"]) == 1
