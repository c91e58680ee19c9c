"""A small repository with a host and an engine, for the amalgamator to work on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import amalgamate

PROJECT = """\
[project]
name = "eunoe"
version = "1.2.3"
license = "MIT"
description = "Keeps chats short."
"""

HOST = '''\
"""The host."""

from __future__ import annotations

from eunoe.plan import plan


class Filter:
    """Does nothing."""

    def inlet(self, body: dict) -> dict:
        return plan(body)
'''

PLAN = '''\
"""The plan."""

from __future__ import annotations


def plan(body: dict) -> dict:
    """Give back what it was given."""
    return body
'''


class Repository:
    """Sources in a folder of their own; complete from the start, and broken by the tests on purpose."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bundle = root / amalgamate.BUNDLE
        self.write("pyproject.toml", PROJECT)
        self.write("shared/eunoe/__init__.py", '"""The engine."""\n')
        self.write("filter/eunoe_hosts/__init__.py", '"""The hosts."""\n')
        self.engine(plan=PLAN)
        self.host(HOST)

    def write(self, path: str, text: str) -> None:
        """Write a file, with its folders."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")

    def engine(self, **modules: str) -> None:
        """Write modules of the engine, by name."""
        for name, text in modules.items():
            self.write(f"shared/eunoe/{name}.py", text)

    def host(self, text: str) -> None:
        """Write the host."""
        self.write("filter/eunoe_hosts/open_webui.py", text)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the amalgamator of this repository as a command."""
        script = self.root / "filter" / "amalgamate.py"
        shutil.copy(amalgamate.__file__, script)
        return subprocess.run(
            [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=60, check=False
        )

    def build(self) -> str:
        """Make the bundle."""
        return amalgamate.build(self.root)

    def breaches(self) -> list[str]:
        """List why the bundle is refused; none if it is not."""
        try:
            self.build()
        except amalgamate.Refused as refused:
            return refused.breaches
        return []
