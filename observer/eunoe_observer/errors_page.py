"""Answers for what is not there or did not work: a page for people, JSON for programs."""

from __future__ import annotations

from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from .formats import render

TEXTS = {
    404: (
        "Nothing here",
        "This address leads to nothing. The run may have been removed, or the link is incomplete.",
    ),
    405: ("Not like this", "This address can't be used with that method."),
    400: ("That address has a mistake", "One of the values after the question mark doesn't fit."),
    500: ("The observer made a mistake", "The events are safe. What went wrong is in the observer's log."),
}


def not_found(request: Request) -> Response:
    """Answer that there is no such thing."""
    return _answer(request, 404)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer what the framework refuses."""
    return _answer(request, error.status_code if isinstance(error, HTTPException) else 500)


async def on_bad_value(request: Request, error: Exception) -> Response:
    """Answer a value in the address that doesn't fit."""
    fields = (
        [str(each["loc"][-1]) for each in error.errors()] if isinstance(error, RequestValidationError) else []
    )
    return _answer(request, 400, ", ".join(fields))


async def on_failure(request: Request, _error: Exception) -> Response:
    """Answer after a mistake of ours; it is in the log."""
    return _answer(request, 500)


def _answer(request: Request, status: int, detail: str = "") -> Response:
    title, text = TEXTS.get(status, ("That did not work", f"The observer answered with status {status}."))
    path = request.url.path
    if path.startswith("/v1/") or path.endswith((".json", "/live", "/healthz")):
        return JSONResponse({"detail": f"{text} {detail}".strip()}, status)
    return HTMLResponse(render("error.html", title=title, text=text, detail=detail), status)
