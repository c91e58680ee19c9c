"""Whatever is sent: an answer that says what to do, and pages that still work."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eunoe.events import EventKind
from eunoe_observer.app import create_app
from eunoe_observer.settings import Settings

from .conftest import whole_run

texts = st.text(st.characters(), max_size=20)  # lone surrogates and NUL included
numbers = st.one_of(st.integers(), st.integers(-(10**40), 10**40), st.floats())
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=12,
)
FIELDS = [
    *(
        "event_id",
        "event",
        "run_id",
        "at",
        "schema_version",
        "host",
        "model",
        "chat_id",
        "message_id",
        "user",
    ),
    "data",
]


class Client:
    """An observer on an event loop of its own, so that a property's examples can share it."""

    def __init__(self, portal: BlockingPortal, client: httpx.AsyncClient) -> None:
        self.portal, self.client = portal, client

    def get(self, path: str) -> httpx.Response:
        return self.portal.call(self.client.get, path)

    def post(self, content: bytes | str) -> httpx.Response:
        headers = {"content-type": "application/json"}
        return self.portal.call(partial(self.client.post, "/v1/events", content=content, headers=headers))


@asynccontextmanager
async def opened(database: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Settings(database=database))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    database = tmp_path_factory.mktemp("observer") / "observer.sqlite3"
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened(database)) as client:
        yield Client(portal, client)


def post(client: Client, document: object) -> int:
    # ASCII with escapes: the only spelling in which half a surrogate pair can be sent at all.
    return client.post(json.dumps(document)).status_code


many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(st.binary(max_size=80))
def test_any_bytes_are_answered(client, body):
    answer = client.post(body)
    assert answer.status_code in (400, 422)


@many
@given(values)
def test_any_json_is_answered(client, value):
    assert post(client, {"events": value}) in (202, 400, 422)


@many
@given(st.sampled_from(range(4)), st.sampled_from(FIELDS), values)
def test_any_value_in_the_envelope_is_answered_and_the_pages_still_work(client, which, field, value):
    events = whole_run()
    events[which][field] = value
    assert post(client, {"events": events}) in (202, 400, 422)
    assert client.get("/runs").status_code == 200


@many
@given(st.sampled_from([EventKind.START, EventKind.PLAN, EventKind.USAGE, EventKind.OUTLET]), st.data())
def test_any_value_in_a_body_is_answered_and_its_pages_still_work(client, kind, data):
    events = whole_run("run-odd")
    [changed] = [each for each in events if each["event"] == kind]
    body = changed["data"]
    if kind is EventKind.PLAN and data.draw(st.booleans()):
        body = data.draw(st.sampled_from(body["decisions"]))
    body[data.draw(st.sampled_from(sorted(body)))] = data.draw(values)
    assert post(client, {"events": events}) in (202, 400, 422)
    for page in ("/runs", "/runs.json", "/runs/run-odd", "/runs/run-odd.json", "/runs/run-odd?order=weight"):
        assert client.get(page).status_code in (200, 404)
