"""Groups neighboring turns that speak of the same things, for an overview of a long chat."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..conversation import Message
from ..relevance import features_of
from ..terms import term_of

MOST_TOPICS = 24
_TURNS_PER_TOPIC = 4  # on average; fewer would make the overview as long as the chat
_MOST_TIMES_AVERAGE = 3  # opening a topic of half the chat would say nothing
_MOST_PIECES = 300  # merging looks at each pair again and again; longer chats start from several turns each
_MOST_TERMS_COMPARED = 200
_TELLING_WORDS = 6
_READ_FOR_WORDS = 4_000  # characters of each message that are searched for the words behind the terms
_TOPIC_WORD = re.compile(r"\w{1,40}")


@dataclass(frozen=True, slots=True)
class TopicCluster:
    """Neighboring turns about one thing: `number` from 1, their messages, the words that set them apart."""

    number: int
    messages: tuple[Message, ...]
    words: tuple[str, ...]

    @property
    def opening(self) -> str:
        """Give the text it begins with."""
        return next((message.text for message in self.messages if message.text.strip()), "")


@dataclass(slots=True)
class _TopicPiece:
    messages: list[Message]
    counts: Counter[str]
    turns: int


def topic_clusters(messages: Sequence[Message], most: int = MOST_TOPICS) -> list[TopicCluster]:
    """Group messages into at most `most` clusters: each time the two likest small neighbors become one."""
    pieces = _topic_pieces(messages)
    turns = sum(piece.turns for piece in pieces)
    wanted = max(1, min(most, math.ceil(turns / _TURNS_PER_TOPIC)))
    rarity = _term_rarity(pieces)
    likeness = [_piece_likeness(a, b, rarity) for a, b in itertools.pairwise(pieces)]
    while len(pieces) > wanted:
        at = _likest_pair(pieces, likeness, turns * _MOST_TIMES_AVERAGE / wanted)
        pieces[at : at + 2] = [_joined_pieces(pieces[at], pieces[at + 1])]
        del likeness[at]
        for i in (at - 1, at):
            if 0 <= i < len(likeness):
                likeness[i] = _piece_likeness(pieces[i], pieces[i + 1], rarity)
    rarity = _term_rarity(pieces)
    return [
        TopicCluster(number, tuple(piece.messages), _telling_words(piece, rarity))
        for number, piece in enumerate(pieces, start=1)
    ]


def _likest_pair(pieces: Sequence[_TopicPiece], likeness: Sequence[float], most_turns: float) -> int:
    """Find the pair to join next; one that would be too long only where nothing else is left."""

    def rank(i: int) -> tuple[bool, float, int]:
        turns = pieces[i].turns + pieces[i + 1].turns
        return turns <= most_turns, likeness[i], -turns

    return max(range(len(likeness)), key=rank)


def _topic_pieces(messages: Sequence[Message]) -> list[_TopicPiece]:
    turns: list[list[Message]] = []
    for message in messages:
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    each = math.ceil(len(turns) / _MOST_PIECES) or 1
    return [_topic_piece(turns[i : i + each]) for i in range(0, len(turns), each)]


def _topic_piece(turns: Sequence[Sequence[Message]]) -> _TopicPiece:
    """Make a piece of turns; what tools said does not name a topic."""
    messages = [message for turn in turns for message in turn]
    counts: Counter[str] = Counter()
    for message in messages:
        if not message.is_result:
            counts.update(features_of(message.digest, message.text).terms.counts)
    return _TopicPiece(messages, Counter(dict(counts.most_common(_MOST_TERMS_COMPARED))), len(turns))


def _joined_pieces(a: _TopicPiece, b: _TopicPiece) -> _TopicPiece:
    return _TopicPiece(a.messages + b.messages, a.counts + b.counts, a.turns + b.turns)


def _term_rarity(pieces: Sequence[_TopicPiece]) -> Mapping[str, float]:
    holders = Counter(term for piece in pieces for term in piece.counts)
    return {term: math.log(1 + len(pieces) / count) for term, count in holders.items()}


def _piece_likeness(a: _TopicPiece, b: _TopicPiece, rarity: Mapping[str, float]) -> float:
    """Compare two pieces by the angle between their terms, less for long ones, so that none eats all."""
    shared = sum(
        a.counts[term] * b.counts[term] * rarity[term] ** 2 for term in a.counts.keys() & b.counts.keys()
    )
    return (
        shared / (_piece_length(a, rarity) * _piece_length(b, rarity) * (a.turns + b.turns))
        if shared
        else 0.0
    )


def _piece_length(piece: _TopicPiece, rarity: Mapping[str, float]) -> float:
    return math.sqrt(sum((count * rarity[term]) ** 2 for term, count in piece.counts.items()))


def _telling_words(piece: _TopicPiece, rarity: Mapping[str, float]) -> tuple[str, ...]:
    """Name the words that are frequent here and rare elsewhere, as they are written here."""
    ranked = sorted(piece.counts, key=lambda term: (-piece.counts[term] * rarity[term], term))
    written: dict[str, str] = {}
    for message in piece.messages:
        for word in _TOPIC_WORD.findall(message.text[:_READ_FOR_WORDS]):
            written.setdefault(term_of(word.lower()), word)
    return tuple(written.get(term, term) for term in ranked[:_TELLING_WORDS])
