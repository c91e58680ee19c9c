"""The thread that works on stores: a request never waits for it, and never fails with it."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..cache.outage import Outage

logger = logging.getLogger("eunoe")

MOST_WAITING = 64  # works; each holds a chat's messages, which are in memory anyway while it is answered
IDLE_SECONDS_OF_WRITER = 20.0  # without work, after which the thread ends; the next work starts another


class Work(NamedTuple):
    """Something to be done with a store."""

    path: Path
    step: Callable[[], object]


class StoreWriter:
    """Does work on stores one after another, in the order it came.

    Takes up to `limit` at once and gives up what is more; `lost` counts that, and what failed. The log gets
    one line when work begins to be lost. Safe to use from any thread.
    """

    def __init__(self, name: str, limit: int = MOST_WAITING) -> None:
        self._limit = limit
        self._waiting: deque[Work] = deque()
        self._at_work: Path | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._outage = Outage(name, 0)
        self._is_full = False
        self.lost = 0

    def submit(self, path: Path, step: Callable[[], object]) -> bool:
        """Take work on a store; returns at once, and says whether it was taken."""
        with self._changed:
            if taken := len(self._waiting) < self._limit:
                self._waiting.append(Work(path, step))
                self._changed.notify_all()
            else:
                self.lost += 1
            is_new, self._is_full = not taken and not self._is_full, not taken
            if taken and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(
                    target=_work_on, args=(weakref.ref(self), self._changed), name="eunoe-store", daemon=True
                )
                self._thread.start()
        if is_new:
            logger.warning("eunoe: the store is too slow; what it can't keep up with is not stored")
        return taken

    def wait(self, path: Path | None = None, seconds: float = 5.0) -> bool:
        """Wait until there is no work on a store, or on any; says whether that came in time."""

        def is_done() -> bool:
            return not any(path in {None, each} for each in self._paths())

        with self._changed:
            return self._changed.wait_for(is_done, seconds)

    def _paths(self) -> list[Path]:
        at_work = [] if self._at_work is None else [self._at_work]
        return [*at_work, *(work.path for work in self._waiting)]

    def _next(self) -> Work | None:
        """Take the next work; None if there is none for now. The condition is held."""
        if not self._waiting:
            return None
        work = self._waiting.popleft()
        self._at_work = work.path
        return work

    def _do(self, work: Work) -> None:
        try:
            work.step()
        except (sqlite3.Error, OSError, ValueError) as error:
            self._fail(
                str(getattr(error, "sqlite_errorname", None) or getattr(error, "strerror", None) or "")
            )
        except Exception as error:  # noqa: BLE001  a fault of ours: the thread goes on
            logger.error("eunoe: a chat could not be stored (%s)", type(error).__name__)  # noqa: TRY400  its text may quote one
            self.lost += 1
        else:
            self._outage.worked(writing=True)
        finally:
            with self._changed:
                self._at_work = None
                self._changed.notify_all()

    def _fail(self, reason: str) -> None:
        self.lost += 1
        self._outage.failed(reason or "an error", writing=True)


def _work_on(reference: weakref.ref[StoreWriter], changed: threading.Condition) -> None:
    """Do what a writer is given until there is nothing for a while, or the writer itself is gone."""
    idle_since = time.monotonic()
    while True:
        writer = reference()
        if writer is None:
            return
        with changed:
            work = writer._next()  # noqa: SLF001  part of the class
            if work is None:
                if time.monotonic() - idle_since > IDLE_SECONDS_OF_WRITER:
                    writer._thread = None  # noqa: SLF001
                    return
                del writer
                changed.wait(1.0)
                continue
        writer._do(work)  # noqa: SLF001
        del work, writer
        idle_since = time.monotonic()
