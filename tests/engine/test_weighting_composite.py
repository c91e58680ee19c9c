"""Several strategies at once."""

import asyncio

import pytest

from eunoe.conversation import Conversation
from eunoe.errors import BadSetting
from eunoe.weighting.composite import CompositeWeightStrategy
from eunoe.weighting.smart import SmartWeightingStrategy
from eunoe.weighting.static import StaticWeightStrategy

CHAT = [
    {"role": "user", "content": "harbor depth"},
    {"role": "assistant", "content": "Twelve."},
    {"role": "user", "content": "harbor?"},
]


class Fixed:
    """Gives each message the number at its place; None leaves it out."""

    def __init__(self, name, *numbers, meet=None):
        self._name, self.numbers, self.meet, self.context = name, numbers, meet, None

    async def score(self, messages, query, conversation, context=None):
        self.context = context
        if self.meet is not None:
            await self.meet.wait()
        pairs = zip(messages, self.numbers, strict=True)
        return {message.id: number for message, number in pairs if number is not None}

    def name(self):
        return self._name


def scores(strategy, context=None):
    conversation = Conversation.from_openai_messages(CHAT)
    found = asyncio.run(strategy.score(conversation.messages, "harbor?", conversation, context))
    return [found[m.id] for m in conversation.messages]


def test_scores_are_the_mean_by_weights_of_any_sum():
    a, b = Fixed("a", 1.0, 0.5, 0.0), Fixed("b", 0.0, 0.5, 1.0)
    assert scores(CompositeWeightStrategy([(a, 3), (b, 1)])) == pytest.approx([0.75, 0.5, 0.25])
    assert scores(CompositeWeightStrategy([(a, 0.6), (b, 0.2)])) == pytest.approx([0.75, 0.5, 0.25])
    assert scores(CompositeWeightStrategy([(a, 1), (b, 0)])) == [1.0, 0.5, 0.0]


def test_a_message_that_a_strategy_leaves_out_counts_one_there():
    a, b = Fixed("a", None, 0.5, 0.0), Fixed("b", 0.0, None, 1.0)
    assert scores(CompositeWeightStrategy([(a, 1), (b, 1)])) == [0.5, 0.75, 0.5]


def test_strategies_run_at_the_same_time_and_know_what_the_turn_asks_for():
    async def together():
        meet = asyncio.Barrier(2)  # each waits for the other
        pair = [Fixed("a", 1, 1, 1, meet=meet), Fixed("b", 1, 1, 1, meet=meet)]
        conversation = Conversation.from_openai_messages(CHAT)
        composite = CompositeWeightStrategy([(pair[0], 1), (pair[1], 1)])
        context = {"scope": "ada"}
        async with asyncio.timeout(5):
            await composite.score(conversation.messages, "q", conversation, context)
        assert [strategy.context for strategy in pair] == [context, context]

    asyncio.run(together())


def test_the_parts_are_told_where_somebody_wants_them():
    a, b, again = Fixed("a", 1.0, 0.5, 0.0), Fixed("b", 0.0, 0.5, None), Fixed("a", 0.2, 0.2, 0.2)
    composite = CompositeWeightStrategy([(a, 1), (b, 1), (again, 1)])
    parts = {}
    assert scores(composite, {"parts": parts}) == scores(composite)
    told = {name: list(found.values()) for name, found in parts.items()}
    assert told == {"a": [1.0, 0.5, 0.0], "b": [0.0, 0.5], "a 2": [0.2, 0.2, 0.2]}


def test_its_name_says_what_it_is_made_of():
    smart, static = SmartWeightingStrategy(), StaticWeightStrategy()
    assert CompositeWeightStrategy([(smart, 2), (static, 3)]).name() == "composite(smart 0.4, static 0.6)"
    assert CompositeWeightStrategy([(smart, 2), (static, 1)]).name() == "composite(smart 0.67, static 0.33)"


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -0.5], [float("nan"), 1], [float("inf"), 1]])
def test_weights_that_are_no_shares_are_refused(weights):
    with pytest.raises(BadSetting):
        CompositeWeightStrategy([(StaticWeightStrategy(), weight) for weight in weights])
