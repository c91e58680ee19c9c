"""Caches in memory and in a file: they give back what was kept, stay within bounds and never fail a chat."""

import asyncio
import logging
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eunoe.cache import InMemoryCache, SqliteCache, cache_key

from .strategies import SPECIAL

ROOT = Path(__file__).resolve().parents[2]
LOOP = asyncio.Runner()  # one loop for all examples: a thread pool for each would take most of the time
ODD_TEXTS = [*SPECIAL, "", "line\nline", "数据库 迁移", "x" * 1_000_000]


class Time:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Time()


@pytest.fixture(params=["memory", "sqlite"])
def cache(request, tmp_path, clock):
    if request.param == "memory":
        yield InMemoryCache(clock=clock)
        return
    cache = SqliteCache(tmp_path / "cache.db", clock=clock)
    yield cache
    LOOP.run(cache.close())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "eunoe" / "cache.db"


@pytest.fixture
def constants(monkeypatch):
    """Set the module's constants, in the package as in the single file."""

    def set_constants(**values):
        for name, value in values.items():
            assert name in SqliteCache.get.__globals__
            monkeypatch.setitem(SqliteCache.get.__globals__, name, value)

    return set_constants


@pytest.fixture
def log(caplog):
    """The engine's lines, with their levels."""
    caplog.set_level(logging.INFO, logger="eunoe")
    return lambda: [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "eunoe"]


def get(cache, key):
    return LOOP.run(cache.get(key))


def put(cache, key, value, ttl=None):
    LOOP.run(cache.set(key, value, ttl))


def took(action):
    start = time.monotonic()
    action()
    return time.monotonic() - start


# Every cache


def test_what_is_kept_is_found_until_it_is_deleted(cache):
    assert get(cache, "a") is None
    put(cache, "a", "one")
    put(cache, "b", "two")
    put(cache, "a", "three")
    assert (get(cache, "a"), get(cache, "b")) == ("three", "two")
    assert LOOP.run(cache.exists("a"))
    LOOP.run(cache.delete("a"))
    LOOP.run(cache.delete("never there"))
    assert (get(cache, "a"), get(cache, "b")) == (None, "two")
    assert not LOOP.run(cache.exists("a"))


def test_a_text_expires_after_its_time_and_not_before(cache, clock):
    put(cache, "short", "text", 60)
    put(cache, "long", "text", 10**30)
    put(cache, "ever", "text")
    clock.now += 59.9
    assert get(cache, "short") == "text"
    clock.now += 0.1
    assert get(cache, "short") is None
    assert not LOOP.run(cache.exists("short"))
    clock.now += 9 * 365 * 86_400
    assert (get(cache, "long"), get(cache, "ever")) == ("text", "text")


@pytest.mark.parametrize("ttl", [0, -1, -(10**30)])
def test_a_text_whose_time_is_over_already_is_not_kept_nor_the_one_before(cache, ttl):
    put(cache, "a", "before")
    put(cache, "a", "after", ttl)
    assert get(cache, "a") is None


@pytest.mark.parametrize("text", ODD_TEXTS, ids=lambda text: ascii(text[:12]))
def test_any_text_comes_back_as_it_was(cache, text):
    put(cache, text, text)
    assert get(cache, text) == text
    assert get(cache, text + "x") is None


def test_an_empty_cache_is_there_all_the_same(cache):
    assert cache, "`if cache:` must not be an answer to whether there is one"


def test_threads_with_loops_of_their_own_may_share_it(cache):
    wrong = []

    async def use(thread):
        for i in range(40):
            key = f"{i % 7} of {thread % 2}"
            await cache.set(key, key * 20)
            if await cache.get(key) != key * 20:
                wrong.append(key)

    threads = [threading.Thread(target=asyncio.run, args=(use(number),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["get", "exists", "delete", "set", "set", "wait"]),
        st.sampled_from("abc"),
        st.text(max_size=5) | st.sampled_from(SPECIAL),
        st.none() | st.integers(-1, 4),
    ),
    max_size=25,
)


