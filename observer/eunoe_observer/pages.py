"""The pages, and the same as JSON."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from starlette.responses import Response

from .errors_page import not_found
from .formats import path_part, plain, render
from .observer import observer_of
from .queries import RunView, is_settled, losses_since, run_list, run_view
from .tables import LARGEST

router = APIRouter()

RUNS_PER_PAGE = 50
LOSSES_SHOWN_SECONDS = 24 * 3600

Before = Annotated[int | None, Query(ge=0, le=LARGEST)]
Limit = Annotated[int, Query(ge=1, le=500)]


@router.get("/")
async def home() -> RedirectResponse:
    """Lead to the list of runs."""
    return RedirectResponse("/runs", 303)


@router.get("/runs")
async def runs_page(request: Request, before: Before = None, limit: Limit = RUNS_PER_PAGE) -> HTMLResponse:
    """Show the runs, newest first."""
    reader = observer_of(request).database.reader
    found = await run_list(reader, before, limit)
    losses = await losses_since(reader, time.time() - LOSSES_SHOWN_SECONDS)
    address = str(request.base_url).rstrip("/")
    return HTMLResponse(
        render("runs.html", found=found, losses=losses, before=before, limit=limit, address=address)
    )


@router.get("/runs.json")
async def runs_json(request: Request, before: Before = None, limit: Limit = RUNS_PER_PAGE) -> JSONResponse:
    """Give the runs, newest first, and the address of the next page."""
    found = await run_list(observer_of(request).database.reader, before, limit)
    older = f"/runs.json?before={found.older}&limit={limit}" if found.older is not None else None
    return JSONResponse({"runs": plain(found.runs), "next": older})


@router.get("/runs/{run_id:path}.json")
async def run_json(request: Request, run_id: str) -> Response:
    """Give everything about one run."""
    view = await run_view(observer_of(request).database.reader, run_id)
    return not_found(request) if view is None else JSONResponse(_view_json(view))


@router.get("/runs/{run_id:path}")
async def run_page(request: Request, run_id: str, order: str = "position") -> Response:
    """Show one run: what became of each message, and why."""
    order = "weight" if order == "weight" else "position"
    view = await run_view(observer_of(request).database.reader, run_id, by_weight=order == "weight")
    if view is None:
        return not_found(request)
    live, path = not is_settled(view.run, time.time()), f"/runs/{path_part(run_id)}"
    return HTMLResponse(render("run.html", view=view, order=order, path=path, live=live))


@router.get("/healthz")
async def health(request: Request) -> JSONResponse:
    """Say whether events can be stored and pages read."""
    observer = observer_of(request)
    problem = await observer.problem()
    if problem:
        return JSONResponse({"status": "failing", "problem": problem}, 503)
    return JSONResponse({"status": "ok"})


def _view_json(view: RunView) -> dict[str, object]:
    return {
        "run": plain(view.run),
        "calls": plain(view.calls),
        "decisions": plain(view.decisions),
        "failures": plain(view.failures),
    }
