"""What is remembered of a cache that fails: one line in the log, and no new attempt for a while."""

from __future__ import annotations

import logging
import threading
import time

logger = logging.getLogger("eunoe")


class Outage:
    """Tells whether a cache is to be left alone, and the log when that begins and ends.

    After a failure nothing is tried for `pause` seconds. A cache that can be read but not written to
    (a full disk, a replica) is out of order until a write succeeds: its reads would else end the outage
    and the next write begin another, with a line in the log each time. Threads may share it.
    """

    def __init__(self, name: str, pause: float) -> None:
        self._name, self._pause = name, pause
        self._lock = threading.Lock()
        self._until = 0.0
        self._failing = self._failing_to_write = False

    def lasts(self) -> bool:
        """Say whether the cache is still to be left alone."""
        return time.monotonic() < self._until

    def failed(self, reason: str, *, writing: bool) -> None:
        """Take note of a failure."""
        with self._lock:
            self._until = time.monotonic() + self._pause
            is_new, self._failing = not self._failing, True
            self._failing_to_write |= writing
        if is_new:
            logger.warning("eunoe: the %s can't be used (%s); chats go on without it", self._name, reason)

    def worked(self, *, writing: bool) -> None:
        """Take note of a success."""
        if not self._failing:
            return
        with self._lock:
            is_over = self._failing and (writing or not self._failing_to_write)
            if is_over:
                self._until, self._failing, self._failing_to_write = 0.0, False, False
        if is_over:
            logger.info("eunoe: the %s works again", self._name)
