"""The nine rules of a plan, on any conversation, with every algorithm and weighting."""

import asyncio
import copy
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eunoe.algorithms.dependency import DependencyAwareAlgorithm
from eunoe.algorithms.greedy import GreedyByWeightAlgorithm
from eunoe.algorithms.recency import RecencyBiasedAlgorithm
from eunoe.bonds import repair, turns_of
from eunoe.budget import TokenBudget
from eunoe.conversation import Conversation
from eunoe.flags import read_flags
from eunoe.job import Request
from eunoe.orchestrator import ContextOrchestrator
from eunoe.plan import UNYIELDING, Fate, Reason
from eunoe.ports import SelectionResult
from eunoe.tokens import counter_for
from eunoe.weighting.keyword import KeywordRelevanceStrategy
from eunoe.weighting.smart import SmartWeightingStrategy
from eunoe.weighting.static import StaticWeightStrategy

from .strategies import budgets, conversations

ALGORITHMS = {
    "greedy": GreedyByWeightAlgorithm(),
    "recency": RecencyBiasedAlgorithm(1.5),
    "dependency": DependencyAwareAlgorithm(),
}
WEIGHTINGS = [SmartWeightingStrategy(), KeywordRelevanceStrategy(), StaticWeightStrategy()]
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS.keys())
thorough = settings(
    max_examples=int(os.environ.get("EUNOE_EXAMPLES", "80")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


RUNNER = asyncio.Runner()  # one loop for all examples: a thread pool for each would take most of the time


def process(messages, budget, algorithm, weighting=None, **request):
    orchestrator = ContextOrchestrator(TokenBudget(budget), algorithm=algorithm, weighting=weighting)
    conversation = Conversation.from_openai_messages(messages)
    return RUNNER.run(orchestrator.process(conversation, Request(run_id="run", **request)))


def is_valid_for_providers(messages):
    """Say whether every call has exactly its results behind it, and no reply is empty."""
    i = 0
    while i < len(messages):
        message = messages[i]
        i += 1
        if message.get("role") == "tool":
            return False
        if message.get("role") == "assistant" and message.get("tool_calls"):
            calls = [call.get("id") for call in message["tool_calls"]]
            results = []
            while i < len(messages) and messages[i].get("role") == "tool":
                results.append(messages[i]["tool_call_id"])
                i += 1
            if None in calls or len(set(calls)) != len(calls) or sorted(calls) != sorted(results):
                return False
    return True


@every_algorithm
@thorough
@given(
    messages=conversations(),
    budget=budgets(),
    weighting=st.sampled_from(WEIGHTINGS),
    tools=st.sampled_from([[], TOOLS]),
)
def test_the_bound_holds_unless_what_must_be_kept_alone_is_over(
    algorithm, messages, budget, weighting, tools
):
    result = process(messages, budget, algorithm, weighting, tools=tools)
    counter = counter_for("")
    recount = 3 + counter.count_tools(tools) + sum(counter.count_message(m) for m in result.plan.messages)
    assert result.token_count == recount
    if budget and recount > budget:
        sent = [d for d in result.plan.decisions if d.sent is not None]
        assert all(d.reason in UNYIELDING for d in sent)
        assert result.plan.over_limit
        assert "alone are over the limit" in " ".join(result.plan.notices)
    else:
        assert not result.plan.over_limit


@every_algorithm
@thorough
@given(messages=conversations(), budget=budgets())
def test_what_is_sent_is_valid_for_providers(algorithm, messages, budget):
    sent = process(messages, budget, algorithm).plan.messages
    assert is_valid_for_providers(sent)
    blank = [m for m in sent if m.get("role") == "assistant" and m.get("content") in ("", None, [])]
    assert all(m.get("tool_calls") or m.get("function_call") or len(m) > 2 for m in blank)
    chat = [m for m in messages if m.get("role") not in {"system", "developer"}]
    chat_sent = [m for m in sent if m.get("role") not in {"system", "developer"}]
    if chat and chat_sent and chat[0].get("role") == "user":
        assert chat_sent[0]["role"] == "user"


@every_algorithm
@thorough
@given(messages=conversations(), budget=budgets())
def test_instructions_and_the_question_are_kept_word_for_word(algorithm, messages, budget):
    sent = process(messages, budget, algorithm).plan.messages
    cleaned = read_flags(Conversation.from_openai_messages(messages))[0].to_openai_messages()
    for message in cleaned:
        if message.get("role") in {"system", "developer"}:
            assert message in sent
    users = [m for m in cleaned if m.get("role") == "user"]
    if users:
        assert [m for m in sent if m.get("role") == "user"][-1] == users[-1]


@every_algorithm
@thorough
@given(messages=conversations(), budget=st.integers(300, 4000))
def test_a_pin_is_kept_word_for_word_where_it_fits_beside_the_question(algorithm, messages, budget):
    plan = process(messages, budget, algorithm).plan
    for decision in plan.decisions:
        taken_out = decision.reason in {Reason.EXCLUDED, Reason.ONLY}
        if decision.message.pinned and decision.fate is not Fate.KEPT and not taken_out:
            assert decision.fate is Fate.COMPRESSED or decision.reason is Reason.NO_ROOM
            assert "Not all pinned messages fit." in plan.notices


@every_algorithm
@thorough
@given(messages=conversations(), budget=budgets())
def test_kept_messages_are_the_same_objects_and_the_input_is_untouched(algorithm, messages, budget):
    before = copy.deepcopy(messages)
    plan = process(messages, budget, algorithm).plan
    assert messages == before
    for decision in plan.decisions:
        if decision.fate is Fate.KEPT:
            assert decision.sent is decision.message.raw


@every_algorithm
@thorough
@given(messages=conversations())
def test_nothing_to_do_nothing_done(algorithm, messages):
    conversation = Conversation.from_openai_messages(messages)
    cleaned, directives = read_flags(conversation)
    faults = repair(cleaned.messages)[1]
    result = process(messages, 0, algorithm)
    asked = {"context", "only"} & set(directives.turn) or any(m.excluded for m in directives.marks.values())
    if not faults and not asked:
        assert result.plan.messages == cleaned.to_openai_messages()
        assert not result.plan.is_trimmed


@every_algorithm
@thorough
@given(messages=conversations(), budget=budgets())
def test_it_is_idempotent_and_pure(algorithm, messages, budget):
    first = process(messages, budget, algorithm)
    again = process(messages, budget, algorithm)
    assert json.dumps(first.plan.messages, default=str) == json.dumps(again.plan.messages, default=str)
    second = process(first.plan.messages, budget, algorithm, directives=first.plan.directives)
    assert second.plan.messages == first.plan.messages


@every_algorithm
@thorough
@given(messages=conversations(), budget=budgets())
def test_every_message_has_one_decision_and_the_sums_agree(algorithm, messages, budget):
    plan = process(messages, budget, algorithm).plan
    assert [d.message.position for d in plan.decisions] == list(range(len(messages)))
    assert plan.tokens_after == plan.overhead_tokens + sum(d.tokens_after for d in plan.decisions)
    assert plan.messages == [d.sent for d in plan.decisions if d.sent is not None]
    for decision in plan.decisions:
        product = 1.0
        for part in decision.parts.values():
            product *= part
        assert decision.weight == pytest.approx(product)
        assert (decision.fate is Fate.DROPPED) == (decision.sent is None)


@every_algorithm
@thorough
@given(messages=conversations(), budget=budgets())
def test_no_earlier_question_is_torn_from_its_answer(algorithm, messages, budget):
    plan = process(messages, budget, algorithm).plan
    sent = {d.message.id for d in plan.decisions if d.sent is not None}
    whole, _ = repair(plan.conversation.messages)
    for turn in turns_of(whole)[:-1]:
        if turn.opener and turn.answer:
            assert (turn.opener.id in sent) == (turn.answer.id in sent)


class TakesAnything:
    """A careless algorithm: it keeps every third message whatever the budget."""

    def select(self, conversation, budget, constraints, token_counter):
        return SelectionResult(frozenset(m.id for i, m in enumerate(conversation.messages) if i % 3 == 0))

    def name(self):
        return "careless"


@thorough
@given(messages=conversations(), budget=budgets())
def test_a_careless_algorithm_can_break_no_rule(messages, budget):
    plan = process(messages, budget, TakesAnything()).plan
    plan.verify()
    assert is_valid_for_providers(plan.messages)
    assert not plan.over_limit or all(d.reason in UNYIELDING for d in plan.decisions if d.sent is not None)
