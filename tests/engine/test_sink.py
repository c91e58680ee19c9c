"""Events on their way to an observer, which may be slow, full, down or of another mind."""

import contextlib
import gc
import json
import logging
import socketserver
import threading
import time
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from eunoe.events import EventKind, OutletBody, RunEvent, new_event
from eunoe.sink import HttpSink

PATIENCE = 15  # seconds a test waits at most for what takes a few milliseconds on an idle machine


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


class Observer:
    """A real server that takes batches and answers as its `rule` says: a status, or a status and headers."""

    def __init__(self, port=0):
        self.requests = []  # (path, headers, events) of all requests, in order
        self.times = []
        self.stored = []  # numbers of events in accepted batches, in order
        self.reports = []  # `sink.lost` bodies in accepted batches
        self.rule = lambda events: 202
        self.gate = threading.Event()
        self.gate.set()
        observer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                observer.take(self)

            def log_message(self, *args):
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def take(self, handler):
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        events = json.loads(body)["events"]
        self.requests.append((handler.requestline.split()[1], dict(handler.headers), events))
        self.times.append(time.monotonic())
        self.gate.wait(PATIENCE)
        answer = self.rule(events)
        if answer is None:  # hang up without a word
            return
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        if status < 300:
            self.reports += [event["data"] for event in events if event["event"] == "sink.lost"]
            self.stored += [event["data"]["calls"] for event in events if event["event"] != "sink.lost"]
        with contextlib.suppress(OSError):
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

    @property
    def sizes(self):
        return [len(events) for _, _, events in self.requests]

    def close(self):
        self.gate.set()
        self.server.shutdown()
        self.thread.join(PATIENCE)
        self.server.server_close()


@pytest.fixture
def constants(monkeypatch):
    """Set the module's constants, in the package as in the single file; small ones to begin with."""

    def set_constants(**values):
        for name, value in values.items():
            assert name in HttpSink.send.__globals__
            monkeypatch.setitem(HttpSink.send.__globals__, name, value)

    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    set_constants(IDLE=0.1, LINGER=0.02, RETRY_FROM=0.05)
    return set_constants


@pytest.fixture
def observers(constants):
    opened = []

    def open_observer(port=0):
        opened.append(Observer(port))
        return opened[-1]

    yield open_observer
    for observer in opened:
        observer.close()


@pytest.fixture
def observer(observers):
    return observers()


@pytest.fixture
def make_sink(observers, constants):
    """Make sinks; afterwards no thread of theirs may be left."""
    before = set(threading.enumerate())
    made = []

    def make(url, *args, **options):
        sink = HttpSink(url, *args, **options)
        made.append(weakref.ref(sink))
        return sink

    yield make
    constants(IDLE=0.001, LINGER=0)
    for reference in made:
        if (sink := reference()) is not None:
            sink._queue.clear()
            sink._wake.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name == "eunoe-sink":
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def sink(make_sink, observer):
    return make_sink(observer.url)


def event(number, **context):
    return new_event(EventKind.OUTLET, "run-1", OutletBody(calls=number), **context)


def unwritable(number):
    return RunEvent(
        event_id=f"unwritable {number}",
        event=EventKind.OUTLET,
        run_id="run-1",
        at="2026-01-01T00:00:00Z",
        data={"calls": number, "odd": object()},
    )


def send(sink, numbers):
    for number in numbers:
        sink.send(event(number))


def delivered(sink):
    return sink.flush(PATIENCE)


# On a good day


def test_events_arrive_as_they_were_sent(observer, sink, constants):
    constants(LINGER=0.2)
    sent = [event(1, host="open-webui", model="qwen3", chat_id="chat", user="u"), event(2)]
    for each in sent:
        sink.send(each)
    assert delivered(sink)
    [(path, headers, events)] = observer.requests
    assert path == "/v1/events"
    assert headers["Content-Type"] == "application/json"
    assert "Authorization" not in headers
    assert [RunEvent.model_validate(each) for each in events] == sent
    assert (sink.lost, sink.problem) == (0, "")


