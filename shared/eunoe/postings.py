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
    """Where a term occurs: the numbers of the documents, ascending, and how often in each."""

    places: Sequence[int]
    counts: Sequence[int]


class TermIndex:
    """The postings of one chat, which grows with it. Not for two threads at once without its `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries = 0
        self._documents: list[Terms] = []
        self._places: defaultdict[str, list[int]] = defaultdict(list)

    def follow(self, documents: list[Terms]) -> None:
        """Make it the index of these documents: what is new is added, what has changed is replaced."""
        known = len(self._documents)
        if self._documents != documents[:known]:
            pairs = zip(self._documents, documents, strict=False)
            self._cut(next((i for i, (old, new) in enumerate(pairs) if old != new), len(documents)))
        for document in documents[len(self._documents) :]:
            breathe()
            lists = map(self._places.__getitem__, document.counts)
            deque(
                map(list.append, lists, repeat(len(self._documents))), maxlen=0
            )  # runs the map, keeps nothing
            self._documents.append(document)
            self.entries += len(document.counts)

    def find(self, wanted: Iterable[str]) -> dict[str, Posting]:
        """Give the postings of the wanted terms that occur."""
        counts = [document.counts for document in self._documents]
        found = {}
        for term in wanted:
            breathe()
            if term in self._places:
                places = self._places[term].copy()  # the list itself grows with the chat
                found[term] = Posting(places, [counts[place][term] for place in places])
        return found

    def _cut(self, length: int) -> None:
        """Forget all documents from one on."""
        gone = self._documents[length:]
        del self._documents[length:]
        for document in reversed(gone):
            self.entries -= len(document.counts)
            for term in document.counts:
                places = self._places[term]
                places.pop()
                if not places:
                    del self._places[term]


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
            places, counts = found.setdefault(term, Posting([], []))
            places.append(i)  # type: ignore[attr-defined]
            counts.append(document.counts[term])  # type: ignore[attr-defined]
    return found
