"""What providers keep of a prompt: the rules by model, and what follows of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eunoe.cache_rules import (
    NO_CACHE,
    UNKNOWN_CACHE,
    CacheHint,
    break_even_requests,
    cached_share,
    factors_of,
    hourly,
    is_cold,
    is_warm,
    rules_for,
)
from eunoe.pricing import Price


@pytest.mark.parametrize(
    ("model", "family", "minimum", "write", "read"),
    [
        ("gpt-4o", "openai", 1_024, 1, 0.5),
        ("chatgpt-4o-latest", "openai", 1_024, 1, 0.5),
        ("gpt-4o-mini-2024-07-18", "openai", 1_024, 1, 0.5),
        ("o3-mini", "openai", 1_024, 1, 0.5),
        ("o3", "openai", 1_024, 1, 0.25),
        ("openai/gpt-4.1-mini", "openai", 1_024, 1, 0.25),
        ("gpt-4.1-mini-2025-04-14", "openai", 1_024, 1, 0.25),
        ("gpt-5", "openai", 1_024, 1, 0.1),
        ("gpt-5-mini-2025-08-07", "openai", 1_024, 1, 0.1),
        ("openrouter/openai/gpt-5.5:free", "openai", 1_024, 1, 0.1),
        ("gpt-5.6", "openai from gpt-5.6", 1_024, 1.25, 0.1),
        ("gpt-5.6-terra", "openai from gpt-5.6", 1_024, 1.25, 0.1),
        ("gpt-5.10", "openai from gpt-5.6", 1_024, 1.25, 0.1),
        ("GPT-6-sol", "openai from gpt-5.6", 1_024, 1.25, 0.1),
        ("gpt-4-turbo", "none", None, 1, 1),
        ("gpt-4-0613", "none", None, 1, 1),
        ("gpt-3.5-turbo", "none", None, 1, 1),
        ("claude-opus-5", "anthropic", 512, 1.25, 0.1),
        ("claude-mythos-5", "anthropic", 512, 1.25, 0.1),
        ("claude-fable-5-1", "anthropic", 512, 1.25, 0.025),
        ("claude-opus-5-5", "anthropic", 4_096, 1.25, 0.05),
        ("claude-sonnet-5.5", "anthropic", 1_024, 1.25, 0.05),
        ("claude-opus-4-8", "anthropic", 1_024, 1.25, 0.1),
        ("claude-opus-4-7", "anthropic", 2_048, 1.25, 0.1),
        ("anthropic/claude-opus-4.5", "anthropic", 4_096, 1.25, 0.1),
        ("anthropic.claude-opus-4-5-20251101", "anthropic", 4_096, 1.25, 0.1),
        ("claude-opus-4-1-20250805", "anthropic", 1_024, 1.25, 0.1),
        ("claude-opus-4-20250514", "anthropic", 1_024, 1.25, 0.1),
        ("claude-opus-4@20250514", "anthropic", 1_024, 1.25, 0.1),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic", 1_024, 1.25, 0.1),
        ("claude-3-7-sonnet-20250219", "anthropic", 1_024, 1.25, 0.1),
        ("claude-haiku-4-5-20251001", "anthropic", 4_096, 1.25, 0.1),
        ("gemini-2.5-pro", "gemini", 2_048, 1, 0.1),
        ("models/gemini-3.5-flash", "gemini", 4_096, 1, 0.1),
        ("google/gemini-1.5-pro", "unknown", 1_024, 1, 0.1),
        ("deepseek/deepseek-v4-pro", "deepseek", 64, 1, 1 / 30),
        ("mistral-large-latest", "mistral", 1_024, 1, 0.1),
        ("llama3.1:8b", "local", 1, 1, 0),
        ("deepseek-r1:7b", "local", 1, 1, 0),
        ("mistral:latest", "local", 1, 1, 0),
        ("gpt-oss:20b", "local", 1, 1, 0),
        ("openai/gpt-oss-120b", "unknown", 1_024, 1, 0.1),
        ("mistral-7b-instruct", "unknown", 1_024, 1, 0.1),
        ("gpt-35-turbo", "unknown", 1_024, 1, 0.1),
        ("my-gpt-5-helper", "unknown", 1_024, 1, 0.1),
        ("notgpt-5.6", "unknown", 1_024, 1, 0.1),
        ("", "unknown", 1_024, 1, 0.1),
    ],
)
def test_rules_are_found_by_the_models_id(model, family, minimum, write, read):
    rules = rules_for(model)
    assert (rules.family, rules.minimum, rules.write, rules.read) == (family, minimum, write, read)


@pytest.mark.parametrize(
    ("provider", "family"),
    [("ollama", "local"), ("llamacpp", "local"), ("vllm", "vllm"), ("openai", "openai")],
)
def test_the_owner_goes_before_the_id_where_it_is_ones_own_machine(provider, family):
    assert rules_for("gpt-5", provider).family == family


@given(st.text(max_size=40))
def test_any_id_has_rules(model):
    rules = rules_for(model)
    assert rules.step >= 1
    assert rules.gone_seconds is None or rules.gone_seconds >= rules.kept_seconds or rules is NO_CACHE


def test_who_needs_a_hint():
    models = (
        "gpt-5.6",
        "gpt-4o",
        "claude-opus-5",
        "mistral-large-latest",
        "gemini-2.5-pro",
        "deepseek-chat",
        "x",
    )
    assert [(rules_for(model).hint, rules_for(model).automatic) for model in models] == [
        (CacheHint.KEY, True),
        (CacheHint.KEY, True),
        (CacheHint.CONTROL, False),
        (CacheHint.KEY, False),
        (CacheHint.NONE, True),
        (CacheHint.NONE, True),
        (CacheHint.NONE, True),
    ]


# What is served


@pytest.mark.parametrize(
    ("model", "common", "served"),
    [
        ("gpt-5", 1_023, 0), ("gpt-5", 1_024, 1_024), ("gpt-5", 1_151, 1_024), ("gpt-5", 1_152, 1_152),
        ("gpt-5.6", 1_151, 1_151), ("claude-opus-5", 512, 512), ("claude-opus-4-6", 4_000, 0),
        ("deepseek-chat", 200, 192), ("llama3:8b", 7, 7), ("gpt-4", 9_000, 0), ("x", 1_025, 1_025),
    ],
)  # fmt: skip
def test_a_beginning_is_served_from_a_least_length_on_and_in_steps(model, common, served):
    assert cached_share(rules_for(model), common) == served


@given(st.sampled_from(["gpt-5", "gpt-5.6", "claude-opus-4-6", "deepseek-chat", "gpt-4", "x"]),
       st.integers(0, 10**6), st.integers(0, 10**6))  # fmt: skip
def test_more_in_common_is_never_less_served(model, a, b):
    rules, (less, more) = rules_for(model), sorted((a, b))
    assert 0 <= cached_share(rules, less) <= cached_share(rules, more) <= more


def test_a_cache_is_warm_then_in_doubt_then_cold():
    openai = rules_for("gpt-5")
    assert [(is_warm(openai, s), is_cold(openai, s)) for s in (300, 301, 3_600, 3_601)] == [
        (True, False),
        (False, False),
        (False, False),
        (False, True),
    ]
    assert is_cold(rules_for("claude-opus-5"), 301)
    assert not is_cold(hourly(rules_for("claude-opus-5")), 301)
    assert not is_cold(rules_for("gemini-2.5-pro"), 10**9)
    assert not is_cold(UNKNOWN_CACHE, None)
    assert is_cold(NO_CACHE, None)
    assert not is_warm(NO_CACHE, 0)


def test_an_hour_costs_more_to_write_and_is_anthropics_alone():
    rules = hourly(rules_for("claude-sonnet-5"))
    assert (rules.write, rules.kept_seconds) == (2.0, 3_600)
    assert hourly(rules_for("gpt-5")) is rules_for("gpt-5")


# What a cut costs


@pytest.mark.parametrize(
    ("kept", "write", "read", "requests"),  # the table of the research
    [(50, 1.25, 0.1, 11.5), (30, 1.25, 0.1, 4.93), (50, 1.0, 0.1, 9), (30, 1.0, 0.1, 3.86),
     (50, 1.25, 0.05, 24), (30, 1.25, 0.05, 10.29), (50, 1.0, 1 / 30, 29), (50, 1.25, 0.025, 49)],
)  # fmt: skip
def test_a_cut_pays_after_so_many_requests(kept, write, read, requests):
    assert break_even_requests(kept, 100 - kept, write, read) == pytest.approx(requests, abs=0.01)


def test_a_cut_that_costs_nothing_pays_at_once_and_one_that_saves_nothing_never():
    assert break_even_requests(0, 10, 1.25, 0.1) == 0
    assert break_even_requests(10, 10, 1.0, 1.0) == 0
    assert break_even_requests(10, 0, 1.25, 0.1) == math.inf
    assert break_even_requests(10, 10, 1.0, 0.0) == math.inf


def test_a_price_list_goes_before_the_rules():
    rules = rules_for("claude-opus-5")
    assert factors_of(rules) == (1.25, 0.1)
    assert factors_of(rules, Price(4.0)) == (1.25, 0.1)
    assert factors_of(rules, Price(4.0, cached=0.2, cache_write=5.0)) == pytest.approx((1.25, 0.05))
    assert factors_of(rules, Price(4.0, cached=0.2, cache_write=8.0)) == pytest.approx((2.0, 0.05))
    assert factors_of(rules, Price(0.0)) == (1.25, 0.1)
