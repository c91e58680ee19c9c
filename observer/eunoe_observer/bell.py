"""The bell: says that the log has grown, and nothing else."""

from __future__ import annotations

import asyncio

import anyio


class Bell:
    """Wakes everyone who waits; what there is to see they read from the database.

    Nothing is queued for anyone, so a slow browser costs no memory: it reads a bigger page next time.
    """

    def __init__(self) -> None:
        """Start silent."""
        self._next = asyncio.Event()

    def ring(self) -> None:
        """Wake everyone who listens."""
        rung, self._next = self._next, asyncio.Event()
        rung.set()

    def listen(self) -> asyncio.Event:
        """Return what the next ring sets. Ask for it before reading, or a ring in between is missed."""
        return self._next


async def wait_for_any(*events: asyncio.Event | anyio.Event, seconds: float) -> None:
    """Wait until one of the events is set, at most `seconds`."""
    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as group:

            async def wait(event: asyncio.Event | anyio.Event) -> None:
                await event.wait()
                group.cancel_scope.cancel()

            for event in events:
                group.start_soon(wait, event)