def test_the_token_goes_with_every_batch(observer, make_sink, constants):
    constants(BATCH=2)
    sink = make_sink(observer.url + "/", "s3cret")
    send(sink, range(5))
    assert delivered(sink)
    assert {(path, headers["Authorization"]) for path, headers, _ in observer.requests} == {
        ("/v1/events", "Bearer s3cret")
    }


def test_events_leave_soon_but_wait_a_little_for_company(observer, sink, constants):
    constants(IDLE=60, LINGER=0.3)
    sink.send(event(0))
    assert delivered(sink), "an event must not wait until the thread would end"
    for start in range(1, 251, 50):
        send(sink, range(start, start + 50))
        time.sleep(0.005)
    assert delivered(sink)
    assert observer.stored == [*range(251)]
    assert observer.sizes == [1, 100, 100, 50]


def test_events_that_come_one_by_one_arrive_in_order(observer, sink):
    for number in range(40):
        sink.send(event(number))
        time.sleep(0.003)
    assert delivered(sink)
    assert observer.stored == [*range(40)]


def test_many_threads_may_send_and_each_event_arrives_once(observer, sink, constants):
    constants(BATCH=17, LINGER=0.001)
    start = threading.Barrier(8)

    def run(thread):
        start.wait(PATIENCE)
        send(sink, range(thread * 1000, thread * 1000 + 100))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert delivered(sink)
    assert sorted(observer.stored) == [thread * 1000 + i for thread in range(8) for i in range(100)]
    for thread in range(8):
        own = [number for number in observer.stored if number // 1000 == thread]
        assert own == sorted(own)
    assert sink.lost == 0


def test_flush_says_whether_all_have_left(observer, sink):
    assert sink.flush(0)
    observer.gate.clear()
    sink.send(event(1))
    assert not sink.flush(0.05)
    observer.gate.set()
    assert delivered(sink)


# A slow observer


def test_a_slow_observer_delays_no_sender(observer, sink):
    observer.gate.clear()
    sink.send(event(0))
    eventually(lambda: observer.requests)
    started = time.monotonic()
    send(sink, range(1, 501))
    elapsed = time.monotonic() - started
    assert observer.stored == []
    assert elapsed < 2, "500 events take some 10 ms; an answer never came while they were sent"
    observer.gate.set()
    assert delivered(sink)
    assert observer.stored == [*range(501)]


@pytest.mark.parametrize("first", [event, unwritable], ids=["all good", "one unwritable"])
def test_what_is_on_its_way_is_not_called_lost_when_it_arrives(observer, make_sink, constants, first):
    constants(LINGER=0.2)
    sink = make_sink(observer.url, limit=10)
    observer.gate.clear()
    sink.send(first(0))
    send(sink, range(1, 10))
    eventually(lambda: observer.requests)
    send(sink, range(10, 20))
    observer.gate.set()
    assert delivered(sink)
    sink.send(event(20))
    assert delivered(sink)
    eventually(lambda: sink.lost == 0)
    assert len(observer.stored) + sum(report["events"] for report in observer.reports) == 21


# An observer that is away


def closed_port(observers):
    observer = observers()
    observer.server.shutdown()
    observer.thread.join(PATIENCE)
    observer.server.server_close()
    observer.close = lambda: None
    return observer.port


def test_while_the_observer_is_away_nothing_is_lost_and_all_arrives_later(observers, make_sink):
    port = closed_port(observers)
    sink = make_sink(f"http://127.0.0.1:{port}")
    send(sink, range(150))
    eventually(lambda: sink.problem)
    assert sink.problem == "the observer can't be reached (ConnectError)"
    assert not sink.flush(0.1)
    back = observers(port)
    assert delivered(sink)
    assert back.stored == [*range(150)]
    assert (sink.lost, sink.problem, back.reports) == (0, "", [])


def test_an_observer_that_hangs_up_gets_the_same_events_again(observer, sink, constants):
    constants(LINGER=0.2)
    answers = iter([None, None])
    observer.rule = lambda events: next(answers, 202)
    send(sink, range(3))
    assert delivered(sink)
    assert observer.stored == [0, 1, 2]
    assert [[e["event_id"] for e in events] for _, _, events in observer.requests][:2] == [
        [e["event_id"] for e in events] for _, _, events in observer.requests
    ][1:]


def test_the_administrator_is_told_once_of_each_problem(observer, sink, caplog):
    answers = iter([503, 503, 503, 500, 500, 202, 503])
    observer.rule = lambda events: next(answers, 202)
    with caplog.at_level(logging.WARNING, "eunoe"):
        sink.send(event(1))
        assert delivered(sink)
        sink.send(event(2))
        assert delivered(sink)
    assert [record.getMessage() for record in caplog.records] == [
        "eunoe: the observer answered 503; chats go on, up to 2000 events are held",
        "eunoe: the observer answered 500; chats go on, up to 2000 events are held",
        "eunoe: the observer answered 503; chats go on, up to 2000 events are held",
    ]


def test_the_queue_is_bounded_and_the_report_of_the_loss_comes_first(observers, make_sink):
    port = closed_port(observers)
    sink = make_sink(f"http://127.0.0.1:{port}", limit=5)
    send(sink, range(12))
    assert sink.lost == 7
    back = observers(port)
    assert delivered(sink)
    assert back.reports == [{"events": 7, "reason": "the observer was away too long"}]
    assert back.stored == [7, 8, 9, 10, 11]
    assert back.requests[0][2][0]["event"] == "sink.lost"
    eventually(lambda: sink.lost == 0)
    sink.send(event(12))
    assert delivered(sink)
    assert (back.stored[-1], len(back.reports)) == (12, 1)


def test_a_loss_is_reported_until_the_report_arrives(observer, make_sink):
    answers = iter([503, 503, 503])
    observer.rule = lambda events: next(answers, 202)
    sink = make_sink(observer.url, limit=3)
    send(sink, range(5))
    assert delivered(sink)
    assert observer.reports == [{"events": 2, "reason": "the observer was away too long"}]
    assert observer.stored == [2, 3, 4]


# An observer that is busy


def gaps(observer):
    return [b - a for a, b in zip(observer.times, observer.times[1:], strict=False)]


def test_attempts_become_rarer(observer, sink):
    answers = iter([503] * 4)
    observer.rule = lambda events: next(answers, 202)
    sink.send(event(1))
    assert delivered(sink)
    assert observer.stored == [1]
    assert all(gap >= wait for gap, wait in zip(gaps(observer), [0.05, 0.1, 0.2, 0.4], strict=True))


def test_attempts_never_become_rarer_than_the_longest_pause(observer, sink, constants):
    constants(RETRY_TO=0.1)
    answers = iter([503] * 12)
    observer.rule = lambda events: next(answers, 202)
    sink.send(event(1))
    assert delivered(sink), "without a longest pause the attempts would take three minutes"
    assert len(observer.requests) == 13


def test_after_a_success_the_pauses_begin_anew(observer, sink):
    answers = iter([503, 503, 202])
    observer.rule = lambda events: next(answers, 202)
    sink.send(event(1))
    assert delivered(sink)
    assert sink._delay == 0.05


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_observer_gets_the_events_again_when_it_asked_for_them(observer, sink, status):
    answers = iter([(status, {"Retry-After": "1"})])
    observer.rule = lambda events: next(answers, 202)
    send(sink, range(3))
    assert delivered(sink)
    assert observer.stored == [0, 1, 2]
    assert gaps(observer)[0] >= 1
    assert (sink.lost, sink.problem) == (0, "")


def test_a_busy_observer_is_left_alone_though_new_events_come_in(observer, sink):
    answers = iter([(429, {"Retry-After": "1"})])
    observer.rule = lambda events: next(answers, 202)
    for number in range(30):
        sink.send(event(number))
        time.sleep(0.02)
    assert delivered(sink)
    assert observer.stored == [*range(30)]
    assert gaps(observer)[0] >= 1


@pytest.mark.parametrize("retry_after", ["0", "-5", "soon", "1.5", "Wed, 21 Oct 2015 07:28:00 GMT", "²", ""])
def test_an_odd_retry_after_neither_loses_events_nor_makes_the_sink_hammer(observer, sink, retry_after):
    answers = iter([(503, {"Retry-After": retry_after.encode("utf-8").decode("latin-1")})] * 3)
    observer.rule = lambda events: next(answers, 202)
    send(sink, range(2))
    assert delivered(sink)
    assert (observer.stored, sink.lost) == ([0, 1], 0)
    assert min(gaps(observer)) >= 0.03


def test_an_absurd_retry_after_does_not_keep_the_sink_away_for_ever(observer, sink, constants):
    constants(RETRY_TO=0.2)
    answers = iter([(503, {"Retry-After": "99999999999"})])
    observer.rule = lambda events: next(answers, 202)
    sink.send(event(1))
    assert sink.flush(5)
    assert observer.stored == [1]


@pytest.mark.parametrize("status", [401, 403, 500, 502])
def test_what_may_pass_is_tried_again_and_told(observer, sink, status):
    observer.rule = lambda events: status
    sink.send(event(1))
    eventually(lambda: sink.problem)
    assert sink.problem == f"the observer answered {status}"
    assert sink.lost == 0
    observer.rule = lambda events: 202
    assert delivered(sink)
    assert observer.stored == [1]


# An observer that refuses


@pytest.mark.parametrize("status", [400, 404, 405, 415, 422])
def test_what_will_be_refused_again_is_given_up_and_counted(observer, sink, status):
    observer.rule = lambda events: status
    send(sink, range(3))
    assert delivered(sink)
    eventually(lambda: sink.lost == 3)
    assert sink.problem == f"the observer refused events ({status})"
    observer.rule = lambda events: 202
    sink.send(event(3))
    assert delivered(sink)
    assert observer.reports == [{"events": 3, "reason": f"the observer answered {status}"}]
    assert (observer.stored, sink.lost, sink.problem) == ([3], 0, "")


def no_more_than(limit):
    return lambda events: 413 if len(events) > limit else 202


def test_a_batch_that_is_too_large_is_sent_in_parts(observer, sink):
    observer.rule = no_more_than(3)
    send(sink, range(10))
    assert delivered(sink)
    assert (observer.stored, observer.reports, sink.lost) == ([*range(10)], [], 0)


def test_a_single_event_that_is_too_large_takes_no_other_with_it(observer, sink):
    observer.rule = lambda events: 413 if any(e["data"].get("calls") == 2 for e in events) else 202
    send(sink, range(5))
    assert delivered(sink)
    sink.send(event(5))
    assert delivered(sink)
    assert observer.stored == [0, 1, 3, 4, 5]
    assert observer.reports == [{"events": 1, "reason": "the observer answered 413"}]
    assert sink.lost == 0


@pytest.mark.parametrize("answer", [503, 429, None], ids=["full", "busy", "gone"])
def test_an_observer_that_fails_while_it_gets_the_parts_loses_none(observer, sink, answer, constants):
    constants(LINGER=0.2)
    refused = iter([413, answer, answer])
    observer.rule = lambda events: next(refused, 202)
    send(sink, range(4))
    assert delivered(sink)
    sink.send(event(4))
    assert delivered(sink)
    assert (observer.stored, observer.reports, sink.lost) == ([0, 1, 2, 3, 4], [], 0)


def test_an_event_that_can_not_be_written_takes_no_other_with_it(observer, sink, constants):
    constants(LINGER=0.2)
    send(sink, range(3))
    sink.send(unwritable(3))
    send(sink, range(3, 6))
    assert delivered(sink)
    sink.send(event(6))
    assert delivered(sink)
    assert observer.stored == [0, 1, 2, 3, 4, 5, 6]
    assert observer.reports == [{"events": 1, "reason": "it could not be written"}]


@pytest.mark.parametrize(
    "url",
    ["", "localhost:7456", "not a url", "http://", "http://[", "ftp://127.0.0.1", "http://127.0.0.1:port"],
)
def test_an_address_that_is_none_is_told_and_fails_nobody(make_sink, url):
    sink = make_sink(url)
    send(sink, range(3))
    eventually(lambda: sink.problem)
    assert "can't be reached" in sink.problem
    assert (sink.lost, len(sink._queue)) == (0, 3)


# The thread


def test_no_thread_is_started_before_it_is_needed(sink):
    assert sink._thread is None


def test_the_thread_is_a_daemon_and_there_is_one(observer, sink):
    observer.gate.clear()
    before = set(threading.enumerate())
    send(sink, range(50))
    own = [t for t in set(threading.enumerate()) - before if t.name == "eunoe-sink"]
    assert own == [sink._thread]
    assert sink._thread.daemon


def test_the_thread_ends_when_idle_and_the_next_event_starts_another(observer, sink):
    sink.send(event(1))
    first = sink._thread
    assert delivered(sink)
    first.join(PATIENCE)
    assert not first.is_alive()
    sink.send(event(2))
    assert sink._thread is not first
    assert delivered(sink)
    assert observer.stored == [1, 2]


def test_an_event_that_comes_as_the_thread_ends_is_not_forgotten(observer, sink, constants):
    constants(IDLE=0.004, LINGER=0)
    for number in range(60):
        sink.send(event(number))
        time.sleep(0.003 + number % 7 / 1000)
    assert delivered(sink)
    assert observer.stored == [*range(60)]


def test_an_event_that_comes_while_the_thread_is_on_its_way_out_starts_another(observer, sink, monkeypatch):
    on_its_way, may_go = threading.Event(), threading.Event()
    leave = httpx.Client.__exit__

    def leave_slowly(client, *error):
        on_its_way.set()
        may_go.wait(PATIENCE)
        return leave(client, *error)

    monkeypatch.setattr(httpx.Client, "__exit__", leave_slowly)
    sink.send(event(1))
    assert on_its_way.wait(PATIENCE)
    sink.send(event(2))
    assert delivered(sink)
    may_go.set()
    assert observer.stored == [1, 2]


def test_a_thread_that_is_gone_without_a_word_is_replaced_as_in_a_forked_worker(observer, sink):
    sink._thread = threading.Thread(target=int)
    sink._thread.start()
    sink._thread.join()
    sink.send(event(1))
    assert delivered(sink)
    assert observer.stored == [1]


def thread_of_a_sink_that_is_gone(sink, condition):
    """Use a sink until the condition holds, then forget it."""
    send(sink, range(3))
    eventually(lambda: condition(sink))
    return sink._thread, weakref.ref(sink)


@pytest.mark.parametrize("away", [False, True])
def test_the_thread_dies_with_its_sink_even_while_the_observer_is_away(observers, make_sink, away):
    url = f"http://127.0.0.1:{closed_port(observers)}" if away else observers().url
    thread, reference = thread_of_a_sink_that_is_gone(
        make_sink(url), lambda sink: sink.problem or not sink._queue
    )
    gc.collect()
    eventually(lambda: reference() is None)
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_token_that_no_header_can_hold_is_told_and_costs_neither_events_nor_threads(observer, make_sink):
    sink = make_sink(observer.url, "schlüssel")
    send(sink, range(3))
    eventually(lambda: sink.problem)
    assert (sink.lost, len(sink._queue), sink._thread.is_alive()) == (0, 3, True)


def test_two_sinks_know_nothing_of_each_other(observers, make_sink):
    good, bad = observers(), observers()
    bad.rule = lambda events: 503
    first, second = make_sink(good.url), make_sink(bad.url)
    send(second, range(3))
    send(first, range(3, 6))
    assert delivered(first)
    assert (good.stored, bad.stored, first.problem) == ([3, 4, 5], [], "")
