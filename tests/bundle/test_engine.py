"""The engine's whole suite against the single file: what is pasted is what was tested."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_engines_suite_passes_against_the_single_file():
    env = {**os.environ, "EUNOE_ENGINE": "bundle", "EUNOE_EXAMPLES": "20"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/engine"]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_the_suite_looks_at_the_single_file_and_not_at_the_package():
    script = "import tests.engine.conftest, eunoe.flags; print(eunoe.flags.split_flags.__code__.co_filename)"
    env = {**os.environ, "EUNOE_ENGINE": "bundle"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "<string>"
