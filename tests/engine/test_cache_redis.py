"""The cache in Redis, with a real server that is there, slow, full, killed and back."""

import asyncio
import contextlib
import gc
import logging
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import redis

from eunoe.cache import RedisCache
from eunoe.errors import BadSetting

from .strategies import SPECIAL

PATIENCE = 15


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(condition, seconds=PATIENCE):
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


class Server:
    """A real Redis that can be killed, stopped and started again."""

    def __init__(self, folder, *options):
        self.port, self.folder, self.options = free_port(), folder, options
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.password = options[options.index("--requirepass") + 1] if "--requirepass" in options else None
        self.process = None

    def start(self):
        command = ["redis-server", "--port", self.port, "--bind", "127.0.0.1", "--dir", self.folder,
                   "--save", "", "--appendonly", "no", *self.options]  # fmt: skip
        assert shutil.which("redis-server"), "run `python filter/environments.py debian`, as `make test` does"
        self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL)
        eventually(self._answers)
        return self

    def _answers(self):
        assert self.process.poll() is None, "redis-server did not start"
        with contextlib.suppress(redis.ConnectionError):
            return self.ask("PING")

    def ask(self, *command):
        with redis.Redis(port=self.port, password=self.password, protocol=2) as client:
            return client.execute_command(*command)

    def connections(self):
        """How many connections there are besides the one that asks."""
        return len(self.ask("CLIENT", "LIST").splitlines()) - 1

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(PATIENCE)


@pytest.fixture
def servers(tmp_path):
    started = []

    def start(*options):
        started.append(Server(tmp_path, *options).start())
        return started[-1]

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture
def server(shared):
    shared.ask("FLUSHALL")
    return shared


@pytest.fixture
def log(caplog):
    """The engine's lines, with their levels."""
    caplog.set_level(logging.INFO, logger="eunoe")
    return lambda: [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "eunoe"]


DOWN = ("WARNING", "eunoe: the Redis cache can't be used (ConnectionError); chats go on without it")
BACK = ("INFO", "eunoe: the Redis cache works again")


async def took(action):
    start = time.monotonic()
    await action
    return time.monotonic() - start


# On a good day


def test_what_is_kept_is_found_until_it_is_deleted(server, log):
    async def main():
        cache = RedisCache.from_url(server.url)
        assert cache
        assert await cache.get("a") is None
        await cache.set("a", "one")
        await cache.set("a", "two")
        assert await cache.get("a") == "two"
        assert await cache.exists("a") is True
        await cache.delete("a")
        await cache.delete("a")
        assert await cache.get("a") is None
        assert await cache.exists("a") is False

    asyncio.run(main())
    assert log() == []


@pytest.mark.parametrize("text", [*SPECIAL, "", "数据库", "x" * 1_000_000], ids=lambda text: ascii(text[:12]))
@pytest.mark.parametrize("options", ["", "?decode_responses=True"])
def test_any_text_comes_back_as_it_was(server, text, options, log):
    async def main():
        cache = RedisCache.from_url(server.url + options)
        await cache.set(text, text)
        return await cache.get(text)

    if options and "\ud83d" in text:
        text = "half a character can't be read by a client that decodes by itself".replace(" ", "é")
    assert asyncio.run(main()) == text
    assert log() == []


def test_redis_itself_forgets_after_the_time_and_after_a_month_at_the_latest(server):
    async def main():
        cache = RedisCache.from_url(server.url)
        await cache.set("minute", "text", 60)
        await cache.set("ever", "text")
        await cache.set("long", "text", 10**30)
        for ttl in (0, -5):
            await cache.set("over", "before")
            await cache.set("over", "after", ttl)
            assert await cache.get("over") is None

    asyncio.run(main())
    assert 58 <= server.ask("TTL", "minute") <= 60
    assert 29 * 86_400 < server.ask("TTL", "ever") <= 30 * 86_400
    assert server.ask("TTL", "long") > 365 * 86_400


def test_installations_with_prefixes_of_their_own_can_share_a_server(server):
    async def main():
        one, two = (RedisCache.from_url(server.url, prefix=prefix) for prefix in ("one:", "two:"))
        await one.set("a", "text of one")
        assert await two.get("a") is None
        await two.set("a", "text of two")
        assert await one.get("a") == "text of one"
        await two.delete("a")
        assert await one.exists("a")

    asyncio.run(main())
    assert server.ask("KEYS", "*") == [b"one:a"]


