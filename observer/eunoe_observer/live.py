"""Live pages: a browser holds a cursor into the log, the bell says when to read on from it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Query, Request
from sse_starlette import EventSourceResponse
from starlette.responses import Response

from .bell import wait_for_any
from .errors_page import not_found
from .formats import render
from .observer import Observer, observer_of
from .queries import progress_of, run_view, runs_after
from .tables import LARGEST

router = APIRouter()

RUNS_PER_MESSAGE = 50
# A tab that stopped reading fills about 2.8 MB of system buffers before a send waits; then let it go.
SEND_TIMEOUT_SECONDS = 10
PING_SECONDS = 15
# A ring can't be missed; looking again now and then costs nothing and would heal what nobody thought of.
LOOK_AGAIN_SECONDS = 30

Sequence = Annotated[int, Query(ge=0, le=LARGEST)]


@router.get("/runs/live")
async def live_runs(
    request: Request, after: Sequence = 0, floor: Sequence = 0, last_event_id: Annotated[str, Header()] = ""
) -> Response:
    """Follow the list of runs from where the browser left off."""
    closing = anyio.Event()
    rows = _changed_rows(observer_of(request), _cursor(last_event_id, after), floor, closing)
    return _stream(rows, closing)


@router.get("/runs/{run_id:path}/live")
async def live_run(
    request: Request,
    run_id: str,
    after: Sequence = 0,
    order: str = "position",
    last_event_id: Annotated[str, Header()] = "",
) -> Response:
    """Follow one run until nothing more is to come."""
    observer, closing = observer_of(request), anyio.Event()
    if await progress_of(observer.database.reader, run_id) is None:
        return not_found(request)
    return _stream(_changed_run(observer, run_id, _cursor(last_event_id, after), order, closing), closing)


def _cursor(last_event_id: str, after: int) -> int:
    """Return where to go on; a browser that comes back says it in the header."""
    known = last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 19
    return int(last_event_id) if known else after


async def _changed_rows(
    observer: Observer, cursor: int, floor: int, closing: anyio.Event
) -> AsyncIterator[dict[str, Any]]:
    while not closing.is_set():
        rung = observer.bell.listen()
        runs = await runs_after(observer.database.reader, cursor, floor, RUNS_PER_MESSAGE)
        if runs:
            cursor = runs[-1]["last_seq"]
            yield {"id": str(cursor), "data": render("_run_rows.html", runs=runs)}
        else:
            await wait_for_any(rung, closing, seconds=LOOK_AGAIN_SECONDS)


async def _changed_run(
    observer: Observer, run_id: str, cursor: int, order: str, closing: anyio.Event
) -> AsyncIterator[dict[str, Any]]:
    reader = observer.database.reader
    while not closing.is_set():
        rung = observer.bell.listen()
        progress = await progress_of(reader, run_id)
        if progress and progress[0] > cursor:
            view = await run_view(reader, run_id, by_weight=order == "weight")
            if view:
                cursor = view.run["last_seq"]
                yield {"id": str(cursor), "data": render("_run.html", view=view, order=order)}
        elif progress and progress[1]:
            yield {"event": "finished", "data": "finished"}
            return
        else:
            await wait_for_any(rung, closing, seconds=LOOK_AGAIN_SECONDS)


def _stream(messages: AsyncIterator[dict[str, Any]], closing: anyio.Event) -> EventSourceResponse:
    return EventSourceResponse(
        messages,
        # The browser's parser takes "\r\n" that is cut between two packets for two line ends.
        sep="\n",
        ping=PING_SECONDS,
        send_timeout=SEND_TIMEOUT_SECONDS,
        shutdown_event=closing,
        shutdown_grace_period=2,
    )
