"""Stores of chats that nobody has used for a while are deleted, at most once a day."""

from __future__ import annotations

import os
from pathlib import Path

from .places import bytes_of, last_used, remove_store, stores_in

DAY_SECONDS = 86_400.0
_MARK = ".swept"  # its time is that of the last sweep, for all processes that share a folder


def sweep(folder: Path, ttl_days: float, now: float) -> int:
    """Delete stores that were not written to for `ttl_days`; 0 keeps all. Gives how many were deleted.

    Does nothing within a day of the last time, whichever process that was in.

    Raises:
        OSError: the folder can't be read or changed.
    """
    mark = folder / _MARK
    if not folder.is_dir() or ttl_days <= 0 or _changed(mark) > now - DAY_SECONDS:
        return 0
    mark.touch(mode=0o600)
    os.utime(mark, (now, now))
    idle = [path for path in stores_in(folder) if last_used(path) < now - ttl_days * DAY_SECONDS]
    return sum(remove_store(path) for path in idle)


def store_bytes(folder: Path) -> int:
    """Add up what all stores of a folder take."""
    return sum(map(bytes_of, stores_in(folder)))


def _changed(mark: Path) -> float:
    try:
        return mark.stat().st_mtime
    except FileNotFoundError:
        return 0.0