# Event loops


def test_several_loops_may_use_it_one_after_the_other_and_leave_no_connection(server, log):
    cache = RedisCache.from_url(server.url)
    for number in range(5):
        asyncio.run(cache.set(str(number), "text"))
        assert asyncio.run(cache.get(str(number))) == "text"
        eventually(lambda: server.connections() == 0)
    assert len(cache._links) == 1, "loops that have ended are let go"
    assert log() == []


def test_several_loops_may_use_it_at_the_same_time(server, log):
    cache = RedisCache.from_url(server.url)
    wrong = []

    async def use(thread):
        for i in range(50):
            key = f"{thread} {i % 5}"
            await cache.set(key, key * 10)
            if await cache.get(key) != key * 10:
                wrong.append(key)

    threads = [threading.Thread(target=asyncio.run, args=(use(number),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert (wrong, log()) == ([], [])
    eventually(lambda: server.connections() == 0)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Python's words for a loop that ends like this
def test_a_loop_that_ends_without_closing_anything_costs_no_connection_for_long(server, log):
    cache = RedisCache.from_url(server.url)
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(cache.set("a", "text"))
        loop.close()
    del loop
    assert asyncio.run(cache.get("a")) == "text"
    gc.collect()
    eventually(lambda: server.connections() == 0)
    assert log() == []


def test_a_cache_that_nobody_has_any_more_leaves_no_connection(server):
    async def main():
        cache = RedisCache.from_url(server.url)
        await cache.set("a", "text")
        assert server.connections() == 1
        del cache
        gc.collect()
        deadline = time.monotonic() + PATIENCE
        while server.connections():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_closed_cache_opens_again_when_it_is_used(server):
    async def main():
        cache = RedisCache.from_url(server.url)
        await cache.set("a", "text")
        await cache.close()
        await cache.close()
        assert server.connections() == 0
        return await cache.get("a")

    assert asyncio.run(main()) == "text"


def test_many_at_once_take_few_connections(server):
    async def main():
        cache = RedisCache.from_url(server.url)
        await asyncio.gather(*(cache.set(str(i), str(i)) for i in range(500)))
        assert await asyncio.gather(*(cache.get(str(i)) for i in range(500))) == [str(i) for i in range(500)]
        return server.connections()

    assert asyncio.run(main()) <= 10


# On a bad day


def test_a_killed_server_costs_one_line_and_no_time_and_is_found_again(servers, log):
    server = servers()

    async def main():
        cache = RedisCache.from_url(server.url, pause=0.5)
        await cache.set("a", "text")
        server.kill()
        assert await took(cache.get("a")) < 1.5
        for action in (cache.get("a"), cache.set("b", "text"), cache.exists("a"), cache.delete("a")):
            assert await took(action) < 0.05
        assert await cache.get("a") is None
        assert await cache.exists("a") is False
        await asyncio.sleep(0.6)
        await cache.set("b", "text")
        assert log() == [DOWN]
        server.start()
        assert await cache.get("b") is None, "it is not tried again so soon"
        await asyncio.sleep(0.6)
        await cache.set("b", "text")
        assert await cache.get("b") == "text"
        assert log() == [DOWN, BACK]

    asyncio.run(main())


def test_a_server_that_is_never_there_is_asked_once_in_half_a_minute(log):
    async def main():
        cache = RedisCache.from_url(f"redis://127.0.0.1:{free_port()}/0")
        assert await took(cache.get("a")) < 1.5
        assert await took(asyncio.gather(*(cache.get("a") for _ in range(1_000)))) < 0.2
        assert 25 < cache._outage._until - time.monotonic() <= 30

    asyncio.run(main())
    assert log() == [DOWN]


def test_a_server_that_hangs_holds_up_a_turn_for_a_second_at_most_and_mixes_nothing_up(servers, log):
    server = servers()

    async def main():
        cache = RedisCache.from_url(server.url, pause=0.2)
        keys = [f"{i}" for i in range(100)]
        await asyncio.gather(*(cache.set(key, f"text {key}") for key in keys))
        server.process.send_signal(signal.SIGSTOP)
        assert await took(asyncio.gather(*(cache.get(key) for key in keys))) < 1.8
        server.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.3)
        keys.reverse()
        assert await asyncio.gather(*(cache.get(key) for key in keys)) == [f"text {key}" for key in keys]

    asyncio.run(main())
    assert [level for level, _ in log()] == ["WARNING", "INFO"]
    assert "TimeoutError" in log()[0][1]


def test_a_turn_that_is_cancelled_leaves_no_answer_for_the_next(servers, log):
    server = servers()

    async def main():
        cache = RedisCache.from_url(server.url)
        for key in "ab":
            await cache.set(key, key)
        server.process.send_signal(signal.SIGSTOP)
        task = asyncio.create_task(cache.get("a"))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        server.process.send_signal(signal.SIGCONT)
        assert [await cache.get(key) for key in "bab"] == ["b", "a", "b"]

    asyncio.run(main())
    assert log() == []


def test_connections_that_were_closed_while_idle_cost_nothing(server, log):
    async def main():
        cache = RedisCache.from_url(server.url)
        await asyncio.gather(*(cache.set(str(i), "text") for i in range(20)))
        for _ in range(3):
            server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert await cache.get("1") == "text"

    asyncio.run(main())
    assert log() == []


def test_a_full_server_costs_one_line_and_can_still_be_read(servers, log):
    server = servers("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")

    async def main():
        cache = RedisCache.from_url(server.url, pause=0)
        await cache.set("a", "text")
        for i in range(60):
            await cache.set(f"large {i}", "x" * 100_000)
            assert await cache.get("a") == "text"
        assert [level for level, _ in log()] == ["WARNING"]
        server.ask("FLUSHALL")
        await cache.set("a", "text")

    asyncio.run(main())
    assert [level for level, _ in log()] == ["WARNING", "INFO"]


def test_something_else_under_a_key_is_no_text(server):
    server.ask("LPUSH", "list", "a")
    server.ask("SET", "bytes", b"\xff\xfe")

    async def main():
        cache = RedisCache.from_url(server.url, pause=0)
        return await cache.get("list"), await cache.get("bytes")

    assert asyncio.run(main()) == (None, None)


def test_a_password_is_used_and_never_told(servers, log):
    server = servers("--requirepass", "s3cret")

    async def use(url):
        cache = RedisCache.from_url(url, pause=0)
        await cache.set("a", "text")
        await cache.set("a", "text")
        return await cache.get("a"), repr(cache), str(vars(cache._outage))

    text, *shown = asyncio.run(use(f"redis://:s3cret@127.0.0.1:{server.port}/0"))
    assert (text, log()) == ("text", [])
    text, *more = asyncio.run(use(f"redis://:wr0ng@127.0.0.1:{server.port}/0"))
    assert text is None
    asyncio.run(use(f"redis://:wr0ng@127.0.0.1:{free_port()}/0"))
    assert [line for _, line in log()] == [DOWN[1].replace("ConnectionError", "AuthenticationError"), DOWN[1]]
    assert not any(word in line for line in [*shown, *more] for word in ("s3cret", "wr0ng"))


# Settings


@pytest.mark.parametrize(
    "url",
    ["", "localhost:6379", "http://:s3cret@redis", "redis://:s3cret@redis:port/0", "redis://:s3cret@r/?a=s3cret",
     "redis://r/?socket_timeout=s3cret", "redis://:s3cret@[redis/0"],
)  # fmt: skip
def test_what_is_no_address_is_refused_without_telling_it(url):
    with pytest.raises(
        BadSetting, match=r"^redis_url: it is no address of a Redis\. Write it like"
    ) as caught:
        RedisCache.from_url(url)
    assert caught.value.__cause__ is None
    assert "s3cret" not in str(caught.value)


def test_without_the_package_the_setting_is_named_with_the_fix(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(BadSetting, match=r"^cache_backend: .*Install it \(`pip install redis`\), or choose"):
        RedisCache.from_url("redis://127.0.0.1/0")
    with pytest.raises(BadSetting, match=r"^cache_backend: "):
        RedisCache(lambda: None)
