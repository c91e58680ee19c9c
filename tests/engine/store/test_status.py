"""What is stored, said without a host."""

import json
import os
import subprocess
import sys

from eunoe.store.chats import ChatStore
from eunoe.store.places import ChatKey
from eunoe.store.status import status_of

from .chatting import KEY, answer, call, planned, result, stored, talk, user

CHAT = [
    user("Read it"),
    call("read_log", "{}"),
    result("secret words\n" * 900),
    answer("Read."),
    *talk(12),
    user("So?"),
]


def run(*arguments, **environment):
    """Run the command as an administrator does."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "eunoe", "status", *map(str, arguments)],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def filled(folder):
    """A store of two chats, a cut in each, and two failures."""
    store = stored(folder, CHAT)
    store.record(ChatKey("bob", "chat-2"), planned([*talk(20), user("So?")]), "run-2", "gpt-4o")
    store.note_failure(KEY, "run-3", "request: PlanBroken")
    store.note_failure(ChatKey("eve", "chat-3"), "run-4", "inlet: BadMessages")
    assert store.wait()
    return store


def test_numbers_of_what_is_stored(tmp_path):
    store = filled(tmp_path)
    status = status_of(store.folder)
    chats = {chat.chat: chat for chat in status.chats}
    assert {name: (c.user, c.messages, c.rows, c.cuts, c.failures) for name, c in chats.items()} == {
        "chat-1": ("ada", 29, 29, 1, 1),
        "chat-2": ("bob", 41, 41, 1, 0),
        "": ("", 0, 0, 0, 1),
    }
    for chat in (chats["chat-1"], chats["chat-2"]):
        assert chat.rows_in_context + chat.rows_not_in_context == chat.rows
        assert chat.rows_elsewhere == 0
        assert sum(chat.fates.values()) == chat.messages
        assert chat.last_cut.tokens_before > 600 >= chat.last_cut.tokens_after
    assert status.bytes == sum(file.stat().st_size for file in store.folder.glob("*.sqlite*"))


def test_the_command_says_it_in_words_and_never_shows_a_text(tmp_path):
    store = filled(tmp_path)
    done = run("--folder", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{store.folder}: 2 chats, ")
    assert "stored      70 messages in 70 rows: " in done.stdout
    assert "cut         2 times; " in done.stdout
    assert "failed      2 times\n    just now: " in done.stdout
    assert "request: PlanBroken" in done.stdout
    assert "chat-1: used just now" in done.stdout
    assert "mill" not in done.stdout + run("--folder", tmp_path, "--json").stdout
    assert "secret" not in done.stdout + run("--folder", tmp_path, "--json").stdout


def test_the_command_says_it_as_json(tmp_path):
    store = filled(tmp_path)
    told = json.loads(run("--folder", store.folder, "--json").stdout)
    assert told["folder"] == str(store.folder)
    assert {chat["chat"] for chat in told["chats"]} == {"chat-1", "chat-2", ""}
    assert told["unusable"] == []


def test_files_that_can_not_be_read_are_named(tmp_path):
    store = filled(tmp_path)
    path = store.file_of(KEY)
    path.write_text("this is no database\n" * 400)
    path.with_name(f"{path.name}.broken").write_text("set aside before")
    done = run("--folder", tmp_path)
    assert done.returncode == 0
    assert f"unusable    {path.name}, {path.name}.broken" in done.stdout
    assert "1 chat, " in done.stdout


def test_the_folder_is_found_as_the_host_finds_it(tmp_path):
    filled(tmp_path / "eunoe")
    assert run(DATA_DIR=str(tmp_path)).stdout.startswith(f"{tmp_path}/eunoe/store: 2 chats")
    assert run(EUNOE_STORE_PATH=str(tmp_path / "eunoe" / "x.db")).stdout.startswith(
        f"{tmp_path}/eunoe/store: 2"
    )


def test_where_there_is_no_store_it_says_so(tmp_path):
    for done, told in (
        (run("--folder", tmp_path / "nowhere"), f"there is no store at {tmp_path / 'nowhere'} (No such file"),
        (run(DATA_DIR=str(tmp_path)), f"there is no store at {tmp_path}/eunoe/store (No such file"),
        (
            run(),
            "there is no folder for Eunoe's own files. Say where with --folder, EUNOE_STORE_PATH or DATA_DIR.",
        ),
        (run(EUNOE_MAX_TOKENS="many", DATA_DIR="/x"), "valid integer"),
    ):
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("eunoe status: ")
        assert told in done.stderr
        assert "Traceback" not in done.stderr


def test_an_empty_store_is_no_error(tmp_path):
    (tmp_path / "store").mkdir()
    assert run("--folder", tmp_path).stdout.startswith(f"{tmp_path}/store: 0 chats, 0 B")


def test_status_is_told_while_somebody_writes(tmp_path):
    store = ChatStore(tmp_path / "store")
    for number in range(30):
        store.record(
            ChatKey("ada", f"chat-{number}"), planned([*talk(12), user(f"{number}?")]), "run", "gpt-4o"
        )
    assert run("--folder", tmp_path).returncode == 0
    assert store.wait(seconds=30)
    assert store.lost == 0
