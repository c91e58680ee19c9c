"""What is known of a text that is to be summarized: what a summary of it may say, and what it should not lose."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..conversation import Message
from ..endpoint import ends_of
from ..terms import read_terms
from ..tokens import TokenCounter
from .language import language_of, main_script
from .transcript import plain_text
from .values import FoundValue, figures_in, folded, is_in, values_in, with_words

# A line of values begins with this and has " · " between them: signs read alike in every language.
VALUES_MARK = "[· "

_MOST_TELLING = 24
_SAID = 1_200  # characters of a message; what is longer is pasted more than said
# What nobody can say in other words, or find again once it is lost.
_KIND_WORTH: Mapping[str, float] = {
    "id": 3,
    "email": 3,
    "error": 3,
    "amount": 2,
    "date": 2,
    "url": 2,
    "path": 2,
}


@dataclass(frozen=True, slots=True)
class TellingValue:
    """A value that a summary should have, and how it is written where the summary has left it out."""

    value: FoundValue
    written: str


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What summaries of a source are checked against; `tokens` is what a summary replaces.

    `language` is the user's, empty where it is not sure; `languages` and `scripts` are also the assistant's.
    """

    tokens: int
    text: str  # folded
    figures: frozenset[str]
    terms: frozenset[str]
    telling: tuple[TellingValue, ...]  # the most telling first
    language: str = ""
    languages: frozenset[str] = frozenset()
    scripts: frozenset[str] = frozenset()


def facts_of(previous: str, messages: Sequence[Message], tokens: int) -> SourceFacts:
    """Read a source: the summary so far, and the messages that come to it."""
    texts = [previous, *map(plain_text, messages)]
    whole = "\n".join(texts)
    terms = frozenset(term for text in texts for term in read_terms(text).counts)
    telling = tuple(telling_values(previous, messages))
    spoken = [_spoken_of(messages, role) for role in ("user", "assistant")]
    spoken = [text for text in spoken if text] or [previous]
    languages = [language_of(text) for text in spoken]
    sure = "" not in languages
    return SourceFacts(
        tokens,
        folded(whole),
        figures_in(whole),
        terms,
        telling,
        languages[0],
        frozenset(languages) if sure else frozenset(),
        frozenset(main_script(text)[0] for text in spoken) - {""},
    )


def _spoken_of(messages: Sequence[Message], role: str) -> str:
    return "\n".join(ends_of(plain_text(m), _SAID) for m in messages if m.role == role)


def missing_from(text: str, facts: SourceFacts) -> list[TellingValue]:
    """Find the telling values that a summary lacks."""
    folded_text, figures = folded(text), figures_in(text)
    return [found for found in facts.telling if not is_in(found.value, folded_text, figures)]


def values_line(values: Sequence[TellingValue], tokens: int, counter: TokenCounter) -> str:
    """Write values on one line of at most `tokens`, without words of ours; empty if none finds room.

    Each has the words before it where that leaves room for all.
    """
    line, all_of_them = _line_of([found.written for found in values], tokens, counter)
    return line if all_of_them else _line_of([found.value.text for found in values], tokens, counter)[0]


def _line_of(texts: Sequence[str], tokens: int, counter: TokenCounter) -> tuple[str, bool]:
    """Write as many texts on a line as fit, and say whether all do."""
    line, count = "", 0
    for text in texts:
        longer = f"{line} · {text}" if line else f"{VALUES_MARK}{text}"
        if counter.count_text(longer) < tokens:
            line, count = longer, count + 1
    return f"{line}]" if line else "", count == len(texts)


def telling_values(previous: str, messages: Sequence[Message]) -> list[TellingValue]:
    """Find the values most worth keeping: what the user said, what was said often, what was noted before.

    Results of tools count only where somebody took a value up.
    """
    said = [(m.role == "user", ends_of(plain_text(m), _SAID)) for m in messages if not m.is_result]
    worth: dict[str, float] = {}
    times: dict[str, int] = {}
    written: dict[str, TellingValue] = {}
    for age, (by_user, text) in enumerate([(True, previous), *said]):
        for key, value in values_in(text).items():
            times[key] = times.get(key, 0) + value.times
            earlier = 4.0 if by_user else 0.0
            worth[key] = max(worth.get(key, 0.0), earlier) + min(value.times, 2)
            worth[key] += 2 * age / max(1, len(said))
            if by_user or key not in written:
                written[key] = TellingValue(value, with_words(value, text))
    wanted = [
        key for key in written if worth[key] >= 4 or times[key] > 1 or written[key].value.kind == "error"
    ]
    wanted.sort(key=lambda key: worth[key] + _KIND_WORTH.get(written[key].value.kind, 0), reverse=True)
    return _without_parts([written[key] for key in wanted[: 2 * _MOST_TELLING]])[:_MOST_TELLING]


def _without_parts(values: Sequence[TellingValue]) -> list[TellingValue]:
    """Leave out values that stand in one before them, such as a figure in an error line."""
    kept: list[TellingValue] = []
    for found in values:
        alone = re.compile(rf"(?<!\w){re.escape(found.value.text)}(?!\w)")
        if not any(alone.search(other.written) for other in kept):
            kept.append(found)
    return kept
