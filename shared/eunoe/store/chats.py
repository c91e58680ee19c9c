"""The store of all chats below one folder: what is written behind the requests, and what models ask of it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..plan import Plan
from ..ports import Embedder
from .ledger import note_event, write_record
from .meanings import learn_meanings
from .places import FAILURES, ChatKey, file_of, remove_store
from .record import record_of
from .retention import DAY_SECONDS, sweep
from .schema import change_store, transaction
from .writer import StoreWriter


class ChatStore:
    """Keeps what models no longer see of their chats, one file for each chat.

    A chat is stored from the first time on that something of it is left out, then with all that was said
    before. Nothing here waits for the disk or raises because of it. Threads and event loops may share a
    store, and processes a folder.
    """

    def __init__(self, folder: Path, *, ttl_days: float = 30, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._ttl_days, self._clock = ttl_days, clock
        self._writer = StoreWriter(f"store {folder}")
        self._sweep_at = 0.0

    @property
    def lost(self) -> int:
        """Count the writes that were given up or failed."""
        return self._writer.lost

    def file_of(self, key: ChatKey) -> Path:
        """Say where a chat is stored."""
        return file_of(self.folder, key)

    def record(
        self, key: ChatKey, plan: Plan, run: str = "", model: str = "", *, from_start: bool = False
    ) -> None:
        """Take a plan to be stored; `from_start` stores a chat before anything of it is left out."""
        self.tend()
        path = self.file_of(key)
        if from_start or plan.is_trimmed or path.exists():
            self._writer.submit(path, partial(self._write, path, key, plan, run, model))

    def note_failure(self, key: ChatKey, run: str, reason: str) -> None:
        """Take note that a request failed; `reason` holds no text of a message."""
        path = self.file_of(key)

        def note(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                note_event(connection, "failure", run, self._clock(), reason)

        def write() -> None:
            change_store(path if path.exists() else self.folder / FAILURES, note)

        self._writer.submit(path, write)

    def delete_chat(self, key: ChatKey) -> None:
        """Delete what is stored of a chat."""
        path = self.file_of(key)
        self._writer.submit(path, lambda: remove_store(path))

    def tend(self) -> None:
        """Delete what nobody has used for long, if it was not done today."""
        now = self._clock()
        if now >= self._sweep_at:
            self._sweep_at = now + DAY_SECONDS
            self._writer.submit(self.folder, lambda: sweep(self.folder, self._ttl_days, now))

    def wait(self, key: ChatKey | None = None, seconds: float = 5.0) -> bool:
        """Wait until all that was taken of a chat, or of any, is stored; says whether that came in time."""
        return self._writer.wait(None if key is None else self.file_of(key), seconds)

    async def learn(self, key: ChatKey, embedder: Embedder) -> int:
        """Make vectors of what the model no longer sees; gives how many.

        Raises:
            ModelFailed: the embedding model gave none.
            sqlite3.Error: the store can't be read or written to.
        """
        await asyncio.to_thread(self.wait, key)
        return await learn_meanings(self.file_of(key), embedder)

    def _write(self, path: Path, key: ChatKey, plan: Plan, run: str, model: str) -> None:
        record = record_of(plan, run, model)
        change_store(path, lambda connection: write_record(connection, key, record, self._clock()))
