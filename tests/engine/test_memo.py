"""The bounded memory for results."""

import threading

import pytest

from eunoe.memo import Memo


def recomputed(memo, keys):
    """List the keys the memo has to compute, in order."""
    missing = []
    for key in keys:
        memo.get(key, lambda key=key: missing.append(key) or key)
    return missing


def test_a_result_is_computed_once_for_each_key():
    memo = Memo(10)
    assert memo.get("a", lambda: 1) == 1
    assert memo.get("a", lambda: 2) == 1
    assert memo.get("b", lambda: 2) == 2


@pytest.mark.parametrize("nothing", [0, "", 0.0, False, ()])
def test_a_result_that_is_zero_or_empty_is_remembered_too(nothing):
    memo = Memo(10)
    assert memo.get("a", lambda: nothing) == nothing
    assert memo.get("a", lambda: "computed again") == nothing


def test_when_full_it_forgets_the_older_half_and_keeps_the_newer():
    memo = Memo(4)
    recomputed(memo, "abcd")
    assert recomputed(memo, "e") == ["e"]
    assert recomputed(memo, "cde") == []
    assert recomputed(memo, "a") == ["a"]


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_it_never_holds_more_than_its_size(size):
    memo = Memo(size)
    for i in range(100):
        memo.get(str(i), lambda i=i: i)
        assert len(memo._values) <= size


def test_what_failed_is_not_remembered():
    memo = Memo(4)
    with pytest.raises(ZeroDivisionError):
        memo.get("a", lambda: 1 // 0)
    assert memo.get("a", lambda: 1) == 1


def test_threads_that_share_it_all_get_the_right_results():
    memo, wrong = Memo(8), []

    def ask(start):
        for i in range(3000):
            key = (start + i) % 20
            if memo.get(str(key), lambda key=key: key) != key:
                wrong.append(key)

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert len(memo._values) <= 8 + len(threads)
