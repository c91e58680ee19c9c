"""The beginning and the end of a long text, with the lines between them that tell of errors.

Code fences and `<details>` that are cut open are closed before the gap and opened again behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .compress import whole_lines
from .pruning import gaps_between

_MOST_ERROR_LINES, _LAST_ERRORS = 20, 8  # the first ones name the cause, the last ones sum up
_ERROR_CHARACTERS = 300
_ERROR_SHARE = 0.4  # of the excerpt's characters

_ERROR_LINE = re.compile(
    r"\b(?:errors?|exceptions?|fatal|fail(?:ed|ures?|s)?|panic(?:ked)?|critical|traceback|segfault|abort(?:ed)?|denied"
    r"|uncaught|unhandled|\w+(?:Error|Exception)|Fehler|erreur|ошибка)\b"
    r"|\berr!|segmentation fault|caused by:|cannot |command not found|no such file|exit (?:code|status) [1-9]"
    r"|^E\s{2,}\S|错误|錯誤|失败|異常|异常|エラー|失敗|例外|오류",
    re.IGNORECASE,
)
# What speaks of errors and has none.
_NO_ERROR = re.compile(
    r"""\b(?:no|0|zero|without)\s+(?:errors?|failures?|failed|fails?|exceptions?)\b"""
    r"""|\b(?:errors?|failures?|failed|exceptions?)["']?\s*[:=]\s*["']?(?:0|none|null|nil|false|no|\[\]|\{\}|"")(?!\w)""",
    re.IGNORECASE,
)
_TRACEBACK = re.compile(r"^\s*Traceback \(most recent call last\)")
_DIGIT_RUNS = re.compile(r"\d+")
# A tag ends at the latest where the next one begins: one that is never closed must not be looked for to the end.
_DETAILS_TAG = re.compile(r"<(/?)details\b[^<>]*>?", re.IGNORECASE)
_FENCE_MARK = "```"


class Measure(NamedTuple):
    """How much an excerpt keeps at most: lines and characters of the beginning and of the end."""

    head_lines: int
    head_characters: int
    tail_lines: int
    tail_characters: int

    def scaled(self, share: float) -> Measure:
        """Give the measure with a share of its characters."""
        return self._replace(
            head_characters=int(self.head_characters * share),
            tail_characters=int(self.tail_characters * share),
        )


class Excerpt(NamedTuple):
    """What is left of a text, and how many of its lines are left out, whole or in part."""

    text: str
    missing_lines: int


def excerpt_of(text: str, measure: Measure) -> Excerpt | None:
    """Take the beginning, the end and the error lines of a text; None if nothing would be left out."""
    head, tail = _ends(text, measure)
    middle = text[len(head) : len(text) - len(tail)]
    if not middle.strip():
        return None
    lines = middle.strip("\n").split("\n")
    most = int(_ERROR_SHARE * (measure.head_characters + measure.tail_characters))
    places = _within(_error_places(lines), lines, most)
    between = list(_between(lines, places))
    parts = [head.rstrip("\n"), *_closers(head), *between, *_openers(tail), tail.strip("\n")]
    return Excerpt("\n".join(part for part in parts if part), len(lines) - len(places))


def _ends(text: str, measure: Measure) -> tuple[str, str]:
    """Give the beginning and the end; neither cuts a `<details>` tag in two."""
    head = _first_lines(text, measure.head_lines)
    if len(head) > measure.head_characters:
        head = whole_lines(head[: measure.head_characters], from_start=True)
    rest = text[len(head) :]
    tail = _last_lines(rest, measure.tail_lines)
    if len(tail) > measure.tail_characters:
        start = len(tail) - measure.tail_characters
        tail = whole_lines(tail[start:], from_start=False)
    begin, end = len(head), len(text) - len(tail)
    for tag in _DETAILS_TAG.finditer(text):
        if tag.start() < begin < tag.end():
            begin = tag.start()
        if tag.start() < end < tag.end():
            end = tag.end()
    return text[:begin], text[end:]


