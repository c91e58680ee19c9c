"""A cache in a file of this server: it outlives restarts, and several workers share it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from .entry import bounded_life, bytes_text, text_bytes
from .outage import Outage

logger = logging.getLogger("eunoe")

_BUSY_SECONDS = 1.0  # a write takes milliseconds; a file that is locked for longer is out of order
_SWEEP_SECONDS = 300.0  # between removals of what has expired
_LOG_BYTES = 4 * 2**20  # to which the write-ahead log is cut back
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_TABLE = (
    "CREATE TABLE IF NOT EXISTS eunoe_cache (key BLOB PRIMARY KEY, value BLOB NOT NULL, expires REAL)",
    "CREATE INDEX IF NOT EXISTS eunoe_cache_expires ON eunoe_cache (expires) WHERE expires IS NOT NULL",
)
_GET = "SELECT value FROM eunoe_cache WHERE key = ? AND (expires IS NULL OR expires > ?)"
_DELETE = "DELETE FROM eunoe_cache WHERE key = ?"
_SET = "INSERT OR REPLACE INTO eunoe_cache (key, value, expires) VALUES (?, ?, ?)"
_SWEEP = "DELETE FROM eunoe_cache WHERE expires <= ?"
_MAKE_ROOM = "DELETE FROM eunoe_cache WHERE rowid IN (SELECT rowid FROM eunoe_cache ORDER BY rowid LIMIT 64)"

Answer = TypeVar("Answer")


class SqliteCache:
    """Keeps texts in the SQLite file `path`, up to about `max_bytes`; the oldest go first.

    The file is made on first use, readable by its owner only. When it can't be used, the log gets one
    line and nothing is tried for `pause` seconds; a corrupt file is renamed to end in `.broken` and a
    new one made. Threads, event loops and processes may share it, forked ones too.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_bytes: int = 256 * 2**20,
        pause: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._max_bytes, self._clock = Path(path), max_bytes, clock
        self._outage = Outage(f"cache {path}", pause)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None  # of the file that the connection is for
        self._sweep_at = 0.0
        self._forking = False
        _close_before_forks(weakref.ref(self))

    async def get(self, key: str) -> str | None:
        """Give the text of `key`, None if there is none, it has expired or the file can't be used."""
        query = (text_bytes(key), self._clock())
        rows = await self._ask(lambda file: file.execute(_GET, query).fetchall())
        return bytes_text(rows[0][0]) if rows else None

    async def set(self, key: str, value: str, ttl: int | None = None) -> None:
        """Keep a text, for `ttl` seconds or as long as there is room; one too large for the cache is not kept."""
        expires = None if ttl is None else self._clock() + bounded_life(ttl)
        row = (text_bytes(key), text_bytes(value), expires)
        if len(row[0]) + len(row[1]) > self._max_bytes:
            await self.delete(key)
        else:
            await self._ask(lambda file: self._store(file, row), writing=True)

    async def delete(self, key: str) -> None:
        """Forget a text."""
        query = (text_bytes(key),)
        await self._ask(lambda file: file.execute(_DELETE, query), writing=True)

    async def exists(self, key: str) -> bool:
        """Say whether there is a text."""
        query = (text_bytes(key), self._clock())
        return bool(await self._ask(lambda file: file.execute(_GET, query).fetchall()))

    async def close(self) -> None:
        """Close the file; the next use opens it again."""

        def close() -> None:
            with self._lock:
                self._close()

        await asyncio.to_thread(close)

    async def _ask(
        self, step: Callable[[sqlite3.Connection], Answer], *, writing: bool = False
    ) -> Answer | None:
        return None if self._outage.lasts() else await asyncio.to_thread(self._attempt, step, writing)

    def _attempt(self, step: Callable[[sqlite3.Connection], Answer], writing: bool) -> Answer | None:
        """Do one step with the file; None if it fails, or has failed while this one waited for its turn."""
        with self._lock:
            if self._outage.lasts():
                return None
            try:
                answer = self._with_file(step)
            except (sqlite3.Error, OSError, ValueError) as error:  # the last: a path that no file can have
                with contextlib.suppress(sqlite3.Error):
                    self._close()
                self._outage.failed(_reason_of(error), writing=writing)
                return None
        self._outage.worked(writing=writing)
        return answer

    def _with_file(self, step: Callable[[sqlite3.Connection], Answer]) -> Answer:
        try:
            return step(self._open())
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _CORRUPT:
                raise
        self._set_aside()
        return step(self._open())

    def _open(self) -> sqlite3.Connection:
        """Give the connection; a new one if the file was moved away or deleted."""
        if self._connection is not None:
            if _identity_of(self._path) == self._identity:
                return self._connection
            self._close()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT, 0o600))  # SQLite gives its other files the same mode
        self._identity = _identity_of(self._path)
        self._connection = sqlite3.connect(
            self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        with contextlib.suppress(sqlite3.OperationalError):  # another worker is changing it at this moment
            self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        for statement in _TABLE:
            self._connection.execute(statement)
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _set_aside(self) -> None:
        """Rename the corrupt file, unless another worker has put a new one into its place by now."""
        with contextlib.suppress(sqlite3.Error):
            self._close()
        if _identity_of(self._path) != self._identity:
            return
        for end in ("-wal", "-shm"):
            self._path.with_name(self._path.name + end).unlink(missing_ok=True)
        aside = self._path.with_name(self._path.name + ".broken")
        self._path.replace(aside)
        logger.warning("eunoe: the cache %s was corrupt; it is now %s, and empty", self._path, aside.name)

    def _store(self, file: sqlite3.Connection, row: tuple[bytes, bytes, float | None]) -> None:
        with file:
            file.execute("BEGIN IMMEDIATE")
            file.execute(_SET, row)
            if self._clock() >= self._sweep_at:
                self._sweep_at = self._clock() + _SWEEP_SECONDS
                file.execute(_SWEEP, (self._clock(),))
            while _bytes_used(file) > self._max_bytes:
                if not file.execute(_MAKE_ROOM).rowcount:
                    break

    def _before_fork(self) -> None:
        """Close the file: SQLite's locks don't survive a fork, and both processes would trust in them."""
        self._lock.acquire()
        self._forking = True
        with contextlib.suppress(sqlite3.Error):
            self._close()

    def _after_fork(self) -> None:
        if self._forking:
            self._forking = False
            self._lock.release()


def _close_before_forks(reference: weakref.ref[SqliteCache]) -> None:
    if hasattr(os, "register_at_fork"):
        before = functools.partial(_at_fork, reference, SqliteCache._before_fork)  # noqa: SLF001  part of the class
        after = functools.partial(_at_fork, reference, SqliteCache._after_fork)  # noqa: SLF001
        os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)


def _at_fork(reference: weakref.ref[SqliteCache], step: Callable[[SqliteCache], None]) -> None:
    if (cache := reference()) is not None:
        step(cache)


def _identity_of(path: Path) -> tuple[int, int] | None:
    """Tell the file at `path` from another that may come into its place; None if there is none."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino


def _bytes_used(file: sqlite3.Connection) -> int:
    """Give the bytes of the pages in use; freed ones are used again before the file grows."""
    pages, free, size = (
        int(file.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _reason_of(error: Exception) -> str:
    """Say why a file can't be used: SQLite's or the system's word, which has no text of a chat in it."""
    found = getattr(error, "sqlite_errorname", None) or getattr(error, "strerror", None)
    return str(found or type(error).__name__)