async def compare_with_dict(cache, clock, steps):
    """Do the steps with a cache and with a dictionary; after each one they have the same."""
    known = {}
    for name, key, text, number in steps:
        known = {each: kept for each, kept in known.items() if kept[1] > clock.now}
        match name:
            case "get":
                assert await cache.get(key) == known.get(key, (None,))[0]
            case "exists":
                assert await cache.exists(key) is (key in known)
            case "delete":
                await cache.delete(key)
                known.pop(key, None)
            case "set":
                await cache.set(key, text, number)
                known[key] = (text, float("inf") if number is None else clock.now + number)
            case "wait":
                clock.now += 1
    for key in "abc":
        kept = known.get(key, (None, 0))
        assert await cache.get(key) == (kept[0] if kept[1] > clock.now else None)


@given(STEPS)
def test_whatever_is_done_with_the_memory_it_behaves_like_a_dictionary(steps):
    clock = Time()
    LOOP.run(compare_with_dict(InMemoryCache(clock=clock), clock, steps))


def test_whatever_is_done_with_the_file_it_behaves_like_a_dictionary(path):
    clock = Time()
    cache = SqliteCache(path, clock=clock)

    @settings(max_examples=40)
    @given(STEPS)
    def compare(steps):
        for key in "abc":
            LOOP.run(cache.delete(key))
        LOOP.run(compare_with_dict(cache, clock, steps))

    compare()
    LOOP.run(cache.close())


# Memory


def test_the_least_recently_used_texts_go_first():
    cache = InMemoryCache(max_entries=3)
    for key in "abc":
        put(cache, key, key)
    get(cache, "a")
    put(cache, "b", "again")
    LOOP.run(cache.exists("c"))
    put(cache, "d", "d")
    assert [key for key in "abcd" if get(cache, key)] == ["a", "b", "d"]


def test_it_takes_no_more_memory_than_it_may():
    texts = 20_000

    async def fill(cache):
        for i in range(texts):
            await cache.set(cache_key("test", "", str(i)), f"{i} {'long ' * (i % 50)}")

    tracemalloc.start()
    try:
        for limit in (200_000, 1_000_000):
            cache = InMemoryCache(max_entries=10**9, max_bytes=limit)
            before = tracemalloc.get_traced_memory()[0]
            LOOP.run(fill(cache))
            used = tracemalloc.get_traced_memory()[0] - before
            assert 0.5 * limit < used < 1.3 * limit
            assert get(cache, cache_key("test", "", str(texts - 1)))
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("make", [lambda path: InMemoryCache(max_bytes=50_000),
                                  lambda path: SqliteCache(path, max_bytes=50_000)])  # fmt: skip
def test_a_text_larger_than_the_cache_is_not_kept_and_drives_nothing_out(make, path):
    cache = make(path)
    put(cache, "small", "text")
    put(cache, "large", "before")
    put(cache, "large", "x" * 60_000)
    assert (get(cache, "large"), get(cache, "small")) == (None, "text")
    put(cache, "large", "x" * 10_000)
    assert get(cache, "large")


def test_room_is_given_back_with_what_is_deleted_replaced_or_expired(clock):
    cache = InMemoryCache(max_bytes=30_000, clock=clock)
    for i in range(50):
        put(cache, "same", "x" * 10_000)
        put(cache, f"deleted {i}", "x" * 10_000)
        LOOP.run(cache.delete(f"deleted {i}"))
        put(cache, f"expired {i}", "x" * 10_000, 1)
        clock.now += 1
        assert get(cache, f"expired {i}") is None
    assert get(cache, "same")
    assert cache._size < 11_000


# A file


def test_the_file_is_made_when_it_is_needed_and_only_its_owner_may_read_it(path):
    cache = SqliteCache(path)
    assert not path.parent.exists()
    put(cache, "a", "text")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {
        "cache.db": 0o600,
        "cache.db-wal": 0o600,
        "cache.db-shm": 0o600,
    }
    LOOP.run(cache.close())


def test_what_is_kept_outlives_the_process_and_can_be_used_after_closing(path):
    first = SqliteCache(path)
    put(first, "a", "text")
    LOOP.run(first.close())
    second = SqliteCache(str(path))
    assert get(second, "a") == "text"
    assert get(first, "a") == "text"
    LOOP.run(first.close())
    LOOP.run(second.close())


