"""The tables of a chat's store, and how its file is opened; a file that can't be used is set aside."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from .places import BESIDE, identity_of

logger = logging.getLogger("eunoe")

Given = TypeVar("Given")

STORE_VERSION = 1
BUSY_SECONDS = 5.0  # a write takes milliseconds; another worker's may be long
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_LOG_LIMIT = 4 * 2**20  # bytes to which the write-ahead log is cut back

# `block.text` is empty where the text is long: then it is in `blob`, packed and kept once however often it was said.
# `word` has the terms of each passage, under the passage's number; the texts themselves are not in it.
STORE_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE block (
    row INTEGER PRIMARY KEY, message TEXT NOT NULL, number INTEGER NOT NULL, id TEXT NOT NULL,
    position INTEGER NOT NULL, role TEXT NOT NULL, kind TEXT NOT NULL, tool TEXT NOT NULL, time REAL NOT NULL,
    tokens INTEGER NOT NULL, lines INTEGER NOT NULL, in_history INTEGER NOT NULL, in_context INTEGER NOT NULL,
    fate TEXT NOT NULL, reason TEXT NOT NULL, text TEXT NOT NULL, blob BLOB,
    UNIQUE (message, number)
);
CREATE INDEX block_by_id ON block (id);
CREATE TABLE blob (id BLOB PRIMARY KEY, characters INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE passage (
    row INTEGER PRIMARY KEY, block INTEGER NOT NULL REFERENCES block (row), first INTEGER NOT NULL,
    last INTEGER NOT NULL, digest BLOB NOT NULL
);
CREATE INDEX passage_by_block ON passage (block);
CREATE VIRTUAL TABLE word USING fts5 (terms, content = '', tokenize = 'ascii');
CREATE TABLE vector (digest BLOB NOT NULL, model TEXT NOT NULL, numbers BLOB NOT NULL, PRIMARY KEY (digest, model));
CREATE TABLE event (
    row INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, run TEXT NOT NULL, messages INTEGER,
    tokens_before INTEGER, tokens_after INTEGER, reason TEXT NOT NULL
);
"""


class StoreUnusable(sqlite3.DatabaseError):
    """The file is of a newer version of ours."""


def change_store(path: Path, step: Callable[[sqlite3.Connection], Given]) -> Given:
    """Do one step with a store; it is made if there is none, and made anew if its file can't be used.

    Raises:
        sqlite3.Error: the file can't be made, or is locked for too long.
        OSError: the folder can't be made.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity = identity_of(path)
    try:
        with contextlib.closing(_opened(path)) as connection:
            return step(connection)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        why = "newer" if isinstance(error, StoreUnusable) else "broken"
    if identity_of(path) == identity:  # else another worker has put a new one into its place
        set_aside(path, why)
    with contextlib.closing(_opened(path)) as connection:
        return step(connection)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Do several changes or none of them."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextlib.contextmanager
def reading_store(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a store that is there, to read only.

    Raises:
        sqlite3.Error: there is none, or it can't be read.
    """
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS)
    with contextlib.closing(connection):
        connection.isolation_level = None
        connection.execute("PRAGMA query_only = ON")
        _check_version(connection)
        yield connection


def is_damage(error: sqlite3.Error) -> bool:
    """Say whether an error means that a file is no store of this version."""
    return isinstance(error, StoreUnusable) or (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGED


def set_aside(path: Path, why: str) -> None:
    """Rename a store's file that can't be used, so that a new one can be made in its place."""
    for end in BESIDE:
        path.with_name(path.name + end).unlink(missing_ok=True)
    aside = path.with_name(f"{path.name}.{why}")
    with contextlib.suppress(FileNotFoundError):  # another worker was first
        path.replace(aside)
        logger.warning("eunoe: the store %s can't be used (%s); it is now %s", path.name, why, aside.name)


def _opened(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_CREAT, 0o600))  # SQLite gives its other files the same mode
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT}")
        if _version_of(connection) == 0:
            _make_tables(connection)
        _check_version(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables in one step, unless another worker has made them by now."""
    with transaction(connection):
        if _version_of(connection) == 0:
            for statement in filter(str.strip, STORE_TABLES.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {STORE_VERSION}")


def _check_version(connection: sqlite3.Connection) -> None:
    if (version := _version_of(connection)) != STORE_VERSION:
        raise StoreUnusable(f"version {version}")


def _version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
