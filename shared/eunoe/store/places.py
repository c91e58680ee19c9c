"""Where the store of a chat lies: a file named by whose chat it is and which, so that nobody else's finds it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..cache.entry import text_bytes

STORE_FOLDER = "store"
SUFFIX = ".sqlite"
FAILURES = f"failures{SUFFIX}"  # of chats that are not stored
BESIDE = ("-wal", "-shm", "-journal")  # files that SQLite keeps next to a database


class ChatKey(NamedTuple):
    """Names a chat: whose it is (empty where a host has no users) and the host's own name for it."""

    scope: str
    chat: str


def file_of(folder: Path, key: ChatKey) -> Path:
    """Give the file of a chat's store."""
    digest = hashlib.sha256()
    for text in key:
        data = text_bytes(text)
        digest.update(len(data).to_bytes(8, "big"))  # where a name ends, so that "ab", "c" is not "a", "bc"
        digest.update(data)
    return folder / f"{digest.hexdigest()[:40]}{SUFFIX}"


def stores_in(folder: Path) -> Iterator[Path]:
    """Find the stores in a folder; none if there is no such folder."""
    return (path for path in sorted(folder.glob(f"*{SUFFIX}")) if path.is_file())


def files_of(path: Path) -> list[Path]:
    """Give a store's files that are there, what was set aside of it among them."""
    return sorted(file for file in path.parent.glob(f"{path.name}*") if file.is_file())


def bytes_of(path: Path) -> int:
    """Add up the size of a store's files."""
    return sum(_size_of(file) for file in files_of(path))


def last_used(path: Path) -> float:
    """Say when a store was last written to, in seconds since 1970; 0 if it is gone."""
    return max((_changed_at(file) for file in (path, path.with_name(f"{path.name}-wal"))), default=0.0)


def identity_of(path: Path) -> tuple[int, int] | None:
    """Tell a file from another that may come into its place; None if there is none."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino


def remove_store(path: Path) -> bool:
    """Delete all files of a store; says whether there were any."""
    files = files_of(path)
    for file in files:
        file.unlink(missing_ok=True)
    return bool(files)


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # SQLite has just put it away
        return 0


def _changed_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