def test_the_file_stays_within_its_bound_and_the_oldest_go_first(path):
    cache = SqliteCache(path, max_bytes=400_000)

    async def fill():
        for i in range(1_500):
            await cache.set(str(i), f"{i} " * 200)

    LOOP.run(fill())
    LOOP.run(cache.close())
    assert path.stat().st_size < 500_000
    found = [i for i in range(1_500) if get(cache, str(i))]
    assert 200 < len(found) < 800
    assert found == [*range(found[0], 1_500)]
    LOOP.run(cache.close())


def rows_in(path):
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT count(*) FROM eunoe_cache").fetchone()[0]
    finally:
        connection.close()


def test_what_has_expired_is_removed_now_and_then(path, clock):
    cache = SqliteCache(path, clock=clock)
    for i in range(20):
        put(cache, str(i), "text", 60)
    put(cache, "ever", "text")
    clock.now += 100
    put(cache, "one more", "text")
    assert rows_in(path) == 22
    clock.now += 300
    put(cache, "and another", "text")
    assert rows_in(path) == 3
    LOOP.run(cache.close())


def test_a_locked_file_costs_one_line_and_misses_until_it_works_again(path, constants, log):
    constants(_BUSY_SECONDS=0.1)
    cache = SqliteCache(path, pause=0.3)
    put(cache, "a", "text")
    LOOP.run(cache.close())
    other = sqlite3.connect(path)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    assert get(cache, "a") is None
    assert took(lambda: [put(cache, "b", "text") or get(cache, "a") for _ in range(100)]) < 0.1
    time.sleep(0.3)
    put(cache, "b", "text")
    assert not LOOP.run(cache.exists("a"))
    [(level, line)] = log()
    assert level == "WARNING"
    assert line == f"eunoe: the cache {path} can't be used (SQLITE_BUSY); chats go on without it"
    other.close()
    time.sleep(0.3)
    put(cache, "b", "text")
    assert (get(cache, "a"), get(cache, "b")) == ("text", "text")
    assert [level for level, _ in log()] == ["WARNING", "INFO"]
    LOOP.run(cache.close())


def test_nobody_waits_for_a_locked_file_but_who_asked(path, constants):
    constants(_BUSY_SECONDS=0.4)
    cache = SqliteCache(path)
    put(cache, "a", "text")
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")

    async def main():
        asked = asyncio.gather(*(cache.set(str(i), "text") for i in range(30)))
        longest = 0.0
        while not asked.done():
            start = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - start)
        return longest

    start = time.monotonic()
    assert LOOP.run(main()) < 0.2
    assert time.monotonic() - start < 1, "the others must not each wait for themselves"
    other.close()
    LOOP.run(cache.close())


@pytest.mark.parametrize("is_in_use", [False, True])
def test_a_corrupt_file_is_set_aside_and_a_new_one_made(path, is_in_use, log):
    cache = SqliteCache(path)
    put(cache, "a", "text")
    if not is_in_use:
        LOOP.run(cache.close())
    for file in path.parent.iterdir():
        with file.open("r+b") as bytes_of:
            bytes_of.write(b"this is no database " * 1_000)
    assert get(cache, "a") is None
    put(cache, "a", "again")
    assert get(cache, "a") == "again"
    assert path.with_name("cache.db.broken").read_bytes().startswith(b"this is no database")
    [(level, line)] = log()
    assert (level, "cache.db.broken" in line) == ("WARNING", True)
    LOOP.run(cache.close())


def test_of_two_workers_that_find_the_file_corrupt_neither_sets_the_new_one_aside(path, log):
    one, two = SqliteCache(path), SqliteCache(path)
    put(one, "a", "text")
    assert get(two, "a") == "text"
    for file in path.parent.iterdir():
        with file.open("r+b") as bytes_of:
            bytes_of.write(b"this is no database " * 1_000)
    put(one, "a", "new")
    assert get(two, "a") == "new"
    put(two, "b", "new")
    assert (get(one, "a"), get(one, "b")) == ("new", "new")
    assert [level for level, _ in log()] == ["WARNING"]
    LOOP.run(one.close())
    LOOP.run(two.close())


