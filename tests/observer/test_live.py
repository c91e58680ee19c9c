"""Live pages: nothing is missed, nothing comes twice, and a stop does not hang."""

from __future__ import annotations

import re
import socket
import time
from datetime import UTC, datetime

import anyio
import httpx
import pytest

from eunoe_observer.app import create_app

from .conftest import event, following, outlet, plan, start, usage, whole_run


def rows(message: dict[str, str]) -> list[str]:
    return re.findall(r'<tr id="run-(\d+)"', message["data"])


def test_the_list_follows_the_log(serve):
    server = serve()
    server.send([event(start(), "run-1")])
    with following(f"{server.address}/runs/live?after=1") as messages:
        server.send([event(start(), "run-2"), event(start(), "run-3")])
        first = next(messages)
        assert (first["id"], rows(first)) == ("3", ["2", "3"])
        server.send([event(outlet(), "run-1")])  # an old run: its row is replaced, under its old id
        second = next(messages)
        assert (second["id"], rows(second)) == ("4", ["1"])
        assert ">done<" in second["data"]


def test_lines_end_with_a_line_feed_alone(serve):
    server = serve()
    server.send(whole_run())
    with httpx.stream("GET", f"{server.address}/runs/live", timeout=10) as answer:
        first = next(answer.iter_raw())
    assert b"\r" not in first
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"


def test_rows_older_than_the_page_are_left_out(serve):
    server = serve()
    server.send([event(start(), "run-1"), event(start(), "run-2")])
    with following(f"{server.address}/runs/live?after=2&floor=2") as messages:
        server.send([event(outlet(), "run-1")])
        server.send([event(outlet(), "run-2")])
        assert rows(next(messages)) == ["2"]


def test_a_browser_that_comes_back_after_a_restart_misses_nothing(serve):
    server = serve()
    with following(f"{server.address}/runs/live?after=0") as messages:
        server.send([event(start(), "run-1")])
        seen = next(messages)
    port = server.port
    server.kill()
    again = serve(port=port)
    again.send([event(start(), "run-2"), event(start(), "run-3")])
    again.send([event(outlet(), "run-2")])
    with following(f"{again.address}/runs/live?after=0", **{"Last-Event-ID": seen["id"]}) as messages:
        message = next(messages)
        assert rows(message) == ["3", "2"]
        again.send([event(start(), "run-4")])
        assert rows(next(messages)) == ["5"]


def test_a_run_is_followed_until_it_is_over(serve):
    server = serve()
    server.send([event(start())])
    page = httpx.get(f"{server.address}/runs/run-1").text
    [address] = re.findall(r'hx-sse:connect="([^"]+)"', page)
    with following(server.address + address.replace("&amp;", "&")) as messages:
        server.send([event(start(), "another")])
        server.send([event(plan())])
        assert "1,700" in next(messages)["data"]
        server.send([event(outlet())])
        assert ">done<" in next(messages)["data"]
        assert next(messages) == {"event": "finished", "data": "finished"}
        assert list(messages) == []


def test_a_run_is_followed_a_little_beyond_its_end_for_what_comes_after_the_answer(serve):
    server = serve()
    now = datetime.now(UTC).isoformat()
    server.send([event(start(), at=now), event(outlet(), at=now)])
    page = httpx.get(f"{server.address}/runs/run-1").text
    [address] = re.findall(r'hx-sse:connect="([^"]+)"', page)
    with following(server.address + address.replace("&amp;", "&")) as messages:
        server.send([event(usage(purpose="summary", cost_usd=0.0012), at=now)])
        assert "call of a helping model" in next(messages)["data"]


def test_a_run_that_ended_long_ago_is_not_followed(serve):
    server = serve()
    server.send(whole_run())
    assert "hx-sse:connect" not in httpx.get(f"{server.address}/runs/run-1").text
    with following(f"{server.address}/runs/run-1/live?after=4") as messages:
        assert list(messages) == [{"event": "finished", "data": "finished"}]


def test_a_stop_with_browsers_connected_is_quick_and_quiet(serve):
    server = serve()
    server.send([event(start())])
    with (
        following(f"{server.address}/runs/live") as list_messages,
        following(f"{server.address}/runs/run-1/live") as run_messages,
    ):
        next(list_messages)
        next(run_messages)
        seconds = server.stop()
    assert seconds < 3
    assert server.process.returncode == 0
    assert "Traceback" not in server.said
    assert "ERROR" not in server.said


def test_a_browser_that_leaves_leaves_no_trace(serve):
    server = serve()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"GET /runs/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"200 OK" in connection.recv(4096)
    server.send([event(start())])
    time.sleep(0.2)
    assert httpx.get(f"{server.address}/healthz").status_code == 200
    server.stop()
    assert "Traceback" not in server.said


@pytest.mark.anyio
async def test_a_browser_that_stops_reading_is_let_go_without_a_traceback(settings, monkeypatch):
    monkeypatch.setattr("eunoe_observer.live.SEND_TIMEOUT_SECONDS", 0.1)
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
        await client.post("/v1/events", json={"events": whole_run()})

        async def receive() -> dict:
            await anyio.sleep_forever()

        async def send(message: dict) -> None:
            if message["type"] == "http.response.body":
                await anyio.sleep_forever()  # as when every buffer on the way is full

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/runs/live",
            "raw_path": b"/runs/live",
            "query_string": b"",
        }
        scope |= {
            "headers": [(b"host", b"127.0.0.1")],
            "scheme": "http",
            "server": ("127.0.0.1", 80),
            "root_path": "",
        }
        with anyio.fail_after(5):
            await app(scope, receive, send)
        await client.aclose()


def test_odd_cursors_are_taken_for_none(serve):
    server = serve()
    server.send([event(start())])
    for odd in ("x", "-1", "9" * 30, "1e3"):
        with following(f"{server.address}/runs/live?after=0", **{"Last-Event-ID": odd}) as messages:
            assert next(messages)["id"] == "1"
