"""A real Open WebUI with the filter in it, a scripted provider, and someone who takes the events."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from install import SOURCE, OpenWebUI, Wish, install

from .client import Client
from .collector import Collector
from .hosting import Hosted, Observed, hosted, observing, tell
from .upstream import Upstream

TOKEN = "token-of-the-end-to-end-tests"


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    """A provider that keeps every request."""
    with Upstream() as running:
        yield running


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """Someone who takes the filter's events."""
    with Collector(TOKEN) as running:
        yield running


@pytest.fixture(scope="session")
def open_webui(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """A real Open WebUI, without the filter."""
    with hosted(tmp_path_factory.mktemp("open-webui"), upstream.url) as running:
        yield running


@pytest.fixture(scope="session")
def installed(open_webui: Hosted, collector: Collector) -> OpenWebUI:
    """The same with the filter installed and on."""
    source = SOURCE.read_text(encoding="utf-8")
    install(open_webui.api, Wish(source, observer_url=collector.address, observer_token=TOKEN), tell)
    return open_webui.api


@pytest.fixture(scope="session")
def observer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """A real observer."""
    with observing(tmp_path_factory.mktemp("observer"), TOKEN) as running:
        yield running


class Valves:
    """The filter's settings."""

    def __init__(self, server: OpenWebUI, always: Mapping[str, Any]) -> None:
        self.server = server
        self.always = always

    def set(self, **values: Any) -> None:
        """Set these and leave all others at their defaults."""
        self.server.call("POST", "/api/v1/functions/id/eunoe/valves/update", {**self.always, **values})


@pytest.fixture
def valves(installed: OpenWebUI, collector: Collector) -> Iterator[Valves]:
    """The filter's settings, at their defaults but for where events go."""
    always = {"observer_url": collector.address, "observer_token": TOKEN, "observer_content": "full"}
    found = Valves(installed, always)
    found.set()
    collector.status, collector.delay = 202, 0.0
    yield found
    collector.status, collector.delay = 202, 0.0


@pytest.fixture
def client(valves: Valves) -> Client:
    """An administrator at the page, with the filter at its defaults."""
    return Client(valves.server)


@pytest.fixture
def mark() -> str:
    """A word that only this test's messages hold."""
    return f"mark{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """Where screenshots and logs are left for people to look at."""
    folder = Path(__file__).resolve().parents[2] / "artifacts"
    folder.mkdir(exist_ok=True)
    return folder
