"""OpenRouter's price list, from a real server that answers, is slow, fails or talks nonsense."""

import gc
import itertools
import json
import logging
import os
import socketserver
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from eunoe.openrouter import PriceList
from eunoe.pricing import Price, find_price

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 15  # seconds a test waits at most for what takes a few milliseconds on an idle machine

MINI = {"prompt": "0.0000004", "completion": "0.0000016", "input_cache_read": "0.0000001"}
MODELS = {
    "data": [
        {"id": "openai/GPT-4.1-mini", "context_length": 1_047_576, "pricing": MINI},
        {"id": "qwen/qwen3-8b:free", "pricing": {"prompt": "0", "completion": "0"}},
        {"id": "openrouter/auto", "pricing": {"prompt": "-1", "completion": "-1"}},
        {"id": "one/same", "pricing": {"prompt": "0.000001", "completion": "0.000001"}},
        {"id": "two/same", "pricing": {"prompt": "0.000002", "completion": "0.000002"}},
        {"id": "no/pricing"},
        {"id": 7, "pricing": MINI},
        "nonsense",
    ]
}
GARBAGE = [b"", b"<html>sign in</html>", b"\xff\xfe", b"[" * 100_000, b"null", b"[]", b'{"data": 1}', b'{"data": []}',
           b'{"data": [{"id": "a", "pricing": {"prompt": "x"}}, {"pricing": []}, null]}']  # fmt: skip


def eventually(condition, seconds=PATIENCE):
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


class Server(ThreadingHTTPServer):
    """A server that asks no name server for its own name."""

    daemon_threads = True

    def server_bind(self):
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


class OpenRouter:
    """A real server with a list of models; `answer` says with what it answers, after `gate` was opened."""

    def __init__(self):
        self.asked = 0
        self.answer = (200, json.dumps(MODELS).encode())
        self.gate = threading.Event()
        self.gate.set()
        self.trickle = 0.0  # seconds between single bytes
        router = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                router.serve(self)

            def log_message(self, *args):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/api/v1/models"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def serve(self, handler):
        self.asked += 1
        self.gate.wait(PATIENCE)
        status, body = self.answer
        try:
            handler.send_response(status)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            step = 1 if self.trickle else max(1, len(body))
            for start in range(0, len(body), step):
                handler.wfile.write(body[start : start + step])
                time.sleep(self.trickle)
        except OSError:
            pass

    def close(self):
        self.gate.set()
        self.trickle = 0.0
        self.server.shutdown()
        self.thread.join(PATIENCE)
        self.server.server_close()


class Time:
    """Seconds since 1970 that pass when a test says so."""

    def __init__(self):
        self.now = time.time()

    def __call__(self):
        return self.now


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "eunoe-prices"]


@pytest.fixture
def constants(monkeypatch):
    """Set the module's constants, in the package as in the single file."""

    def set_constants(**values):
        for name, value in values.items():
            assert name in PriceList.prices.__globals__
            monkeypatch.setitem(PriceList.prices.__globals__, name, value)

    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return set_constants


@pytest.fixture
def router(constants):
    router = OpenRouter()
    yield router
    router.close()
    eventually(lambda: not threads())


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "eunoe" / "openrouter.json"


@pytest.fixture
def prices(path, router, clock):
    """A list that nobody has asked yet."""
    return PriceList(path, 24, url=router.url, clock=clock)


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="eunoe")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "eunoe"]


def settled(prices):
    """Ask for prices and wait for the fetch that this begins; gives what is known then."""
    prices.prices()
    eventually(lambda: not threads())
    return prices.prices()


# What it knows


def test_prices_are_those_of_the_list_for_a_million_tokens(prices, log):
    known = settled(prices)
    mini, free = find_price(known, "openai/gpt-4.1-mini", {}), find_price(known, "qwen/qwen3-8b:free", {})
    assert (mini.input, mini.cached, mini.output) == pytest.approx((0.4, 0.1, 1.6))
    assert (mini.cache_write, mini.source) == (None, "OpenRouter")
    assert free == Price(0.0, None, None, 0.0, "OpenRouter")
    assert find_price(known, "my.mini", {"my.mini": "openai/gpt-4.1-mini"}) is known["openai/gpt-4.1-mini"]
    assert find_price(known, "openai/gpt-4.1-mini-2025-04-14", {}) is known["openai/gpt-4.1-mini"]
    assert set(known) == {"openai/gpt-4.1-mini", "gpt-4.1-mini", "qwen/qwen3-8b:free", "qwen3-8b:free",
                          "one/same", "two/same"}  # fmt: skip
    assert log() == []


def test_a_name_without_its_provider_is_known_where_there_is_no_doubt(prices):
    known = settled(prices)
    assert find_price(known, "gpt-4.1-mini", {}) is known["openai/gpt-4.1-mini"]
    assert find_price(known, "same", {}) is None
    assert find_price(known, "4.1-mini", {}) is None


