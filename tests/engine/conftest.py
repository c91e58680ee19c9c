"""The engine's suite runs against the package, and with EUNOE_ENGINE=bundle against the single file.

Modules that the Open WebUI host has no use for are not in the file: these are the package's, and what they
import is the file's.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class BundleFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every `eunoe.x` that is in the single file in the one module that the file is."""

    def __init__(self, bundle, names):
        self.bundle, self.names = bundle, names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "eunoe":
            return None
        place = (ROOT / "shared" / Path(*name.split("."))).with_suffix(".py")
        if name not in self.names and place.exists():
            return importlib.util.spec_from_file_location(name, place)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        names = {k: v for k, v in vars(self.bundle).items() if not k.startswith("__")}
        vars(module).update(names)


if os.environ.get("EUNOE_ENGINE") == "bundle":
    import amalgamate
    from tests.bundle.loader import load_module

    source = (ROOT / "filter" / "eunoe_filter.py").read_text(encoding="utf-8")
    sys.meta_path.insert(0, BundleFinder(load_module(source), amalgamate.reach(ROOT)))


@pytest.fixture
def anyio_backend():
    return "asyncio"
