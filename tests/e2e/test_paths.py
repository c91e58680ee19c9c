"""Every way to a model call is bounded and recorded: pages, programs, branches, several models."""

from __future__ import annotations

import json

import pytest

from eunoe.events import EventKind

from .client import Chat, Client
from .collector import Collector
from .conftest import Valves
from .story import assert_valid, messages, passage, turns
from .upstream import Upstream, text_of

pytestmark = pytest.mark.e2e

LIMIT = 2000


@pytest.fixture(autouse=True)
def bound(valves: Valves) -> None:
    """A budget that the chats of this module are far above."""
    valves.set(max_tokens=LIMIT)


def test_a_temporary_chat(client: Client, upstream: Upstream, collector: Collector, mark: str) -> None:
    chat = Chat.temporary("plain")
    chat.history = messages(turns(20, 60, mark), "")[:-1]
    client.say(chat, f"{mark} first")
    client.say(chat, f"{mark} second")
    calls = upstream.about(mark)
    assert [call.question.rpartition(" ")[2] for call in calls] == ["first", "second"]
    assert all(1000 < call.tokens <= LIMIT for call in calls)
    for call in calls:
        assert_valid(call.messages)
    assert len(collector.wait_for(mark, EventKind.OUTLET, 2)) == 2


def test_a_call_of_the_api_without_ids(
    client: Client, upstream: Upstream, collector: Collector, mark: str
) -> None:
    answer = client.complete(messages(turns(20, 60, mark), f"{mark} now"))
    assert answer["choices"][0]["message"]["content"] == f"plain answers: {mark} now"
    (call,) = upstream.about(mark)
    assert 1000 < call.tokens <= LIMIT
    assert "stream_options" not in call.body, "providers refuse it without a stream"
    (usage,) = collector.wait_for(mark, EventKind.USAGE)
    assert usage.data["prompt_tokens"] == call.tokens
    assert usage.chat_id is None


def test_a_stream_of_the_api_without_ids(
    client: Client, upstream: Upstream, collector: Collector, mark: str
) -> None:
    lines = client.complete_stream(messages(turns(20, 60, mark), f"{mark} now"))
    assert lines[-1] == "[DONE]"
    deltas = [json.loads(line)["choices"] for line in lines[:-1]]
    text = "".join(choice["delta"].get("content", "") for choices in deltas for choice in choices)
    assert text == f"plain answers: {mark} now"
    (call,) = upstream.about(mark)
    assert 1000 < call.tokens <= LIMIT
    (usage,) = collector.wait_for(mark, EventKind.USAGE)
    assert usage.data["prompt_tokens"] == call.tokens


def test_tools_of_an_api_caller_count_and_stay(client: Client, upstream: Upstream, mark: str) -> None:
    parameters = {
        "type": "object",
        "properties": {"where": {"type": "string", "description": passage(1, 300)}},
    }
    tool = {"type": "function", "function": {"name": "visit", "description": "Go.", "parameters": parameters}}
    answer = client.complete(messages(turns(20, 60, mark), f"{mark} go [[tool visit 1]]"), tools=[tool])
    (called,) = answer["choices"][0]["message"]["tool_calls"]
    assert called["function"]["name"] == "visit"
    (call,) = upstream.about(mark)
    assert call.body["tools"] == [tool]
    assert call.tokens <= LIMIT


def test_two_models_in_one_turn_are_two_runs(
    client: Client, upstream: Upstream, collector: Collector, mark: str
) -> None:
    models = ["plain", "wide"]
    chat = client.import_chat(turns(20, 60, mark), models=models)
    turn = client.say(chat, f"{mark} now")
    assert [reply["content"] for reply in turn.replies] == [f"{name} answers: {mark} now" for name in models]
    calls = upstream.about(mark)
    assert sorted(call.model for call in calls) == models
    assert all(1000 < call.tokens <= LIMIT for call in calls)
    collector.wait_for(mark, EventKind.OUTLET, 2)
    runs = collector.runs(mark)
    assert sorted({event.model for event in run}.pop() for run in runs) == models
    assert {run[0].message_id for run in runs} == {reply["id"] for reply in turn.replies}
    for run in runs:
        tokens = {call.model: call.tokens for call in calls}[run[0].model]
        usages = [event.data["prompt_tokens"] for event in run if event.event == EventKind.USAGE]
        assert usages == [tokens]


