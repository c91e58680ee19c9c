"""A long text in lines that can be asked for, and in passages that a search can find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

LONGEST_LINE = 1_000  # characters; a longer one, such as JSON without line ends, counts as several
PASSAGE_CHARACTERS = 1_200  # of about 300 tokens: long enough to be understood, short enough to be quoted


class Passage(NamedTuple):
    """Some lines of a block, numbered from 1."""

    first: int
    last: int
    text: str


def lines_of(text: str) -> list[str]:
    """Cut a text into lines of at most `LONGEST_LINE` characters."""
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) <= LONGEST_LINE:
            lines.append(line)
        else:
            lines += [line[at : at + LONGEST_LINE] for at in range(0, len(line), LONGEST_LINE)]
    return lines


def passages_of(lines: Sequence[str]) -> Iterator[Passage]:
    """Gather lines to passages of about `PASSAGE_CHARACTERS`; those without text are left out."""
    first, size = 0, 0
    for at, line in enumerate(lines):
        if size and size + len(line) > PASSAGE_CHARACTERS:
            yield from _passage(lines, first, at)
            first, size = at, 0
        size += len(line) + 1
    yield from _passage(lines, first, len(lines))


def _passage(lines: Sequence[str], first: int, end: int) -> Iterator[Passage]:
    text = "\n".join(lines[first:end])
    if text.strip():
        yield Passage(first + 1, end, text)
