"""How well each message of a chat fits a question, without a model.

BM25 over stemmed terms and words for the kinds of things that are asked for, then what a chat knows beyond
words: an answer stands near its question, so a message lends part of its score to those beside it; a stretch
of conversation has a topic; a question may name who said it, or when, or ask for a time or a number. The
constants were read off chats with known evidence, half of which only confirmed what the other half showed.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TypeAlias

from .breath import breathe
from .conversation import Message
from .cues import Cue, cues_asked, cues_told
from .kinds import kin_of
from .memo import Memo
from .postings import Posting, postings_in
from .terms import Terms, read_terms

# BM25's usual constants fit documents; on chat messages these kept more of the evidence.
_K1, _B = 0.9, 0.4

# What a message takes over of the scores of the four before it, and of the four after it.
Shares: TypeAlias = tuple[float, float, float, float]
_FROM_BEFORE, _FROM_AFTER = (0.6, 0.35, 0.2, 0.12), (0.4, 0.25, 0.12, 0.06)

# Terms a message needs to take over all of that: a short one holds little, unless it is the reply to a question.
_ROOM_FOR_LENT = 20

_STRETCH_SHARE = 0.1  # of the score of its whole stretch of conversation
_STRETCH_LENGTH = 24  # messages, where nothing marks where one ends
_SPEAKER_FACTOR = 1.8  # if the question names who wrote it
_DATE_BONUS = 0.4  # if the question names the month it was written in
_MOST_TERMS = 100  # of a question; a pasted page asks for its rarest words only
_KIN_SHARE = 0.4  # of what a word of the question counts, for a word of a kind that it names
_MOST_WITH_KIN = 40  # terms of a question; a longer one names the things themselves
_UNION_BONUS = 0.5  # more for a message that holds all the words of the question than for each of them alone
_CUE_FACTOR = 1.3  # if the question asks for a time or a number and the message tells one

_QUESTION_MARKS = "?？؟"
_END = 200  # characters

_SPEAKER = re.compile(r"\s*(?:\[[^\]\n]{4,60}\]\s*)?([^\W\d_][\w'’-]{1,24}):\s")
_HEADING = re.compile(r"\s*\[([^\]\n]{4,60})\]")
_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
           "november", "december")  # fmt: skip
_MONTH = re.compile(r"\b(" + "|".join(_MONTHS) + r")\b(?:[ ,]+(?:\d{1,2}[ ,]+)?(\d{4}))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Features:
    """What of a message is compared with questions; read once for each content."""

    terms: Terms
    speaker: str  # who a line such as `Ada: …` says is speaking; empty if there is none
    date: tuple[str, str]  # month and year of a heading such as `[8 May, 2023]`; empty if there is none
    tells: frozenset[Cue]  # what it tells below such a heading
    asks: bool  # whether there is a question at its end


_FEATURES: Memo[Features] = Memo(20_000)


def features_of(digest: str, text: str) -> Features:
    """Give the features of a text, once for each digest."""
    return _FEATURES.get(digest, lambda: _read(text))


def all_features(messages: Sequence[Message]) -> list[Features]:
    """Give the features of messages, each content read once."""
    digests = [message.digest for message in messages]
    return _FEATURES.get_all(digests, lambda i: _read(messages[i].text))


def relevance(messages: Sequence[Features], question: str) -> list[float]:
    """Score each message against a question, from 0 to 1; the best has 1 unless nothing fits."""
    asked = read_terms(question)
    lengths = [message.terms.length for message in messages]
    kin = kin_of(asked.counts) if len(asked.counts) <= _MOST_WITH_KIN else frozenset[str]()
    postings = postings_in([message.terms for message in messages], asked.counts.keys() | kin)
    scores = _scaled(with_lent(_own_scores(lengths, postings, kin), messages, _FROM_BEFORE, _FROM_AFTER))
    stretches = _stretches(messages)
    if len(stretches) > 1:
        named = {term: posting for term, posting in postings.items() if term in asked.counts}
        topics = _scaled(_stretch_scores(lengths, named, stretches))
        sizes = [end - start for start, end in stretches]
        lent = chain.from_iterable(map(repeat, topics, sizes))
        scores = [score + _STRETCH_SHARE * topic for score, topic in zip(scores, lent, strict=True)]
    _raise_speaker(scores, messages, asked)
    _raise_dates(scores, messages, question)
    _raise_telling(scores, messages, question)
    return _scaled(scores)


def bm25(documents: Sequence[Terms], query: Terms) -> list[float]:
    """Score documents by Okapi BM25 (Robertson and Zaragoza 2009), with an inverse frequency above 0."""
    return _bm25_scores([d.length for d in documents], postings_in(list(documents), query.counts))


def _bm25_scores(lengths: Sequence[int], postings: Mapping[str, Posting]) -> list[float]:
    scores = [0.0] * len(lengths)
    for _, places, gains in _term_scores(lengths, _rarest(postings)):
        for i, gain in zip(places, gains, strict=True):
            scores[i] += gain
    return scores


def _own_scores(lengths: Sequence[int], postings: Mapping[str, Posting], kin: frozenset[str]) -> list[float]:
    """Score documents by BM25, with a share of it for kin of the question's words; more if many words meet."""
    own = _rarest({term: found for term, found in postings.items() if term not in kin})
    akin = [postings[term] for term in sorted(kin & postings.keys())]
    scores, met, total = [0.0] * len(lengths), [0.0] * len(lengths), 0.0
    for rarity, places, gains in _term_scores(lengths, own):
        total += rarity
        for i, gain in zip(places, gains, strict=True):
            scores[i] += gain
            met[i] += rarity
    for _, places, gains in _term_scores(lengths, akin):
        for i, gain in zip(places, gains, strict=True):
            scores[i] += _KIN_SHARE * gain
    return [s * (1 + _UNION_BONUS * m / total) if m else s for s, m in zip(scores, met, strict=True)]


