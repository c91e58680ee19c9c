"""Starting: options, the environment, and one clear line when it can't be."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from eunoe_observer.errors import BadSettings
from eunoe_observer.settings import Settings, default_database, is_loopback, settings_from

from .conftest import TOKEN


def refused(*options: str, environment: dict[str, str] | None = None) -> str:
    """Run the command, expect it to refuse, and return the line it says."""
    done = subprocess.run(
        [Path(sys.executable).with_name("eunoe-observer"), *options],
        capture_output=True,
        text=True,
        timeout=20,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_options_win_over_the_environment_and_that_over_defaults(tmp_path: Path):
    environment = {
        "EUNOE_OBSERVER_HOST": "localhost",
        "EUNOE_OBSERVER_PORT": "9000",
        "EUNOE_OBSERVER_DATABASE": str(tmp_path / "a"),
        "EUNOE_OBSERVER_TOKEN": "from the environment",
    }
    assert settings_from([], environment) == Settings(
        "localhost", 9000, tmp_path / "a", "from the environment"
    )
    options = ["--host", "::1", "--port", "1", "--database", str(tmp_path / "b"), "--token", "x"]
    assert settings_from(options, environment) == Settings("::1", 1, tmp_path / "b", "x")
    assert settings_from([], {"HOME": "/home/me"}) == Settings(
        "127.0.0.1", 7456, Path("/home/me/.local/share/eunoe/eunoe-observer.sqlite3"), None
    )
    assert default_database({"XDG_DATA_HOME": "/data"}) == Path("/data/eunoe/eunoe-observer.sqlite3")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("a.localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
        ("", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_what_is_loopback(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize("token", [None, "", "short"])
def test_beyond_loopback_it_needs_a_good_token(token):
    with pytest.raises(BadSettings):
        Settings(host="0.0.0.0", token=token)
    assert Settings(host="0.0.0.0", token=TOKEN).token == TOKEN


def test_it_says_what_to_do_without_a_token():
    assert "--token" in refused("--host", "0.0.0.0")


def test_it_says_when_the_port_is_no_number():
    assert "must be a number" in refused("--port", "http")


def test_it_says_when_the_port_is_taken(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused("--port", port, "--database", str(tmp_path / "x.sqlite3"))
    assert f"Cannot listen on 127.0.0.1 port {port}" in said


def test_it_says_when_the_path_cannot_be_used(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert "Cannot use" in refused("--port", "0", "--database", str(tmp_path / "file" / "x.sqlite3"))
    assert "Cannot use" in refused("--port", "0", "--database", str(tmp_path))
    (tmp_path / "text").write_text("this is no database " * 100)
    assert "not a database" in refused("--port", "0", "--database", str(tmp_path / "text"))


def test_it_says_when_a_newer_version_made_the_database(serve, tmp_path: Path):
    serve().stop()
    path = tmp_path / "observer.sqlite3"
    with sqlite3.connect(path) as database:
        database.execute("update alembic_version set version_num = '9999'")
    database.close()
    assert "newer version" in refused("--port", "0", "--database", str(path))


def test_a_second_observer_on_the_same_database_is_refused(serve, tmp_path: Path):
    serve()
    assert "Another observer is using" in refused(
        "--port", "0", "--database", str(tmp_path / "observer.sqlite3")
    )


def test_the_environment_is_enough_and_health_needs_no_token(serve):
    server = serve(environment={"EUNOE_OBSERVER_TOKEN": TOKEN, "EUNOE_OBSERVER_HOST": "0.0.0.0"})
    address = f"http://127.0.0.1:{server.port}"
    assert httpx.get(f"{address}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{address}/runs.json").status_code == 401
    server.stop()
    assert "Traceback" not in server.said


def test_small_answers_are_sent_at_once(serve):
    server = serve()
    seconds = []
    with httpx.Client() as client:
        for _ in range(20):
            begun = time.perf_counter()
            client.get(f"{server.address}/healthz")
            seconds.append(time.perf_counter() - begun)
    assert min(seconds) < 0.03  # a delayed acknowledgement alone takes 0.04
