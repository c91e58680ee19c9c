"""What providers report, in the shapes they report it."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eunoe.usage import Usage, add_usages, read_usage

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

ANTHROPIC = {
    "input_tokens": 500,
    "output_tokens": 200,
    "cache_read_input_tokens": 9000,
    "cache_creation_input_tokens": 1000,
    "total_tokens": 700,
}
LLAMA_CPP = {
    "prompt_tokens": 39000,
    "completion_tokens": 10,
    "prompt_n": 1000,
    "cache_n": 38000,
    "predicted_n": 10,
    "input_tokens": 39000,
    "output_tokens": 10,
    "total_tokens": 39010,
}


def test_openai_reports_cached_tokens_as_part_of_the_prompt():
    raw = {"prompt_tokens": 5247, "completion_tokens": 5, "total_tokens": 5252}
    assert read_usage(raw) == Usage(5247, 5)
    assert read_usage({**raw, "prompt_tokens_details": {"cached_tokens": 2623}}) == Usage(5247, 5, 2623)
    assert read_usage({**raw, "prompt_tokens_details": {"cached_tokens": 0}}) == Usage(5247, 5, 0)
    assert read_usage({**raw, "prompt_tokens_details": None}) == Usage(5247, 5)


def test_openais_newer_interface_has_other_names_for_the_same():
    raw = {
        "input_tokens": 36,
        "input_tokens_details": {"cached_tokens": 10},
        "output_tokens": 87,
        "output_tokens_details": {"reasoning_tokens": 64},
    }
    assert read_usage(raw) == Usage(36, 87, 10)


def test_the_host_adds_second_names_and_nothing_counts_twice():
    raw = {
        "prompt_tokens": 5247,
        "completion_tokens": 5,
        "total_tokens": 5252,
        "prompt_tokens_details": {"cached_tokens": 2623},
        "cost": 0.005257,
        "input_tokens": 5247,
        "output_tokens": 5,
    }
    assert read_usage(raw) == Usage(5247, 5, 2623, None, 0.005257)


def test_of_a_turn_with_several_calls_the_context_is_that_of_the_last():
    raw = {
        "prompt_tokens": 5329,
        "completion_tokens": 29,
        "total_tokens": 10612,
        "input_tokens": 10582,
        "output_tokens": 30,
    }
    assert read_usage(raw) == Usage(5329, 29)


def test_anthropic_leaves_the_cache_out_of_its_input_so_it_is_added():
    assert read_usage(ANTHROPIC) == Usage(10_500, 200, 9000, 1000)
    assert read_usage({"input_tokens": 500, "output_tokens": 2, "cache_read_input_tokens": 9000}) == Usage(
        9500, 2, 9000
    )
    assert read_usage({"input_tokens": 500, "cache_creation_input_tokens": 40}) == Usage(540, None, None, 40)
    cold = {"input_tokens": 500, "cache_read_input_tokens": 0, "cache_creation_input_tokens": None}
    assert read_usage(cold) == Usage(500, None, 0)


def test_anthropic_through_a_proxy_in_openais_shape_is_not_added_again():
    raw = {
        "prompt_tokens": 10_500,
        "completion_tokens": 200,
        "prompt_tokens_details": {"cached_tokens": 9000, "cache_creation_tokens": 1000},
        "cache_read_input_tokens": 9000,
        "cache_creation_input_tokens": 1000,
    }
    assert read_usage(raw) == Usage(10_500, 200, 9000, 1000)
    assert read_usage({**raw, **ANTHROPIC}) == Usage(10_500, 200, 9000, 1000)


def test_llama_cpp_reports_the_prompt_and_its_parts_which_are_not_added_to_it():
    usage = read_usage(LLAMA_CPP)
    assert usage.prompt_tokens + usage.completion_tokens == 39_010


def test_llama_cpp_says_how_much_came_from_its_cache():
    assert read_usage(LLAMA_CPP) == Usage(39_000, 10, 38_000)


def test_llama_cpps_timings_alone_leave_the_cache_out_of_the_prompt_so_it_is_added():
    assert read_usage({"prompt_n": 1000, "cache_n": 38_000, "predicted_n": 10}) == Usage(39_000, 10, 38_000)


def test_llama_cpp_before_it_reported_its_cache():
    assert read_usage({"prompt_n": 1000, "predicted_n": 10}) == Usage(1000, 10)


def test_ollama_has_names_of_its_own():
    raw = {"prompt_eval_count": 26, "eval_count": 298, "total_duration": 5_043_500_667}
    assert read_usage(raw) == Usage(26, 298)
    assert read_usage({**raw, "prompt_tokens": 26, "completion_tokens": 298, "input_tokens": 26}) == Usage(
        26, 298
    )


def test_deepseek_and_openrouter_tell_of_their_caches():
    deepseek = {
        "prompt_tokens": 100,
        "completion_tokens": 9,
        "prompt_cache_hit_tokens": 64,
        "prompt_cache_miss_tokens": 36,
    }
    assert read_usage(deepseek) == Usage(100, 9, 64)
    openrouter = {
        "prompt_tokens": 1500,
        "completion_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 1200},
        "cost": 0,
    }
    assert read_usage(openrouter) == Usage(1500, 9, 0, 1200, 0.0)


@pytest.mark.parametrize("raw", [None, "usage", 7, [], ["prompt_tokens"], {}, {"total_tokens": 9}])
def test_no_report_is_unknown_and_not_zero(raw):
    assert read_usage(raw) == Usage()
    assert read_usage(raw).is_empty


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), True, "12", None, [12], {"n": 12}])
def test_a_figure_that_can_not_be_is_unknown(bad):
    raw = {
        "prompt_tokens": bad,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": bad},
        "cost": bad,
    }
    assert read_usage(raw) == Usage(None, 3)


def test_a_figure_that_is_no_good_makes_room_for_the_next_name():
    assert read_usage(
        {"prompt_tokens": None, "input_tokens": 12, "completion_tokens": "?", "output_tokens": 3.0}
    ) == Usage(12, 3)


def test_zero_is_a_figure():
    assert read_usage({"prompt_tokens": 0, "completion_tokens": 0, "cost": 0.0}) == Usage(
        0, 0, None, None, 0.0
    )
    assert not Usage(prompt_tokens=0).is_empty
    assert not Usage(cost_usd=0.0).is_empty
    assert Usage().is_empty


NAMES = st.sampled_from(
    "prompt_tokens input_tokens prompt_eval_count prompt_n cache_n completion_tokens output_tokens cost "
    "prompt_tokens_details input_tokens_details cached_tokens "
    "cache_read_input_tokens cache_creation_input_tokens".split()
)
FIGURES = st.none() | st.booleans() | st.integers(-5, 10**9) | st.floats() | st.text(max_size=3)


@unhurried
@given(st.dictionaries(NAMES, FIGURES | st.dictionaries(NAMES, FIGURES, max_size=3), max_size=6))
def test_no_report_makes_it_fail_or_give_a_figure_below_zero(raw):
    usage = read_usage(raw)
    figures = (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.cost_usd,
    )
    assert all(figure is None or 0 <= figure < float("inf") for figure in figures)


def test_the_bill_of_a_turn_is_the_sum_of_its_calls():
    calls = [Usage(100, 10, 50, 5, 0.25), Usage(200, 20, 150, 0, 0.5), Usage(300, 30, 250, 1, 0.125)]
    assert add_usages(calls) == Usage(600, 60, 450, 6, 0.875)
    assert add_usages(iter(calls[:1])) == calls[0]


def test_a_sum_with_an_unknown_part_is_unknown():
    assert add_usages([Usage(100, 10, 50, 5, 0.25), Usage(200, 20)]) == Usage(300, 30)
    assert add_usages([Usage(100, 10), Usage()]) == Usage()
    assert add_usages([]) == Usage()


def test_a_figure_that_can_not_be_true_counts_as_not_reported():
    assert read_usage({"prompt_tokens": 10**400, "cost": float("inf")}) == Usage()
