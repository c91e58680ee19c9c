"""No model call gets more than the budget: not in a long chat, not in a tool loop, not in a small window."""

from __future__ import annotations

import pytest

from eunoe.events import EventKind

from .client import Chat, Client
from .collector import Collector
from .conftest import Valves
from .story import assert_valid, messages, passage, turns
from .upstream import Upstream, text_of

pytestmark = pytest.mark.e2e


def assert_plans_hold(collector: Collector, mark: str, calls: int, limit: int) -> None:
    """Check that there is a plan for each call, and that each one is within the limit it names."""
    plans = [event.data for event in collector.wait_for(mark, EventKind.PLAN, calls)]
    assert len(plans) == calls
    for plan in plans:
        assert plan["limit"] <= limit
        assert plan["tokens_after"] <= plan["limit"]
        assert not plan.get("over_limit")
        assert sum(decision["tokens_after"] for decision in plan["decisions"]) <= plan["tokens_after"]


def test_forty_turns_never_send_more_than_2000_tokens(
    client: Client, valves: Valves, upstream: Upstream, collector: Collector, mark: str
) -> None:
    valves.set(max_tokens=2000)
    chat = Chat()
    asked = [f"{mark} question {number}: {passage(number, 60)} [[long 60]]" for number in range(40)]
    answers = [client.say(chat, text).text for text in asked]

    calls = upstream.about(mark)
    assert len(calls) == 40
    assert max(call.tokens for call in calls) <= 2000
    # The budget is used, too: a filter that sends the question alone would pass the line above.
    assert min(call.tokens for call in calls[20:]) > 1000
    for text, call in zip(asked, calls, strict=True):
        assert_valid(call.messages)
        assert text_of(call.messages[-1]).endswith(text)
    assert_plans_hold(collector, mark, calls=40, limit=2000)

    stored = list(client.messages(chat).values())
    assert [m["content"] for m in stored if m["role"] == "user"] == asked
    assert [m["content"] for m in stored if m["role"] == "assistant"] == answers
    assert all(answer.split()[:3] == ["the", "river", "turns"] for answer in answers)


def test_a_tool_loop_of_six_rounds_never_sends_more_than_the_budget(
    client: Client, valves: Valves, upstream: Upstream, collector: Collector, mark: str
) -> None:
    valves.set(max_tokens=2000)
    chat = client.import_chat(turns(4, 60, mark))
    turn = client.say(chat, f"{mark} look it up [[tool lookup 6]]", tool_ids=["lookup"])
    assert turn.text == "Done after 6 tool calls."

    calls = upstream.about(mark)
    assert len(calls) == 7
    assert max(call.tokens for call in calls) <= 2000
    for rounds, call in enumerate(calls):
        assert_valid(call.messages)
        assert f"{mark} look it up" in call.question
        if rounds:  # the newest result is what the next step needs
            assert f"part {rounds}, line" in text_of(call.messages[-1])
    assert_plans_hold(collector, mark, calls=7, limit=2000)
    (outlet,) = collector.wait_for(mark, EventKind.OUTLET)
    assert outlet.data["calls"] == 7
    assert outlet.data["prompt_tokens"] == calls[-1].tokens
    assert outlet.data["billed_prompt_tokens"] == sum(call.tokens for call in calls)

    output = turn.replies[0]["output"]
    results = [item for item in output if item["type"] == "function_call_output"]
    assert len(results) == 6
    assert all("line 79" in str(result["output"]) for result in results), "a stored result was shortened"


def test_a_window_that_the_model_list_names_is_a_bound_of_its_own(
    client: Client, upstream: Upstream, collector: Collector, mark: str
) -> None:
    chat = client.import_chat(turns(40, 60, mark), models=["small"])
    client.say(chat, f"{mark} what of the mill?")
    (call,) = upstream.about(mark)
    assert 1500 < call.tokens < 4000
    (plan,) = collector.wait_for(mark, EventKind.PLAN)
    assert plan.data["context_window"] == 4000
    assert plan.data["limit_source"] == "window"
    assert plan.data["limit"] + plan.data["reply_reserve"] <= 4000
    assert plan.data["tokens_after"] <= plan.data["limit"]


def test_a_window_that_an_administrator_sets_is_one_too(
    client: Client, valves: Valves, upstream: Upstream, mark: str
) -> None:
    valves.set(context_window=3000, reply_reserve=500)
    client.complete(messages(turns(40, 60, mark), f"{mark} what of the mill?"))
    (call,) = upstream.about(mark)
    assert call.tokens <= 2500


def test_a_question_that_is_larger_than_the_budget_is_sent_alone_and_said(
    client: Client, valves: Valves, upstream: Upstream, collector: Collector, mark: str
) -> None:
    valves.set(max_tokens=500)
    chat = client.import_chat(turns(6, 60, mark))
    question = f"{mark} {passage(900, 700)}"
    turn = client.say(chat, question)
    (call,) = upstream.about(mark)
    assert [text_of(message) for message in call.messages if message["role"] == "user"] == [question]
    assert turn.text.startswith("plain answers:")
    (plan,) = collector.wait_for(mark, EventKind.PLAN)
    assert plan.data["over_limit"] is True
    assert any("500" in str(status) for status in turn.replies[0]["statusHistory"])


def test_under_the_budget_nothing_is_changed(client: Client, upstream: Upstream, mark: str) -> None:
    said = turns(8, 40, mark)
    chat = client.import_chat(said)
    chat.system = "Answer in one line."
    client.say(chat, f"{mark} and now?")
    (call,) = upstream.about(mark)
    system = {"role": "system", "content": "Answer in one line."}
    assert call.messages == [system, *messages(said, f"{mark} and now?")]


def test_the_built_in_tools_of_a_page_count(
    client: Client, valves: Valves, upstream: Upstream, collector: Collector, mark: str
) -> None:
    valves.set(max_tokens=9000)
    chat = client.import_chat(turns(60, 60, mark), models=["second"])
    client.say(chat, f"{mark} what of the mill?")
    (call,) = upstream.about(mark)
    assert len(call.body["tools"]) > 20
    (plan,) = collector.wait_for(mark, EventKind.PLAN)
    assert plan.data["tokens_tools"] > 3000
    assert plan.data["tokens_after"] <= 9000
    assert len(call.messages) < 121
