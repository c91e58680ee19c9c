"""`make run`: what it starts, keeps, says and stops."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

import run
from install import Account, OpenWebUI
from processes import free_port, is_free
from provider import LOCAL_MODEL

from .client import Chat, Client
from .hosting import tell
from .upstream import Upstream

pytestmark = pytest.mark.e2e


class Run:
    """One `make run`, with ports and data of its own."""

    def __init__(self, env: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, run.__file__], env=dict(env), stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def said(self) -> str:
        """What it has said so far."""
        return self.log.read_text()

    def wait_until_it_runs(self) -> None:
        """Wait for the greeting."""
        deadline = time.monotonic() + 120
        while "Ctrl-C stops everything" not in self.said:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.2)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Interrupt it and answer its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(40)


@pytest.fixture
def env(upstream: Upstream, tmp_path: Path) -> dict[str, str]:
    """What a person might have in the environment."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "OPENAI_API_BASE_URL": upstream.url,
        "OPENAI_API_KEY": "key",
        "OPEN_WEBUI_PORT": str(free_port()),
        "EUNOE_OBSERVER_PORT": str(free_port()),
        "EUNOE_LLAMA_PORT": str(free_port()),
        "EUNOE_DATA": str(tmp_path / "data"),
    }


@pytest.fixture
def started(env: dict[str, str], tmp_path: Path) -> Iterator[list[Run]]:
    """The runs of a test; those that are left are stopped."""
    runs: list[Run] = []
    yield runs
    for left in runs:
        left.stop(signal.SIGTERM)


def ports(env: Mapping[str, str]) -> list[int]:
    """The ports of Open WebUI and the observer."""
    return [int(env["OPEN_WEBUI_PORT"]), int(env["EUNOE_OBSERVER_PORT"])]


def signed_in(env: Mapping[str, str], said: str) -> OpenWebUI:
    """Get in with the account that was printed."""
    found = re.search(r"email (\S+)   password (\S+)", said)
    assert found
    server = OpenWebUI(f"http://127.0.0.1:{env['OPEN_WEBUI_PORT']}")
    server.sign_in(Account(found[1], found[2]), tell)
    return server


def test_a_trial_from_first_start_to_second(
    env: dict[str, str], started: list[Run], upstream: Upstream, tmp_path: Path, mark: str
) -> None:
    first = Run(env, tmp_path / "first.log")
    started.append(first)
    first.wait_until_it_runs()
    observer = f"http://127.0.0.1:{env['EUNOE_OBSERVER_PORT']}"
    assert observer in first.said
    assert upstream.url in first.said
    account = tmp_path / "data" / "account.json"
    assert stat.S_IMODE(account.stat().st_mode) == 0o600
    assert json.loads(account.read_text())["password"] in first.said

    server = signed_in(env, first.said)
    turn = Client(server).say(Chat(), f"{mark} hello")
    assert turn.text == f"plain answers: {mark} hello"
    deadline = time.monotonic() + 20
    while mark not in (runs := httpx.get(f"{observer}/runs.json", trust_env=False).text):
        assert time.monotonic() < deadline, runs
        time.sleep(0.1)
    path = "/api/v1/functions/id/eunoe/valves"
    server.call("POST", f"{path}/update", {**server.call("GET", path), "max_tokens": 7000})
    server.http.close()
    assert first.stop() == 0
    assert all(is_free(port) for port in ports(env)), "a server was left behind"

    env["OPENAI_API_KEY"] = "another key"
    second = Run(env, tmp_path / "second.log")
    started.append(second)
    second.wait_until_it_runs()
    assert "the filter eunoe is up to date" in second.said
    server = signed_in(env, second.said)
    assert server.call("GET", path)["max_tokens"] == 7000
    openai = server.call("GET", "/openai/config")
    assert openai["OPENAI_API_BASE_URLS"] == [upstream.url]
    assert openai["OPENAI_API_KEYS"] == ["another key"]
    server.http.close()
    assert second.stop(signal.SIGTERM) == 0
    assert all(is_free(port) for port in ports(env)), "a server was left behind"


def test_with_nothing_set_a_local_model_answers_and_its_window_holds_the_chat(
    env: dict[str, str], started: list[Run], tmp_path: Path, mark: str
) -> None:
    del env["OPENAI_API_BASE_URL"], env["OPENAI_API_KEY"]
    env["OLLAMA_BASE_URL"] = f"http://127.0.0.1:{free_port()}"  # nobody answers there
    trial = Run(env, tmp_path / "local.log")
    started.append(trial)
    trial.wait_until_it_runs()
    assert "a small local model" in trial.said
    server = signed_in(env, trial.said)
    turn = Client(server).say(Chat([LOCAL_MODEL]), f"{mark} hello")
    assert turn.error is None
    deadline = time.monotonic() + 20
    observer = f"http://127.0.0.1:{env['EUNOE_OBSERVER_PORT']}"
    while (
        not (runs := httpx.get(f"{observer}/runs.json", trust_env=False).json()["runs"])
        or not runs[0]["finished"]
    ):
        assert time.monotonic() < deadline, runs
        time.sleep(0.1)
    assert (runs[0]["context_window"], runs[0]["tokens_tools"], runs[0]["over_limit"]) == (8192, 0, False)
    assert runs[0]["prompt_tokens"] == turn.replies[0]["usage"]["prompt_tokens"]
    server.http.close()
    assert trial.stop() == 0


@pytest.mark.parametrize(
    ("variable", "option"),
    [("OPEN_WEBUI_PORT", "--open-webui-port"), ("EUNOE_OBSERVER_PORT", "--observer-port")],
)
def test_a_port_that_is_taken_is_said_before_anything_starts(
    env: dict[str, str], started: list[Run], tmp_path: Path, variable: str, option: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        env[variable] = str(taken.getsockname()[1])
        refused = Run(env, tmp_path / "refused.log")
        started.append(refused)
        assert refused.process.wait(30) == 1
    assert f"Port {env[variable]}" in refused.said
    assert option in refused.said
    assert str(os.getpid()) in refused.said, "the process that has the port is not named"
    assert "Traceback" not in refused.said
    assert not (tmp_path / "data" / "logs").exists()


def test_a_server_that_ends_is_named_with_the_end_of_its_log(
    env: dict[str, str], started: list[Run], tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "observer"
    (folder / "observer.sqlite3").mkdir(parents=True)  # a folder where its database should be
    failed = Run(env, tmp_path / "failed.log")
    started.append(failed)
    assert failed.process.wait(60) == 1
    assert "The observer ended" in failed.said
    assert "observer.log" in failed.said
    assert all(is_free(port) for port in ports(env)), "a server was left behind"
