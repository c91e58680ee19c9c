"""Finding passages of a chat, by words and where there are vectors by meaning; what is out of sight comes first."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..terms import read_terms
from ..weighting.vectors import cosines
from .ledger import unpacked
from .passages import lines_of
from .record import Sight

LONGEST_QUERY = 1_000  # characters
_MOST_TERMS_ASKED = 40
_POOL = 400  # passages that are looked at, the best by words and the best by meaning
_RRF = 60  # Cormack et al. 2009: reciprocal rank fusion
_COLUMNS = (
    "p.row, p.first, p.last, p.digest, b.row, b.id, b.message, b.role, b.kind, b.tool, b.position, b.lines, "
    "b.in_history, b.in_context FROM passage p JOIN block b ON b.row = p.block"
)
_BY_WORDS = (
    f"SELECT {_COLUMNS} JOIN word ON word.rowid = p.row WHERE word MATCH ? ORDER BY word.rank LIMIT {_POOL}"
)
_ALL = f"SELECT {_COLUMNS} ORDER BY p.row DESC"
_VECTORS = "SELECT p.row, v.numbers FROM vector v JOIN passage p ON p.digest = v.digest WHERE v.model = ?"
_TEXT = "SELECT b.text, x.data FROM block b LEFT JOIN blob x ON x.id = b.blob WHERE b.row = ?"


class Found(NamedTuple):
    """A passage that was found: where it stands, and whether the model sees all of its message."""

    row: int
    first: int
    last: int
    digest: bytes
    block: int
    id: str
    message: str
    role: str
    kind: str
    tool: str
    position: int
    lines: int
    in_history: bool
    in_context: bool


class Asked(NamedTuple):
    """What is looked for: words, and their vector by a model where there is one."""

    query: str
    model: str = ""
    vector: array[float] | None = None


def found_passages(
    connection: sqlite3.Connection, asked: Asked, limit: int, sight: Sight | None = None
) -> list[Found]:
    """Find the best passages of the present history, those first that the model does not see.

    `sight` says what the asking call saw; without it what was stored last counts.
    """
    ranked = _rankings_fused(
        [_ranked_by_words(connection, asked.query), *_ranked_by_meaning(connection, asked)]
    )
    present = _present(ranked, sight)
    if not present:
        present = _present(_found_by_letters(connection, asked.query, limit, sight), sight)
    return sorted(_distinct(present), key=lambda found: found.in_context)[:limit]


def block_text(connection: sqlite3.Connection, block: int) -> str:
    """Give the whole text of a block."""
    text, data = connection.execute(_TEXT, (block,)).fetchone()
    return str(text) if data is None else unpacked(data)


def passage_text(connection: sqlite3.Connection, found: Found) -> list[str]:
    """Give the lines of a passage."""
    return lines_of(block_text(connection, found.block))[found.first - 1 : found.last]


def terms_asked(query: str) -> list[str]:
    """Give the terms of a query, each once."""
    return list(read_terms(query[:LONGEST_QUERY]).counts)[:_MOST_TERMS_ASKED]


def _ranked_by_words(connection: sqlite3.Connection, query: str) -> list[Found]:
    terms = terms_asked(query)
    if not terms:
        return []
    # A single sign of a script without spaces stands in the index only as the first of a pair.
    quoted = [f'"{term}"{"*" if len(term) == 1 and not term.isascii() else ""}' for term in terms]
    return _read_rows(connection.execute(_BY_WORDS, (" OR ".join(quoted),)))


def _ranked_by_meaning(connection: sqlite3.Connection, asked: Asked) -> list[list[Found]]:
    """Rank passages by their vectors; no ranking where there are none."""
    if asked.vector is None:
        return []
    rows, vectors = [], []
    for row, data in connection.execute(_VECTORS, (asked.model,)):
        vector = array("f", data)
        if len(vector) == len(asked.vector):
            rows.append(int(row))
            vectors.append(vector)
    nearest = sorted(zip(cosines(asked.vector, vectors), rows, strict=True), reverse=True)[:_POOL]
    known = {found.row: found for found in _read_rows(connection.execute(_ALL))} if nearest else {}
    return [[known[row] for _, row in nearest if row in known]]


def _found_by_letters(
    connection: sqlite3.Connection, query: str, limit: int, sight: Sight | None
) -> list[Found]:
    """Look for the very letters of a query that has no term in the index: signs, stop words, parts of words."""
    wanted, hits = query.strip()[:LONGEST_QUERY].lower(), list[Found]()
    text, block = list[str](), -1
    for found in _present(_read_rows(connection.execute(_ALL)), sight) if wanted else ():
        if found.block != block:
            text, block = lines_of(block_text(connection, found.block)), found.block
        if wanted in "\n".join(text[found.first - 1 : found.last]).lower():
            hits.append(found)
            if sum(not hit.in_context for hit in hits) >= limit:
                break
    return hits


def _read_rows(rows: Iterable[Sequence[object]]) -> list[Found]:
    make: Callable[[Iterable[object]], Found] = Found._make
    return [make(row) for row in rows]


def _rankings_fused(rankings: Sequence[Sequence[Found]]) -> list[Found]:
    """Bring several rankings together: a passage counts by its place in each."""
    if len(rankings) == 1:
        return list(rankings[0])
    scores: dict[int, float] = {}
    known: dict[int, Found] = {}
    for ranking in rankings:
        for place, found in enumerate(ranking, 1):
            known[found.row] = found
            scores[found.row] = scores.get(found.row, 0.0) + 1 / (_RRF + place)
    return [known[row] for row in sorted(scores, key=lambda row: (-scores[row], row))]


def _present(ranked: Iterable[Found], sight: Sight | None) -> list[Found]:
    """Leave out other branches, and say of each passage what the asking call sees."""
    if sight is None:
        return [found for found in ranked if found.in_history]
    return [found._replace(in_context=sight[found.message]) for found in ranked if found.message in sight]


def _distinct(ranked: Iterable[Found]) -> list[Found]:
    """Give each text once: where it was said last."""
    places: dict[bytes, Found] = {}
    for found in ranked:
        other = places.get(found.digest)
        if other is None or (found.in_context, -found.position) < (other.in_context, -other.position):
            places[found.digest] = found  # in the place of the first
    return list(places.values())
