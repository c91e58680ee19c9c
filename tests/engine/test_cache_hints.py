"""What is added to a request for the provider's cache: only where it is known to be taken, and never a word of text."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eunoe.cache_hints import MOST_MARKS, cache_key, hint_for, hinted
from eunoe.cache_rules import CacheHint
from eunoe.conversation import text_of

from .strategies import answers, exchanges, odd_messages, texts, users

MARK = {"type": "ephemeral"}
SYSTEM = {"role": "system", "content": "Be brief."}
MESSAGES = [SYSTEM, {"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}]


def part(text, **fields):
    return {"type": "text", "text": text, **fields}


def marked(messages, stable, **body):
    new = hinted({"messages": messages, **body}, CacheHint.CONTROL, scope="me", chat="c", stable=stable)
    return new.get("messages", messages)


# Who gets which


@pytest.mark.parametrize(
    ("model", "provider", "hint"),
    [
        ("gpt-5.6", "https://api.openai.com/v1", CacheHint.KEY),
        ("gpt-5.6", "https://eu.api.openai.com/v1", CacheHint.KEY),
        ("gpt-5.6", "OpenAI", CacheHint.KEY),
        ("gpt-5.6", "", CacheHint.NONE),
        ("gpt-5.6", "https://api.openai.com.example.org/v1", CacheHint.NONE),
        ("gpt-5.6", "https://gateway.example.org/v1", CacheHint.NONE),
        ("mistral-large-latest", "https://api.mistral.ai/v1", CacheHint.KEY),
        ("mistral-large-latest", "https://integrate.api.nvidia.com/v1", CacheHint.NONE),
        ("anthropic/claude-opus-4.5", "https://openrouter.ai/api/v1", CacheHint.CONTROL),
        ("anthropic/claude-opus-4.5", "", CacheHint.CONTROL),
        ("anthropic.claude-opus-4-5", "", CacheHint.CONTROL),
        ("claude-opus-4-5", "https://api.anthropic.com/v1/", CacheHint.CONTROL),
        ("claude-opus-4-5", "", CacheHint.NONE),
        ("anthropic/claude-opus-4.5", "https://gateway.example.org", CacheHint.NONE),
        ("gemini-2.5-pro", "https://openrouter.ai/api/v1", CacheHint.NONE),
        ("llama3.1:8b", "ollama", CacheHint.NONE),
        ("gpt-4", "openai", CacheHint.NONE),
        ("gpt-5.6", "http://[broken", CacheHint.NONE),
        ("", "", CacheHint.NONE),
    ],
)
def test_auto_hints_only_to_whom_it_is_known_to_be_taken(model, provider, hint):
    assert hint_for("auto", model, provider) is hint


def test_the_setting_goes_before_what_is_known():
    for setting, hint in (
        ("off", CacheHint.NONE),
        ("openai", CacheHint.KEY),
        ("anthropic", CacheHint.CONTROL),
    ):
        assert hint_for(setting, "claude-opus-5", "anthropic") is hint
        assert hint_for(setting, "x") is hint


# The key


def test_a_key_names_the_chat_and_tells_nothing():
    new = hinted({"messages": MESSAGES}, CacheHint.KEY, scope="anna@example.org", chat="c1")
    assert new == {"prompt_cache_key": cache_key("anna@example.org", "c1")}
    key = new["prompt_cache_key"]
    assert len(key) == 38
    assert "anna" not in key
    assert len({cache_key(s, c) for s in ("a", "b", "ab") for c in ("c", "d", "bc", "")}) == 12


def test_a_key_that_is_there_stays_and_without_a_chat_there_is_none():
    assert hinted({"prompt_cache_key": "mine"}, CacheHint.KEY, scope="a", chat="c") == {}
    assert hinted({}, CacheHint.KEY, scope="a", chat="") == {}
    assert hinted({"messages": MESSAGES}, CacheHint.NONE, scope="a", chat="c", stable=2) == {}


# Marks


def test_the_last_stable_message_and_the_instructions_are_marked():
    assert marked(MESSAGES, 1) == [
        {"role": "system", "content": [part("Be brief.", cache_control=MARK)]},
        {"role": "user", "content": [part("One", cache_control=MARK)]},
        MESSAGES[2],
    ]


def test_the_last_part_of_a_message_is_marked():
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    both = [{"role": "user", "content": [image, part("a"), part("b")]}]
    assert marked(both, 0) == [{"role": "user", "content": [image, part("a"), part("b", cache_control=MARK)]}]
    assert marked([{"role": "user", "content": [part("a"), image]}], 0)[0]["content"] == [part("a"), image]


def test_what_takes_no_mark_leaves_it_to_the_message_before():
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
    blank = {"role": "assistant", "content": "  "}
    new = marked([MESSAGES[1], call, blank], 2)
    assert new == [{"role": "user", "content": [part("One", cache_control=MARK)]}, call, blank]
    assert marked([call, blank], 1) == [call, blank]


def test_a_result_of_a_tool_takes_a_mark():
    result = {"role": "tool", "tool_call_id": "c", "content": "42"}
    assert marked([result], 0) == [{**result, "content": [part("42", cache_control=MARK)]}]


@pytest.mark.parametrize("there", range(6))
def test_there_are_never_more_than_four_marks(there):
    tools = [{"type": "function", "cache_control": MARK}] * there
    new = marked(MESSAGES, 2, tools=tools)
    assert json.dumps(new).count("cache_control") == max(0, min(2, MOST_MARKS - there))
    if there == 3:
        assert new[2] != MESSAGES[2]  # the last stable message goes before the instructions


def test_a_message_that_has_a_mark_stays():
    raw = {
        "role": "user",
        "content": [part("a", cache_control={"type": "ephemeral", "ttl": "1h"}), part("b")],
    }
    assert hinted({"messages": [raw]}, CacheHint.CONTROL, scope="a", chat="c", stable=0) == {}


@pytest.mark.parametrize(
    "body", [{}, {"messages": None}, {"messages": "x"}, {"messages": []}, {"messages": ["x", None]}]
)
def test_bodies_of_no_form_stay(body):
    assert hinted(body, CacheHint.CONTROL, scope="a", chat="c", stable=3) == {}


CHATS = st.lists(users() | answers() | odd_messages() | exchanges().map(lambda pair: pair[0]), max_size=8)


@given(CHATS, st.none() | st.integers(-2, 12), texts(3))
def test_no_text_changes_and_marking_again_changes_nothing(messages, stable, chat):
    before = copy.deepcopy(messages)
    new = marked(messages, stable)
    assert messages == before
    assert [text_of(raw.get("content")) for raw in new] == [text_of(raw.get("content")) for raw in messages]
    assert [{**raw, "content": 0} for raw in new] == [{**raw, "content": 0} for raw in messages]
    assert marked(new, stable) == new
    assert json.dumps(new).count('"cache_control": {"type": "ephemeral"}') <= 2