def test_a_new_file_that_came_while_the_corrupt_one_was_read_stays(path, log):
    one, two = SqliteCache(path), SqliteCache(path)
    put(one, "a", "text")
    put(two, "a", "text")

    def read(file):
        if path.with_name("cache.db.broken").exists():
            return file.execute("SELECT value FROM eunoe_cache").fetchall()
        for each in path.parent.iterdir():
            with each.open("r+b") as bytes_of:
                bytes_of.write(b"this is no database " * 1_000)
        put(one, "a", "new")
        return file.execute("SELECT value FROM eunoe_cache").fetchall()

    assert two._attempt(read, False) == [(b"new",)]
    assert get(one, "a") == "new"
    assert [level for level, _ in log()] == ["WARNING"]
    LOOP.run(one.close())
    LOOP.run(two.close())


def test_a_file_that_was_deleted_in_use_is_made_again(path, log):
    cache = SqliteCache(path)
    put(cache, "a", "text")
    for file in path.parent.iterdir():
        file.unlink()
    assert get(cache, "a") is None
    put(cache, "a", "again")
    assert rows_in(path) == 1
    assert log() == []
    LOOP.run(cache.close())


@pytest.mark.parametrize("place", ["a folder", "below a file", "nul", "the system's"])
def test_where_no_file_can_be_there_is_one_line_and_no_cache(tmp_path, place, log):
    (tmp_path / "file").touch()
    path = {"a folder": tmp_path, "below a file": tmp_path / "file" / "cache.db", "nul": tmp_path / "a\0b",
            "the system's": Path("/proc/self/eunoe/cache.db")}[place]  # fmt: skip
    cache = SqliteCache(path, pause=0)
    for _ in range(3):
        put(cache, "a", "text")
        assert get(cache, "a") is None
        assert not LOOP.run(cache.exists("a"))
        LOOP.run(cache.delete("a"))
    assert [level for level, _ in log()] == ["WARNING"]


# Several processes

HEAD = """
import asyncio, logging, os, resource, signal, sys, time, warnings
import tests.engine.conftest
from eunoe.cache import SqliteCache, cache_key
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
path = sys.argv[1]
LOOP = asyncio.Runner()
run = LOOP.run
"""


def python(script, *arguments):
    """Start a program that has a cache's path and a loop at hand."""
    code = HEAD + textwrap.dedent(script)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def output_of(process):
    try:
        text, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
    assert process.returncode == 0, text
    return text


def test_two_workers_share_a_file_and_begin_it_at_the_same_time(path):
    script = """
    me, other = sys.argv[2:]
    cache = SqliteCache(path)
    print("ready", flush=True)
    while not os.path.exists(path + ".go"):
        time.sleep(0.001)
    async def main():
        for i in range(150):
            await cache.set(f"{me} {i}", me * 500)
        deadline = time.monotonic() + 20
        for i in range(150):
            while await cache.get(f"{other} {i}") != other * 500:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
    run(main())
    """
    path.parent.mkdir()
    workers = [python(script, path, me, other) for me, other in ("ab", "ba")]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    path.with_name("cache.db.go").touch()
    assert [output_of(worker) for worker in workers] == ["", ""]
    assert rows_in(path) == 300


def test_a_forked_process_shares_the_file_with_its_parent(path):
    script = """
    warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads; this is one
    cache = SqliteCache(path)
    run(cache.set("before", "text"))
    children = []
    for number in range(4):
        if (child := os.fork()) == 0:
            run = asyncio.Runner().run  # the threads of the parent's loop stayed behind
            for i in range(50):
                run(cache.set(f"{number} {i}", "text"))
            os._exit(0 if run(cache.get("before")) == "text" else 1)
        children.append(child)
        for i in range(50):
            run(cache.set(f"parent {number} {i}", "text"))
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    for name in (*range(4), *(f"parent {n}" for n in range(4))):
        assert all(run(cache.get(f"{name} {i}")) == "text" for i in range(50))
    run(cache.close())
    """
    assert output_of(python(script, path)) == ""
    assert rows_in(path) == 401


def test_what_a_forked_process_writes_when_its_parent_has_let_go_is_not_lost(path):
    """SQLite's locks don't outlive a fork: the parent would take the log away, not knowing of the child."""
    script = """
    warnings.simplefilter("ignore")
    cache = SqliteCache(path)
    run(cache.set("before", "text"))
    waits, goes_on = os.pipe()
    if (child := os.fork()) == 0:
        run = asyncio.Runner().run
        run(cache.get("before"))
        os.read(waits, 1)
        run(cache.set("child", "text"))
        os._exit(0)
    run(cache.set("parent", "text"))
    run(cache.close())
    os.write(goes_on, b"x")
    os.waitpid(child, 0)
    print([run(cache.get(key)) for key in ("before", "parent", "child")])
    run(cache.close())
    """
    assert output_of(python(script, path)) == "['text', 'text', 'text']\n"


