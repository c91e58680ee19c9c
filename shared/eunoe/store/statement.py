"""One read-only SQL statement over one chat's store, from a model nobody has to trust.

Only tables of this chat can be read and only known functions called; time, memory and output are bounded. Functions
of SQLite that take longer than their input is long are replaced, since nothing can stop them halfway.
"""

from __future__ import annotations

import functools
import re
import sqlite3
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .schema import is_damage, reading_store

STATEMENT_SECONDS = 0.5
MOST_ROWS = 100
_LONGEST_STATEMENT = 4_000  # characters
_LONGEST_VALUE = 4_500_000  # bytes that a value may have while the statement runs; no packed text has more
_SHOWN_TEXT = 100_000  # characters of a text that SQL sees; `context_get` gives all of it
_LONGEST_PATTERN = 100  # characters, for LIKE
_STEPS = 1_000  # of SQLite's machine between two looks at the clock: some microseconds

MESSAGES_COLUMNS = "id, position, role, kind, tool, time, tokens, lines, in_context, fate, text"
CUTS_COLUMNS = "time, messages, tokens_before, tokens_after, reason"
_MESSAGES_VIEW = (
    "CREATE TEMP VIEW messages AS SELECT b.id, b.position, b.role, b.kind, b.tool, "
    "datetime(b.time, 'unixepoch') AS time, b.tokens, b.lines, b.in_context, b.fate, "
    "CASE WHEN x.data IS NULL THEN b.text ELSE unpacked(x.data) END AS text "
    "FROM main.block b LEFT JOIN main.blob x ON x.id = b.blob WHERE b.in_history"
)
_CUTS_VIEW = (
    "CREATE TEMP VIEW cuts AS SELECT datetime(time, 'unixepoch') AS time, messages, tokens_before, tokens_after, "
    "reason FROM main.event WHERE kind = 'trim'"
)
_READABLE = frozenset({"messages", "cuts", "block", "blob", "event", "json_each", "json_tree"})
_INTERNAL = re.compile(
    r"(?:sqlite|pragma)_.*|about|vector|passage|word(?:_.*)?|dbstat|bytecode|tables_used", re.IGNORECASE
)
_CALLABLE = frozenset(
    "abs avg char coalesce count cume_dist date datetime dense_rank first_value group_concat ifnull iif instr "
    "json_array_length json_extract json_type json_valid julianday lag last_value lead length like lower ltrim max min "
    "nth_value ntile nullif percent_rank rank replace round row_number rtrim strftime substr substring sum "
    "time total trim typeof unicode unixepoch unpacked upper -> ->>".split()
)
_ACTIONS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE})
_ONE_SELECT = (
    f"Only one SELECT is possible, over messages({MESSAGES_COLUMNS}) and cuts({CUTS_COLUMNS}) of this chat, with "
    "common functions. Nothing can be changed."
)


class Rows(NamedTuple):
    """What a statement gave: column names, rows, and whether there are more rows."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    is_cut: bool


class StatementRefused(Exception):
    """A statement can't be run; the text says to a model why, and what can be."""


