"""Taking events: what is stored, what is refused, and what the sender is told."""

from __future__ import annotations

import json
import socket
import sqlite3
from pathlib import Path

import anyio
import httpx
import pytest

from eunoe.events import LostBody
from eunoe_observer.settings import Settings

from .conftest import TOKEN, decided, event, outlet, plan, start, whole_run

pytestmark = pytest.mark.anyio
JSON = {"content-type": "application/json"}


async def send(client: httpx.AsyncClient, *events: dict, **headers: str) -> httpx.Response:
    return await client.post("/v1/events", json={"events": list(events)}, headers=headers)


def stored(settings: Settings) -> list[tuple]:
    with sqlite3.connect(settings.database) as database:
        rows = database.execute("select event_id, body from event order by seq").fetchall()
    database.close()
    return rows


async def test_a_batch_is_stored_as_it_came_with_unknown_fields(client, settings):
    sent = event(start(), colour="green")
    sent["data"]["brand_new"] = {"deep": [1, 2.5, None]}
    answer = await send(client, sent)
    assert (answer.status_code, answer.json()) == (202, {"accepted": 1, "duplicates": 0})
    assert [(event_id, json.loads(body)) for event_id, body in stored(settings)] == [(sent["event_id"], sent)]


async def test_sending_again_stores_nothing_twice(client, settings):
    first, second, third = event(start()), event(plan()), event(outlet())
    await send(client, first, second)
    answer = await send(client, second, third, third)
    assert answer.json() == {"accepted": 1, "duplicates": 2}
    assert [event_id for event_id, _ in stored(settings)] == [
        each["event_id"] for each in (first, second, third)
    ]


async def test_an_empty_batch_is_fine(client):
    assert (await send(client)).json() == {"accepted": 0, "duplicates": 0}


async def test_every_bad_event_is_named_with_the_fix_and_nothing_is_stored(client, settings):
    good, no_run, odd_kind, bad_body = (
        event(start()),
        event(start()),
        event(start()),
        event(plan(decided("k", 0))),
    )
    del no_run["run_id"]
    odd_kind["event"] = "pipeline.lunch"
    bad_body["data"]["decisions"][0]["weight"] = "heavy"
    del bad_body["data"]["counter"]
    naive = event(start(), at="2026-11-30T12:00:00")
    answer = await send(client, good, no_run, odd_kind, bad_body, naive)
    assert answer.status_code == 422
    assert answer.json() == {
        "message": "Nothing of this batch was stored.",
        "detail": [
            {"field": "events.1.run_id", "problem": "is missing; send it"},
            {
                "field": "events.2.event",
                "problem": "is not known; send one of pipeline.start, pipeline.plan, pipeline.usage, "
                "pipeline.outlet, pipeline.failed, sink.lost",
            },
            {"field": "events.3.data.counter", "problem": "is missing; send it"},
            {"field": "events.3.data.decisions.0.weight", "problem": "must be a number"},
            {"field": "events.4.at", "problem": "needs a time zone, for example 2026-11-30T12:00:00Z"},
        ],
    }
    assert stored(settings) == []


async def test_private_text_is_not_repeated_in_a_refusal(client):
    sent = event(start(), run_id="my secret " * 20)
    assert "secret" not in (await send(client, sent)).text


@pytest.mark.parametrize(
    ("content", "headers", "status", "field"),
    [
        (b'{"events": []}', {"content-type": "text/plain"}, 415, "content-type"),
        (b'{"events": []}', {}, 415, "content-type"),
        (b"\x1f\x8b", {**JSON, "content-encoding": "gzip"}, 415, "content-encoding"),
        (b"{", JSON, 400, "body"),
        (b'{"events": [NaN]}', JSON, 400, "body"),
        (b'{"events": [' + b"9" * 5000 + b"]}", JSON, 400, "body"),
        (b"[" * 100_000, JSON, 400, "body"),
        (b'{"events": "\xff"}', JSON, 400, "body"),
        (b"[]", JSON, 422, "events"),
        (b"{}", JSON, 422, "events"),
        (b'{"events": {}}', JSON, 422, "events"),
        (b'{"events": [' + b",".join([b"0"] * 1001) + b"]}", JSON, 422, "events"),
        (b'{"events": [7]}', JSON, 422, "events.0"),
    ],
)
async def test_what_is_no_batch_is_refused(client, content, headers, status, field):
    answer = await client.post("/v1/events", content=content, headers=headers)
    assert answer.status_code == status
    assert answer.json()["detail"][0]["field"] == field
    assert answer.json()["message"] == "Nothing of this batch was stored."


