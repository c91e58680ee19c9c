"""Which messages of a chat hold a term: found again on the chat's next turn, and only extended by what is new."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from .breath import breathe
from .terms import Terms

LEAST_INDEXED = 64  # documents; fewer are looked through as fast
_MOST_ENTRIES = (
    1_500_000  # of all indexes together, at about 16 bytes; a chat of 1,000 messages has some 50,000
)
_BEGINNING = 8  # documents by which a chat is found again


class Posting(NamedTuple):
    """Where a term occurs: the numbers of the documents, ascending, and where more than once.

    `often` has pairs of a place's number in `places` and how often the term occurs there; mostly it is once.
    """

    places: list[int]
    often: list[tuple[int, int]]


class TermIndex:
    """The postings of one chat, which grows with it. Not for two threads at once without its `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries = 0
        self._documents: list[Terms] = []
        self._places: defaultdict[str, list[int]] = defaultdict(list)
        self._often: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)

    def follow(self, documents: list[Terms]) -> None:
        """Make it the index of these documents: what is new is added, what has changed is replaced."""
        known = len(self._documents)
        if self._documents != documents[:known]:
            pairs = zip(self._documents, documents, strict=False)
            self._cut(next((i for i, (old, new) in enumerate(pairs) if old != new), len(documents)))
        for document in documents[len(self._documents) :]:
            breathe()
            self._add(document)

    def find(self, wanted: Iterable[str]) -> dict[str, Posting]:
        """Give the postings of the wanted terms that occur; copies, since the lists grow with the chat."""
        none: list[tuple[int, int]] = []
        return {
            term: Posting(self._places[term].copy(), self._often.get(term, none).copy())
            for term in wanted
            if term in self._places
        }

    def _add(self, document: Terms) -> None:
        lists = map(self._places.__getitem__, document.counts)
        deque(map(list.append, lists, repeat(len(self._documents))), maxlen=0)  # runs the map, keeps nothing
        if document.length > len(document.counts):
            for term, count in document.counts.items():
                if count > 1:
                    self._often[term].append((len(self._places[term]) - 1, count))
        self._documents.append(document)
        self.entries += len(document.counts)

    def _cut(self, length: int) -> None:
        """Forget all documents from one on."""
        gone = self._documents[length:]
        del self._documents[length:]
        for document in reversed(gone):
            self.entries -= len(document.counts)
            for term, count in document.counts.items():
                self._places[term].pop()
                if not self._places[term]:
                    del self._places[term]
                if count > 1:
                    self._often[term].pop()


class TermIndexes:
    """The indexes of the chats used last. Threads may share it; losing one only costs making it again."""

    def __init__(self, most_entries: int = _MOST_ENTRIES) -> None:
        self._most_entries = most_entries
        self._lock = threading.Lock()
        self._indexes: OrderedDict[tuple[int, ...], TermIndex] = OrderedDict()

    def find(self, documents: list[Terms], wanted: Iterable[str]) -> dict[str, Posting]:
        """Give the postings of the wanted terms in these documents."""
        # An index holds its documents, so their identities last as long as it; what it holds is compared anyway.
        key = tuple(map(id, documents[:_BEGINNING]))
        with self._lock:
            index = self._indexes.pop(key, None) or TermIndex()
            self._indexes[key] = index
        with index.lock:
            index.follow(documents)
            found = index.find(wanted)
        self._forget_oldest()
        return found

    def _forget_oldest(self) -> None:
        with self._lock:
            entries = sum(index.entries for index in self._indexes.values())
            while entries > self._most_entries:
                _, oldest = self._indexes.popitem(last=False)
                entries -= oldest.entries


_INDEXES = TermIndexes()


def postings_in(documents: list[Terms], wanted: Iterable[str]) -> Mapping[str, Posting]:
    """Say for each of the wanted terms that occur which documents hold it how often."""
    return (
        looked_up(documents, wanted) if len(documents) < LEAST_INDEXED else _INDEXES.find(documents, wanted)
    )


def looked_up(documents: Sequence[Terms], wanted: Iterable[str]) -> dict[str, Posting]:
    """Give the postings of the wanted terms by looking through all documents."""
    terms, found = set(wanted), dict[str, Posting]()
    for i, document in enumerate(documents):
        for term in terms & document.counts.keys():
            places, often = found.setdefault(term, Posting([], []))
            if document.counts[term] > 1:
                often.append((len(places), document.counts[term]))
            places.append(i)
    return found
