"""Serves a small application from a thread, on a free port of the loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Self

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from processes import free_port


class Listener:
    """A server in a thread; what it serves is what a subclass routes."""

    def __init__(self) -> None:
        self.port = free_port()
        config = uvicorn.Config(
            Starlette(routes=self.routes()),
            host="127.0.0.1",
            port=self.port,
            log_level="warning",
            lifespan="off",
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def routes(self) -> Sequence[Route]:
        """What it serves."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        """Serve."""
        self.thread.start()
        deadline = time.monotonic() + 20
        while not self.server.started:
            assert time.monotonic() < deadline, f"{type(self).__name__} did not start"
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving; streams that are still open are cut."""
        self.server.should_exit = True
        self.thread.join(5)
        self.server.force_exit = True
        self.thread.join(5)
