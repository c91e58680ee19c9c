"""Loads the text of a function as Open WebUI 0.12.4 does, in the same order and with the same oddities.

The text is executed as a string, in a module with a random name that is in `sys.modules` only while it
runs. Standard library only, so that any interpreter can run this file by its path.
"""

# The text inherits this line, as it inherits the one at the top of the original's module.
from __future__ import annotations

import os
import re
import sys
import tempfile
import types
import uuid
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

REWRITES = {
    prefix: prefix.replace("from ", "from open_webui.")
    for prefix in ("from utils", "from apps", "from main", "from config")
}
KINDS = ("Pipe", "Filter", "Action", "Event")
_FIELD = re.compile(r"\s*([a-z_]+):\s*(.*)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Loaded:
    """A function as the host holds it after loading, before it is put into the cache."""

    module: types.ModuleType
    instance: Any
    kind: str
    frontmatter: dict[str, str]


def rewritten(text: str) -> str:
    """Replace the four import phrases wherever they stand."""
    for old, new in REWRITES.items():
        text = text.replace(old, new)
    return text


def frontmatter_of(text: str) -> dict[str, str]:
    """Read the fields between the first line, which must be three quotes, and the next three quotes."""
    first, *rest = text.splitlines() or [""]
    fields: dict[str, str] = {}
    if first.strip() != '"""':
        return fields
    for line in rest:
        if '"""' in line:
            break
        if match := _FIELD.fullmatch(line):
            fields[match[1].strip()] = match[2].strip()
    return fields


def load(
    text: str, function_id: str = "eunoe", *, during: AbstractContextManager[Any] | None = None
) -> Loaded:
    """Execute a function and make its object; afterwards its module is in `sys.modules` no more.

    `during` is held while the function's own code runs, and at no other time.
    """
    text = rewritten(text)
    frontmatter = frontmatter_of(text)
    module = types.ModuleType(f"function_{function_id}_{uuid.uuid4().hex}")
    sys.modules[module.__name__] = module
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", delete=False) as file:
        file.write(text)
    try:
        module.__dict__["__file__"] = file.name
        with during or nullcontext():
            exec(text, module.__dict__)
            kind = next(kind for kind in KINDS if hasattr(module, kind))
            instance = getattr(module, kind)()
    finally:
        os.unlink(file.name)
        sys.modules.pop(module.__name__, None)
    return Loaded(module, instance, kind.lower(), frontmatter)


def register(module: types.ModuleType) -> None:
    """Put a loaded module under its own and its stable name; the one loaded before loses its own."""
    stable = module.__name__.rpartition("_")[0]
    if previous := sys.modules.get(stable):
        sys.modules.pop(previous.__name__, None)
    sys.modules[module.__name__] = sys.modules[stable] = module


def evict(module: types.ModuleType) -> None:
    """Take a module out under all its names, as happens to one that is updated while requests run in it."""
    for name in [name for name, known in sys.modules.items() if known is module]:
        del sys.modules[name]


def load_module(source: str, function_id: str = "eunoe") -> types.ModuleType:
    """Load a function, register its module as the host's cache does, and give the module."""
    module = load(source, function_id).module
    register(module)
    return module
