"""The bounded memory for results."""

import random
import threading

import pytest

from eunoe.memo import Beginnings, Memo


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


def pairs(length, start=0):
    return [("user", f"text {i}") for i in range(start, start + length)]


def asked_for(beginnings, items):
    """Get the results of a list, and the items that had to be computed."""
    new = []
    results = beginnings.get(items, lambda rest: new.extend(rest) or [text.upper() for _, text in rest])
    assert results == [text.upper() for _, text in items]
    return new


def test_of_a_list_that_comes_again_only_what_is_new_is_computed():
    beginnings = Beginnings(100_000)
    assert asked_for(beginnings, pairs(80)) == pairs(80)
    assert asked_for(beginnings, pairs(80)) == []
    assert asked_for(beginnings, pairs(83)) == pairs(3, 80)
    edited = [*pairs(50), ("user", "edited"), *pairs(40, 51)]
    assert asked_for(beginnings, edited) == edited[50:]


def test_what_differs_in_its_role_alone_is_computed_again():
    beginnings = Beginnings(100_000)
    asked_for(beginnings, pairs(80))
    other = [*pairs(79), ("assistant", "text 79")]
    assert asked_for(beginnings, other) == other[79:]


def test_a_part_of_a_list_does_not_push_the_list_out():
    beginnings = Beginnings(100_000)
    asked_for(beginnings, pairs(200))
    asked_for(beginnings, [*pairs(10), *pairs(70, 120)])
    assert asked_for(beginnings, pairs(202)) == pairs(2, 200)


def test_lists_are_kept_within_a_bound_of_characters_and_the_oldest_go_first():
    beginnings = Beginnings(3_000)
    for start in range(0, 1_000, 100):
        asked_for(beginnings, pairs(100, start))
        held = [sum(len(text) for _, text in items) for items, _, _ in beginnings._lists.values()]
        assert sum(held) <= 3_000
        assert held == [characters for _, _, characters in beginnings._lists.values()]
    assert asked_for(beginnings, pairs(100, 900)) == []
    assert asked_for(beginnings, pairs(100)) == pairs(100)


def test_whatever_lists_came_before_each_gets_its_own_results():
    source, beginnings, state = random.Random(7), Beginnings(20_000), pairs(70)
    for _ in range(300):
        place = source.randrange(len(state) + 1)
        removed = source.choice([0, 0, 1, 5, 60])
        state = [
            *state[:place],
            *pairs(source.randrange(4), source.randrange(500)),
            *state[place + removed :],
        ]
        asked_for(beginnings, state)
        held = sum(characters for _, _, characters in beginnings._lists.values())
        assert held == sum(len(t) for items, _, _ in beginnings._lists.values() for _, t in items)
