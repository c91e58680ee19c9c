"""Labels in what a model wrote: JSON first, then numbered lines, then letters and words."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# Models tell five classes apart well and shades of a number badly.
LABEL_WEIGHTS: Mapping[str, float] = {"K": 1.0, "H": 0.75, "M": 0.5, "S": 0.25, "D": 0.05}

_LONGEST_LABEL_REPLY = 16_000  # characters; forty labels with a reason each are a third of it
_MOST_JSON_STARTS = 100  # a reply of nothing but brackets is not tried at each of them
_DEEPEST_LABELS = 6

# A letter or word by itself: neither the "d" of "I'd" nor the "m" of "I'm" is a label.
_LABEL = r"(?<!\w)(?<!\w['’])(keep|helpful|help|maybe|skip|drop|[khmsd])(?!\w|['’]\w)"
_BETWEEN_LABELS = r"[\s,;|/\"'`’\[\]().*_-]{1,8}"
_LABEL_FIRST = re.compile(rf"[^\w]*{_LABEL}", re.IGNORECASE)
_LABEL_RUN = re.compile(rf"{_LABEL}(?:{_BETWEEN_LABELS}{_LABEL})*", re.IGNORECASE)
_LABEL_EACH = re.compile(_LABEL, re.IGNORECASE)
_LABEL_NUMBERED = re.compile(rf"(?<![\w.])(\d{{1,6}})[^\w\n]{{1,6}}{_LABEL}", re.IGNORECASE)
_NUMBER_ALONE = re.compile(r"\D*?(\d{1,6})\W*")
_LABEL_LETTERS = re.compile(r"\W*([KHMSD]{2,})\W*")
_LABEL_HEADING = re.compile(r"\b(?:labels?|json|answer|output)\b", re.IGNORECASE)
_ANY_LETTER = re.compile(r"[^\W\d_]")
_JSON_START = re.compile(r"[\[{]")

_LABEL_NUMBER_KEYS = ("n", "number", "no", "id", "index", "i", "message", "topic", "#")
_LABEL_KEYS = ("label", "l", "class", "value")
_LABELS_KEYS = ("labels", "topics")

_LabelItem = tuple[int | None, str | None]  # the number it was given, if any, and the label, if it is one


def read_labels(text: str, count: int) -> list[str | None]:
    """Give the labels of `count` messages, None where there is none; never raises.

    Labels with numbers go where the numbers say. Without, they go in order, and a surplus is cut.
    """
    text = unicodedata.normalize("NFKC", text[:_LONGEST_LABEL_REPLY])  # full-width letters and colons
    found = [_label_items(value, count) for value in json_values(text)]
    numbered = [item for items in found for item in items if item[0] is not None]
    best = _best_placed([*found, numbered], count)
    return best or _best_placed(_label_items_in_text(text, count), count) or [None] * count


def label_of(value: Any) -> str | None:
    """Give the label that a value begins with, such as `K` of "k (Keep)"; None if it is none."""
    match = _LABEL_FIRST.match(value) if isinstance(value, str) else None
    return match[1][0].upper() if match else None


def numbered_labels(value: Any, count: int) -> dict[int, str]:
    """Give the labels in a JSON value by the numbers they were given, from 1 to `count`."""
    return {n: label for n, label in _label_items(value, count) if n and label and 1 <= n <= count}


def number_of(value: Any) -> int | None:
    """Give the number that a value is or writes, such as 3 for "#3"; None if there is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _NUMBER_ALONE.fullmatch(value) if isinstance(value, str) and len(value) < 40 else None
    return int(match[1]) if match else None


def json_values(text: str) -> Iterator[Any]:
    """Find the JSON objects and arrays in a text, whatever stands around them."""
    decoder, at = json.JSONDecoder(), 0
    for _ in range(_MOST_JSON_STARTS):
        start = _JSON_START.search(text, at)
        if start is None:
            return
        try:
            value, at = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            at = start.end()
        else:
            yield value


def _best_placed(found: Iterable[Sequence[_LabelItem]], count: int) -> list[str | None] | None:
    """Place what was found and give what labels most; the last of equals, since models quote first.

    A list of the right length goes before one that has to be cut.
    """
    best, best_rank = None, (False, 0)
    for items in found:
        placed, fits = _placed_labels(items, count)
        rank = (fits, sum(label is not None for label in placed))
        if rank[1] and rank >= best_rank:
            best, best_rank = placed, rank
    return best


