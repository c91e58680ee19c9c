"""The thread behind the requests."""

import gc
import sqlite3
import threading
import time
import weakref

from eunoe.store.chats import ChatStore
from eunoe.store.writer import StoreWriter

from .chatting import KEY, planned, stored, talk, user


def test_work_is_done_in_order(tmp_path):
    writer, done = StoreWriter("store"), []
    for number in range(50):
        assert writer.submit(tmp_path, lambda number=number: done.append(number))
    assert writer.wait()
    assert done == list(range(50))


def test_a_request_does_not_wait_for_the_disk(tmp_path):
    writer, free = StoreWriter("store"), threading.Event()
    started = time.monotonic()
    writer.submit(tmp_path / "a", free.wait)
    writer.submit(tmp_path / "b", lambda: None)
    assert time.monotonic() - started < 0.1
    assert not writer.wait(tmp_path / "b", 0.05)
    assert writer.wait(tmp_path / "c", 0)
    free.set()
    assert writer.wait(tmp_path / "b", 5)


def test_what_is_too_much_is_given_up_counted_and_said_once(tmp_path, caplog):
    writer, free = StoreWriter("store", limit=3), threading.Event()
    writer.submit(tmp_path, free.wait)
    while writer._waiting:
        time.sleep(0.001)
    taken = [writer.submit(tmp_path, lambda: None) for _ in range(6)]
    assert taken == [True] * 3 + [False] * 3
    assert writer.lost == 3
    free.set()
    assert writer.wait()
    assert [line for line in caplog.messages if "too slow" in line] == [
        "eunoe: the store is too slow; what it can't keep up with is not stored"
    ]


def test_failures_are_counted_said_once_and_stop_nothing(tmp_path, caplog):
    writer, done = StoreWriter("store /x"), []

    def fail(error):
        raise error

    for error in (
        sqlite3.OperationalError("secret"),
        OSError(28, "No space left on device"),
        KeyError("secret"),
    ):
        writer.submit(tmp_path, lambda error=error: fail(error))
    writer.submit(tmp_path, lambda: done.append(1))
    assert writer.wait()
    assert (writer.lost, done) == (3, [1])
    assert "secret" not in caplog.text
    assert len([line for line in caplog.messages if "can't be used" in line]) == 1


def test_a_folder_that_can_not_be_made_costs_no_answer(tmp_path, caplog):
    (tmp_path / "store").write_text("a file stands where the folder should be")
    store = ChatStore(tmp_path / "store")
    for _ in range(3):
        store.record(KEY, planned([*talk(12), user("And now?")]), "run", "gpt-4o")
    assert store.wait(KEY)
    assert store.lost >= 3
    assert len([line for line in caplog.messages if "can't be used" in line]) == 1


def test_a_writer_that_nobody_needs_leaves_no_thread(tmp_path):
    writer = StoreWriter("store")
    writer.submit(tmp_path, lambda: None)
    assert writer.wait()
    thread, gone = writer._thread, weakref.ref(writer)
    del writer
    gc.collect()
    assert gone() is None
    thread.join(5)
    assert not thread.is_alive()


def test_a_deleted_chat_is_gone_with_all_its_files(tmp_path):
    store = stored(tmp_path, [*talk(12), user("And now?")])
    path = store.file_of(KEY)
    path.with_name(f"{path.name}.broken").write_text("set aside before")
    store.delete_chat(KEY)
    assert store.wait()
    assert list(store.folder.glob(f"{path.name}*")) == []
    store.delete_chat(KEY)
    assert store.wait()
    assert store.lost == 0
