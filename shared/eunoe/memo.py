"""A bounded memory for results that are costly to compute and safe to lose."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from .breath import breathe

Value = TypeVar("Value")


class Memo(Generic[Value]):
    """Remembers up to `size` results by key; when full it forgets the older half.

    Threads may share it: each step is one operation on a dictionary, and a lost update only costs
    computing again.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[Hashable, Value] = {}

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Give the remembered result of `key`, or compute and remember it."""
        value = self._values.get(key)
        if value is None:
            value = compute()
            if len(self._values) >= self._size:
                self._values = dict(list(self._values.items())[max(1, self._size // 2) :])
            self._values[key] = value
        return value

    def get_all(self, keys: Sequence[Hashable], compute: Callable[[int], Value]) -> list[Value]:
        """Give the results of all keys in order; `compute` is given the place of a key that is new."""
        found = list(map(self._values.get, keys))
        for i in [i for i, value in enumerate(found) if value is None]:
            breathe()
            found[i] = self.get(keys[i], functools.partial(compute, i))
        return found  # type: ignore[return-value]  # none is missing any more
