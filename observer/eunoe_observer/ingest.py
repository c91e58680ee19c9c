"""Taking events: `POST /v1/events`."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from .batch import events_from
from .errors import BatchRefused, NotStored, Problem, QueueFull
from .observer import observer_of
from .session import CHALLENGE, bearer_is_right
from .settings import Settings

router = APIRouter()

LATER = {"Retry-After": "5"}  # seconds; a full queue of 10,000 events is written within three
# A sender only reads the answer after it has sent everything, so a body that is too big is read on for a
# while and thrown away; beyond this many times the limit the connection is closed instead.
PATIENCE = 4


@router.post("/v1/events", status_code=202)
async def take_events(request: Request) -> JSONResponse:
    """Store a batch of events and answer when it is safe."""
    observer = observer_of(request)
    if not bearer_is_right(request.headers.get("authorization"), observer.settings.token):
        return _refusal(
            401,
            Problem("authorization", "send the observer's token as: Authorization: Bearer ..."),
            headers=CHALLENGE,
        )
    try:
        events = events_from(await _body_of(request, observer.settings))
        receipt = await observer.writer.store(events)
    except BatchRefused as error:
        return _refusal(error.status, *error.problems)
    except QueueFull:
        return _refusal(
            429, Problem("events", "too many events wait to be stored; send them again later"), headers=LATER
        )
    except NotStored:
        return _refusal(
            503, Problem("events", "the database refused them; send them again later"), headers=LATER
        )
    return JSONResponse({"accepted": receipt.accepted, "duplicates": receipt.duplicates}, 202)


async def _body_of(request: Request, settings: Settings) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Asking for JSON also keeps other web sites out: a browser sends it across sites only after asking us.
    if kind != "application/json":
        raise BatchRefused(415, Problem("content-type", "send application/json"))
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise BatchRefused(415, Problem("content-encoding", "send the body uncompressed"))
    limit, body, size = settings.max_body_bytes, bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            body += chunk
        elif size > limit * PATIENCE:
            break
    if size > limit:
        raise BatchRefused(413, Problem("body", f"is larger than {limit:,} bytes; send fewer events at once"))
    return bytes(body)


def _refusal(status: int, *problems: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(
        {
            "message": "Nothing of this batch was stored.",
            "detail": [{"field": each.field, "problem": each.problem} for each in problems],
        },
        status,
        headers,
    )
