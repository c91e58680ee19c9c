"""A real observer for each test: in this process over ASGI, or as a program of its own."""

from __future__ import annotations

import itertools
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, sync_playwright

from eunoe.events import (
    DecisionBody,
    EventBody,
    EventKind,
    FailedBody,
    LostBody,
    OutletBody,
    PlanBody,
    StartBody,
    UsageBody,
)
from eunoe_observer.app import create_app
from eunoe_observer.settings import Settings

TOKEN = "correct horse battery staple"
KINDS = {
    StartBody: EventKind.START,
    PlanBody: EventKind.PLAN,
    UsageBody: EventKind.USAGE,
    OutletBody: EventKind.OUTLET,
    FailedBody: EventKind.FAILED,
    LostBody: EventKind.LOST,
}
numbers = itertools.count(1)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def event(
    body: EventBody, run_id: str = "run-1", at: str = "2026-11-30T12:00:00Z", **context: Any
) -> dict[str, Any]:
    """Build an event as it goes over the wire."""
    return {
        "event_id": f"event-{next(numbers):08}",
        "event": KINDS[type(body)],
        "run_id": run_id,
        "at": at,
        "data": body.model_dump(mode="json"),
        **context,
    }


def start(**fields: Any) -> StartBody:
    return StartBody(
        **{"messages": 3, "algorithm": "sticky", "weighting": "smart", "max_tokens": 1000, **fields}
    )


def decided(key: str, position: int, **fields: Any) -> DecisionBody:
    return DecisionBody(
        **{
            "key": key,
            "position": position,
            "role": "user",
            "fate": "kept",
            "reason": "newest",
            "why": "newest turns",
            "weight": 0.5,
            "tokens_before": 100,
            "tokens_after": 100,
            **fields,
        }
    )


def plan(*decisions: DecisionBody, **fields: Any) -> PlanBody:
    return PlanBody(
        **{
            "call": 1,
            "algorithm": "sticky",
            "weighting": "smart",
            "limit": 1000,
            "limit_source": "max_tokens",
            "tokens_before": 1700,
            "tokens_after": 900,
            "tokens_fixed": 300,
            "counter": "o200k_base",
            "elapsed_ms": 4.5,
            "decisions": list(decisions),
            **fields,
        }
    )


def usage(**fields: Any) -> UsageBody:
    return UsageBody(
        **{"call": 1, "prompt_tokens": 910, "completion_tokens": 40, "cached_tokens": 455, **fields}
    )


def outlet(**fields: Any) -> OutletBody:
    return OutletBody(**{"calls": 1, "elapsed_ms": 6.0, "title": "Trip to Oslo", **fields})


def whole_run(run_id: str = "run-1", **context: Any) -> list[dict[str, Any]]:
    """Build the events of a finished turn."""
    decisions = (
        decided("k0", 0, role="system", tokens_before=300, tokens_after=300, preview="You are kind."),
        decided(
            "k1",
            1,
            fate="dropped",
            why="least weight",
            tokens_before=800,
            tokens_after=0,
            preview="old words",
        ),
        decided(
            "k2",
            2,
            preview="What now?",
            parts={"base": 1.0, "relevance": 0.5},
            tokens_before=600,
            tokens_after=600,
        ),
    )
    context = {"model": "gpt-5-mini", "host": "open-webui", **context}
    return [
        event(start(), run_id, "2026-11-30T12:00:00Z", **context),
        event(plan(*decisions), run_id, "2026-11-30T12:00:01Z", **context),
        event(usage(), run_id, "2026-11-30T12:00:02Z", **context),
        event(outlet(), run_id, "2026-11-30T12:00:03Z", **context),
    ]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(database=tmp_path / "observer.sqlite3")


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """Talk to an observer in this process; a test that needs other settings overrides `settings`."""
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7456") as client:
            client.app = app
            yield client


class Server:
    """An observer running as a program of its own, on a free port."""

    def __init__(
        self, database: Path, *options: str, port: int = 0, environment: dict[str, str] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "eunoe_observer",
                "--port",
                str(port),
                "--database",
                str(database),
                *options,
            ],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.said = ""
        found = self._read_until(r"address=(http://\S+)")
        self.address = found[1]
        self.port = int(self.address.rpartition(":")[2])

    def _read_until(self, pattern: str, seconds: float = 15) -> re.Match[str]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.process.stderr], [], [], 0.1)[0]:
                line = self.process.stderr.readline()
                self.said += line
                if found := re.search(pattern, line):
                    return found
                if not line:
                    break
        raise AssertionError(f"the observer did not start: {self.said}")

    def send(self, events: list[dict[str, Any]], **headers: str) -> httpx.Response:
        return httpx.post(f"{self.address}/v1/events", json={"events": events}, headers=headers)

    def kill(self) -> None:
        """End it as a power cut would, as far as a process can tell."""
        self.process.kill()
        self.process.communicate(timeout=10)

    def stop(self) -> float:
        """Ask it to stop and return how many seconds that took."""
        begun = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.said += self.process.communicate(timeout=10)[1] or ""
        except ValueError:  # its output was read to the end before
            self.process.wait(10)
        return time.monotonic() - begun


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start observers on one database; whatever still runs at the end is stopped."""
    servers: list[Server] = []

    def run(*options: str, **more: Any) -> Server:
        servers.append(Server(tmp_path / "observer.sqlite3", *options, **more))
        return servers[-1]

    yield run
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait(10)
        server.process.stderr.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Start a browser for the tests of one module: while it runs, its driver holds this thread's event loop."""
    arguments = (
        "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
        "--disable-sync --no-first-run"
    ).split()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
        yield browser
        browser.close()


@contextmanager
def following(address: str, **headers: str) -> Iterator[Iterator[dict[str, str]]]:
    """Read a stream of server-sent events, message by message."""
    with httpx.stream("GET", address, headers=headers, timeout=10) as answer:
        assert answer.status_code == 200, answer.read()
        yield _messages(answer)


def _messages(answer: httpx.Response) -> Iterator[dict[str, str]]:
    message: dict[str, str] = {}
    for line in answer.iter_lines():
        if not line:
            if message:
                yield message
            message = {}
        elif not line.startswith(":"):
            field, _, value = line.partition(": ")
            message[field] = f"{message[field]}\n{value}" if field in message else value
