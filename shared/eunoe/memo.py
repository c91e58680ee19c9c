"""A bounded memory for results that are costly to compute and safe to lose."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeAlias, TypeVar

from .breath import breathe

Value = TypeVar("Value")
TextPair: TypeAlias = tuple[str, str]

_LEAST_LIST, _LIST_KEY = 64, 4  # shorter lists are not worth it; items by which a list is found again


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


class Beginnings(Generic[Value]):
    """Remembers what was computed for each of a list of texts, for when the list comes again and has grown.

    A list is found by its first items and compared as a whole, at a tenth of the time that looking up each
    item takes. Bounded by the characters of all lists, the oldest go first. Threads may share it.
    """

    def __init__(self, most_characters: int) -> None:
        self._most_characters = most_characters
        self._lock = threading.Lock()
        self._lists: OrderedDict[Hashable, tuple[list[TextPair], list[Value], int]] = OrderedDict()

    def get(
        self, items: list[TextPair], compute: Callable[[Sequence[TextPair]], Sequence[Value]]
    ) -> list[Value]:
        """Give the results of all items; `compute` is given those behind what is remembered."""
        if len(items) < _LEAST_LIST:
            return [*compute(items)]
        key = tuple(items[:_LIST_KEY])
        known, values, characters = self._lists.get(key, ([], [], 0))
        same = len(known)
        if known != items[:same]:
            differing = (i for i, (old, new) in enumerate(zip(known, items, strict=False)) if old != new)
            same = next(differing, len(items))
            characters = sum(len(text) for _, text in items[:same])
        results = [*values[:same], *compute(items[same:])]
        if len(items) >= len(known):  # what is sent of a chat may begin like the chat, and is shorter
            self._put(key, items, results, characters + sum(len(text) for _, text in items[same:]))
        return results

    def _put(self, key: Hashable, items: list[TextPair], results: list[Value], characters: int) -> None:
        with self._lock:
            self._lists.pop(key, None)
            self._lists[key] = items, results, characters
            total = sum(held for _, _, held in self._lists.values())
            while total > self._most_characters:
                _, (_, _, held) = self._lists.popitem(last=False)
                total -= held
