"""Counting tokens."""

import hashlib
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eunoe.estimate import estimated_tokens
from eunoe.tokens import (
    ESTIMATE,
    IMAGE_TOKENS,
    LOW_DETAIL_IMAGE_TOKENS,
    MESSAGE_OVERHEAD,
    counter_for,
    message_tokens,
)


def count(**message):
    return ESTIMATE.count_message({"role": "user", **message}) - MESSAGE_OVERHEAD


def test_an_image_costs_the_same_whatever_its_bytes():
    def image(size, **detail):
        return [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size, **detail}}]

    assert count(content=image(10)) == count(content=image(4_000_000)) == IMAGE_TOKENS
    assert count(content=image(10, detail="low")) == LOW_DETAIL_IMAGE_TOKENS
    assert count(content="x", images=["A" * 9000]) == count(content="x") + IMAGE_TOKENS


def test_audio_and_files_cost_by_their_size():
    def audio(size):
        return [{"type": "input_audio", "input_audio": {"data": "A" * size, "format": "mp3"}}]

    assert count(content=audio(4)) == 1
    assert count(content=audio(640_000)) == 300
    assert count(content=[{"type": "file", "file": {"file_data": "A" * 40_000, "filename": "a.pdf"}}]) == 800


def test_tool_calls_reasoning_and_names_count():
    arguments = '{"text": "' + "word " * 300 + '"}'
    calls = [{"id": "c", "type": "function", "function": {"name": "write", "arguments": arguments}}]
    assert count(content=None, tool_calls=calls) > 300
    assert count(content="", reasoning_content="word " * 300) >= 300
    assert count(content="hi", name="Ada") > count(content="hi")


def test_tool_definitions_count():
    tools = [{"type": "function", "function": {"name": "f", "description": "word " * 100, "parameters": {}}}]
    assert ESTIMATE.count_tools(tools) > 100


def test_text_of_special_tokens_is_text():
    for model in ("gpt-4o", "gpt-3.5-turbo", "qwen3:14b"):
        assert counter_for(model).count_text("<|endoftext|><|im_start|>") > 2


@pytest.mark.parametrize(
    "text", ["\ud83d broken", "\x00", "", "=" * 1_000_000, " " * 1_000_000, "字" * 100_000]
)
def test_no_text_makes_it_fail_or_crawl(text):
    assert counter_for("gpt-4o").count_text(text) >= 0
    assert estimated_tokens(text) >= 0


@given(st.text(max_size=200), st.text(max_size=200))
def test_more_text_is_never_much_cheaper(a, b):
    assert estimated_tokens(a + "\n" + b) >= 0.5 * max(estimated_tokens(a), estimated_tokens(b)) - 3


@pytest.mark.parametrize(
    ("text", "o200k"),
    [
        # Counted once with tiktoken's o200k_base.
        ("The harbor at night was quiet, and nobody noticed the small boat leaving.", 15),
        ("def area(width: float, height: float) -> float:\n    return width * height\n", 19),
        ('{"id": 4471, "status": "shipped", "items": [1, 2, 3]}', 26),
        ("今天我们讨论数据库迁移的计划，并且确定了日期。", 14),
        ("Сегодня мы обсуждаем план переноса базы данных.", 10),
        ("本日はデータベースの移行計画について話し合います。", 17),
    ],
)
def test_the_estimate_is_near_a_real_tokenizer(text, o200k):
    assert 0.85 * o200k <= estimated_tokens(text) <= 1.6 * o200k


def test_tool_definitions_are_not_counted_half_again_as_large():
    """A page sends thousands of tokens of them; counted too high they alone would fill a small window."""
    tool = (
        '{"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city for a '
        'day.", "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "The name '
        'of the city"}, "day": {"type": "string", "enum": ["today", "tomorrow"]}}, "required": ["city"]}}}'
    )
    o200k = 89  # counted once with tiktoken's o200k_base
    assert o200k <= estimated_tokens(tool) <= 1.2 * o200k


def test_a_missing_or_broken_vocabulary_gives_the_estimate_and_no_download(tmp_path):
    name = "fb374d419588a4632f3f557e76b4b70aebbca790"
    (tmp_path / name).write_bytes(b"not a vocabulary")
    script = (
        "import socket, sys\n"
        "def refuse(event, args):\n"
        "    if event.startswith('socket.connect') or event == 'socket.getaddrinfo':\n"
        "        print('NETWORK', event, args)\n"
        "sys.addaudithook(refuse)\n"
        "from eunoe.tokens import counter_for\n"
        "print(counter_for('gpt-4o').name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TIKTOKEN_CACHE_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "an estimate from the text"
    assert (tmp_path / name).read_bytes() == b"not a vocabulary"


def test_counts_are_remembered_by_content():
    raw = {"role": "user", "content": "a message counted once"}
    digest = hashlib.sha256(b"x").hexdigest()
    assert message_tokens(ESTIMATE, digest, raw) == ESTIMATE.count_message(raw)
    assert message_tokens(ESTIMATE, digest, {"role": "user", "content": ""}) == ESTIMATE.count_message(raw)
