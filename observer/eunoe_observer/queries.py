"""Reading: what the pages show, from the rows that were folded."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import RowMapping, Select, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from eunoe.events import EventKind

from .tables import call, decision, event, run

# A turn without news for this long has probably lost its end: the host was stopped, or sends no outlet.
SILENT_AFTER_SECONDS = 15 * 60
# Summaries are written after the answer, in two minutes at most; what they took is reported then.
SETTLED_AFTER_SECONDS = 3 * 60


@dataclass(frozen=True, slots=True)
class RunList:
    """A page of the list; `older` is where the next page begins, `cursor` where its news begin."""

    runs: list[dict[str, Any]]
    older: int | None
    cursor: int


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything about one run."""

    run: dict[str, Any]
    decisions: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    failures: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Losses:
    """Events that filters gave up, as they told us later."""

    events: int
    reasons: list[str]
    last_at: float


async def run_list(reader: AsyncEngine, before: int | None, limit: int) -> RunList:
    """Read a page of runs, newest first by the arrival of their first event, so that no row ever moves."""
    statement = select(run).order_by(run.c.first_seq.desc()).limit(limit + 1)
    if before is not None:
        statement = statement.where(run.c.first_seq < before)
    async with reader.connect() as connection:
        cursor = await connection.scalar(select(func.coalesce(func.max(run.c.last_seq), 0)))
        rows = (await connection.execute(statement)).mappings().all()
    runs = [_with_state(each) for each in rows[:limit]]
    return RunList(runs, runs[-1]["first_seq"] if len(rows) > limit else None, cursor or 0)


async def runs_after(reader: AsyncEngine, cursor: int, floor: int, limit: int) -> list[dict[str, Any]]:
    """Read what changed after `cursor`, as it changed; runs older than `floor` are not on the page."""
    statement = (
        select(run)
        .where(run.c.last_seq > cursor, run.c.first_seq >= floor)
        .order_by(run.c.last_seq)
        .limit(limit)
    )
    async with reader.connect() as connection:
        return [_with_state(each) for each in (await connection.execute(statement)).mappings()]


async def progress_of(reader: AsyncEngine, run_id: str) -> tuple[int, bool] | None:
    """Say how far a run is known, and whether nothing more is to come."""
    async with reader.connect() as connection:
        statement = select(run.c.last_seq, run.c.finished, run.c.last_at).where(run.c.run_id == run_id)
        row = (await connection.execute(statement)).one_or_none()
    return (row.last_seq, is_settled(row._asdict(), time.time())) if row else None


async def run_view(reader: AsyncEngine, run_id: str, *, by_weight: bool = False) -> RunView | None:
    """Read everything about one run."""
    order = (decision.c.weight.desc(), decision.c.position) if by_weight else (decision.c.position,)
    failed = select(event.c.at, event.c.body).where(
        event.c.run_id == run_id, event.c.kind == str(EventKind.FAILED)
    )
    async with reader.connect() as connection:

        async def rows(statement: Select[Any]) -> list[dict[str, Any]]:
            return [dict(each) for each in (await connection.execute(statement)).mappings()]

        found = (await connection.execute(select(run).where(run.c.run_id == run_id))).mappings().one_or_none()
        if found is None:
            return None
        return RunView(
            _with_state(found),
            await rows(select(decision).where(decision.c.run_id == run_id).order_by(*order)),
            await rows(select(call).where(call.c.run_id == run_id).order_by(call.c.call)),
            [_failure(each) for each in await rows(failed.order_by(event.c.seq).limit(100))],
        )


async def losses_since(reader: AsyncEngine, at: float) -> Losses | None:
    """Add up the events that filters say they lost after `at`; None if there are none."""
    statement = (
        select(event.c.at, event.c.body)
        .where(event.c.kind == str(EventKind.LOST), event.c.at > at)
        .order_by(event.c.at)
        .limit(1000)
    )
    async with reader.connect() as connection:
        rows = (await connection.execute(statement)).all()
    if not rows:
        return None
    reasons = dict.fromkeys(str(row.body["data"]["reason"]) for row in rows)
    return Losses(sum(int(row.body["data"]["events"]) for row in rows), list(reasons)[:3], rows[-1].at)


def state_of(row: Mapping[str, Any], now: float) -> str:
    """Name the state of a run in a word or two."""
    if row["failures"]:
        return "failed"
    if not row["finished"]:
        return "running" if now - row["last_at"] < SILENT_AFTER_SECONDS else "no end reported"
    return "over budget" if row["over_limit"] else "done"


def is_settled(row: Mapping[str, Any], now: float) -> bool:
    """Say whether a run is over and nothing more is to come, not even what its summaries took."""
    # A sender's clock may be ahead of ours: a little makes no difference, and much must not keep a page waiting.
    return bool(row["finished"]) and abs(now - row["last_at"]) > SETTLED_AFTER_SECONDS


def cost_with_helpers(row: Mapping[str, Any]) -> float | None:
    """Add what helping models cost to the answer's cost, in dollars; None if a part is not known.

    An estimate is of the prompt alone, so it is no part of a total.
    """
    if row["helpers"] is None or row["cost_source"] == "estimate":
        return None
    costs = [row["cost_usd"], *(helper["cost_usd"] for helper in row["helpers"])]
    return None if None in costs else float(sum(costs))


def _with_state(row: RowMapping) -> dict[str, Any]:
    found = {str(name): value for name, value in row.items()}
    return {
        **found,
        "state": state_of(found, time.time()),
        "cost_with_helpers_usd": cost_with_helpers(found),
    }


def _failure(row: Mapping[str, Any]) -> dict[str, Any]:
    data = row["body"]["data"]
    return {"at": row["at"], "stage": data["stage"], "error": data["error"], "places": data.get("places", [])}
