"""The bound on what a prompt costs: what is cached counts at its price, and unknown prices bound nothing."""

import asyncio

import pytest

from eunoe.assembly import orchestrator_for
from eunoe.budget import CompositeBudget, CostBudget, TokenBudget, TokenTargetBudget, with_max_tokens
from eunoe.cache_rules import UNKNOWN_CACHE
from eunoe.conversation import Conversation
from eunoe.errors import BadSetting
from eunoe.job import UNPRICED, Request
from eunoe.orchestrator import ContextOrchestrator
from eunoe.plan import Fate
from eunoe.ports import ListSink
from eunoe.pricing import Price, prompt_cost, prompt_cost_at_most, tokens_within
from eunoe.sent import SentLog
from eunoe.settings import Settings
from eunoe.tokens import TokenCounter

from .clocks import SetClock

WORDS = TokenCounter("words", lambda text: len(text.split()))
PLAIN = Price(10.0)  # USD for a million tokens
CACHED = Price(10.0, cached=1.0)
QUESTION = {"role": "user", "content": "And now?"}


@pytest.fixture(autouse=True)
def one_token_a_word(monkeypatch):
    monkeypatch.setitem(ContextOrchestrator.process.__globals__, "counter_for", lambda model: WORDS)


def chat(turns, size=96):
    """Make turns of 200 tokens."""
    return [
        {"role": role, "content": f"{role}{i} " + "word " * (size - 1)}
        for i in range(turns)
        for role in ("user", "assistant")
    ]


def process(orchestrator, messages, **request):
    conversation = Conversation.from_openai_messages(messages)
    return asyncio.run(orchestrator.process(conversation, Request(model="m", **request)))


def test_no_prompt_costs_more_than_the_bound():
    orchestrator = ContextOrchestrator(CostBudget(0.006))  # 600 tokens at 10 USD for a million
    result = process(orchestrator, [*chat(10), QUESTION], price=PLAIN)
    assert 300 < result.token_count <= 600
    assert result.estimated_cost_usd == pytest.approx(result.token_count * 10 / 1e6)
    assert result.estimated_cost_usd <= 0.006
    assert (result.plan.bound.source, result.plan.bound.tokens) == ("cost", 600)


def test_what_costs_less_than_the_bound_is_sent_whole():
    result = process(ContextOrchestrator(CostBudget(0.03)), [*chat(10), QUESTION], price=PLAIN)
    assert not result.plan.is_trimmed
    assert result.plan.bound.tokens is None


def test_both_bounds_hold_and_the_tighter_one_is_named():
    for tokens, usd, limit, source in ((500, 0.1, 500, "max_tokens"), (1_500, 0.006, 600, "cost")):
        budget = CompositeBudget(TokenBudget(tokens), CostBudget(usd))
        plan = process(ContextOrchestrator(budget), [*chat(10), QUESTION], price=PLAIN).plan
        assert (plan.bound.tokens, plan.bound.source) == (limit, source)
        assert plan.tokens_after <= limit


def test_a_composite_of_a_target_keeps_the_target():
    budget = CompositeBudget(TokenTargetBudget(500, 0), CostBudget(1))
    plan = process(ContextOrchestrator(budget), [*chat(10), QUESTION], price=PLAIN).plan
    assert (plan.bound.tokens, plan.bound.source) == (500, "target")
    free = process(ContextOrchestrator(CompositeBudget.unlimited()), [*chat(10), QUESTION], price=PLAIN).plan
    assert free.bound.tokens is None
    assert not free.is_trimmed


@pytest.mark.parametrize(
    "budget", [CostBudget(0.006), CompositeBudget(TokenBudget(1_000), CostBudget(0.006))]
)
def test_a_model_may_have_its_own_bound_on_tokens_beside_that_on_cost(budget):
    orchestrator = ContextOrchestrator(budget, model_budgets={"m": 400})
    plan = process(orchestrator, [*chat(10), QUESTION], price=PLAIN).plan
    assert (plan.bound.tokens, plan.bound.source) == (400, "max_tokens")
    assert with_max_tokens(budget, 7).max_tokens == 7


def test_an_unknown_price_bounds_nothing_and_says_so():
    plan = process(ContextOrchestrator(CostBudget(0.001)), [*chat(10), QUESTION], price=None).plan
    assert not plan.is_trimmed
    assert plan.notices == (UNPRICED,)
    assert process(ContextOrchestrator(CostBudget()), [*chat(2), QUESTION], price=None).plan.notices == ()


def test_free_tokens_are_not_bounded():
    assert not process(
        ContextOrchestrator(CostBudget(0.001)), [*chat(10), QUESTION], price=Price(0.0)
    ).plan.is_trimmed


def test_the_question_is_sent_whatever_it_costs():
    question = {"role": "user", "content": "word " * 900}
    plan = process(ContextOrchestrator(CostBudget(0.006)), [*chat(3), question], price=PLAIN).plan
    assert plan.over_limit
    assert [d.fate for d in plan.decisions] == [Fate.DROPPED] * 6 + [Fate.KEPT]


