"""Environments are made once, made again when an installation was interrupted, and fail with a clear word."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import environments
import interpreters
from environments import PackagesMissing, Recipe, StepFailed, Steps
from interpreters import InterpreterMissing


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of its own, with logs and locks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "eunoe"


class Kitchen:
    """A recipe without a real installation, and how often it was cooked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cooked = 0
        self.fails = False

    def recipe(self, key: str = "one") -> Recipe:
        """The recipe with a key."""
        return Recipe("A trial", self.folder, key, self.install)

    def install(self, steps: Steps) -> None:
        """Leave a file behind, and then perhaps fail."""
        self.cooked += 1
        (steps.folder / f"file{self.cooked}").touch()
        if self.fails:
            program = "print('first'); print('no such package'); raise SystemExit(3)"
            steps.run("installing", [str(steps.python), "-c", program], "Do this.")


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kitchen:
    """A kitchen whose environments have no pip, which takes seconds to unpack."""
    real = Steps.run

    def quick(steps: Steps, title: str, command: list[str], advice: str) -> None:
        if command[1:3] == ["-m", "venv"]:
            command = [*command, "--without-pip"]
        real(steps, title, command, advice)

    monkeypatch.setattr(Steps, "run", quick)
    return Kitchen(tmp_path / "env")


def test_a_ready_environment_is_used_as_it_is(kitchen: Kitchen) -> None:
    for _ in range(2):
        assert environments.make(kitchen.recipe(), sys.executable) == kitchen.folder
    assert kitchen.cooked == 1
    assert (kitchen.folder / "bin" / "python").exists()


def test_another_key_makes_it_again_from_nothing(kitchen: Kitchen) -> None:
    environments.make(kitchen.recipe("one"), sys.executable)
    environments.make(kitchen.recipe("two"), sys.executable)
    assert not (kitchen.folder / "file1").exists()
    assert (kitchen.folder / "file2").exists()


def test_an_interrupted_installation_is_done_again_from_nothing(kitchen: Kitchen) -> None:
    kitchen.fails = True
    with pytest.raises(StepFailed):
        environments.make(kitchen.recipe(), sys.executable)
    kitchen.fails = False
    environments.make(kitchen.recipe(), sys.executable)
    assert not (kitchen.folder / "file1").exists()
    assert (kitchen.folder / "file2").exists()


def test_a_step_that_fails_shows_the_end_of_its_output_and_what_to_do(
    kitchen: Kitchen, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kitchen.fails = True
    with pytest.raises(StepFailed) as caught:
        environments.make(kitchen.recipe(), sys.executable)
    text = str(caught.value)
    assert text.startswith("installing failed (exit status 3). Do this.\n")
    assert text.endswith("    first\n    no such package")
    assert str(cache / "logs") in text
    assert "installing …" in capsys.readouterr().err


def test_two_runs_do_not_make_the_same_environment_at_once(tmp_path: Path) -> None:
    holder = "import environments, pathlib, sys, time\n"
    holder += (
        "with environments.locked(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(1.5)"
    )
    command = [sys.executable, "-c", holder, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        begin = time.monotonic()
        with environments.locked(tmp_path / "lock"):
            assert time.monotonic() - begin > 0.5
            assert other.wait(10) == 0


def test_a_python_that_is_missing_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(InterpreterMissing, match=r"No Python 2\.6 was found.*make PYTHON="):
        interpreters.interpreter("2.6")


def test_a_python_of_pyenv_is_found_the_newest_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    for version in ("3.12.9", "3.12.10"):
        (tmp_path / "versions" / version / "bin").mkdir(parents=True)
        (tmp_path / "versions" / version / "bin" / "python3.12").touch()
    found = [path for path in interpreters.candidates("3.12") if path.startswith(str(tmp_path))]
    assert [Path(path).parts[-3] for path in found] == ["3.12.10", "3.12.9"]


def test_missing_debian_packages_are_named_where_they_cannot_be_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    environments.debian_packages()
    assert "sudo apt-get install chromium" in capsys.readouterr().err
    monkeypatch.setenv("CI", "true")
    with pytest.raises(PackagesMissing, match="chromium"):
        environments.debian_packages()
