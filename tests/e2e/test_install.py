"""Installing and upgrading through the API keeps what people changed, and says what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import install
from install import OpenWebUI, Refused, Wish
from processes import free_port

from .hosting import ACCOUNT, Hosted
from .upstream import Upstream

pytestmark = pytest.mark.e2e

ID = "eunoe_trial"
SOURCE = install.SOURCE.read_text(encoding="utf-8")
NEWER = SOURCE + "\n# a newer version\n"
OBSERVER = "http://127.0.0.1:1"


class Installed:
    """The filter under an id of its own, so that no chat of other tests meets it twice."""

    def __init__(self, api: OpenWebUI) -> None:
        self.api = api
        self.path = f"/api/v1/functions/id/{ID}"

    def install(self, source: str = SOURCE, **wish: Any) -> list[str]:
        """Install and answer what it said."""
        said: list[str] = []
        install.install(self.api, Wish(source, function_id=ID, **wish), said.append)
        return said

    @property
    def function(self) -> dict[str, Any]:
        """The stored function."""
        return dict(self.api.call("GET", self.path))

    @property
    def valves(self) -> dict[str, Any]:
        """The stored valves."""
        return dict(self.api.call("GET", f"{self.path}/valves"))


@pytest.fixture
def trial(open_webui: Hosted) -> Iterator[Installed]:
    """Nothing installed yet; what a test installs is removed."""
    found = Installed(open_webui.api)
    yield found
    if open_webui.api.function(ID):
        open_webui.api.call("DELETE", f"{found.path}/delete")


def test_a_first_installation_is_on_for_all_models(trial: Installed) -> None:
    said = trial.install(observer_url=OBSERVER, observer_token="t", valves={"max_tokens": 9000})
    function = trial.function
    assert (function["is_active"], function["is_global"], function["type"]) == (True, True, "filter")
    assert function["content"] == SOURCE
    assert trial.valves == {"observer_url": OBSERVER, "observer_token": "t", "max_tokens": 9000}
    assert said == [
        f"installed the filter {ID}",
        "switched it on for all models",
        "set the valves max_tokens, observer_token, observer_url",
    ]
    assert '"t"' not in str(function["meta"]), "every user can read the description of a function"


def test_a_second_installation_of_the_same_changes_nothing(trial: Installed) -> None:
    trial.install(observer_url=OBSERVER)
    before = trial.function
    assert trial.install(observer_url=OBSERVER)[0] == f"the filter {ID} is up to date"
    assert trial.function == before


def test_an_upgrade_keeps_the_valves_that_people_changed(trial: Installed) -> None:
    trial.install(observer_url=OBSERVER)
    trial.api.call("POST", f"{trial.path}/valves/update", {**trial.valves, "max_tokens": 7000})
    said = trial.install(NEWER, observer_url="http://127.0.0.1:2")
    assert trial.function["content"] == NEWER
    assert trial.valves == {"observer_url": "http://127.0.0.1:2", "max_tokens": 7000}
    assert said == [f"updated the filter {ID}", "set the valves observer_url", "kept the valves max_tokens"]


def test_an_observer_address_that_was_changed_by_hand_is_kept_unless_it_is_asked_for(
    trial: Installed,
) -> None:
    trial.install(observer_url=OBSERVER)
    trial.api.call("POST", f"{trial.path}/valves/update", {"observer_url": "http://mine:7456"})
    for _ in range(2):
        said = trial.install(observer_url=OBSERVER)
        assert trial.valves == {"observer_url": "http://mine:7456"}
        assert any("changed by hand" in line for line in said)
    trial.install(valves={"observer_url": OBSERVER})
    assert trial.valves == {"observer_url": OBSERVER}


def test_an_upgrade_leaves_a_filter_off_that_was_switched_off(trial: Installed) -> None:
    trial.install()
    trial.api.call("POST", f"{trial.path}/toggle")
    said = trial.install(NEWER)
    assert trial.function["is_active"] is False
    assert any("stays off" in line for line in said)
    trial.install(NEWER, activate=True)
    assert trial.function["is_active"] is True


def test_an_upgrade_leaves_a_filter_to_the_models_it_was_given_to(trial: Installed) -> None:
    trial.install()
    trial.api.call("POST", f"{trial.path}/toggle/global")
    said = trial.install(NEWER)
    assert trial.function["is_global"] is False
    assert any("chosen models only" in line for line in said)


def test_a_filter_that_does_not_load_is_refused_with_the_reason(trial: Installed) -> None:
    trial.install()
    with pytest.raises(Refused, match="no such name"):
        trial.install(SOURCE + "\nraise NameError('no such name')\n")
    assert trial.function["content"] == SOURCE


def test_a_valve_that_is_refused_is_named(trial: Installed) -> None:
    with pytest.raises(Refused, match="max_tokens"):
        trial.install(valves={"max_tokens": -1})


def run_install(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, install.__file__, "--wait", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={"PATH": ""})


def test_the_command_says_what_it_did(installed: OpenWebUI) -> None:
    before = installed.function("eunoe")
    done = run_install("--url", installed.url, "--email", ACCOUNT.email, "--password", ACCOUNT.password)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the filter eunoe is up to date\n")
    assert installed.function("eunoe") == before


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    done = run_install("--filter", str(tmp_path / "missing.py"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "missing.py" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("email", "password", "fix"),
    [
        (ACCOUNT.email, "wrong", "OPEN_WEBUI_PASSWORD"),
        ("", "", "--email"),
        ("nobody@eunoe.example", "x", "--email"),
    ],
)
def test_an_account_that_is_wrong_is_named_with_the_fix(
    open_webui: Hosted, email: str, password: str, fix: str
) -> None:
    done = run_install("--url", open_webui.api.url, "--email", email, "--password", password)
    assert done.returncode == 1
    assert fix in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_that_is_wrong_is_named(open_webui: Hosted) -> None:
    done = run_install("--url", open_webui.api.url, "--token", "wrong")
    assert done.returncode == 1
    assert "token must be an administrator's" in done.stderr


def test_an_address_where_nothing_or_something_else_answers_is_named(upstream: Upstream) -> None:
    for url in (f"http://127.0.0.1:{free_port()}", upstream.address, "nonsense"):
        done = run_install("--url", url, "--token", "t")
        assert done.returncode == 1
        assert url in done.stderr
        assert "--url" in done.stderr
        assert "Traceback" not in done.stderr
