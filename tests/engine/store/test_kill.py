"""A process may be killed at any moment."""

import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

from eunoe.store.chats import ChatStore

from .chatting import KEY, ask, planned, talk, user

ROUNDS = 24
WRITER = """
import sys
from pathlib import Path
from eunoe.store.chats import ChatStore
from tests.engine.store.chatting import KEY, planned, talk, user

store = ChatStore(Path(sys.argv[1]))
for number in range(int(sys.argv[2]), 10_000_000):
    chat = [*talk(14, padding=8), *(user(f"Question {number} {part} " + "word " * 700) for part in range(12))]
    store.record(KEY, planned(chat, 300), f"run-{number}", "gpt-4o")
    store.wait(KEY)
    print(number, flush=True)
"""


def test_a_killed_process_never_leaves_a_store_that_can_not_be_opened(tmp_path):
    chance, last = random.Random(4), 0
    for _ in range(ROUNDS):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(last + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            last = int(process.stdout.readline())  # it writes by now
            time.sleep(chance.uniform(0, 0.12))
            process.send_signal(signal.SIGKILL)
            last = max([last, *map(int, process.stdout.read().split())])
        assert process.returncode == -signal.SIGKILL
        store = ChatStore(tmp_path)
        assert "mill" in ask(store, "context_search", query="mill")
        with closing(sqlite3.connect(store.file_of(KEY))) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            orphans = "SELECT count(*) FROM passage WHERE block NOT IN (SELECT row FROM block)"
            assert connection.execute(orphans).fetchone() == (0,)
            told = connection.execute("SELECT count(*) FROM block WHERE text LIKE ?", (f"Question {last} %",))
            assert told.fetchone() == (12,), "what was said to be stored is not"
            connection.execute("INSERT INTO word (word) VALUES ('integrity-check')")
        store.record(KEY, planned([*talk(14, padding=8), user("And on it goes.")], 300), "after", "gpt-4o")
        assert store.wait(KEY, 30)
        assert store.lost == 0
    assert not [file for file in tmp_path.iterdir() if file.suffix in {".broken", ".newer"}]