def _placed_labels(items: Sequence[_LabelItem], count: int) -> tuple[list[str | None], bool]:
    """Put labels in their places, and say whether they look like an answer for `count` messages."""
    placed: list[str | None] = [None] * count
    if any(number is not None for number, _ in items):
        for number, label in items:
            if number is not None and 1 <= number <= count and label:
                placed[number - 1] = label
        return placed, True
    for i, (_, label) in enumerate(items[:count]):
        placed[i] = label
    return placed, len(items) == count


def _label_items(value: Any, count: int, depth: int = _DEEPEST_LABELS) -> list[_LabelItem]:
    """Find labels in a JSON value: lists, objects by number, objects with a field for each."""
    if isinstance(value, list) and depth:
        return [item for entry in value for item in _label_items_of_entry(entry, count, depth)]
    return _label_items_in_object(value, count, depth) if isinstance(value, dict) and depth else []


def _label_items_in_object(value: Mapping[str, Any], count: int, depth: int) -> list[_LabelItem]:
    fields = {str(key).casefold(): item for key, item in value.items()}
    for key in _LABELS_KEYS:
        if key in fields:
            return _label_items_in_field(fields[key], count, depth)
    if entry := _label_entry(fields):
        return [entry]
    pairs = [(number_of(key), label_of(item)) for key, item in fields.items()]
    if any(number is not None and label for number, label in pairs):
        return [(number, label) for number, label in pairs if number is not None]
    nested = (_label_items(item, count, depth - 1) for item in fields.values())
    return next((items for items in nested if any(label for _, label in items)), [])


def _label_items_in_field(value: Any, count: int, depth: int) -> list[_LabelItem]:
    if isinstance(value, str):
        return next(iter(_label_items_in_text(value, count)), [])
    return _label_items(value, count, depth - 1)


def _label_items_of_entry(entry: Any, count: int, depth: int) -> list[_LabelItem]:
    """Read one entry of a list; what is no label keeps its place."""
    if isinstance(entry, str):
        match = _LABEL_NUMBERED.search(entry[:80])
        return [(int(match[1]), label_of(match[2])) if match else (None, label_of(entry))]
    if isinstance(entry, list):
        if len(entry) == 2 and number_of(entry[0]) is not None:
            return [(number_of(entry[0]), label_of(entry[1]))]
        return _label_items(entry, count, depth - 1)
    if isinstance(entry, dict):
        return _label_items(entry, count, depth - 1) or [(None, None)]
    return [(None, None)]


def _label_entry(fields: Mapping[str, Any]) -> _LabelItem | None:
    """Read an object such as `{"n": 3, "label": "H"}`."""
    label = next((found for key in _LABEL_KEYS if (found := label_of(fields.get(key)))), None)
    number = next((n for key in _LABEL_NUMBER_KEYS if (n := number_of(fields.get(key))) is not None), None)
    return (number, label) if label else None


def _label_items_in_text(text: str, count: int) -> list[list[_LabelItem]]:
    """Find labels in a text that is no JSON: with numbers, or a run with nothing else between them."""
    letters = _LABEL_LETTERS.fullmatch(text)
    if letters:
        return [[(None, letter) for letter in letters[1]]]
    numbered: list[_LabelItem] = [
        (int(match[1]), label_of(match[2])) for match in _LABEL_NUMBERED.finditer(text)
    ]
    runs = [_LABEL_EACH.findall(match[0]) for match in _LABEL_RUN.finditer(text)]
    rest = _LABEL_HEADING.sub("", _LABEL_RUN.sub(" ", text))
    if len(runs) > 1 or _ANY_LETTER.search(rest):
        runs = [run for run in runs if _is_meant_as_labels(run, count)]
    longest: list[str] = max(reversed(runs), key=len, default=[])
    if len(numbered) >= len(longest):
        return [numbered]
    return [[(None, label_of(label)) for label in longest]]


def _is_meant_as_labels(run: Sequence[str], count: int) -> bool:
    """Say whether a run in a sentence is an answer and not two of its words, such as "maybe skip"."""
    if len(run) == 1:
        return count == 1 and run[0] in LABEL_WEIGHTS
    return len(run) == count or len(run) >= 3
