"""The algorithm for providers' caches: append only while it fits, one fresh choice when it does not."""

import asyncio

import pytest

from eunoe.algorithms.prefix import PrefixCacheOptimizedAlgorithm
from eunoe.algorithms.recency import RecencyBiasedAlgorithm
from eunoe.budget import TokenBudget
from eunoe.conversation import Conversation
from eunoe.errors import BadSetting
from eunoe.job import Request
from eunoe.orchestrator import ContextOrchestrator
from eunoe.ports import ConstraintSet
from eunoe.tokens import ESTIMATE, TokenCounter

WORDS = TokenCounter("words", lambda text: len(text.split()))
TOPICS = "harbor budget garden engine violin river bakery museum".split()


@pytest.fixture(autouse=True)
def one_token_a_word(monkeypatch):
    monkeypatch.setitem(ContextOrchestrator.process.__globals__, "counter_for", lambda model: WORDS)


def turn(i):
    topic = TOPICS[i % len(TOPICS)]
    return [
        {"role": "user", "content": f"What about the {topic} number {i}? " + "word " * 20},
        {"role": "assistant", "content": f"The {topic} number {i} is fine. " + "word " * 40},
    ]


def replay(algorithm, turns=60, budget=1_500, sent=None):
    """Send a growing chat; gives the share of each prompt that was the beginning of the one before."""
    orchestrator = ContextOrchestrator(TokenBudget(budget), algorithm=algorithm, sent=sent)
    history, before, shares, sizes = [], [], [], []
    for i in range(turns):
        question, answer = turn(i)
        history.append(question)
        conversation = Conversation.from_openai_messages(history)
        result = asyncio.run(orchestrator.process(conversation, Request(model="m")))
        messages = result.conversation.to_openai_messages()
        if before:
            same = next(
                (n for n, (a, b) in enumerate(zip(before, messages, strict=False)) if a != b), len(before)
            )
            shares.append(same / len(before))
        before = messages
        sizes.append(result.token_count)
        history.append(answer)
    assert max(sizes) <= budget
    return shares, sizes


def test_most_prompts_only_add_to_the_one_before():
    shares, _ = replay(PrefixCacheOptimizedAlgorithm())
    rewritten = sum(share < 1 for share in shares)
    assert rewritten <= 8
    afresh, _ = replay(RecencyBiasedAlgorithm())
    assert sum(share < 1 for share in afresh) >= 3 * rewritten


def test_new_turns_always_find_room():
    orchestrator = ContextOrchestrator(TokenBudget(1_500), algorithm=PrefixCacheOptimizedAlgorithm())
    history = []
    for i in range(40):
        question, answer = turn(i)
        history += [question]
        plan = asyncio.run(orchestrator.process(Conversation.from_openai_messages(history), Request())).plan
        assert all(d.sent is not None for d in plan.decisions[-3:]), i
        history += [answer]


def test_it_chooses_by_weight_when_it_chooses_afresh():
    history = [message for i in range(40) for message in turn(i)]
    history.append({"role": "user", "content": "Tell me of the harbor number 8."})
    orchestrator = ContextOrchestrator(TokenBudget(1_500), algorithm=PrefixCacheOptimizedAlgorithm())
    plan = asyncio.run(orchestrator.process(Conversation.from_openai_messages(history), Request())).plan
    assert plan.decisions[16].sent is not None
    assert plan.tokens_after <= 1_500
    assert plan.tokens_after < 1_200  # room for the turns to come


def test_what_is_no_longer_there_does_not_count_as_sent():
    """After an edit the beginning up to it is still the provider's; the rest is chosen afresh."""
    algorithm = PrefixCacheOptimizedAlgorithm()
    conversation = Conversation.from_openai_messages(m for i in range(6) for m in turn(i))
    counted = Conversation(tuple(m.counting(100) for m in conversation.messages))
    ids = [m.id for m in counted.messages]
    kept = algorithm.select(
        counted, TokenBudget(900), ConstraintSet(sent=frozenset(ids[4:10])), ESTIMATE
    ).keep
    assert kept == frozenset(ids[4:])
    refused = ConstraintSet(sent=frozenset(ids[4:10]), never=frozenset({ids[5]}), keep=frozenset({ids[0]}))
    kept = algorithm.select(counted, TokenBudget(900), refused, ESTIMATE).keep
    assert kept == frozenset({ids[0], ids[4], *ids[6:]})


def test_undo_takes_the_cut_back_for_what_fits():
    orchestrator = ContextOrchestrator(TokenBudget(1_500), algorithm=PrefixCacheOptimizedAlgorithm())
    history = [message for i in range(30) for message in turn(i)]

    def ask(text):
        messages = [*history, {"role": "user", "content": text}]
        return asyncio.run(orchestrator.process(Conversation.from_openai_messages(messages), Request())).plan

    cut, undone = ask("What now?"), ask("!undo What now?")
    assert cut.tokens_after < 1_200
    assert 1_300 < undone.tokens_after <= 1_500
    assert undone.notices == ()


def test_without_a_bound_the_inner_algorithm_decides():
    conversation = Conversation.from_openai_messages(turn(0))
    algorithm = PrefixCacheOptimizedAlgorithm()
    assert len(algorithm.select(conversation, TokenBudget(), ConstraintSet(), ESTIMATE).keep) == 2
    assert algorithm.name() == "prefix_cache_optimized"


@pytest.mark.parametrize("share", [0, -0.5, 1.5])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(BadSetting, match="trim_to"):
        PrefixCacheOptimizedAlgorithm(trim_to=share)
