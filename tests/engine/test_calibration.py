"""The estimate of a prompt from what was reported of the one before."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eunoe.calibration import (
    BINARY_CHARACTERS,
    CalibrationLog,
    UsageSample,
    request_characters,
    sample_of,
)
from eunoe.usage import Usage, read_usage

from .strategies import answers, exchanges, odd_messages, texts, users

COUNTS = st.integers(0, 10**9)
SAMPLES = st.builds(UsageSample, st.integers(1, 10**9), st.integers(1, 10**9))


# Characters


def test_system_tools_and_messages_count():
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    messages = [{"role": "user", "content": "1234"}, {"role": "assistant", "content": "12", "name": "bot"}]
    assert request_characters(messages, [tool], "123") == 4 + 2 + 3 + 3 + len(
        json.dumps(tool, separators=(",", ":"))
    )
    assert (
        request_characters([], system=[{"type": "text", "text": "12345", "cache_control": {"a": "b"}}]) == 5
    )


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 99_999}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 50}},
        {"type": "input_audio", "input_audio": {"data": "UklGR" * 9_000, "format": "wav"}},
        {"type": "document", "source": {"type": "base64", "data": "A" * 70_000}},
        "data:image/png;base64," + "A" * 99_999,
    ],
)
def test_a_block_that_is_no_text_counts_as_6400(block):
    assert BINARY_CHARACTERS == 6_400
    assert (
        request_characters([{"role": "user", "content": [block, {"type": "text", "text": "123"}]}]) == 6_403
    )


def test_calls_and_results_count_with_what_they_say():
    call = {"id": "c", "type": "function", "function": {"name": "get", "arguments": '{"q": 1}'}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "0123456789"},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "abc"}]},
    ]
    assert request_characters(messages) == len("get") + len('{"q": 1}') + 10 + len("c" + "abc")


MESSAGES = st.lists(users() | answers() | odd_messages() | exchanges().map(lambda pair: pair[0]), max_size=8)


@given(MESSAGES, texts())
def test_more_text_is_never_fewer_characters(messages, more):
    characters = request_characters(messages)
    assert characters >= 0
    assert request_characters([*messages, {"role": "user", "content": more}]) == characters + len(more)
    assert request_characters(messages, system=more) == characters + len(more)


# Samples


@pytest.mark.parametrize(
    ("report", "tokens"),
    [
        ({"prompt_tokens": 400, "prompt_tokens_details": {"cached_tokens": 300}}, 400),
        ({"input_tokens": 20, "cache_read_input_tokens": 300, "cache_creation_input_tokens": 80}, 400),
        ({"input_tokens": 400, "input_tokens_details": {"cached_tokens": 300}}, 400),
        ({"prompt_eval_count": 400}, 400),
        ({"prompt_n": 100, "cache_n": 300}, 400),
    ],
)
def test_cache_reads_and_writes_are_part_of_a_sample(report, tokens):
    assert sample_of(1_000, read_usage(report)) == UsageSample(1_000, tokens)


@pytest.mark.parametrize(
    "report", [None, {}, {"prompt_tokens": 0}, {"prompt_tokens": None}, {"completion_tokens": 9}]
)
def test_a_report_of_nothing_is_no_sample(report):
    assert sample_of(1_000, read_usage(report)) is None
    assert sample_of(0, Usage(prompt_tokens=9)) is None


@pytest.mark.parametrize(("characters", "ratio"), [(2_500, 2.5), (100, 1), (100_000, 8)])
def test_the_ratio_lies_between_1_and_8(characters, ratio):
    assert UsageSample(characters, 1_000).ratio == ratio


def test_only_the_difference_is_estimated():
    sample = UsageSample(10_000, 4_000)
    assert [sample.tokens_at(n) for n in (10_000, 10_001, 12_500, 7_500, 0)] == [
        4_000,
        4_001,
        5_000,
        3_000,
        0,
    ]


@given(SAMPLES, COUNTS, COUNTS)
def test_an_estimate_grows_with_the_characters_and_is_never_negative(sample, a, b):
    less, more = sorted((a, b))
    low, high = sample.tokens_at(less), sample.tokens_at(more)
    assert 0 <= low <= high
    assert high - low <= more - less + 1  # no token is shorter than a character
    assert sample.tokens_at(sample.characters) == sample.tokens


# The log


def test_a_chat_has_its_own_sample_and_a_new_one_the_latest_ratio_of_the_model():
    log = CalibrationLog()
    log.note("me", "m", "a", 10_000, Usage(prompt_tokens=5_000))
    log.note("me", "m", "b", 9_000, Usage(prompt_tokens=3_000))
    assert log.estimate("me", "m", "a", 10_010) == 5_005
    assert log.estimate("me", "m", "b", 9_010) == 3_004
    assert log.estimate("me", "m", "new", 9_010) == 3_004
    assert log.estimate("me", "m", "new", 0) == 0


@pytest.mark.parametrize(("scope", "model"), [("you", "m"), ("me", "n")])
def test_another_person_and_another_model_know_nothing_of_it(scope, model):
    log = CalibrationLog()
    log.note("me", "m", "a", 10_000, Usage(prompt_tokens=5_000))
    assert log.estimate(scope, model, "a", 10_000) is None


def test_the_last_report_counts_and_an_empty_one_changes_nothing():
    log = CalibrationLog()
    for tokens in (5_000, 4_000, None, 0):
        log.note("me", "m", "a", 10_000, Usage(prompt_tokens=tokens))
    assert log.estimate("me", "m", "a", 10_000) == 4_000


def test_the_log_is_bounded_and_forgets_the_oldest():
    log = CalibrationLog()
    for i in range(2_500):
        log.note("me", f"m{i}", "a", 1_000 + i, Usage(prompt_tokens=500))
        log.note("me", "m0", "a", 1_000, Usage(prompt_tokens=500))
    assert (len(log._samples), len(log._ratios)) == (2_000, 500)
    assert log.estimate("me", "m0", "a", 1_000) == 500
    assert log.estimate("me", "m1", "a", 1_000) is None


def test_threads_may_share_a_log():
    log = CalibrationLog()

    def work(worker):
        for i in range(3_000):
            log.note("me", f"m{i % 700}", str(worker), 1_000, Usage(prompt_tokens=400))
            assert log.estimate("me", f"m{i % 700}", str(worker), 1_000) in (None, 400)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(log._samples) <= 2_000