def test_users_lift_no_bound_on_cost():
    for flag in ("!full ", "!target=100000 ", "!recent=20 "):
        question = {"role": "user", "content": flag + "And now?"}
        assert (
            process(ContextOrchestrator(CostBudget(0.006)), [*chat(10), question], price=PLAIN).token_count
            <= 600
        )


def test_writing_to_the_cache_counts_at_its_price():
    price = Price(10.0, cached=1.0, cache_write=12.5)
    result = process(ContextOrchestrator(CostBudget(0.01)), [*chat(10), QUESTION], price=price)
    assert result.token_count <= 800


# What is cached


def test_a_cached_beginning_counts_at_its_price_while_it_lives():
    clock = SetClock()
    orchestrator = ContextOrchestrator(CostBudget(0.016), sent=SentLog(clock))
    first = [*chat(7), QUESTION]  # 1,409 tokens, 0.0141 USD
    assert not process(orchestrator, first, price=CACHED).plan.is_trimmed
    longer = [*first, {"role": "assistant", "content": "Now " + "word " * 95}, *chat(2)[:2], QUESTION]
    warm = process(orchestrator, longer, price=CACHED)  # 1,715 tokens: 1,409 cached and 306 not, 0.0045 USD
    assert not warm.plan.is_trimmed
    assert warm.estimated_cost_usd == pytest.approx((1_409 * 1 + (warm.token_count - 1_409) * 10) / 1e6)
    clock.now += UNKNOWN_CACHE.kept_seconds + 1
    cold = process(orchestrator, longer, price=CACHED)
    assert cold.plan.is_trimmed
    assert cold.estimated_cost_usd <= 0.016


@pytest.mark.parametrize(
    ("scope", "model", "begin"), [("other", "m", ""), ("me", "other", ""), ("me", "m", "Another chat. ")]
)
def test_what_another_person_model_or_chat_sent_is_not_cached_for_this_one(scope, model, begin):
    log = SentLog(SetClock())
    orchestrator = ContextOrchestrator(CostBudget(1), sent=log)
    process(orchestrator, [*chat(7), QUESTION], price=CACHED, user="me")
    other = [*chat(7), QUESTION]
    other[0] = {**other[0], "content": begin + other[0]["content"]}
    plan = process(ContextOrchestrator(), other, user=scope).plan
    assert log.cached_tokens(scope, model, plan) == 0
    assert log.cached_tokens("me", "m", process(ContextOrchestrator(), [*chat(7), QUESTION]).plan) > 1_400


def test_a_changed_message_ends_what_is_cached():
    log = SentLog(SetClock())
    process(ContextOrchestrator(sent=log), [*chat(10), QUESTION], price=CACHED)
    edited = [*chat(10), QUESTION]
    edited[14] = {**edited[14], "content": "edited"}
    plan = process(ContextOrchestrator(), edited).plan
    assert log.cached_tokens("", "m", plan) == 3 + 14 * 100
    edited[2] = {**edited[2], "content": "edited"}
    plan = process(ContextOrchestrator(), edited).plan
    assert log.cached_tokens("", "m", plan) == 0  # 203 tokens are less than any provider caches


def test_the_log_is_bounded_and_holds_no_text():
    log = SentLog(SetClock())
    orchestrator = ContextOrchestrator(sent=log)
    for i in range(30):
        process(
            orchestrator,
            [{"role": "user", "content": "secret"}, {"role": "assistant", "content": str(i)}, QUESTION],
        )
    assert len(log._chats) == 1
    assert len(next(iter(log._chats.values()))) <= 8
    assert "secret" not in repr(log._chats)


def test_the_plan_reports_what_is_likely_cached():
    sink = ListSink()
    orchestrator = ContextOrchestrator(sink=sink)
    for _ in range(2):
        process(orchestrator, [*chat(7), QUESTION], price=CACHED)
    cold, warm = (event.data for event in sink.events if event.event == "pipeline.plan")
    assert (cold.get("tokens_cached", 0), warm["tokens_cached"]) == (0, 1_409)
    assert warm["estimated_cost_usd"] == pytest.approx(1_409 / 1e6)


# Figures


def test_prices_of_prompts():
    assert prompt_cost(1_000, None) is None
    assert prompt_cost(1_000, PLAIN, 500) == pytest.approx(0.01)
    assert prompt_cost(1_000, CACHED, 500) == pytest.approx(0.0055)
    assert prompt_cost(1_000, CACHED, 5_000) == pytest.approx(0.001)
    assert prompt_cost_at_most(1_000, 0, Price(10.0, cache_write=12.5)) == pytest.approx(0.0125)
    assert tokens_within(0.006, PLAIN) == 600
    assert tokens_within(0.006, Price(10.0, cache_write=12.5)) == 480
    assert tokens_within(0.006, Price(0.0)) is None


@pytest.mark.parametrize("amount", [-0.01, float("nan"), float("inf")])
def test_a_bound_that_is_no_amount_is_refused(amount):
    with pytest.raises(BadSetting, match="max_cost_usd"):
        CostBudget(amount)


def test_the_setting_bounds_the_cost():
    orchestrator = orchestrator_for(Settings(max_cost_usd=0.006))
    assert process(orchestrator, [*chat(10), QUESTION], price=PLAIN).token_count <= 600