def test_the_list_is_fetched_again_when_it_is_old_and_the_old_one_used_meanwhile(prices, router, clock):
    assert settled(prices)["one/same"].input == 1.0
    clock.now += 24 * 3_600 - 1
    settled(prices)
    assert router.asked == 1
    clock.now += 2
    router.answer = (200, b'{"data": [{"id": "one/same", "pricing": {"prompt": "0.000005"}}]}')
    assert prices.prices()["one/same"].input == 1.0
    assert settled(prices) == {
        "one/same": Price(5.0, source="OpenRouter"),
        "same": Price(5.0, source="OpenRouter"),
    }
    assert router.asked == 2


# Nobody waits


def test_nobody_waits_for_a_slow_server(prices, router):
    router.gate.clear()
    start = time.monotonic()
    for _ in range(20):
        assert prices.prices() == {}
    assert time.monotonic() - start < 0.05
    assert len(threads()) == 1
    eventually(lambda: router.asked == 1)
    time.sleep(2)
    assert prices.prices() == {}
    router.gate.set()
    eventually(prices.prices)
    assert router.asked == 1


def test_a_call_takes_no_time_when_the_prices_are_known(prices):
    settled(prices)
    start = time.perf_counter()
    for _ in range(1_000):
        prices.prices()
    assert time.perf_counter() - start < 0.2, "1,000 calls take about a millisecond"


def test_many_threads_start_one_fetch(prices, router):
    router.gate.clear()
    begin = threading.Barrier(16)

    def ask():
        begin.wait(PATIENCE)
        prices.prices()

    asking = [threading.Thread(target=ask) for _ in range(16)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(PATIENCE)
    eventually(lambda: router.asked)
    router.gate.set()
    eventually(prices.prices)
    assert router.asked == 1


def test_a_list_that_nobody_has_any_more_leaves_no_thread(path, router, constants):
    router.trickle = 0.05
    prices = PriceList(path, url=router.url)
    prices.prices()
    eventually(lambda: router.asked)
    del prices
    gc.collect()
    eventually(lambda: not threads(), seconds=2)
    assert not path.exists()


# On disk


def test_after_a_restart_without_internet_the_prices_are_those_of_the_file(prices, path, clock, log):
    known = settled(prices)
    again = PriceList(path, 24, url="http://127.0.0.1:9/", clock=clock)
    assert again.prices() == known
    assert not threads()
    clock.now += 25 * 3_600
    assert settled(again) == known
    assert [line for line in log() if "http://127.0.0.1:9/ gave none (ConnectError)" in line] == log() != []


def test_a_file_from_tomorrow_is_used_and_fetched_again(prices, path, router, clock):
    known = settled(prices)
    clock.now -= 48 * 3_600
    again = PriceList(path, 24, url=router.url, clock=clock)
    assert again.prices() == known
    eventually(lambda: router.asked == 2)


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "[" * 100_000, '{"prices": {}}', '{"prices": [], "fetched_at": 1}', "\ud83d",
     '{"prices": {"a": 1}, "fetched_at": 1}', '{"prices": {}, "fetched_at": "soon"}',
     '{"prices": {"a": {"input": 1}}, "fetched_at": NaN}', '{"prices": {}, "fetched_at": 1' + "0" * 400 + "}"],
    ids=lambda text: ascii(text[:20]),
)  # fmt: skip
def test_a_broken_file_is_fetched_anew(prices, path, router, text, log):
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    assert prices.prices() == {}
    assert "openai/gpt-4.1-mini" in settled(prices)
    assert router.asked == 1
    assert len(log()) <= 1
    assert PriceList(path, url=router.url).prices() == prices.prices()


def test_where_no_file_can_be_the_prices_are_known_all_the_same(tmp_path, router, clock, log):
    (tmp_path / "file").touch()
    prices = PriceList(tmp_path / "file" / "prices.json", 24, url=router.url, clock=clock)
    assert settled(prices)
    for _ in range(3):
        clock.now += 25 * 3_600
        assert settled(prices)
    assert router.asked == 4
    assert len(log()) == 1


