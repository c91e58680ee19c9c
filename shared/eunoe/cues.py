"""What a question wants to be told: a time, a number; and whether a text tells one."""

from __future__ import annotations

import re
from enum import StrEnum

from .terms import Terms, term_of


class Cue(StrEnum):
    """What a question may ask for and a text may tell."""

    TIME = "time"
    NUMBER = "number"


_ASKED = {
    Cue.TIME: re.compile(
        r"^\W*when\b|\bwhen (?:did|do|does|was|were|is|are|will|has|have|had|would|should|can)\b"
        r"|\bhow (?:long|recently)\b|\b(?:what|which) (?:date|day|week|month|year|time)\b|\bsince when\b"
    ),
    Cue.NUMBER: re.compile(
        r"\bhow (?:many|much|old|often|far|big|tall|large)\b|\b(?:what|which) (?:number|price|age|amount|version)\b"
    ),
}
_MOST_READ_OF_QUESTION = 2_000  # characters of a question; what is asked stands at its beginning or its end

# "May" is no sure sign, and "evening" has the stem of "even".
_TIMES = frozenset(
    map(
        term_of,
        "yesterday today tonight tomorrow ago last next since hour day week weekend month year morning afternoon "
        "midnight noon spring summer autumn winter january february march april june july august september october "
        "november december monday tuesday wednesday thursday friday saturday sunday".split(),
    )
)
_NUMBERS = frozenset(
    map(
        term_of,
        "two three four five six seven eight nine ten eleven twelve dozen hundred thousand million twice couple "
        "several".split(),
    )
)
_YEAR = re.compile(r"(?:19|20)\d\d")


def cues_asked(question: str) -> frozenset[Cue]:
    """Say what an English question wants to be told."""
    if len(question) > 2 * _MOST_READ_OF_QUESTION:
        question = f"{question[:_MOST_READ_OF_QUESTION]} {question[-_MOST_READ_OF_QUESTION:]}"
    lowered = question.lower()
    return frozenset(cue for cue, pattern in _ASKED.items() if pattern.search(lowered))


def cues_told(text: str, terms: Terms) -> frozenset[Cue]:
    """Say what a text tells; `terms` are its own."""
    words = terms.counts.keys()
    has_digits = any(digit in text for digit in "0123456789")  # ten times as fast as a pattern or all words
    numbers = [word for word in words if word[0].isdigit()] if has_digits else []
    told = set()
    if not _TIMES.isdisjoint(words) or any(_YEAR.fullmatch(number) for number in numbers):
        told.add(Cue.TIME)
    if numbers or not _NUMBERS.isdisjoint(words):
        told.add(Cue.NUMBER)
    return frozenset(told)
