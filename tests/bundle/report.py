"""Loads a bundle in a process of its own, twice and without a network, and prints what that did as JSON."""

from __future__ import annotations

import ast
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # the file is run by its path, in isolated mode

from loader import load, register

WRITING = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.copyfile"}
STARTING = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}


class Watch:
    """Records sockets, written files, processes and threads while it is held."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._is_held = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, details: tuple[Any, ...]) -> None:
        if event in {"socket.connect", "socket.getaddrinfo"}:
            raise ConnectionError("this process has no network")
        writes = event == "open" and isinstance(details[1], str) and set(details[1]) & set("wax+")
        if self._is_held and (writes or event.startswith("socket.") or event in WRITING | STARTING):
            self.seen.append(f"{event} {details[0]!r}")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Watch until the context is left."""
        threads = set(threading.enumerate())
        self._is_held = True
        yield
        self._is_held = False
        self.seen += [f"thread {thread.name}" for thread in set(threading.enumerate()) - threads]


def run_imports(text: str) -> None:
    """Import others' packages first, so that what they do when they are imported is not held against us."""
    parts: list[ast.stmt] = [
        node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom | ast.Try)
    ]
    exec(compile(ast.Module(parts, []), "imports", "exec"), {})


def main(path: str, *absent: str) -> None:
    """Load the bundle at `path` in a process where the packages `absent` can't be imported."""
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None makes an import fail
    text = Path(path).read_text(encoding="utf-8")
    watch = Watch()
    run_imports(text)
    for _ in range(2):
        loaded = load(text, during=watch.hold())
        register(loaded.module)
    report = {
        "python": ".".join(map(str, sys.version_info[:2])),
        "kind": loaded.kind,
        "frontmatter": loaded.frontmatter,
        "ours": sorted(name for name in sys.modules if name.startswith("eunoe") and sys.modules[name]),
        "functions": sum(name.startswith("function_") for name in sys.modules),
        "seen": watch.seen,
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