def test_who_reads_while_it_is_written_reads_a_whole_list(prices, path, router, clock):
    settled(prices)
    broken = []
    is_over = threading.Event()

    def read():
        while not is_over.is_set():
            if len(json.loads(path.read_bytes())["prices"]) != 6:
                broken.append(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        clock.now += 25 * 3_600
        settled(prices)
    is_over.set()
    reader.join(PATIENCE)
    assert router.asked == 21
    assert broken == []
    assert sorted(file.name for file in path.parent.iterdir()) == ["openrouter.json", "openrouter.json.lock"]


def test_workers_that_share_a_file_fetch_once(path, router):
    router.gate.clear()
    script = (
        "import sys, time, pathlib, tests.engine.conftest\n"
        "from eunoe.openrouter import PriceList\n"
        "PriceList.prices.__globals__['_OTHER_FETCHES'] = 0.05\n"
        "PriceList.prices.__globals__['_STEP_SECONDS'] = 120.0\n"  # three workers may take long to start
        "prices = PriceList(pathlib.Path(sys.argv[1]), url=sys.argv[2])\n"
        "prices.prices()\n"
        "print('asked', flush=True)\n"
        "while not prices.prices(): time.sleep(0.01)\n"
    )
    command = [sys.executable, "-c", script, str(path), router.url]
    workers = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        for worker in workers:
            assert worker.stdout.readline() == "asked\n"
        time.sleep(0.2)
        router.gate.set()
        assert [worker.wait(PATIENCE) for worker in workers] == [0, 0, 0]
        assert router.asked == 1
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(PATIENCE)
            worker.stdout.close()


def test_what_another_worker_has_fetched_meanwhile_is_not_fetched_again(path, router, clock):
    lists = [PriceList(path, 24, url=router.url, clock=clock) for _ in range(2)]
    settled(lists[0])
    settled(lists[1])
    clock.now += 25 * 3_600
    router.answer = (200, b'{"data": [{"id": "new", "pricing": {"prompt": "1e-6"}}]}')
    assert [*settled(lists[0])] == [*settled(lists[1])] == ["new"]
    assert router.asked == 2


# What fails


@pytest.mark.parametrize("body", GARBAGE, ids=lambda body: ascii(body[:20]))
def test_an_answer_that_is_no_list_costs_the_prices_only_and_one_line(prices, router, body, clock, log):
    known = settled(prices)
    clock.now += 25 * 3_600
    router.answer = (200, body)
    assert settled(prices) == known
    assert settled(prices) == known
    assert router.asked == 2, "it is not tried again at once"
    assert len(log()) == 1
    assert log()[0].startswith(f"eunoe: prices of OpenRouter: {router.url} gave none (")


def test_an_answer_without_end_is_not_read_to_its_end(prices, router, constants, log):
    constants(_ANSWER_BYTES=1_000_000)
    router.answer = (200, b'{"data": [' + b" " * 5_000_000 + b"]}")
    assert settled(prices) == {}
    assert "its answer is too large" in log()[0]


def test_an_answer_that_trickles_is_given_up(prices, router, constants, log):
    constants(_ANSWER_SECONDS=0.3)
    router.trickle = 0.01
    assert settled(prices) == {}
    assert "its answer takes too long" in log()[0]


def test_a_server_that_says_nothing_is_given_up(prices, router, constants, log):
    constants(_STEP_SECONDS=0.2)
    router.gate.clear()
    assert settled(prices) == {}
    assert "(ReadTimeout)" in log()[0]


def test_a_server_that_fails_is_asked_ever_less_often_and_one_line_says_so(path, router, constants, log):
    constants(_FETCH_FROM=0.05, _FETCH_TO=0.4)
    prices = PriceList(path, url=router.url)
    router.answer = (503, b"")
    times = []
    while len(times) < 6:
        before = router.asked
        eventually(lambda before=before: prices.prices() or router.asked > before)
        times.append(time.monotonic())
        eventually(lambda: not threads())
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(wait > least for wait, least in zip(waits, [0.04, 0.09, 0.19, 0.39, 0.39], strict=True)), waits
    assert waits[-1] < 0.75, waits
    assert len(log()) == 1
    assert "(it answered 503)" in log()[0]
    router.answer = (200, json.dumps(MODELS).encode())
    eventually(prices.prices)
    eventually(lambda: not threads())


def test_a_server_without_internet_asks_twice_an_hour(prices):
    names = PriceList.prices.__globals__
    assert (names["_FETCH_FROM"], names["_FETCH_TO"]) == (60, 1_800)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_an_odd_proxy_costs_the_prices_only(path, constants, monkeypatch, name, log):
    monkeypatch.setenv(name, "socks5://127.0.0.1:9" if name == "ALL_PROXY" else "what://is this")
    assert settled(PriceList(path, url="http://127.0.0.1:9/")) == {}
    assert len(log()) == 1


def test_a_worker_that_died_while_it_fetched_locks_nobody_out(path, router):
    router.gate.clear()
    script = (
        "import sys, time, pathlib, tests.engine.conftest\n"
        "from eunoe.openrouter import PriceList\n"
        "prices = PriceList(pathlib.Path(sys.argv[1]), url=sys.argv[2])\n"
        "prices.prices()\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path), router.url], cwd=ROOT) as worker:
        eventually(lambda: router.asked == 1)
        worker.kill()
    router.gate.set()
    assert settled(PriceList(path, url=router.url))
    assert os.listdir(path.parent)
