"""JSON made smaller that stays JSON: lists, objects and texts lose their middles, what tells of an error stays."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from .tokens import compact_json

TextCut: TypeAlias = Callable[[str, int], str]  # gives a text in about so many characters

# How many items and characters a JSON value may keep, from roomy to tight.
_STEPS = (
    (60, 6000),
    (60, 2000),
    (30, 800),
    (15, 400),
    (8, 200),
    (5, 120),
    (3, 80),
    (2, 40),
    (1, 24),
    (0, 16),
)
_DEPTH = 12  # what lies deeper is written as text
_MOST_ERRORS = 5  # in the middle of one list or object
_ERROR_ROOM = 3  # times as many characters for the text of an error

_ERROR_KEYS = re.compile(
    r"errors?|err|error_?(message|code|type|msg)|exceptions?|traceback|stack_?trace|stderr|failures?|fatal",
    re.IGNORECASE,
)
_STATE_KEYS = re.compile(r"status|state|level|severity|outcome|result|conclusion", re.IGNORECASE)
_BAD_STATES = frozenset({"error", "errored", "err", "fail", "failed", "failure", "fatal", "critical"})


def read_json(text: str) -> Any:
    """Read an object or a list of JSON; None if a text is neither."""
    if text.lstrip()[:1] not in {"[", "{"}:
        return None
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def pruned_json(value: Any, fits: Callable[[str], bool], cut: TextCut | None = None) -> str | None:
    """Write a JSON value with as much of it as `fits` allows, the roomiest form first; None if none fits.

    `cut` shortens the texts in it; without one they lose their middles.
    """
    for items, characters in _STEPS:
        short = write_json(_Pruner(items, characters, cut or elided).pruned(value, _DEPTH))
        if fits(short):
            return short
    return None


def write_json(value: Any) -> str:
    """Write JSON without needless spaces; half a character pair, which UTF-8 can't hold, is written as an escape."""
    text = compact_json(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), default=str)
    return text


def elided(text: str, characters: int) -> str:
    """Cut the middle out of a text and say how long it was."""
    if len(text) <= characters:
        return text
    tail = text[len(text) - characters // 3 :]
    return f"{text[: characters * 2 // 3]} [… {len(text) - characters:,} …] {tail}"


def gaps_between(places: Iterable[int], total: int) -> Iterator[tuple[int, int | None]]:
    """Go through sorted `places` among `total`: each with the number left out before it, then None with the rest."""
    behind = 0
    for place in places:
        yield place - behind, place
        behind = place + 1
    yield total - behind, None


class _Pruner:
    """Prunes one value with one measure; gone when that is done."""

    def __init__(self, items: int, characters: int, cut: TextCut) -> None:
        self._items, self._characters, self._cut = items, characters, cut
        self._most_errors = min(_MOST_ERRORS, items)

    def pruned(self, value: Any, depth: int, room: int = 1) -> Any:
        """Give a value with `room` times the usual characters for its texts."""
        if isinstance(value, str):
            return self._short(value, room)
        if depth == 0:
            return self._short(compact_json(value), room) if isinstance(value, (list, dict)) else value
        if isinstance(value, list):
            return self._list(value, depth - 1, room)
        if isinstance(value, dict):
            return self._object(value, depth - 1, room)
        return value

    def _short(self, text: str, room: int) -> str:
        characters = self._characters * room
        return text if len(text) <= characters else self._cut(text, characters)

    def _list(self, value: list[Any], depth: int, room: int) -> list[Any]:
        tail = self._items // 3
        head = self._items - tail
        if len(value) <= self._items + 1:
            return [self.pruned(item, depth, room) for item in value]
        middle = range(head, len(value) - tail)
        errors = [i for i in middle if _tells_error(value[i])][: self._most_errors]
        places = [*range(head), *errors, *range(len(value) - tail, len(value))]
        kept: list[Any] = []
        for missing, place in gaps_between(places, len(value)):
            if missing:
                kept.append(f"[… {missing:,} …]")
            if place is not None:
                kept.append(self.pruned(value[place], depth, room))
        return kept

    def _object(self, value: dict[str, Any], depth: int, room: int) -> dict[str, Any]:
        keys = list(value)
        most = self._items * 2
        errors = [key for key in keys[most:] if _is_error(key, value[key])][: self._most_errors]
        kept = [*keys[:most], *errors]
        short = {
            key: self.pruned(value[key], depth, _ERROR_ROOM if _is_error(key, value[key]) else room)
            for key in kept
        }
        return short if len(kept) == len(keys) else {**short, free_key("…", value): len(keys) - len(kept)}


def free_key(key: str, taken: Iterable[str]) -> str:
    """Give a key that an object does not have yet."""
    while key in taken:
        key += "…"
    return key


def _is_error(key: str, value: Any) -> bool:
    """Say whether a field tells of an error; one that is empty, null, false or 0 tells of none."""
    if not value:
        return False
    if _ERROR_KEYS.fullmatch(key):
        return True
    return isinstance(value, str) and value.lower() in _BAD_STATES and bool(_STATE_KEYS.fullmatch(key))


def _tells_error(item: Any) -> bool:
    return isinstance(item, dict) and any(_is_error(key, value) for key, value in item.items())


def _finite(literal: str) -> float | str:
    number = float(literal)
    return number if math.isfinite(number) else literal  # JSON can't hold what 1e999 would become


def _refuse(_constant: str) -> Any:
    raise ValueError  # NaN and Infinity are no JSON
