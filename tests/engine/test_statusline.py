"""The one line above an answer."""

import asyncio
import json

import pytest

from eunoe.budget import TokenBudget
from eunoe.conversation import Conversation
from eunoe.orchestrator import ContextOrchestrator
from eunoe.statusline import Sent, short_number, status_line
from eunoe.usage import Usage


def sent(kept=14, given=61, tokens=7900, limit=10_000, over_limit=False, notices=()):
    return Sent(kept, given, tokens, limit, over_limit, notices)


def test_it_says_what_was_sent():
    assert status_line(sent()) == "Kept 14 of 61 messages, 7.9k of 10k tokens"


def test_it_says_what_the_turn_took_once_that_is_known():
    usage = Usage(7900, 50, 6162, None, 0.0021)
    assert (
        status_line(sent(), usage, 7900) == "Kept 14 of 61 messages, 7.9k of 10k tokens, 78 % cached, $0.0021"
    )


def test_the_providers_figure_replaces_the_count():
    assert status_line(sent(), Usage(8200, 50), 8200) == "Kept 14 of 61 messages, 8.2k of 10k tokens"
    assert status_line(sent(), Usage(), 0) == "Kept 14 of 61 messages, 0 of 10k tokens"
    assert status_line(sent(), Usage(), None) == "Kept 14 of 61 messages, 7.9k of 10k tokens"


@pytest.mark.parametrize(
    ("kept", "given", "words"),
    [
        (61, 61, "All 61 messages sent"),
        (1, 1, "1 message sent"),
        (0, 0, "All 0 messages sent"),
        (0, 1, "Kept 0 of 1 messages"),
        (60, 61, "Kept 60 of 61 messages"),
    ],
)
def test_it_counts_the_messages_in_words_that_fit(kept, given, words):
    assert status_line(sent(kept, given, limit=None)) == f"{words}, 7.9k tokens"


def test_without_a_limit_it_names_none():
    assert status_line(sent(limit=None)) == "Kept 14 of 61 messages, 7.9k tokens"
    assert status_line(sent(limit=0)) == "Kept 14 of 61 messages, 7.9k of 0 tokens"


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        (Usage(), ""),
        (Usage(1000, 5), ""),
        (Usage(1000, 5, 0), ", 0 % cached"),
        (Usage(1000, 5, 1000), ", 100 % cached"),
        (Usage(None, 5, 1000), ""),
        (Usage(0, 5, 0), ""),
        (Usage(1000, 5, None, None, 0.0), ", $0.0000"),
        (Usage(1000, 5, None, None, 1.5), ", $1.5000"),
    ],
)
def test_what_is_unknown_is_not_shown_and_zero_is(usage, words):
    assert status_line(sent(), usage) == "Kept 14 of 61 messages, 7.9k of 10k tokens" + words


def test_notices_follow_as_sentences():
    line = status_line(sent(notices=("!target needs a whole number from 1", "Not all pinned messages fit.")))
    assert line == (
        "Kept 14 of 61 messages, 7.9k of 10k tokens. !target needs a whole number from 1. Not all pinned messages fit"
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (950, "950"), (999, "999"), (1000, "1k"), (1049, "1.0k"), (7900, "7.9k"), (16_000, "16k"),
        (61_440, "61.4k"), (99_949, "99.9k"), (99_950, "100k"), (123_456, "123k"), (999_499, "999k"),
        (1_000_000, "1M"), (1_250_000, "1.2M"), (2_000_000, "2M"), (100_000_000, "100M"),
    ],
)  # fmt: skip
def test_a_number_is_short_enough_to_be_taken_in(number, text):
    assert short_number(number) == text


@pytest.mark.parametrize("number", [999_500, 999_950, 999_999])
def test_a_number_just_below_a_million_is_not_written_as_a_thousand_thousands(number):
    assert short_number(number) in {"1M", "1.0M"}


def planned(*messages, budget=0):
    conversation = Conversation.from_openai_messages(messages)
    return asyncio.run(ContextOrchestrator(TokenBudget(budget)).process(conversation)).plan


def test_instructions_are_not_among_the_messages_it_counts():
    system = {"role": "system", "content": "Be brief."}
    plan = planned(system, {"role": "user", "content": "Hi."})
    assert Sent.of(plan) == Sent(1, 1, plan.tokens_after, None, False, ())
    assert status_line(Sent.of(plan)).startswith("1 message sent, ")


def test_dropped_messages_and_a_broken_bound_are_seen():
    long = "many words about nothing at all " * 50
    old = [{"role": "user", "content": long}, {"role": "assistant", "content": long}]
    question = {"role": "user", "content": "And now? " * 30}
    plan = planned(*old, question, budget=40)
    notice = "The question and the instructions alone are over the limit."
    assert Sent.of(plan) == Sent(1, 3, plan.tokens_after, 40, True, (notice,))
    assert status_line(Sent.of(plan)).endswith(
        " of 40 tokens. The question and the instructions alone are over the limit"
    )


def test_a_shortened_message_counts_as_sent():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    plan = planned(
        {"role": "user", "content": "Read the log."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "line after line\n" * 400},
        budget=200,
    )
    assert plan.is_trimmed
    assert (Sent.of(plan).kept, Sent.of(plan).given) == (3, 3)


def test_it_survives_the_way_from_hook_to_hook():
    figures = sent(notices=("One.", "Two."), over_limit=True, limit=None)
    assert Sent.from_plain(json.loads(json.dumps(figures.as_plain()))) == figures


def test_more_cached_than_sent_is_not_told():
    assert "cached" not in status_line(Sent(1, 1, 10, None, False, ()), Usage(5409, 29, 7994), 5409)
