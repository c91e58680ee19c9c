"""Writing a model call into a chat's store: what is new, and what the model no longer sees. One short transaction."""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..breath import breathe
from ..cache.entry import text_bytes
from ..terms import read_terms
from ..tokens import TokenCounter, counter_for
from ..tool_results import tools_called
from .blocks import StoredBlock, block_id, blocks_of
from .passages import Passage, lines_of, passages_of
from .places import ChatKey
from .record import ChatRecord, Told, usual_reason
from .schema import transaction

MOST_EVENTS = 1_000  # of one store
LONG_TEXT = 4_000  # characters; a longer text is packed, and kept once however often it was said
_INSERT_BLOCK = "INSERT OR IGNORE INTO block VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE = "UPDATE block SET in_history = 1, in_context = ?, fate = ?, reason = ? WHERE message = ?"
_LEAVE = "UPDATE block SET in_history = 0, in_context = 0 WHERE message = ?"
_KNOWN = "SELECT message, in_history, in_context, fate, reason FROM block WHERE number = 0"


class Written(NamedTuple):
    """What a write changed: blocks that are new, and messages that the model no longer sees whole."""

    blocks: int
    hidden: int


class _Row(NamedTuple):
    """A block made ready to be stored."""

    told: Told
    block: StoredBlock
    tokens: int
    lines: int
    packed: tuple[bytes, bytes] | None  # a name and the packed text, if it is long
    passages: tuple[tuple[Passage, str, bytes], ...]  # with terms and a digest


def write_record(connection: sqlite3.Connection, key: ChatKey, record: ChatRecord, now: float) -> Written:
    """Store what a model call tells of a chat."""
    known = {message: tuple(rest) for message, *rest in connection.execute(_KNOWN)}
    new = [told for told in record.told if told.message not in known]
    called = tools_called(told.raw for told in record.told) if new else {}
    rows = _ready(new, called, counter_for(record.model))
    changed = [
        told
        for told in record.told
        if told.message in known and known[told.message] != (1, int(told.in_context), told.fate, told.reason)
    ]
    present = {told.message for told in record.told}
    gone = [message for message, (here, *_) in known.items() if here and message not in present]
    hidden = [told for told in [*new, *changed] if not told.in_context and known.get(told.message, (1, 1))[1]]
    with transaction(connection):
        connection.executemany(
            "INSERT OR REPLACE INTO about VALUES (?, ?)",
            [("scope", key.scope), ("chat", key.chat), ("used", repr(now))],
        )
        count = sum(_insert(connection, row, now) for row in rows)
        marks = [(told.in_context, told.fate, told.reason, told.message) for told in changed]
        connection.executemany(_UPDATE, marks)
        connection.executemany(_LEAVE, [(message,) for message in gone])
        if hidden:
            reason = usual_reason([told.reason for told in hidden])
            sizes = (len(hidden), record.tokens_before, record.tokens_after)
            note_event(connection, "trim", record.run, now, reason, sizes)
    return Written(count, len(hidden))


def note_event(
    connection: sqlite3.Connection,
    kind: str,
    run: str,
    now: float,
    reason: str,
    sizes: tuple[int | None, int | None, int | None] = (None, None, None),
) -> None:
    """Note a cut or a failure; `sizes` are messages, tokens before and tokens after."""
    connection.execute(
        "INSERT INTO event VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", (now, kind, run, *sizes, reason)
    )
    connection.execute("DELETE FROM event WHERE row <= (SELECT max(row) FROM event) - ?", (MOST_EVENTS,))


def text_digest(text: str) -> bytes:
    """Name a text by its content."""
    return hashlib.blake2b(text_bytes(text), digest_size=16).digest()


def packed(text: str) -> bytes:
    """Pack a text; SQL reads it again with `unpacked`."""
    return zlib.compress(text.encode("utf-8"), 6)


def unpacked(data: bytes) -> str:
    """Read what `packed` wrote."""
    return zlib.decompress(data).decode("utf-8")


def _ready(new: Iterable[Told], called: Mapping[str, str], counter: TokenCounter) -> list[_Row]:
    """Make new messages ready before the transaction begins, so that it stays short."""
    rows = []
    for told in new:
        for block in blocks_of(told.raw, called):
            breathe()
            lines = lines_of(block.text)
            long = len(block.text) > LONG_TEXT
            kept = (text_digest(block.text), packed(block.text)) if long else None
            passages = tuple(_searched(lines)) if block.is_searched else ()
            rows.append(_Row(told, block, counter.count_text(block.text), len(lines), kept, passages))
    return rows


def _searched(lines: Sequence[str]) -> Iterable[tuple[Passage, str, bytes]]:
    for passage in passages_of(lines):
        breathe()
        counts = read_terms(passage.text).counts
        terms = " ".join(" ".join([term] * count) for term, count in counts.items())
        yield passage, terms, text_digest(passage.text)


def _insert(connection: sqlite3.Connection, row: _Row, now: float) -> int:
    told, block = row.told, row.block
    name, data = row.packed or (None, None)
    values = (
        *(told.message, block.number, block_id(told.message, block.number)),
        *(told.position, str(told.raw.get("role") or ""), block.kind, block.tool, now),
        *(row.tokens, row.lines, 1, told.in_context, told.fate, told.reason),
        *("" if name else block.text, name),
    )
    done = connection.execute(_INSERT_BLOCK, values)
    if not done.rowcount:  # another worker has stored it by now
        return 0
    if name:
        stored = (name, len(block.text), data)
        connection.execute("INSERT OR IGNORE INTO blob VALUES (?, ?, ?)", stored)
    for passage, terms, digest in row.passages:
        place = (done.lastrowid, passage.first, passage.last, digest)
        at = connection.execute("INSERT INTO passage VALUES (NULL, ?, ?, ?, ?)", place).lastrowid
        connection.execute("INSERT INTO word (rowid, terms) VALUES (?, ?)", (at, terms))
    return 1
