"""The writer: one task that stores events, folds them and rings the bell."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from sqlalchemy import delete, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from . import tables
from .batch import Received
from .bell import Bell
from .errors import NotStored, QueueFull
from .fold import Rows, Stored, rows_of

# One commit per event is 36 times slower than one for 200; beyond that nothing is won.
EVENTS_PER_COMMIT = 200
# A turn has a handful of events. A sender that uses one run id for everything would make each of its events
# dearer than the last; the log keeps them all, but a run is folded from its first ones only.
EVENTS_PER_RUN = 2_000
RUNS_PER_SELECT = 400  # SQLite took at most 999 parameters for a long time

log = structlog.get_logger("eunoe")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a batch."""

    accepted: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A batch that waits for its commit."""

    events: Sequence[Received]
    stored: asyncio.Future[Receipt]


class Writer:
    """Stores batches in the order they came; a batch is acknowledged after its commit, not before.

    It never waits to fill a commit: while one runs the next batches gather, so commits grow with the load
    by themselves and a single event is stored at once.
    """

    def __init__(self, engine: AsyncEngine, bell: Bell, max_waiting_events: int) -> None:
        """Write through `engine` alone."""
        self.engine, self.bell, self.max_waiting_events = engine, bell, max_waiting_events
        self._queue: deque[Waiting] = deque()
        self.waiting_events = 0
        self._arrived = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Writer]:
        """Write until the block ends, then store what still waits."""
        self._task = asyncio.create_task(self._write(), name="writer")
        try:
            yield self
        finally:
            self._closing = True
            self._arrived.set()
            await self._task

    @property
    def alive(self) -> bool:
        """Say whether events sent now would be stored."""
        return self._task is not None and not self._task.done() and not self._closing

    async def store(self, events: Sequence[Received]) -> Receipt:
        """Store a batch and return after its commit."""
        if not events:
            return Receipt(0, 0)
        # A batch that finds the queue empty is always taken, or one bigger than the queue never would be.
        if not self.alive or (self._queue and self.waiting_events + len(events) > self.max_waiting_events):
            raise QueueFull
        waiting = Waiting(events, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self.waiting_events += len(events)
        self._arrived.set()
        return await waiting.stored

    async def _write(self) -> None:
        while self._queue or not self._closing:
            if not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            batches = self._next_batches()
            try:
                async with self.engine.begin() as connection:
                    receipts = [await _insert(connection, each.events) for each in batches]
                    await refold(
                        connection, {each.event.run_id for batch in batches for each in batch.events}
                    )
            except Exception as error:  # noqa: BLE001 - whatever one commit meets, the next batches must still be stored
                self._refuse(batches, error)
                continue
            self.bell.ring()
            for batch, receipt in zip(batches, receipts, strict=True):
                if not batch.stored.done():  # its sender may have gone
                    batch.stored.set_result(receipt)

    def _next_batches(self) -> list[Waiting]:
        batches = [self._queue.popleft()]
        events = len(batches[0].events)
        while self._queue and events + len(self._queue[0].events) <= EVENTS_PER_COMMIT:
            batches.append(self._queue.popleft())
            events += len(batches[-1].events)
        self.waiting_events -= events
        return batches

    @staticmethod
    def _refuse(batches: Iterable[Waiting], error: Exception) -> None:
        known = isinstance(error, SQLAlchemyError)
        log.error("batch not stored", reason=str(getattr(error, "orig", None) or error), exc_info=not known)
        for batch in batches:
            if not batch.stored.done():
                batch.stored.set_exception(NotStored())


async def _insert(connection: AsyncConnection, events: Sequence[Received]) -> Receipt:
    """Append what is new to the log. With one writer, nothing can come between looking and inserting."""
    new = {each.event.event_id: each for each in reversed(events)}
    ids = tables.event.c.event_id
    for some in _slices(list(new), RUNS_PER_SELECT):
        for known in await connection.scalars(select(ids).where(ids.in_(some))):
            del new[known]
    rows = [
        {
            "event_id": event_id,
            "run_id": each.event.run_id,
            "kind": str(each.event.event),
            "at": each.at,
            "body": each.body,
        }
        for event_id, each in reversed(new.items())
    ]
    if rows:
        await connection.execute(insert(tables.event), rows)
    return Receipt(len(rows), len(events) - len(rows))


async def refold(connection: AsyncConnection, run_ids: Iterable[str]) -> None:
    """Fold these runs anew and replace their rows."""
    for some in _slices(sorted(run_ids), RUNS_PER_SELECT):
        full = select(tables.run.c.run_id).where(
            tables.run.c.run_id.in_(some), tables.run.c.events >= EVENTS_PER_RUN
        )
        growing = sorted({*some}.difference(await connection.scalars(full)))
        folded = [rows_of(run_id, events) for run_id, events in await _events_of(connection, growing)]
        await _replace(connection, growing, [rows for rows in folded if rows])


async def _events_of(connection: AsyncConnection, run_ids: Sequence[str]) -> list[tuple[str, list[Stored]]]:
    log_of = tables.event.c
    rows = await connection.execute(
        select(log_of.run_id, log_of.seq, log_of.at, log_of.body)
        .where(log_of.run_id.in_(run_ids))
        .order_by(log_of.run_id, log_of.seq)
    )
    events: dict[str, list[Stored]] = {}
    for run_id, seq, at, body in rows:
        of_run = events.setdefault(run_id, [])
        if len(of_run) < EVENTS_PER_RUN:
            of_run.append(Stored(seq, at, body))
    return list(events.items())


async def _replace(connection: AsyncConnection, run_ids: Sequence[str], folded: Sequence[Rows]) -> None:
    await connection.execute(delete(tables.run).where(tables.run.c.run_id.in_(run_ids)))  # the rest cascades
    for table, rows in (
        (tables.run, [each.run for each in folded]),
        (tables.decision, [row for each in folded for row in each.decisions]),
        (tables.call, [row for each in folded for row in each.calls]),
    ):
        if rows:
            await connection.execute(insert(table), rows)


async def rebuild(engine: AsyncEngine) -> int:
    """Fold every run anew from the log and return how many there are."""
    async with engine.begin() as connection:
        run_ids = list(await connection.scalars(select(tables.event.c.run_id).distinct()))
        await connection.execute(delete(tables.run))
        await refold(connection, run_ids)
    return len(run_ids)


def _slices(values: Sequence[str], size: int) -> Iterable[Sequence[str]]:
    return (values[start : start + size] for start in range(0, len(values), size))
