"""Letting others run: long work in a thread gives the interpreter lock up every other millisecond.

Python itself takes the lock from a thread after five milliseconds only, and so long every chat of a server
would wait for one long chat.
"""

from __future__ import annotations

import threading
import time

SHARE_SECONDS = 0.002  # a thread works so long before it lets others run
IDLE_SECONDS = 0.1  # who has not been here for longer has only begun
_LEAST_SLEEP = 1e-6  # a sleep of 0 gives the lock up but takes it again before others wake


class _Breaths(threading.local):
    last = 0.0


_BREATHS = _Breaths()


def breathe() -> None:
    """Let other threads run if this one has worked for a while; to be called now and then in long work."""
    now = time.perf_counter()
    worked = now - _BREATHS.last
    if worked > SHARE_SECONDS:
        if worked < IDLE_SECONDS:
            time.sleep(_LEAST_SLEEP)
            now = time.perf_counter()
        _BREATHS.last = now
