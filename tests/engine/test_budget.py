"""The bound that holds."""

import pytest

from eunoe.budget import (
    Bound,
    BoundSource,
    TokenBudget,
    TokenTargetBudget,
    bound_of,
    read_model_budgets,
    tokens_for,
)
from eunoe.errors import BadSetting


def test_the_smallest_bound_holds_and_says_where_it_comes_from():
    assert bound_of(TokenBudget(0)) == Bound(None, BoundSource.NONE)
    assert bound_of(TokenBudget(8000)) == Bound(8000, BoundSource.MAX_TOKENS)
    assert bound_of(TokenBudget(8000), user_max_tokens=3000) == Bound(3000, BoundSource.USER)
    assert bound_of(TokenBudget(8000), user_max_tokens=9000) == Bound(8000, BoundSource.MAX_TOKENS)
    assert bound_of(TokenBudget(8000), target=500) == Bound(500, BoundSource.TARGET)
    assert bound_of(TokenTargetBudget(4000)) == Bound(4150, BoundSource.TARGET)
    assert bound_of(TokenTargetBudget(4000, max_tokens=2000)) == Bound(2000, BoundSource.MAX_TOKENS)


def test_the_replys_room_comes_off_the_window():
    asked = bound_of(TokenBudget(4096), context_window=4096, reply_tokens=1600)
    assert asked == Bound(2496, BoundSource.WINDOW, 1600)
    assert bound_of(TokenBudget(0), context_window=128_000, reply_reserve=2048).tokens == 125_952


def test_a_small_window_is_not_eaten_by_the_reserve():
    assert bound_of(TokenBudget(0), context_window=2048, reply_reserve=2048).tokens == 1536
    assert bound_of(TokenBudget(0), context_window=4096, reply_tokens=4096).tokens == 1024


def test_without_a_window_nothing_is_reserved():
    assert bound_of(TokenBudget(900), reply_tokens=4000) == Bound(900, BoundSource.MAX_TOKENS)


@pytest.mark.parametrize("make", [lambda: TokenBudget(-1), lambda: TokenTargetBudget(0)])
def test_a_bad_budget_names_the_field_and_the_fix(make):
    with pytest.raises(BadSetting, match=r"(max|target)_tokens: .*Use "):
        make()


def test_a_model_has_its_own_bound_by_its_id_or_the_longest_pattern_that_fits():
    budgets = read_model_budgets(
        '{"gpt-5*": 32000, "gpt-5-mini*": 9000, "gpt-5-mini": 8000, "*8b": 6000, "free": 0}'
    )
    found = [tokens_for(model, budgets, 16_000) for model in
             ("gpt-5-mini", "gpt-5-mini-2026", "GPT-5.6", "llama3.1:8b", "free", "claude")]  # fmt: skip
    assert found == [8000, 9000, 32000, 6000, 0, 16_000]


@pytest.mark.parametrize("text", ["[]", "x", '{"a": "b"}', '{"a": -1}', '{"a": true}', '{"a": 1.5}'])
def test_model_budgets_that_are_no_map_are_named_with_the_fix(text):
    with pytest.raises(BadSetting, match=r"model_budgets: .*Write it like"):
        read_model_budgets(text)
