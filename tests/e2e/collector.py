"""Takes the filter's events in the observer's place, and can be slow or broken when a test wants it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from eunoe.events import EventBatch, EventKind, RunEvent

from .listener import Listener


class Collector(Listener):
    """Keeps every event; checks each batch against the schema that the observer knows."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self.token = token
        self.events: list[RunEvent] = []
        self.posts = 0
        self.wrong_tokens = 0
        self.status = 202
        self.delay = 0.0

    def routes(self) -> Sequence[Route]:
        """Serve what the filter calls."""
        return [Route("/v1/events", self._take, methods=["POST"])]

    async def _take(self, request: Request) -> Response:
        self.posts += 1
        if request.headers.get("authorization") != f"Bearer {self.token}":
            self.wrong_tokens += 1
            return JSONResponse({"detail": "wrong token"}, status_code=401)
        await asyncio.sleep(self.delay)
        if self.status >= 400:
            return JSONResponse({"detail": "scripted failure"}, status_code=self.status)
        batch = EventBatch.model_validate_json(await request.body())
        self.events += batch.events
        return JSONResponse({"accepted": len(batch.events)}, status_code=self.status)

    def runs(self, mark: str) -> list[list[RunEvent]]:
        """The events of each run that was about a message with `mark`, in the order the runs began."""
        ids = dict.fromkeys(event.run_id for event in self.events if mark in event.model_dump_json())
        return [[event for event in self.events if event.run_id == run_id] for run_id in ids]

    def wait_for(self, mark: str, kind: EventKind, count: int = 1, seconds: float = 20) -> list[RunEvent]:
        """The events of a kind in the runs about `mark`, as soon as there are `count` of them."""
        deadline = time.monotonic() + seconds
        while True:
            runs = self.runs(mark)
            found = [event for run in runs for event in run if event.event == kind]
            if len(found) >= count:
                return found
            kinds = [[event.event.value for event in run] for run in runs]
            assert time.monotonic() < deadline, f"{count} events {kind.value} wanted; the runs have {kinds}"
            time.sleep(0.05)
