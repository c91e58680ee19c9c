"""Whatever breaks around or inside the filter, the chat goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from eunoe.events import EventKind, RunEvent
from install import SOURCE, OpenWebUI, Wish, install
from processes import free_port

from .client import Chat, Client
from .collector import Collector
from .conftest import TOKEN, Valves
from .hosting import tell
from .story import messages, turns
from .upstream import Upstream

pytestmark = pytest.mark.e2e

# A turn takes a fifth of a second here; whoever waits for the observer takes as long as its time limit.
UNHARMED_SECONDS = 4.0


def assert_unharmed(client: Client, upstream: Upstream, mark: str) -> None:
    """Check that two turns of a chat over the budget are answered at once and bounded."""
    chat = client.import_chat(turns(20, 60, mark))
    for word in ("one", "two"):
        begin = time.monotonic()
        turn = client.say(chat, f"{mark} {word}")
        assert time.monotonic() - begin < UNHARMED_SECONDS
        assert turn.error is None
        assert turn.text == f"plain answers: {mark} {word}"
    assert all(call.tokens <= 2000 for call in upstream.about(mark))


def wait_until(happened: Callable[[], object], otherwise: str) -> None:
    """Wait for something that the filter does a little later, in the background."""
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def test_an_observer_that_is_down(client: Client, valves: Valves, upstream: Upstream, mark: str) -> None:
    valves.set(max_tokens=2000, observer_url=f"http://127.0.0.1:{free_port()}")
    assert_unharmed(client, upstream, mark)


def test_an_observer_address_that_is_none(
    client: Client, valves: Valves, upstream: Upstream, mark: str
) -> None:
    valves.set(max_tokens=2000, observer_url="not an address")
    assert_unharmed(client, upstream, mark)


def test_an_observer_that_is_slow(
    client: Client, valves: Valves, upstream: Upstream, collector: Collector, mark: str
) -> None:
    valves.set(max_tokens=2000)
    collector.delay = 8.0
    posts = collector.posts
    assert_unharmed(client, upstream, mark)
    wait_until(lambda: collector.posts > posts, "the filter did not call the slow observer at all")


def test_an_observer_that_fails_and_comes_back(
    client: Client, valves: Valves, upstream: Upstream, collector: Collector, mark: str
) -> None:
    valves.set(max_tokens=2000)
    collector.status = 500
    posts = collector.posts
    assert_unharmed(client, upstream, mark)
    wait_until(lambda: collector.posts > posts, "the filter did not call the failing observer at all")
    collector.status = 202
    client.say(Chat(), f"{mark} afterwards")
    collector.wait_for(f"{mark} afterwards", EventKind.OUTLET, seconds=90)


def test_a_wrong_token_loses_events_and_nothing_else(
    client: Client, valves: Valves, upstream: Upstream, collector: Collector, mark: str
) -> None:
    valves.set(max_tokens=2000, observer_token="wrong")
    before = collector.wrong_tokens
    assert_unharmed(client, upstream, mark)
    wait_until(lambda: collector.wrong_tokens > before, "the filter did not send its token")


@pytest.fixture
def broken(installed: OpenWebUI, collector: Collector) -> Iterator[OpenWebUI]:
    """A filter whose pipeline raises, in the place of ours."""
    head = "    async def process("
    source = SOURCE.read_text(encoding="utf-8")
    assert source.count(head) == 1
    begin = source.index(head)
    body = source.index(":\n", source.index(") ->", begin)) + 2
    source = source[:body] + '        raise RuntimeError("the secret of this chat")\n' + source[body:]
    wish = Wish(
        source, {"max_tokens": 2000}, collector.address, TOKEN, function_id="eunoe_broken", name="Broken"
    )
    installed.call("POST", "/api/v1/functions/id/eunoe/toggle")
    install(installed, wish, tell)
    try:
        yield installed
    finally:
        installed.call("DELETE", "/api/v1/functions/id/eunoe_broken/delete")
        installed.call("POST", "/api/v1/functions/id/eunoe/toggle")


def test_a_filter_that_raises_sends_the_chat_as_it_was(
    client: Client, broken: OpenWebUI, upstream: Upstream, collector: Collector, mark: str
) -> None:
    said = turns(20, 60, mark)
    chat = client.import_chat(said)
    turn = client.say(chat, f"{mark} now")
    assert turn.error is None
    assert turn.text == f"plain answers: {mark} now"
    (call,) = upstream.about(mark)
    assert call.messages == messages(said, f"{mark} now")

    def recorded() -> list[RunEvent]:
        return [e for e in collector.events if e.chat_id == chat.id and e.event == EventKind.FAILED]

    wait_until(recorded, "no failure was recorded")
    failures = recorded()
    assert {failure.data["error"] for failure in failures} == {"RuntimeError"}
    assert all("secret" not in failure.model_dump_json() for failure in failures)
    assert {failure.data["stage"] for failure in failures} <= {"inlet", "request"}


def test_a_provider_that_fails_is_shown_and_the_next_turn_works(
    client: Client, upstream: Upstream, collector: Collector, mark: str
) -> None:
    chat = Chat()
    turn = client.say(chat, f"{mark} first [[error 500]]")
    assert turn.error == {"content": "scripted failure"}
    again = client.regenerate(chat, turn)
    assert again.error == {"content": "scripted failure"}
    edited = client.edit(chat, turn, f"{mark} second")
    assert edited.text == f"plain answers: {mark} second"
    collector.wait_for(mark, EventKind.OUTLET)
    failed, _, worked = collector.runs(mark)
    assert EventKind.PLAN in {event.event for event in failed}
    assert EventKind.OUTLET not in {event.event for event in failed}
    assert EventKind.OUTLET in {event.event for event in worked}
