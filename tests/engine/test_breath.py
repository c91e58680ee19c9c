"""Letting others run: a thread with long work gives the interpreter lock up of its own accord."""

import sys
import threading
import time

import pytest

from eunoe.breath import breathe


@pytest.fixture
def nobody_is_interrupted():
    """Let a thread keep the interpreter lock for as long as it wants."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(30)
    yield
    sys.setswitchinterval(before)


def turns_beside(work):
    """Count how often this thread gets a turn while another one works."""
    worker = threading.Thread(target=work)
    worker.start()
    turns = 0
    while worker.is_alive():
        time.sleep(0.0005)
        turns += 1
    return turns


def busy(step):
    end = time.perf_counter() + 0.1
    while time.perf_counter() < end:
        sum(range(200))
        step()


def test_work_that_breathes_lets_others_run(nobody_is_interrupted):
    assert turns_beside(lambda: busy(lambda: None)) <= 3
    assert turns_beside(lambda: busy(breathe)) >= 10


def test_short_work_is_not_held_up():
    breathe()
    started = time.perf_counter()
    for _ in range(1_000):
        breathe()
    assert time.perf_counter() - started < 0.05
