"""What Open WebUI stores is the same with the filter as without it; its own tasks are left alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from eunoe.events import EventKind
from install import OpenWebUI

from .client import Chat, Client
from .collector import Collector
from .conftest import Valves
from .story import passage, turns
from .upstream import SUMMARY, Upstream, text_of

pytestmark = pytest.mark.e2e

# These differ from run to run, or are there only because the filter asks the provider for usage.
VOLATILE = {"id", "parentId", "childrenIds", "timestamp", "meta", "usage", "currentId", "call_id", "info"}
TASKS = {"title_generation": True, "tags_generation": True, "follow_up_generation": True}


def lasting(value: Any) -> Any:
    """What is left of a stored chat without ids and times, in the order of its messages."""
    if isinstance(value, dict):
        values = list(value["messages"].values()) if "history" in value else None
        kept = {
            key: lasting(item) for key, item in value.items() if key not in VOLATILE | {"messages", "history"}
        }
        return {**kept, **({"messages": lasting(values)} if values is not None else {})}
    return [lasting(item) for item in value] if isinstance(value, list) else value


def branch(client: Client, chat: Chat) -> list[Any]:
    """The stored messages of a chat without what differs from run to run."""
    return [lasting(message) for message in client.messages(chat).values()]


def talk(client: Client, mark: str) -> list[Any]:
    """A chat with everything a page can do; answers what was stored."""
    chat = client.import_chat(turns(20, 60, mark))
    first = client.say(chat, f"!pin {mark} one: {passage(7, 40)}")
    client.say(chat, f"{mark} tools [[tool lookup 2]]", tool_ids=["lookup"])
    client.say(chat, f"{mark} three [[long 50]]")
    client.regenerate(chat, first)
    return branch(client, chat)


@pytest.fixture
def switched_off(installed: OpenWebUI) -> Iterator[None]:
    """The filter off for a while."""
    path = "/api/v1/functions/id/eunoe/toggle"
    assert installed.call("POST", path)["is_active"] is False
    yield
    assert installed.call("POST", path)["is_active"] is True


@pytest.fixture
def stored_without(client: Client, switched_off: None, mark: str) -> list[Any]:
    """What a chat leaves behind without the filter."""
    return talk(client, mark)


def test_a_stored_chat_is_the_same_without_the_filter(
    stored_without: list[Any],
    client: Client,
    installed: OpenWebUI,
    valves: Valves,
    upstream: Upstream,
    mark: str,
) -> None:
    assert installed.call("POST", "/api/v1/functions/id/eunoe/toggle")["is_active"] is True
    try:
        valves.set(max_tokens=2000, show_status=False)
        before = len(upstream.about(mark))
        upstream.rounds.clear()
        stored = talk(client, mark)
        assert all(call.tokens <= 2000 for call in upstream.about(mark)[before:]), (
            "the filter was not at work"
        )
    finally:
        installed.call("POST", "/api/v1/functions/id/eunoe/toggle")
    assert stored == stored_without


def test_the_status_line_is_all_that_is_added(
    client: Client, valves: Valves, upstream: Upstream, mark: str
) -> None:
    valves.set(max_tokens=2000)
    chat = client.import_chat(turns(20, 60, mark))
    turn = client.say(chat, f"{mark} now")
    (call,) = upstream.about(mark)
    (status,) = turn.replies[0]["statusHistory"]
    assert status["done"] is True
    assert "cached" in status["description"]
    assert f"{sum(m['role'] != 'system' for m in call.messages)} of 41 messages" in status["description"]
    others = [message for message in client.messages(chat).values() if message["id"] != turn.replies[0]["id"]]
    assert all("statusHistory" not in message for message in others)


def test_titles_tags_and_follow_ups_are_left_alone(
    client: Client, valves: Valves, upstream: Upstream, collector: Collector, mark: str
) -> None:
    valves.set(max_tokens=200)
    chat = Chat()
    client.say(chat, f"{mark} {passage(3, 120)}", background_tasks=TASKS)
    stored = client.stored(chat)
    assert stored["title"] == "A title"
    assert stored["meta"]["tags"] == ["tag"]
    collector.wait_for(mark, EventKind.OUTLET)
    tasks = upstream.tasks_about(mark)
    assert len(tasks) >= 3
    for call in tasks:
        (message,) = call.messages
        assert passage(3, 120) in text_of(message)
        assert "stream_options" not in call.body or call.body.get("stream")
    assert len(collector.runs(mark)) == 1, "a task was taken for a turn"


@pytest.fixture
def compaction(installed: OpenWebUI) -> Iterator[None]:
    """Open WebUI's own compaction, on for a while, from 1,200 tokens."""
    path = "/api/v1/chats/config"
    before = installed.call("GET", path)
    changes = {
        "ENABLE_CONTEXT_COMPACTION": True,
        "CONTEXT_COMPACTION_TOKEN_THRESHOLD": 1200,
        "CONTEXT_COMPACTION_TOKEN_CAP": 1200,
    }
    installed.call("POST", path, {**before, **changes})
    yield
    installed.call("POST", path, before)


def test_a_summary_by_open_webui_itself_is_kept_once(
    compaction: None, client: Client, valves: Valves, upstream: Upstream, mark: str
) -> None:
    valves.set(max_tokens=1000)
    chat = client.import_chat(turns(20, 60, mark))
    for word in ("one", "two", "three"):
        turn = client.say(chat, f"{mark} {word} [[long 80]]")
        assert turn.error is None
    assert any("Summarize the conversation history" in call.question for call in upstream.tasks_about(mark))
    calls = upstream.about(mark)
    assert len(calls) == 3
    for call in calls:
        texts = [text_of(message) for message in call.messages]
        assert sum(text.count(SUMMARY) for text in texts) == 1
        assert sum(text.count("[CONVERSATION SUMMARY]") for text in texts) == 1
        assert call.tokens <= 1000
