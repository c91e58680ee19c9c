"""A file that can't be used never stops a chat."""

import sqlite3
from contextlib import closing

import pytest

from eunoe.store.schema import STORE_VERSION, StoreUnusable, change_store, reading_store

from .chatting import KEY, ask, planned, stored, talk, user

CHAT = [*talk(12, secret="The code is XK-4711."), user("And now?")]


def spoil(path, how):
    data = path.read_bytes()
    match how:
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("this is no database\n" * 400)
        case "half":
            path.write_bytes(data[: len(data) // 2])
        case "middle":
            path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
        case "newer":
            with closing(sqlite3.connect(path)) as connection:
                connection.execute(f"PRAGMA user_version = {STORE_VERSION + 1}")


@pytest.mark.parametrize("how", ["empty", "text", "half", "middle", "newer"])
def test_a_spoilt_file_is_set_aside_and_the_chat_stored_anew(tmp_path, how, caplog):
    store = stored(tmp_path, CHAT)
    path = store.file_of(KEY)
    assert "XK-4711" in ask(store, "context_search", query="the code")
    spoil(path, how)
    store.record(KEY, planned(CHAT), "run-2", "gpt-4o")
    assert store.wait(KEY)
    assert store.lost == 0
    assert "XK-4711" in ask(store, "context_search", query="the code")
    aside = [file.name for file in store.folder.iterdir() if file.name.startswith(f"{path.name}.")]
    assert aside == {"empty": [], "newer": [f"{path.name}.newer"]}.get(how, [f"{path.name}.broken"])
    assert len([line for line in caplog.messages if "it is now" in line]) == len(aside)


@pytest.mark.parametrize("how", ["empty", "text", "half", "middle", "newer"])
def test_tools_say_that_a_spoilt_file_can_not_be_read(tmp_path, how):
    store = stored(tmp_path, CHAT)
    spoil(store.file_of(KEY), how)
    for name, arguments in (
        ("context_search", {"query": "the code"}),
        ("context_get", {"id": "3"}),
        ("context_sql", {"statement": "SELECT text FROM messages"}),
    ):
        assert "can't be read" in ask(store, name, **arguments)


def test_a_file_of_a_newer_version_is_not_read(tmp_path):
    path = tmp_path / "x.sqlite"
    change_store(path, lambda connection: None)
    spoil(path, "newer")
    with pytest.raises(StoreUnusable), reading_store(path):
        pass


def test_a_change_that_fails_changes_nothing(tmp_path):
    path = tmp_path / "x.sqlite"
    change_store(path, lambda connection: None)
    with pytest.raises(sqlite3.OperationalError):
        change_store(path, lambda connection: connection.execute("INSERT INTO nowhere VALUES (1)"))
    with reading_store(path) as connection:
        assert connection.execute("SELECT count(*) FROM block").fetchone() == (0,)
    assert [file.name for file in tmp_path.iterdir()] == ["x.sqlite"]
