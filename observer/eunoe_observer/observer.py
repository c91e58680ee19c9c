"""What the parts of one running observer share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import structlog
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import HTTPConnection

from . import tables
from .bell import Bell
from .database import Database, open_database
from .settings import Settings
from .writer import Writer, rebuild

log = structlog.get_logger("eunoe")


@dataclass(frozen=True, slots=True)
class Observer:
    """One running observer."""

    settings: Settings
    database: Database
    bell: Bell
    writer: Writer

    async def problem(self) -> str | None:
        """Say what keeps it from working, None if nothing does."""
        if not self.writer.alive:
            return "events can't be stored at the moment"
        try:
            async with self.database.reader.connect() as connection:
                await connection.execute(select(tables.run.c.run_id).limit(1))
        except SQLAlchemyError:
            return "the database can't be read"
        return None


@asynccontextmanager
async def open_observer(settings: Settings) -> AsyncIterator[Observer]:
    """Open the database and run the writer until the block ends."""
    async with open_database(settings.database) as database:
        if settings.rebuild:
            log.info("runs folded anew from the events", runs=await rebuild(database.writer))
        bell = Bell()
        async with Writer(database.writer, bell, settings.max_waiting_events).running() as writer:
            yield Observer(settings, database, bell, writer)


def observer_of(connection: HTTPConnection) -> Observer:
    """Return the observer that answers this request."""
    return cast("Observer", connection.app.state.observer)