def run_statement(path: Path, statement: str, seconds: float = STATEMENT_SECONDS) -> Rows:
    """Run one statement over a chat's store.

    Raises:
        StatementRefused: it is no such statement, fails or takes too long.
        sqlite3.Error: the store can't be read.
    """
    if len(statement) > _LONGEST_STATEMENT:
        raise StatementRefused(f"The statement is longer than {_LONGEST_STATEMENT:,} characters.")
    with reading_store(path) as connection:
        _fence(connection)
        deadline = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        try:
            cursor = connection.execute(statement)
            rows = cursor.fetchmany(MOST_ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            if isinstance(error, sqlite3.Error) and is_damage(error):
                raise
            raise StatementRefused(_told_error(error, seconds)) from None
        if cursor.description is None:
            raise StatementRefused(_ONE_SELECT)
        columns = tuple(str(column[0]) for column in cursor.description)
        cursor.close()
    return Rows(columns, rows[:MOST_ROWS], len(rows) > MOST_ROWS)


def _fence(connection: sqlite3.Connection) -> None:
    """Leave nothing but reading the tables that are ours."""
    connection.execute("PRAGMA temp_store = FILE")  # so that what is sorted fills no memory
    connection.execute("PRAGMA query_only = OFF")  # for the views alone, which are of this connection
    connection.create_function("unpacked", 1, _shown_text, deterministic=True)
    for statement in (_MESSAGES_VIEW, _CUTS_VIEW):
        connection.execute(statement)
    connection.execute("PRAGMA query_only = ON")
    for count in (2, 3):
        connection.create_function("like", count, _like, deterministic=True)
    connection.create_function("instr", 2, _instr, deterministic=True)
    connection.create_function("replace", 3, _replace, deterministic=True)
    for name, sides in (("trim", "lr"), ("ltrim", "l"), ("rtrim", "r")):
        connection.create_function(name, 2, functools.partial(_trimmed, sides), deterministic=True)
    for limit, value in (
        (sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 4 * _LONGEST_STATEMENT),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 100),
        (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 20),
        (sqlite3.SQLITE_LIMIT_VDBE_OP, 50_000),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        connection.setlimit(limit, value)
    connection.set_authorizer(_verdict)


def _verdict(action: int, first: str | None, second: str | None, *_where: str | None) -> int:
    """Say whether a step of a statement is allowed: SQLite asks before it runs."""
    if (
        action == sqlite3.SQLITE_READ
    ):  # a table of the statement's own is asked about only if no column is read
        allowed = first in _READABLE or (second == "" and not _INTERNAL.fullmatch(str(first)))
    elif action == sqlite3.SQLITE_FUNCTION:
        allowed = str(second).lower() in _CALLABLE
    else:
        allowed = action in _ACTIONS
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _told_error(error: Exception, seconds: float) -> str:
    name = str(getattr(error, "sqlite_errorname", ""))
    if name == "SQLITE_INTERRUPT":
        return f"The statement took longer than {seconds:g} seconds and was stopped. Ask for less."
    text = str(error)
    if name == "SQLITE_AUTH" or "prohibited" in text or "not authorized" in text or "one statement" in text:
        return _ONE_SELECT
    return (
        f"SQLite refuses it: {text[:300]}. There are messages({MESSAGES_COLUMNS}) and cuts({CUTS_COLUMNS})."
    )


def _shown_text(data: bytes) -> str:
    start = zlib.decompressobj().decompress(data, 4 * _SHOWN_TEXT)
    return start.decode("utf-8", "ignore")[:_SHOWN_TEXT]


def _trimmed(sides: str, text: Any, signs: Any) -> str | None:
    """Trim with a set of signs, since Python's own way looks through all of them for each sign of the text."""
    if text is None or signs is None:
        return None
    whole, trimmed = str(text), frozenset(str(signs))
    start, end = 0, len(whole)
    while "l" in sides and start < end and whole[start] in trimmed:
        start += 1
    while "r" in sides and start < end and whole[end - 1] in trimmed:
        end -= 1
    return whole[start:end]


def _instr(text: Any, part: Any) -> int | None:
    return None if text is None or part is None else str(text).find(str(part)) + 1


def _replace(text: Any, old: Any, new: Any) -> str | None:
    if text is None or old is None or new is None:
        return None
    whole, part, other = str(text), str(old), str(new)
    if not part:
        return whole
    if len(whole) + whole.count(part) * (len(other) - len(part)) > _LONGEST_VALUE:
        raise ValueError("too long")
    return whole.replace(part, other)


class _Piece(NamedTuple):
    """What stands between two percent signs of a pattern; it fits texts of one length."""

    fits: re.Pattern[str]
    length: int


def _like(pattern: Any, text: Any, escape: Any = None) -> int | None:
    """Do what LIKE does, in any script and in a time that grows with the text alone."""
    if pattern is None or text is None:
        return None
    whole = str(text).lower()
    if len(whole) > 2 * _SHOWN_TEXT or len(str(pattern)) > _LONGEST_PATTERN:
        raise ValueError("too long")
    first, *others = _pieces_of(str(pattern).lower(), str(escape or "").lower())
    if not others:
        return int(first.fits.fullmatch(whole) is not None)
    if not (found := first.fits.match(whole)):
        return 0
    at = found.end()
    for piece in others[:-1]:
        if not (found := piece.fits.search(whole, at)):
            return 0
        at = found.end()
    start = len(whole) - others[-1].length
    return int(start >= at and others[-1].fits.match(whole, start) is not None)


@functools.lru_cache(64)
def _pieces_of(pattern: str, escape: str) -> Sequence[_Piece]:
    """Cut a pattern at its percent signs."""
    pieces: list[list[str]] = [[]]
    signs = iter(pattern)
    for sign in signs:
        if escape and sign == escape:
            pieces[-1].append(re.escape(next(signs, sign)))
        elif sign == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if sign == "_" else re.escape(sign))
    return [_Piece(re.compile("".join(piece), re.DOTALL), len(piece)) for piece in pieces]
