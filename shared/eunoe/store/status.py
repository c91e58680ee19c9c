"""What is stored, in numbers: read from the files alone, whether or not the host runs. No text of a message is read."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .places import bytes_of, files_of, last_used, stores_in
from .retention import store_bytes
from .schema import reading_store

_COUNTS = (
    "SELECT count(DISTINCT message), count(*), total(in_history AND in_context), "
    "total(in_history AND NOT in_context), total(NOT in_history) FROM block"
)
_FATES = "SELECT fate, count(DISTINCT message) FROM block WHERE in_history GROUP BY fate"
_EVENTS = "SELECT kind, count(*) FROM event GROUP BY kind"
_LAST_CUT = "SELECT time, tokens_before, tokens_after, reason FROM event WHERE kind = 'trim' ORDER BY row DESC LIMIT 1"
_FAILURES = "SELECT time, reason FROM event WHERE kind = 'failure' ORDER BY row DESC LIMIT 10"


@dataclass(frozen=True, slots=True)
class CutSeen:
    """The newest cut of a chat: when, how long the prompt was before and after, and why."""

    at: float
    tokens_before: int
    tokens_after: int
    reason: str


@dataclass(frozen=True, slots=True)
class FailureSeen:
    """Something that failed: when, and what."""

    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class ChatStatus:
    """What is stored of one chat. Rows are blocks: texts, calls, results, attachments.

    `rows_elsewhere` are of other branches of the chat. `fates` counts messages by what became of them in the
    newest request.
    """

    file: str
    user: str
    chat: str
    last_used: float
    bytes: int
    messages: int
    rows: int
    rows_in_context: int
    rows_not_in_context: int
    rows_elsewhere: int
    fates: Mapping[str, int]
    cuts: int
    failures: int
    last_cut: CutSeen | None = None
    last_failures: tuple[FailureSeen, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """What is stored below one folder, the chat used last first; `unusable` are files that can't be read."""

    folder: str
    bytes: int
    chats: tuple[ChatStatus, ...]
    unusable: tuple[str, ...] = field(default=())

    def total(self, name: str) -> int:
        """Add a number up over all chats."""
        return sum(int(getattr(chat, name)) for chat in self.chats)

    def messages_with(self, fate: str) -> int:
        """Count the messages that have a fate, over all chats."""
        return sum(chat.fates.get(fate, 0) for chat in self.chats)


def status_of(folder: Path) -> StoreStatus:
    """Read what is stored below a folder.

    Raises:
        OSError: there is no such folder, or it can't be read.
    """
    chats, unusable = list[ChatStatus](), list[str]()
    for path in [*stores_in(folder)] or [*_known_folder(folder)]:
        try:
            chats.append(chat_status(path))
        except (sqlite3.Error, ValueError, TypeError):
            unusable.append(path.name)
        unusable += [file.name for file in files_of(path) if file.suffix in {".broken", ".newer"}]
    chats.sort(key=lambda chat: -chat.last_used)
    return StoreStatus(str(folder), store_bytes(folder), tuple(chats), tuple(unusable))


def chat_status(path: Path) -> ChatStatus:
    """Read what is stored of one chat.

    Raises:
        sqlite3.Error: the file can't be read.
    """
    used, size = last_used(path), bytes_of(path)
    with reading_store(path) as connection:
        about = dict(connection.execute("SELECT name, value FROM about"))
        messages, *rows = map(int, connection.execute(_COUNTS).fetchone())
        fates = dict(connection.execute(_FATES))
        events = dict(connection.execute(_EVENTS))
        last_cut = connection.execute(_LAST_CUT).fetchone()
        failures = tuple(FailureSeen(*row) for row in connection.execute(_FAILURES))
    return ChatStatus(
        file=path.name,
        user=about.get("scope", ""),
        chat=about.get("chat", ""),
        last_used=used,
        bytes=size,
        messages=messages,
        rows=rows[0],
        rows_in_context=rows[1],
        rows_not_in_context=rows[2],
        rows_elsewhere=rows[3],
        fates=fates,
        cuts=events.get("trim", 0),
        failures=events.get("failure", 0),
        last_cut=CutSeen(*last_cut) if last_cut else None,
        last_failures=failures,
    )


def _known_folder(folder: Path) -> list[Path]:
    """Give nothing for a folder without stores.

    Raises:
        OSError: there is no such folder.
    """
    with contextlib.closing(iter(folder.iterdir())) as names:
        next(names, None)
    return []
