"""Vectors of stored passages, made behind the requests: then a search finds what is said in other words, too."""

from __future__ import annotations

import asyncio
import sqlite3
from array import array
from collections.abc import Sequence
from pathlib import Path

from ..errors import ModelFailed
from ..ports import Embedder
from ..weighting.vectors import unit_vector
from .ledger import text_digest
from .passages import lines_of
from .schema import change_store, reading_store, transaction
from .search import LONGEST_QUERY, Asked, block_text

_BATCH = 32  # texts of one call to the model
_MOST_BATCHES = 16  # in one go; the next request goes on from there
_QUERY_SECONDS = 5.0  # for the vector of a query; then words alone have to do
_MISSING = (
    "SELECT p.block, p.first, p.last, p.digest FROM passage p JOIN block b ON b.row = p.block "
    "WHERE b.in_history AND NOT b.in_context AND NOT EXISTS "
    "(SELECT 1 FROM vector v WHERE v.digest = p.digest AND v.model = ?) "
    "GROUP BY p.digest ORDER BY p.row DESC LIMIT ?"
)


async def learn_meanings(path: Path, embedder: Embedder) -> int:
    """Make vectors of passages that the model no longer sees and that have none; gives how many.

    Raises:
        ModelFailed: the embedding model gave none.
        sqlite3.Error: the store can't be read or written to.
    """
    learned = 0
    for _ in range(_MOST_BATCHES):
        texts = await asyncio.to_thread(_without_vectors, path, embedder.name())
        if not texts:
            break
        vectors = await embedder.embed(texts)
        await asyncio.to_thread(_keep_vectors, path, embedder.name(), texts, vectors)
        learned += len(texts)
    return learned


async def asked_with_meaning(query: str, embedder: Embedder | None) -> Asked:
    """Give a query with its vector; without one where there is no model, or it is slow or fails."""
    if embedder is None or not query.strip():
        return Asked(query)
    try:
        found = await asyncio.wait_for(embedder.embed([query[:LONGEST_QUERY]]), _QUERY_SECONDS)
    except (ModelFailed, TimeoutError):
        return Asked(query)
    return Asked(query, embedder.name(), unit_vector(found[0]))


def _without_vectors(path: Path, model: str) -> list[str]:
    if not path.exists():
        return []
    with reading_store(path) as connection:
        rows = connection.execute(_MISSING, (model, _BATCH)).fetchall()
        return [
            "\n".join(lines_of(block_text(connection, block))[first - 1 : last])
            for block, first, last, _ in rows
        ]


def _keep_vectors(path: Path, model: str, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> None:
    rows = [
        (text_digest(text), model, array("f", unit_vector(vector)).tobytes())
        for text, vector in zip(texts, vectors, strict=True)
    ]

    def keep(connection: sqlite3.Connection) -> None:
        with transaction(connection):
            connection.executemany("INSERT OR REPLACE INTO vector VALUES (?, ?, ?)", rows)

    if path.exists():  # else the chat was deleted meanwhile
        change_store(path, keep)
