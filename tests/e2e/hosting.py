"""Runs the servers of the end-to-end tests, each with data of its own."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

import environments
import run
from install import Account, OpenWebUI
from processes import Server, free_port, stop
from provider import Provider

ACCOUNT = Account("admin@eunoe.example", "a-password-for-tests")

# A tool that answers with far more text than a small budget holds, different for each topic.
LOOKUP = '''
class Tools:
    """Looks things up."""

    def lookup(self, topic: str) -> str:
        """
        Look a topic up in the archive.
        :param topic: What to look up.
        """
        return "\\n".join(f"{topic}, line {number}: the river and the bridge" for number in range(80))
'''


@dataclass(frozen=True)
class Hosted:
    """A running Open WebUI, and its API as its administrator sees it."""

    server: Server
    api: OpenWebUI
    data: Path


def tell(_text: str) -> None:
    """Take what an installation says; tests look at what it did."""


def environment_of(data: Path, provider_url: str) -> dict[str, str]:
    """The environment that `make run` would give Open WebUI, without what this machine's has besides."""
    settings = run.open_webui_settings(data, "k" * 64, Provider(provider_url, "key"))
    settings["TIKTOKEN_CACHE_DIR"] = str(environments.tokenizers())  # the filter counts as the provider does
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG", "TMPDIR"}}
    return {**settings, **kept}


@contextlib.contextmanager
def hosted(
    data: Path,
    provider_url: str,
    extra: Mapping[str, str] | None = None,
    command: Callable[[int], list[str]] = run.open_webui_command,
) -> Iterator[Hosted]:
    """Run Open WebUI with an account, its built-in tools off for `plain`, and a tool `lookup`."""
    port = free_port()
    env = {**environment_of(data, provider_url), **(extra or {})}
    server = Server.start("Open WebUI", command(port), data / "open-webui.log", env)
    api = OpenWebUI(f"http://127.0.0.1:{port}")
    try:
        server.wait(f"{api.url}/health", 300)
        api.sign_in(ACCOUNT, tell)
        furnish(api)
        yield Hosted(server, api, data)
    finally:
        api.http.close()
        stop([server])


def furnish(api: OpenWebUI) -> None:
    """Give the server its models and a tool. `second` keeps the built-in tools, some 5,000 tokens of them."""
    for model in ("plain", "wide", "small"):
        meta = {"capabilities": {"builtin_tools": False}}
        form: dict[str, Any] = {"id": model, "base_model_id": None, "name": model, "params": {}, "meta": meta}
        api.call("POST", "/api/v1/models/create", form)
    form = {"id": "lookup", "name": "Lookup", "content": LOOKUP, "meta": {"description": "Looks things up."}}
    api.call("POST", "/api/v1/tools/create", form)
    api.call("GET", "/api/models?refresh=true")


@dataclass(frozen=True)
class Observed:
    """A running observer, and its pages as a signed-in program reads them."""

    server: Server
    address: str
    token: str
    http: httpx.Client

    def run_about(self, mark: str, seconds: float = 20, **wanted: Any) -> dict[str, Any]:
        """The newest run whose question holds `mark`, as soon as its fields are as wanted."""
        deadline = time.monotonic() + seconds
        while True:
            runs = [
                run for run in self.http.get("/runs.json").json()["runs"] if mark in (run["question"] or "")
            ]
            if runs and all(runs[0][name] == value for name, value in wanted.items()):
                return dict(runs[0])
            assert time.monotonic() < deadline, f"no such run, but {runs}"
            time.sleep(0.1)


@contextlib.contextmanager
def observing(data: Path, token: str) -> Iterator[Observed]:
    """Run the observer with a database of its own."""
    port = free_port()
    env = {
        "PATH": os.environ["PATH"],
        "EUNOE_OBSERVER_TOKEN": token,
        "EUNOE_OBSERVER_PORT": str(port),
        "EUNOE_OBSERVER_DATABASE": str(data / "observer.sqlite3"),
    }
    server = Server.start(
        "The observer", [sys.executable, "-m", "eunoe_observer"], data / "observer.log", env
    )
    address = f"http://127.0.0.1:{port}"
    headers = {"Authorization": f"Bearer {token}"}
    try:
        server.wait(f"{address}/healthz", 60)
        with httpx.Client(base_url=address, headers=headers, trust_env=False) as http:
            yield Observed(server, address, token, http)
    finally:
        stop([server])
