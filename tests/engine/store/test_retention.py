"""Stores that nobody uses are deleted."""

import os
import time

from eunoe.store.chats import ChatStore
from eunoe.store.places import ChatKey, bytes_of, last_used
from eunoe.store.retention import DAY_SECONDS, store_bytes, sweep

from .chatting import KEY, planned, stored, talk, user

NOW = 1_800_000_000.0
CHAT = [*talk(12), user("And now?")]


def aged(folder, days):
    """A store that was last written to so many days ago."""
    key = ChatKey("ada", f"idle for {days}")
    path = stored(folder, CHAT, key=key).file_of(key)
    broken = path.with_name(f"{path.name}.broken")
    broken.write_text("set aside")
    for file in (path, broken):
        os.utime(file, (NOW - days * DAY_SECONDS,) * 2)
    return path


def test_stores_are_deleted_after_so_many_idle_days(tmp_path):
    old, young = aged(tmp_path, 31), aged(tmp_path, 29)
    assert sweep(tmp_path / "store", 30, NOW) == 1
    assert not list(old.parent.glob(f"{old.name}*"))
    assert len(list(young.parent.glob(f"{young.name}*"))) == 2


def test_nothing_is_deleted_twice_a_day_by_whichever_process(tmp_path):
    assert sweep(tmp_path / "store", 30, NOW) == 0
    old = aged(tmp_path, 31)
    assert sweep(tmp_path / "store", 30, NOW) == 1
    old = aged(tmp_path, 32)
    assert sweep(tmp_path / "store", 30, NOW + DAY_SECONDS / 2) == 0
    assert old.exists()
    assert sweep(tmp_path / "store", 30, NOW + DAY_SECONDS + 1) == 1


def test_no_days_keep_all(tmp_path):
    old = aged(tmp_path, 4_000)
    assert sweep(tmp_path / "store", 0, NOW) == 0
    assert old.exists()


def test_a_store_is_swept_behind_a_request_at_most_once_a_day(tmp_path):
    old, clock = aged(tmp_path, 31), [NOW]
    store = ChatStore(tmp_path / "store", ttl_days=30, clock=lambda: clock[0])
    plan = planned(talk(2), 100_000)
    store.record(KEY, plan)
    assert store.wait()
    assert not old.exists()
    old = aged(tmp_path, 31)
    clock[0] += DAY_SECONDS - 1
    store.record(KEY, plan)
    assert store.wait()
    assert old.exists()
    clock[0] += 2
    store.record(KEY, plan)
    assert store.wait()
    assert not old.exists()


def test_a_chat_that_goes_on_is_used_even_if_nothing_is_new(tmp_path):
    store = stored(tmp_path, CHAT)
    path = store.file_of(KEY)
    os.utime(path, (time.time() - 40 * DAY_SECONDS,) * 2)
    before = last_used(path)
    store.record(KEY, planned(CHAT), "run", "gpt-4o")
    assert store.wait(KEY)
    assert last_used(path) > before


def test_sizes_add_up(tmp_path):
    one, two = aged(tmp_path, 1), aged(tmp_path, 2)
    assert store_bytes(tmp_path / "store") == bytes_of(one) + bytes_of(two)
    assert bytes_of(one) == sum(file.stat().st_size for file in one.parent.glob(f"{one.name}*"))