def _term_scores(
    lengths: Sequence[int], postings: Iterable[Posting]
) -> Iterator[tuple[float, Sequence[int], list[float]]]:
    """Give for each term its rarity, the documents that hold it, and what it adds to the score of each."""
    mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
    norms = [_K1 * (1 - _B + _B * length / mean) for length in lengths]
    once = [1 + norm for norm in norms]
    for places, often in postings:
        breathe()
        rarity = math.log(1 + (len(lengths) - len(places) + 0.5) / (len(places) + 0.5))
        # Of a term that occurs once, as most do, the formula is a quotient with the same dividend.
        gains = list(map(operator.truediv, repeat(rarity * (_K1 + 1)), map(once.__getitem__, places)))
        for k, count in often:
            gains[k] = rarity * count * (_K1 + 1) / (count + norms[places[k]])
        yield rarity, places, gains


def _rarest(postings: Mapping[str, Posting]) -> list[Posting]:
    """Give the postings of the rarest terms, the rarest first."""
    terms = sorted(postings, key=lambda term: (len(postings[term].places), term))
    return [postings[term] for term in terms[:_MOST_TERMS]]


def with_lent(
    own: Sequence[float], messages: Sequence[Features], from_before: Shares, from_after: Shares
) -> list[float]:
    """Add to each score a share of its neighbors', as far as a message has room for it.

    `from_before` has the shares taken of the message before, the one before that and so on.
    """
    (b1, b2, b3, b4), (a1, a2, a3, a4) = from_before, from_after
    edge = [0.0] * len(from_before)
    wide = [*edge, *own, *edge]
    around = zip(*(wide[i:] for i in range(len(from_before) + 1 + len(from_after))), strict=False)
    lent = [
        b4 * four + b3 * three + b2 * two + b1 * one + a1 * next1 + a2 * next2 + a3 * next3 + a4 * next4
        for four, three, two, one, _, next1, next2, next3, next4 in around
    ]
    answers = [False, *[message.asks for message in messages]]
    room = [message.terms.length / _ROOM_FOR_LENT for message in messages]
    return [
        score + (loan if share >= 1 or is_answer else loan * share)
        for score, loan, share, is_answer in zip(own, lent, room, answers, strict=False)
    ]


def _stretches(messages: Sequence[Features]) -> list[tuple[int, int]]:
    """Cut the chat into stretches: at dated headings where it has some, else at equal lengths."""
    marks = [i for i, message in enumerate(messages) if message.date[0]]
    if len(marks) < 2:
        marks = list(range(0, len(messages), _STRETCH_LENGTH))
    starts = marks if marks and marks[0] == 0 else [0, *marks]
    return list(zip(starts, [*starts[1:], len(messages)], strict=True))


def _stretch_scores(
    lengths: Sequence[int], postings: Mapping[str, Posting], stretches: Sequence[tuple[int, int]]
) -> list[float]:
    """Score each stretch as if it were one document."""
    sizes = [end - start for start, end in stretches]
    stretch_of = list(chain.from_iterable(map(repeat, range(len(sizes)), sizes)))
    joined: dict[str, Posting] = {}
    for term, (places, often) in postings.items():
        breathe()
        tally = Counter(map(stretch_of.__getitem__, places))
        for k, count in often:
            tally[stretch_of[places[k]]] += count - 1
        joined[term] = Posting([*tally], [(k, n) for k, n in enumerate(tally.values()) if n > 1])
    return _bm25_scores([sum(lengths[start:end]) for start, end in stretches], joined)


def _raise_speaker(scores: list[float], messages: Sequence[Features], asked: Terms) -> None:
    """Raise what was said by the one participant whom the question names."""
    speakers = {message.speaker for message in messages if message.speaker}
    named = {speaker for speaker in speakers if set(read_terms(speaker).counts) & set(asked.counts)}
    if len(speakers) < 2 or len(named) != 1:
        return
    for i, message in enumerate(messages):
        if message.speaker in named:
            scores[i] *= _SPEAKER_FACTOR


def _raise_dates(scores: list[float], messages: Sequence[Features], question: str) -> None:
    """Raise what was written in a month that the question names, in its year if it names one."""
    wanted = {(month.lower(), year) for month, year in _MONTH.findall(question)}
    if not wanted:
        return
    month = year = ""
    for i, message in enumerate(messages):
        if message.date[0]:
            month, year = message.date
        if any(month == m and y in {"", year} for m, y in wanted):
            scores[i] += _DATE_BONUS


def _raise_telling(scores: list[float], messages: Sequence[Features], question: str) -> None:
    """Raise what tells a time or a number, if the question asks for one."""
    asked = cues_asked(question)
    for i, message in enumerate(messages if asked else ()):
        if asked & message.tells:
            scores[i] *= _CUE_FACTOR


def _scaled(scores: list[float]) -> list[float]:
    best = max(scores, default=0.0)
    return [score / best for score in scores] if best else scores


def _read(text: str) -> Features:
    speaker = _SPEAKER.match(text)
    heading = _HEADING.match(text)
    date = _MONTH.search(heading[1]) if heading else None
    terms = read_terms(text)
    body = text[heading.end() :] if heading and date else text
    end = text[-_END:]
    return Features(
        terms,
        speaker[1] if speaker else "",
        (date[1].lower(), date[2] or "") if date else ("", ""),
        cues_told(body, terms if body is text else read_terms(body)),
        any(mark in end for mark in _QUESTION_MARKS),
    )
