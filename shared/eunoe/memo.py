"""A bounded memory for results that are costly to compute and safe to lose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Memo(Generic[Value]):
    """Remembers up to `size` results by key; when full it forgets the older half.

    Threads may share it: each step is one operation on a dictionary, and a lost update only costs
    computing again. Keys are digests, so no text is kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[str, Value] = {}

    def get(self, key: str, compute: Callable[[], Value]) -> Value:
        """Give the remembered result of `key`, or compute and remember it."""
        value = self._values.get(key)
        if value is None:
            value = compute()
            if len(self._values) >= self._size:
                self._values = dict(list(self._values.items())[max(1, self._size // 2) :])
            self._values[key] = value
        return value
