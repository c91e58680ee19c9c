"""The database file: its lock, its migrations, one writing and several reading connections."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiosqlite
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import AsyncAdaptedQueuePool, Connection, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from .errors import DatabaseInUse, DatabaseNewer, DatabaseUnusable

PRAGMAS = (
    "PRAGMA journal_mode=WAL",  # readers never wait for the writer
    # NORMAL leaves a commit in the system's cache: it survives kill -9 of this process, and a power cut can
    # take the newest commits but never breaks the file. FULL would cost an fsync for each batch.
    "PRAGMA synchronous=NORMAL",
    "PRAGMA busy_timeout=5000",  # a backup tool may hold the file for a moment
)
WITH_FOREIGN_KEYS = (*PRAGMAS, "PRAGMA foreign_keys=ON")
READING = ("PRAGMA busy_timeout=5000", "PRAGMA query_only=ON")


@dataclass(frozen=True, slots=True)
class Database:
    """An open database: `writer` has one connection, `reader` several that can't write."""

    path: Path
    writer: AsyncEngine
    reader: AsyncEngine


@asynccontextmanager
async def open_database(path: Path) -> AsyncIterator[Database]:
    """Lock the file, bring it up to date and open it."""
    with _locked(path):
        await _migrate(path)
        writer = _engine(path, WITH_FOREIGN_KEYS, "BEGIN IMMEDIATE", pool_size=1, max_overflow=0)
        reader = _engine(path, READING, "BEGIN", mode="ro", pool_size=4)
        try:
            yield Database(path, writer, reader)
        finally:
            await reader.dispose()
            await writer.dispose()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file for this process alone.

    SQLite before 3.51.3 can corrupt a file in WAL mode when two connections write and checkpoint at once;
    with one process and one writing connection that can't happen.
    """
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DatabaseUnusable(path, error.strerror or str(error)) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DatabaseInUse(path) from error
        _create_privately(path)
        yield
    finally:
        os.close(descriptor)


def _create_privately(path: Path) -> None:
    """Create the file for its owner alone; SQLite gives its side files the same mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise DatabaseUnusable(path, error.strerror or str(error)) from error


async def _migrate(path: Path) -> None:
    # Copying a table drops it for a moment, which foreign keys would forbid: this engine has none.
    engine = _engine(path, PRAGMAS, "BEGIN IMMEDIATE", pool_size=1)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(upgrade, path)
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error)
        raise DatabaseUnusable(path, reason) from error
    finally:
        await engine.dispose()


def upgrade(connection: Connection, path: Path, revision: str = "head") -> None:
    """Bring the schema behind `connection` to the newest revision or the one named, all of it or nothing."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    present = MigrationContext.configure(connection).get_current_revision()
    if present is not None and present not in known:
        raise DatabaseNewer(path, present)
    command.upgrade(config, revision)


def _engine(path: Path, pragmas: tuple[str, ...], begin: str, mode: str = "rw", **pool: Any) -> AsyncEngine:
    uri = f"file:{quote(str(path.absolute()))}?mode={mode}"

    async def connect() -> aiosqlite.Connection:
        return await aiosqlite.connect(uri, uri=True)

    engine = create_async_engine(
        "sqlite+aiosqlite://",
        async_creator=connect,
        poolclass=AsyncAdaptedQueuePool,
        json_serializer=lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
        **pool,
    )

    @event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        # Python's module would begin transactions by its own rules, and none for DDL or reads.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(pragma)
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
