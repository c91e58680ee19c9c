"""What a provider likely has of a prompt: by its own rules for length, steps, time and places."""

import asyncio

import pytest

from eunoe.budget import TokenBudget
from eunoe.conversation import Conversation
from eunoe.job import Request
from eunoe.orchestrator import ContextOrchestrator
from eunoe.sent import SentLog
from eunoe.tokens import TokenCounter

from .clocks import SetClock

WORDS = TokenCounter("words", lambda text: len(text.split()))
QUESTION = {"role": "user", "content": "And now?"}


@pytest.fixture(autouse=True)
def one_token_a_word(monkeypatch):
    monkeypatch.setitem(ContextOrchestrator.process.__globals__, "counter_for", lambda model: WORDS)


@pytest.fixture
def clock():
    return SetClock()


@pytest.fixture
def log(clock):
    return SentLog(clock)


def chat(turns):
    """Make turns of 200 tokens; with 3 for the frame and 6 for the question."""
    return [
        {"role": role, "content": f"{role}{i} " + "word " * 95}
        for i in range(turns)
        for role in ("user", "assistant")
    ]


def plan_of(messages, tools=()):
    conversation = Conversation.from_openai_messages(messages)
    orchestrator = ContextOrchestrator(TokenBudget(0))
    return asyncio.run(orchestrator.process(conversation, Request(tools=tools))).plan


@pytest.mark.parametrize(
    ("model", "turns", "cached"),
    [("gpt-5", 7, 1_408), ("gpt-5.6", 7, 1_409), ("claude-opus-4-6", 7, 0), ("claude-opus-4-6", 21, 4_209),
     ("claude-opus-5", 3, 609), ("deepseek-chat", 1, 192), ("llama3.1:8b", 1, 209), ("gpt-4", 30, 0), ("m", 5, 0)],
)  # fmt: skip
def test_the_models_rules_say_how_much_counts_as_cached(log, model, turns, cached):
    plan = plan_of([*chat(turns), QUESTION])
    assert log.note("", model, plan) == 0
    assert log.note("", model, plan) == log.cached_tokens("", model, plan) == cached


@pytest.mark.parametrize(
    ("model", "seconds"), [("gpt-5", 300), ("gpt-5.5", 86_400), ("gpt-5.6", 1_800), ("claude-opus-5", 300)]
)
def test_the_models_rules_say_for_how_long(log, clock, model, seconds):
    plan = plan_of([*chat(10), QUESTION])
    log.note("", model, plan)
    clock.now += seconds
    assert log.cached_tokens("", model, plan) > 1_900
    clock.now += 1
    assert log.cached_tokens("", model, plan) == 0


def test_entries_that_end_at_questions_are_found_there_only(log):
    log.note("", "gpt-5.6", plan_of([*chat(10), QUESTION]))
    log.note("", "gpt-5", plan_of([*chat(10), QUESTION]))
    edited = [*chat(10), QUESTION]
    edited[14] = {"role": "user", "content": "edited"}  # what is the same ends with an answer
    assert log.cached_tokens("", "gpt-5.6", plan_of(edited)) == 3 + 13 * 100
    assert log.cached_tokens("", "gpt-5", plan_of(edited)) == 1_024 + 2 * 128


def test_other_tools_leave_nothing_cached_since_they_stand_first(log):
    messages = [*chat(10), QUESTION]
    tools = [{"type": "function", "function": {"name": "one"}}]
    others = [{"type": "function", "function": {"name": "two"}}]
    plan = plan_of(messages, tools)
    log.note("", "m", plan, tools)
    assert log.cached_tokens("", "m", plan, tools) > 2_000
    assert log.cached_tokens("", "m", plan_of(messages, others), others) == 0
    log.note("", "m", plan_of(messages, others), others)
    assert log.cached_tokens("", "m", plan, tools) > 2_000  # both are remembered


def test_another_model_has_nothing_of_it(log):
    plan = plan_of([*chat(10), QUESTION])
    log.note("", "gpt-5", plan)
    assert log.cached_tokens("", "gpt-5-mini", plan) == 0
    assert log.sent_before("", "gpt-5-mini", plan.conversation) == frozenset()
    assert len(log.sent_before("", "gpt-5", plan.conversation)) == 21


def test_how_long_ago_a_chat_was_sent_is_known_by_its_content(log, clock):
    plan = plan_of([*chat(10), QUESTION])
    assert log.idle_seconds("", "m", plan.conversation) is None
    log.note("", "m", plan)
    clock.now += 100
    other = plan_of([*chat(1), {"role": "user", "content": "another chat that begins alike"}])
    log.note("", "m", other)
    clock.now += 10
    longer = plan_of([*chat(10), QUESTION, *chat(1)])
    assert log.idle_seconds("", "m", longer.conversation) == 110
    assert log.idle_seconds("", "m", other.conversation) == 10
    assert log.idle_seconds("", "n", plan.conversation) is None
    assert log.idle_seconds("you", "m", plan.conversation) is None
