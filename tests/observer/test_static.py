"""What the browser loads: only from here, and only what was fetched."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import eunoe_observer

PACKAGE = Path(eunoe_observer.__file__).parent
VENDOR = PACKAGE.parent / "vendor.py"
OWN = [
    *sorted((PACKAGE / "templates").glob("*.html")),
    *(PACKAGE / "static" / name for name in ("observer.css", "observer.js", "favicon.svg")),
]


def test_the_vendored_files_are_the_ones_their_list_names():
    done = subprocess.run([sys.executable, VENDOR, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_changed_vendored_file_is_noticed(tmp_path: Path):
    copy = tmp_path / "observer"
    folder = copy / "eunoe_observer" / "static" / "vendor"
    folder.mkdir(parents=True)
    (copy / "vendor.py").write_bytes(VENDOR.read_bytes())
    for file in (PACKAGE / "static" / "vendor").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "htmx.min.js").write_text("alert(1)")
    done = subprocess.run(
        [sys.executable, copy / "vendor.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        1,
        "htmx.min.js is not what vendor.json names; run: make vendor\n",
    )


def test_licenses_are_kept():
    assert "Zero-Clause BSD" in (PACKAGE / "static" / "vendor" / "LICENSES").read_text()


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.name)
def test_nothing_is_loaded_from_outside(file: Path):
    text = file.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|//[a-z0-9-]+\.[a-z]", text)


@pytest.mark.parametrize("file", OWN[:-3], ids=lambda file: file.name)
def test_templates_hold_nothing_the_content_policy_forbids(file: Path):
    text = file.read_text()
    assert not re.search(r"\sstyle=|\son\w+=|hx-on|js:|\|\s*safe|<style", text)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))


def test_the_style_sheet_stays_small():
    assert len((PACKAGE / "static" / "observer.css").read_text().splitlines()) < 500
