"""The engine's suite runs against the package, and with EUNOE_ENGINE=bundle against the single file."""

import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class BundleFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every `eunoe.x` in the one module that the single file is."""

    def __init__(self, bundle):
        self.bundle = bundle

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "eunoe":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        names = {k: v for k, v in vars(self.bundle).items() if not k.startswith("__")}
        vars(module).update(names)


if os.environ.get("EUNOE_ENGINE") == "bundle":
    from tests.bundle.loader import load_module

    source = (ROOT / "filter" / "eunoe_filter.py").read_text(encoding="utf-8")
    sys.meta_path.insert(0, BundleFinder(load_module(source)))


@pytest.fixture
def anyio_backend():
    return "asyncio"