def _first_lines(text: str, lines: int) -> str:
    at = 0
    for _ in range(lines):
        if (at := text.find("\n", at) + 1) == 0:
            return text
    return text[:at]


def _last_lines(text: str, lines: int) -> str:
    at = len(text.rstrip("\n"))
    for _ in range(lines):
        if (at := text.rfind("\n", 0, at)) < 0:
            return text
    return text[at + 1 :]


def _error_places(lines: Sequence[str]) -> list[int]:
    """Find the lines that tell of an error, one of each wording: numbers make no other wording."""
    seen: set[str] = set()
    places: set[int] = set()
    traced = False  # the first line that is not indented after a traceback's head names the exception
    for i, line in enumerate(lines):
        names_exception = traced and bool(line.strip()) and not line[0].isspace()
        traced = (traced and not names_exception) or _TRACEBACK.match(line) is not None
        if not (names_exception or _error_at(line)) or _is_framing(line):
            continue
        wording = _DIGIT_RUNS.sub("0", line[:_ERROR_CHARACTERS]).strip()
        if wording in seen:
            continue
        seen.add(wording)
        places.add(i)
        if not line[:1].isspace():  # the last frame says where it happened
            places.update(j for j in (i - 2, i - 1) if j >= 0 and _is_frame(lines[j]))
    return sorted(places)


def _within(places: list[int], lines: Sequence[str], characters: int) -> list[int]:
    """Give the first and the last of the places, as many as the bounds on lines and characters allow."""
    if len(places) > _MOST_ERROR_LINES:
        places = [*places[: _MOST_ERROR_LINES - _LAST_ERRORS], *places[-_LAST_ERRORS:]]
    order = [*places[: -_LAST_ERRORS or None], *reversed(places[-_LAST_ERRORS:])]
    kept = []
    for place in order:
        characters -= min(len(lines[place]), _ERROR_CHARACTERS)
        if characters < 0:
            break
        kept.append(place)
    return sorted(kept)


def _error_at(line: str) -> re.Match[str] | None:
    found = _ERROR_LINE.search(line)
    if found is None or not _NO_ERROR.search(line):
        return found
    return found if _ERROR_LINE.search(_NO_ERROR.sub("", line)) else None


def _is_frame(line: str) -> bool:
    return line[:1].isspace() and bool(line.strip()) and not _is_framing(line)


def _is_framing(line: str) -> bool:
    """Say whether a line opens or closes something, which would be out of balance alone."""
    return _FENCE_MARK in line or _DETAILS_TAG.search(line) is not None


def _between(lines: Sequence[str], places: Sequence[int]) -> Iterator[str]:
    """Give the lines that are kept with notes of what is left out around them."""
    for missing, place in gaps_between(places, len(lines)):
        if missing > 1:
            yield f"[… {missing:,} lines …]"
        elif missing:
            yield "[…]"
        if place is not None:
            yield _clipped(lines[place])


def _clipped(line: str) -> str:
    """Give a line, or of a long one what stands around its error."""
    if len(line) <= _ERROR_CHARACTERS:
        return line
    found = _error_at(line)
    start = max(0, (found.start() if found else 0) - _ERROR_CHARACTERS // 3)
    return f"{'…' if start else ''}{line[start : start + _ERROR_CHARACTERS]}…"


def _closers(head: str) -> list[str]:
    """Give what closes the fence and the `<details>` that a beginning leaves open."""
    depth = 0
    for tag in _DETAILS_TAG.finditer(head):
        depth = max(0, depth - 1) if tag[1] else depth + 1
    return [_FENCE_MARK] * (head.count(_FENCE_MARK) % 2) + ["</details>"] * depth


def _openers(tail: str) -> list[str]:
    """Give what opens the `<details>` and the fence that an end closes."""
    depth = least = 0
    for tag in _DETAILS_TAG.finditer(tail):
        depth += -1 if tag[1] else 1
        least = min(least, depth)
    return ["<details>"] * -least + [_FENCE_MARK] * (tail.count(_FENCE_MARK) % 2)