def test_a_writer_that_is_killed_at_any_moment_leaves_a_good_file(path):
    script = """
    def write():
        cache = SqliteCache(path, max_bytes=300_000)
        async def main():
            for i in range(10**9):
                await cache.set(f"{i % 300}", f"{i % 300} " * 300)
                if i == 20:
                    os.write(begun, b"x")
        run(main())

    for attempt in range(10):
        ready, begun = os.pipe()
        writer = os.fork()
        if not writer:
            write()
        assert os.read(ready, 1) == b"x"
        time.sleep(0.003 * attempt)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        checker = os.fork()
        if not checker:
            cache = SqliteCache(path)
            found = [(i, run(cache.get(f"{i}"))) for i in range(300)]
            run(cache.set("new", "text"))
            good = all(text in (None, f"{i} " * 300) for i, text in found) and run(cache.get("new"))
            os._exit(0 if good and sum(text is not None for _, text in found) >= 20 else 1)
        assert os.waitpid(checker, 0)[1] == 0
    """
    assert output_of(python(script, path)) == ""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    assert not path.with_name("cache.db.broken").exists()


def test_a_full_disk_costs_one_line_and_what_is_there_can_still_be_read(path):
    script = """
    cache = SqliteCache(path, pause=0)
    run(cache.set("a", "text"))
    run(cache.close())
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for i in range(5):
        run(cache.set("b", "x" * 200_000))
        assert run(cache.get("a")) == "text"
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    run(cache.set("b", "small"))
    assert run(cache.get("b")) == "small"
    """
    first, second = output_of(python(script, path)).splitlines()
    assert first.startswith(f"WARNING eunoe: the cache {path} can't be used (SQLITE_")
    assert second == f"INFO eunoe: the cache {path} works again"


def test_a_file_that_may_only_be_read_costs_one_line_and_can_be_read():
    script = """
    cache = SqliteCache(path, pause=0)
    run(cache.set("a", "text"))
    keeper = SqliteCache(path)  # while it is open the others find its log
    run(keeper.get("a"))
    run(cache.close())
    for name in os.listdir(os.path.dirname(path)):
        os.chmod(os.path.join(os.path.dirname(path), name), 0o444)
    os.chmod(os.path.dirname(path), 0o555)
    if os.geteuid() == 0:
        os.setuid(65534)
    for _ in range(3):
        run(cache.set("b", "text"))
        assert run(cache.get("a")) == "text"
    """
    with tempfile.TemporaryDirectory() as folder:  # one that another user may enter
        path = Path(folder) / "cache.db"
        lines = output_of(python(script, path)).splitlines()
    assert lines == [
        f"WARNING eunoe: the cache {path} can't be used (SQLITE_READONLY); chats go on without it"
    ]


# Keys


PARTS = st.lists(st.text(alphabet="ab:\0", max_size=3), max_size=3)


@given(PARTS, PARTS)
def test_differing_parts_have_differing_keys(one, other):
    scope, *parts = [*one, ""]
    other_scope, *other_parts = [*other, ""]
    same = cache_key("summary", scope, *parts) == cache_key("summary", other_scope, *other_parts)
    assert same is (one == other)


def test_what_is_part_of_what_makes_a_difference():
    keys = [
        cache_key("summary", "", "ab", "c"),
        cache_key("summary", "", "a", "bc"),
        cache_key("summary", "", "abc"),
        cache_key("summary", "ab", "c"),
        cache_key("summary", "", "ab", "c", ""),
        cache_key("labels", "", "ab", "c"),
        cache_key("summary", "", "\ud83d\ude00"),
        cache_key("summary", "", "😀"),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == cache_key("summary", "", "ab", "c")


def test_a_key_shows_its_kind_and_nothing_else():
    key = cache_key("summary", "user-1@example.org", "the secret question")
    kind, digest = key.removeprefix("eunoe:").split(":")
    assert kind == "summary"
    assert len(digest) == 64
    assert set(digest) <= set("0123456789abcdef")