@pytest.mark.parametrize("number", [10**13, -(10**13), 1e300, 2**70, "1e400", "Infinity", "NaN"])
async def test_numbers_no_real_event_has_are_refused(client, number):
    sent = event(plan(decided("k", 0)))
    sent["data"]["decisions"][0]["weight"] = number
    answer = await send(client, sent)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["field"] == "events.0.data.decisions.0.weight"


async def test_nul_and_half_surrogates_become_replacement_characters(client, settings):
    sent = event(plan(decided("k", 0, preview="x")))
    text = json.dumps({"events": [sent]}).replace('"x"', '"a\\u0000b\\ud800c\\ud83d\\ude00"')
    answer = await client.post("/v1/events", content=text, headers=JSON)
    assert answer.status_code == 202
    page = await client.get("/runs/run-1.json")
    assert page.json()["decisions"][0]["preview"] == "a\ufffdb\ufffdc😀"
    assert (await client.get("/runs/run-1")).status_code == 200


async def test_what_is_nested_deeper_than_any_event_is_refused(client):
    sent = event(start())
    text = json.dumps({"events": [sent]}).replace('"messages"', f'"odd": {"[" * 900}{"]" * 900}, "messages"')
    answer = await client.post("/v1/events", content=text, headers=JSON)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["problem"] == "is nested more than 50 levels deep"


class TestLimits:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(database=tmp_path / "observer.sqlite3", max_body_bytes=2000, max_waiting_events=3)

    async def test_a_body_too_big_is_refused_with_and_without_its_length(self, client, settings):
        body = json.dumps({"events": whole_run()}).encode()
        assert len(body) > 2000

        async def in_pieces():
            for start_of_piece in range(0, len(body), 500):
                yield body[start_of_piece : start_of_piece + 500]

        for content in (body, in_pieces()):
            answer = await client.post("/v1/events", content=content, headers=JSON)
            assert answer.status_code == 413
            assert answer.json()["detail"] == [
                {"field": "body", "problem": "is larger than 2,000 bytes; send fewer events at once"}
            ]
        assert stored(settings) == []

    async def test_a_full_queue_says_when_to_come_back_and_loses_nothing(self, client, settings):
        answers = []

        async def one(number):
            answers.append(await send(client, event(start(), f"a-{number}"), event(start(), f"b-{number}")))

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(one, number)
        refused = [each for each in answers if each.status_code == 429]
        assert refused
        assert {each.headers["retry-after"] for each in refused} == {"5"}
        assert {each.status_code for each in answers} == {202, 429}
        assert len(stored(settings)) == 2 * (20 - len(refused))
        assert client.app.state.observer.writer.waiting_events == 0  # and there is room again


class TestToken:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(database=tmp_path / "observer.sqlite3", token=TOKEN)

    @pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"])
    async def test_without_the_token_nothing_is_stored(self, client, settings, header):
        answer = await send(client, event(start()), **({"authorization": header} if header else {}))
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert stored(settings) == []

    async def test_with_the_token_events_are_stored(self, client):
        assert (await send(client, event(start()), authorization=f"Bearer {TOKEN}")).status_code == 202

    async def test_a_cookie_does_not_let_events_in(self, client):
        await client.post("/sign-in", data={"token": TOKEN})
        assert (await client.get("/runs")).status_code == 200
        assert (await send(client, event(start()))).status_code == 401


async def test_a_database_that_refuses_is_told_to_the_sender_and_later_batches_are_stored(client, settings):
    with sqlite3.connect(settings.database) as database:
        database.execute(
            "create trigger full before insert on event begin select raise(abort, 'disk full'); end"
        )
    answer = await send(client, event(start()))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    with sqlite3.connect(settings.database) as database:
        database.execute("drop trigger full")
    database.close()
    assert (await send(client, event(start()))).status_code == 202


async def test_events_that_filters_lost_are_shown_and_make_no_run(client):
    await send(client, event(LostBody(events=7, reason="the observer did not answer"), at=now()))
    page = await client.get("/runs")
    assert "7 events did not arrive" in page.text
    assert (await client.get("/runs.json")).json()["runs"] == []


def now() -> str:
    from datetime import UTC, datetime  # noqa: PLC0415

    return datetime.now(UTC).isoformat()


def test_a_real_server_answers_413_to_a_body_that_is_still_coming(serve):
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(
            b"POST /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 9000000\r\n\r\n"
        )
        for _ in range(90):
            connection.sendall(b" " * 100_000)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")
