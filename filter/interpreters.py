"""Finds Python interpreters that run; uses the standard library only, since nothing is installed yet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

VERSIONS = ("3.11", "3.12")  # what Open WebUI 0.12.4 runs on


class PreparationError(Exception):
    """What is needed could not be prepared; the text says what to do."""


class InterpreterMissing(PreparationError):
    """No Python of a fitting version runs here."""


def answer_of(command: Sequence[str]) -> str:
    """What `command` prints, or an empty text if it does not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def version_of(python: str | Path) -> str:
    """The version of an interpreter that runs and can make environments, such as 3.11; else an empty text."""
    return answer_of(
        [str(python), "-c", "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"]
    )


def candidates(version: str) -> Iterator[str]:
    """Interpreters that may be of `version`, the most natural first."""
    yield sys.executable
    yield "python3"
    yield f"python{version}"
    pyenv = os.environ.get("PYENV_ROOT") or answer_of(["pyenv", "root"])
    if pyenv:
        # The newest patch release first, by number: 3.12.10 comes before 3.12.9.
        found = Path(pyenv, "versions").glob(f"{version}.*/bin/python{version}")
        yield from map(str, sorted(found, key=lambda path: _numbers(path.parts[-3]), reverse=True))


def _numbers(text: str) -> list[int]:
    """The numbers in a version."""
    return [int(part) for part in text.split(".") if part.isdigit()]


def interpreter(*versions: str) -> str:
    """Find an interpreter of one of `versions`."""
    for version in versions:
        for candidate in candidates(version):
            if version_of(candidate) in versions:
                return candidate
    wanted = " or ".join(versions)
    raise InterpreterMissing(
        f"No Python {wanted} was found: python3 here is {version_of('python3') or 'missing'}. "
        f"Looked for {', '.join('python' + version for version in versions)} on PATH and in pyenv. "
        f"Install one (Debian: apt-get install python3 python3-venv; pyenv: pyenv install {versions[-1]}) "
        "and run again, or name it: make PYTHON=/path/to/python3 …"
    )
