"""A cache in memory, gone with the process."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from .entry import bounded_life

_ENTRY_BYTES = 250  # beside its texts; 190 were measured, and the dictionary grows in leaps


@dataclass(frozen=True, slots=True)
class _Entry:
    """A text, when it expires and the memory it takes."""

    text: str
    expires: float
    size: int


class InMemoryCache:
    """Keeps up to `max_entries` texts in up to `max_bytes` of memory; what was not used for longest goes first.

    Threads and event loops may share it.
    """

    def __init__(
        self,
        max_entries: int = 10_000,
        max_bytes: int = 64 * 2**20,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_entries, self._max_bytes, self._clock = max_entries, max_bytes, clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # the most recently used last
        self._size = 0
        self._lock = threading.Lock()

    async def get(self, key: str) -> str | None:
        """Give the text of `key`, None if there is none or it has expired."""
        with self._lock:
            entry = self._living(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry.text

    async def set(self, key: str, value: str, ttl: int | None = None) -> None:
        """Keep a text, for `ttl` seconds or as long as there is room; one too large for the cache is not kept."""
        expires = math.inf if ttl is None else self._clock() + bounded_life(ttl)
        entry = _Entry(value, expires, sys.getsizeof(key) + sys.getsizeof(value) + _ENTRY_BYTES)
        with self._lock:
            self._forget(key)
            if entry.size > self._max_bytes:
                return
            self._entries[key] = entry
            self._size += entry.size
            while self._size > self._max_bytes or len(self._entries) > self._max_entries:
                self._forget(next(iter(self._entries)))

    async def delete(self, key: str) -> None:
        """Forget a text."""
        with self._lock:
            self._forget(key)

    async def exists(self, key: str) -> bool:
        """Say whether there is a text; asking does not count as using it."""
        with self._lock:
            return self._living(key) is not None

    def _living(self, key: str) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is not None and entry.expires <= self._clock():
            self._forget(key)
            return None
        return entry

    def _forget(self, key: str) -> None:
        if entry := self._entries.pop(key, None):
            self._size -= entry.size