def test_continue_keeps_the_unfinished_reply_word_for_word(
    client: Client, upstream: Upstream, collector: Collector, mark: str
) -> None:
    chat = client.import_chat(turns(20, 60, mark))
    turn = client.say(chat, f"{mark} tell me [[long 120]]")
    resumed = client.resume(chat, turn)
    first, second = upstream.about(mark)
    assert second.messages[-1]["role"] == "assistant"
    assert text_of(second.messages[-1]) == turn.text
    assert second.tokens <= LIMIT
    assert first.tokens <= LIMIT
    assert resumed.text.startswith(turn.text)
    assert len(resumed.text) > len(turn.text)
    assert len(collector.wait_for(mark, EventKind.OUTLET, 2)) == 2


def test_regenerate_sends_the_same_again(client: Client, upstream: Upstream, mark: str) -> None:
    chat = client.import_chat(turns(20, 60, mark))
    turn = client.say(chat, f"{mark} tell me")
    again = client.regenerate(chat, turn)
    assert again.replies[0]["id"] != turn.replies[0]["id"]
    first, second = upstream.about(mark)
    assert first.tokens <= LIMIT
    assert first.messages == second.messages
    assert second.cached == second.tokens


def test_an_edited_question_leaves_the_old_branch_behind(
    client: Client, upstream: Upstream, mark: str
) -> None:
    chat = client.import_chat(turns(20, 60, mark))
    turn = client.say(chat, f"{mark} tell me of the old lighthouse")
    client.say(chat, f"{mark} more of it")
    edited = client.edit(chat, turn, f"{mark} tell me of the ferry")
    call = upstream.about(mark)[-1]
    assert call.question.endswith("tell me of the ferry")
    assert "lighthouse" not in json.dumps(call.messages)
    assert call.tokens <= LIMIT
    stored = client.messages(chat)
    assert stored[turn.user]["content"].endswith("old lighthouse")
    assert stored[edited.user]["content"].endswith("the ferry")


def test_flags_steer_the_filter_and_do_not_reach_the_model(
    client: Client, upstream: Upstream, collector: Collector, mark: str
) -> None:
    said = turns(20, 60, mark)
    rule = f"{mark} the lighthouse keeper is called Elin"
    said[2] = (f"!pin {rule}", said[2][1])
    chat = client.import_chat(said)
    turn = client.say(chat, f"!target=1000 {mark} what of the harbor in year 190?")
    (call,) = upstream.about(mark)
    assert call.tokens <= 1000
    assert rule in [text_of(message) for message in call.messages]
    assert call.question == f"{mark} what of the harbor in year 190?"
    assert client.messages(chat)[turn.user]["content"].startswith("!target=1000 ")
    (plan,) = collector.wait_for(mark, EventKind.PLAN)
    assert [decision["position"] for decision in plan.data["decisions"] if decision.get("pinned")] == [4]


def test_a_stop_in_the_middle_of_a_reply_leaves_the_next_turn_well(
    client: Client, upstream: Upstream, collector: Collector, mark: str
) -> None:
    chat = client.import_chat(turns(20, 60, mark))
    stopped = client.stop(chat, f"{mark} tell me [[slow 1]]")
    assert "and now" not in stopped["content"]
    assert not stopped["content"].endswith("tell me [[slow 1]]"), "the reply was not stopped"
    turn = client.say(chat, f"{mark} and now")
    assert turn.text == f"plain answers: {mark} and now"
    assert all(1000 < call.tokens <= LIMIT for call in upstream.about(mark))
    collector.wait_for(mark, EventKind.OUTLET)
    first, second = collector.runs(mark)
    assert EventKind.OUTLET not in {event.event for event in first}
    assert EventKind.OUTLET in {event.event for event in second}
