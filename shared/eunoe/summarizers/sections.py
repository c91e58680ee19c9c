"""Reads the sections of a reply that summarizes several parts at once."""

from __future__ import annotations

import re

_NUMBER = r"(\d{1,3})"
# "## 3", "**3**", "[3]", "3", "Part 3:", "<part 3>", "第3部分", and text behind a colon.
_HEAD = re.compile(
    rf"^\W{{0,6}}(?:[^\W\d]{{1,12}}\W{{0,3}})?{_NUMBER}(?:\s?[^\W\d]{{0,4}})?"
    r"(?:[^\w\n]{0,6}|[ *]{0,3}[:：.)\]–-]\W{0,3}(.+))$"
)
_LISTED = re.compile(rf"^\s*\(?{_NUMBER}[.):：]\s+(.+)$")
_MARKED = re.compile(r"^\s*(?:#|\*\*|\[|<|part\b|section\b)", re.IGNORECASE)


def read_sections(text: str, count: int) -> list[str]:
    """Give the texts of `count` sections, empty where there is none; never raises.

    Numbers only count in ascending order, so that a number on a line of its own within a section is text.
    """
    lines = text.splitlines()
    marked = _by_heads(lines, count, strict=True)
    found = marked if any(marked) else _by_heads(lines, count, strict=False)
    if not any(found) and count == 1:
        return [text.strip()]
    return found


def _by_heads(lines: list[str], count: int, *, strict: bool) -> list[str]:
    sections: list[list[str]] = [[] for _ in range(count)]
    current = 0
    for line in lines:
        number, rest = _head_of(line, strict=strict)
        if current < number <= count:
            current = number
            if rest:
                sections[current - 1].append(rest)
        elif current:
            sections[current - 1].append(line)
    return ["\n".join(section).strip() for section in sections]


def _head_of(line: str, *, strict: bool) -> tuple[int, str]:
    """Read a line that begins a section: its number and the text behind it; 0 if it is none."""
    if strict and not _MARKED.match(line):
        return 0, ""
    match = _HEAD.match(line) or (None if strict else _LISTED.match(line))
    return (int(match[1]), match[2] or "") if match else (0, "")
