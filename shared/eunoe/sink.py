"""Sends events to the observer from a thread of its own: a chat never waits for it, and never fails with it."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque

import httpx

from .events import EventKind, LostBody, RunEvent, new_event

logger = logging.getLogger("eunoe")

BATCH = 100  # a run of a long chat is some hundred kilobytes of decisions
LINGER = 0.3  # seconds to wait for company before a batch leaves
IDLE = 20.0  # seconds without an event after which the thread ends; the next event starts another
RETRY_FROM, RETRY_TO = 1.0, 60.0  # seconds between attempts while the observer is away
TIMEOUT = httpx.Timeout(10.0, connect=3.0)
_GIVE_UP = frozenset({400, 404, 405, 413, 415, 422})  # the same events would be refused again


class HttpSink:
    """Sends events in batches to `POST {url}/v1/events`.

    Holds up to `limit` events while the observer is away, then gives the oldest up; how many is
    reported with the next batch that arrives. Safe to use from any thread or event loop.
    """

    def __init__(self, url: str, token: str = "", *, limit: int = 2000) -> None:
        self._url = url.rstrip("/") + "/v1/events"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._limit = limit
        self._queue: deque[RunEvent] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._delay = RETRY_FROM
        self._size = BATCH  # events of the next batch; fewer after the observer found one too large
        self._in_flight = 0  # events at the head of the queue that may have arrived already
        self.lost = 0
        self.lost_reason = ""
        self.problem = ""  # why the last attempt failed, in words for an administrator; empty if it did not

    def send(self, event: RunEvent) -> None:
        """Take one event; returns at once."""
        with self._lock:
            self._queue.append(event)
            while len(self._queue) > max(self._limit, self._in_flight):
                del self._queue[self._in_flight]
                self._count_lost(1, "the observer was away too long")
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=_run, args=(weakref.ref(self), self._wake), name="eunoe-sink", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all events have left, or `timeout` seconds; says whether they have."""
        deadline = time.monotonic() + timeout
        while self._queue and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self._queue

    def _count_lost(self, number: int, reason: str) -> None:
        self.lost += number
        self.lost_reason = reason

    def _deliver(self, client: httpx.Client) -> float:
        """Send one batch; gives the seconds to wait before the next attempt."""
        batch, written, lost = self._take()
        if not batch:
            return 0.0
        headers = {"Content-Type": "application/json", **self._headers}
        try:
            answer = client.post(self._url, content=f'{{"events":[{",".join(written)}]}}', headers=headers)
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            ValueError,
        ) as error:  # the last: a token no header can hold
            return self._failed(f"the observer can't be reached ({type(error).__name__})", None)
        if answer.is_success:
            self._delay, self.problem = RETRY_FROM, ""
            self._size = min(BATCH, self._size * 2)
            self._remove(batch, reported=lost)
            return 0.0
        problem = f"the observer answered {answer.status_code}"
        if answer.status_code == 413 and len(batch) > 1:
            self._size = len(batch) // 2
            return 0.0
        if answer.status_code in _GIVE_UP:
            self._remove(batch, gave_up=problem)
            self.problem = f"the observer refused events ({answer.status_code})"
            return 0.0
        return self._failed(problem, answer.headers.get("Retry-After"))

    def _take(self) -> tuple[list[RunEvent], list[str], int]:
        """Give the next events, as they are and as JSON, with a report of what was lost before them.

        An event that can't be written is given up; the others go on without it.
        """
        with self._lock:
            batch = [self._queue[i] for i in range(min(self._size, len(self._queue)))]
            self._in_flight = len(batch)
        good: list[RunEvent] = []
        written = []
        for event in batch:
            try:
                written.append(event.model_dump_json())
                good.append(event)
            except ValueError:  # pydantic's error for what JSON can't hold
                self._remove([event], gave_up="it could not be written")
        with self._lock:
            lost, reason = self.lost, self.lost_reason
        if lost and good:
            report = new_event(EventKind.LOST, good[0].run_id, LostBody(events=lost, reason=reason))
            written.insert(0, report.model_dump_json())
        return good, written, lost

    def _failed(self, problem: str, retry_after: str | None) -> float:
        if problem != self.problem:  # say it once, not with every attempt
            logger.warning("eunoe: %s; chats go on, up to %d events are held", problem, self._limit)
        self.problem = problem
        delay, self._delay = self._delay, min(RETRY_TO, self._delay * 2)
        with self._lock:
            self._in_flight = 0
        asked = int(retry_after[:9]) if retry_after and retry_after.isascii() and retry_after.isdigit() else 0
        return max(delay, min(RETRY_TO, float(asked)))

    def _remove(self, events: list[RunEvent], reported: int = 0, gave_up: str = "") -> None:
        """Take events off the queue: they have arrived, or are given up for a reason."""
        gone = {event.event_id for event in events}
        with self._lock:
            self._in_flight = max(0, self._in_flight - len(events))
            self._queue = deque(event for event in self._queue if event.event_id not in gone)
            self.lost -= reported
            if gave_up:
                self._count_lost(len(events), gave_up)


def _run(reference: weakref.ref[HttpSink], wake: threading.Event) -> None:
    """Deliver while the sink lives and has events; the thread must not keep a replaced sink alive."""
    with httpx.Client(timeout=TIMEOUT) as client:
        while True:
            woken = wake.wait(IDLE)
            sink = reference()
            if sink is None or (not woken and _ended(sink)):
                return
            del sink
            time.sleep(LINGER)
            wake.clear()
            delay = _deliver_all(reference, client)
            if delay:
                _rest(reference, delay)
                wake.set()


def _deliver_all(reference: weakref.ref[HttpSink], client: httpx.Client) -> float:
    while (sink := reference()) is not None and sink._queue:  # noqa: SLF001  the thread is part of the class
        if delay := sink._deliver(client):  # noqa: SLF001
            return delay
    return 0.0


def _rest(reference: weakref.ref[HttpSink], seconds: float) -> None:
    """Wait, whatever new events come in, but not for a sink that is gone."""
    deadline = time.monotonic() + seconds
    while reference() is not None and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(0.5, left))


def _ended(sink: HttpSink) -> bool:
    """End the thread if nothing is waiting; the lock keeps an event from slipping in between."""
    with sink._lock:  # noqa: SLF001
        if sink._queue:  # noqa: SLF001
            return False
        sink._thread = None  # noqa: SLF001
        return True
