"""What is remembered between turns changes nothing: a plan is the same with it and without it."""

import asyncio
import json
import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eunoe.budget import TokenBudget
from eunoe.compress import are_lean
from eunoe.conversation import Conversation, all_traits, digest_of, traits_of
from eunoe.job import Request
from eunoe.memo import Beginnings, Memo
from eunoe.orchestrator import ContextOrchestrator
from eunoe.postings import TermIndexes, postings_in
from eunoe.relevance import all_features
from eunoe.tokens import messages_tokens

from .strategies import conversations

RUNNER = asyncio.Runner()
thorough = settings(
    max_examples=int(os.environ.get("EUNOE_EXAMPLES", "80")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture
def forget(monkeypatch):
    """Empty all that the engine remembers."""

    def emptied():
        # By the functions that use them: in the single file all modules are one.
        for user, name, empty in (
            (all_traits, "_TRAITS", Memo(100)),
            (all_traits, "_CHATS", Beginnings(100_000)),
            (all_features, "_FEATURES", Memo(100)),
            (postings_in, "_INDEXES", TermIndexes(10_000)),
            (messages_tokens, "_COUNTS", Memo(4)),
            (are_lean, "_IS_LEAN", Memo(100)),
        ):
            assert type(user.__globals__[name]) is type(empty)
            monkeypatch.setitem(user.__globals__, name, empty)

    return emptied


def plan_of(messages, budget):
    orchestrator = ContextOrchestrator(TokenBudget(budget))
    fresh = json.loads(json.dumps(messages))  # as a host sends them: other objects on each turn
    result = RUNNER.run(orchestrator.process(Conversation.from_openai_messages(fresh), Request(run_id="run")))
    for decision in result.plan.decisions:
        if decision.fate == "kept":
            assert decision.sent is decision.message.raw
            was_flagged = decision.message.raw != fresh[decision.message.position]
            assert was_flagged or decision.sent is fresh[decision.message.position]
    return [(d.message.id, d.fate, d.reason, d.tokens_before, d.tokens_after, d.sent, dict(d.parts))
            for d in result.plan.decisions]  # fmt: skip


WORDS = "harbor boat train ticket pier tide sail rope deck port moved moving likes liked the of and".split()


def long_chat(length, seed):
    source = random.Random(seed)
    messages = [{"role": "system", "content": "Be brief."}]
    for i in range(length):
        text = " ".join(source.choices(WORDS, k=source.randrange(3, 30)))
        messages.append({"role": "assistant" if i % 2 else "user", "content": text})
    return messages


def test_turn_after_turn_edits_and_branches_plan_as_if_nothing_were_remembered(forget):
    source, messages = random.Random(5), long_chat(140, 1)
    states = []
    for turn in range(14):
        question = {"role": "user", "content": " ".join(source.choices(WORDS, k=4)) + "?"}
        if turn % 4 == 3:  # an edit or a branch: the rest is another one
            place = source.randrange(1, len(messages))
            messages = [*messages[:place], *long_chat(source.randrange(2, 120), turn)[1:]]
        messages = [*messages, *long_chat(2, 100 + turn)[1:]]
        states.append([*messages, question])
    warm = [plan_of(state, 600) for state in states]
    for state, plan in zip(states, warm, strict=True):
        forget()
        assert plan_of(state, 600) == plan


@thorough
@given(chats=st.lists(conversations(), min_size=2, max_size=4), budget=st.integers(50, 1500))
def test_chats_of_any_form_plan_the_same_a_second_time_and_among_others(chats, budget):
    first = [plan_of(chat, budget) for chat in chats]
    assert [plan_of(chat, budget) for chat in reversed(chats)] == first[::-1]


ALIKE = [
    {"role": "user", "content": "1"},
    {"role": "user", "content": 1},
    {"role": "user", "content": True},
    {"role": "user", "content": 1.0},
    {"role": "user", "content": ["1"]},
    {"role": "user", "content": "1", "name": "Ada"},
    {"role": "user", "content": None},
    {"role": "user", "content": "None"},
    {"role": "assistant", "content": "1"},
    {"role": 1, "content": "1"},
    {"content": "1"},
    {"role": "user", "content": "x" * 5000},
    {"role": "user", "content": "x" * 4999 + "y"},
    {"role": "user", "content": [{"type": "text", "text": "x" * 5000}]},
    {"role": "user", "content": object},
]


def test_messages_that_differ_in_anything_are_never_taken_for_one_another():
    for _ in range(2):
        assert [traits_of(raw).digest for raw in ALIKE] == [digest_of(raw) for raw in ALIKE]
        assert [known.digest for known in all_traits(ALIKE)] == [digest_of(raw) for raw in ALIKE]
        many = [*ALIKE, *long_chat(100, 3)]
        assert [known.digest for known in all_traits(many)] == [digest_of(raw) for raw in many]


@pytest.mark.parametrize("other", [True, 1.0, "1", None, ["1"]])
def test_long_chats_that_differ_in_one_value_are_never_taken_for_one_another(other):
    chats = [
        [*long_chat(80, 4), {"role": "user", "content": value}, *long_chat(5, 5)] for value in (1, other)
    ]
    for chat in (*chats, *chats):
        assert [known.digest for known in all_traits(chat)] == [digest_of(raw) for raw in chat]
