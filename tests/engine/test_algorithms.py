"""Ways to choose what stays within a budget."""

import copy

import pytest

from eunoe.algorithms.dependency import DependencyAwareAlgorithm
from eunoe.algorithms.greedy import GreedyByWeightAlgorithm, forms_of
from eunoe.algorithms.recency import RecencyBiasedAlgorithm
from eunoe.bonds import turns_of
from eunoe.budget import TokenBudget, TokenTargetBudget
from eunoe.conversation import Conversation
from eunoe.errors import BadSetting
from eunoe.ports import ConstraintSet, SelectionResult
from eunoe.tokens import ESTIMATE

every_algorithm = pytest.mark.parametrize(
    "algorithm",
    [
        GreedyByWeightAlgorithm(),
        RecencyBiasedAlgorithm(),
        DependencyAwareAlgorithm(),
        DependencyAwareAlgorithm(GreedyByWeightAlgorithm()),
    ],
    ids=["greedy", "recency", "dependency", "dependency of greedy"],
)


def conversation_of(*rows):
    """Make a conversation of (role, weight) or (role, weight, tokens); 10 tokens if nothing is said."""
    raws = []
    for i, (role, *_) in enumerate(rows):
        raw = {"role": role, "content": f"{role} {i}"}
        if role == "call":
            raw = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{i}", "function": {"name": "f"}}],
            }
        raws.append(raw)
    read = Conversation.from_openai_messages(raws).messages
    return Conversation(
        tuple(
            m.weighing(row[1]).counting(row[2] if len(row) > 2 else 10)
            for m, row in zip(read, rows, strict=True)
        )
    )


def chosen(algorithm, conversation, budget, keep=(), never=()):
    """List the positions an algorithm chooses."""
    ids = [m.id for m in conversation.messages]
    limits = ConstraintSet(keep=frozenset(ids[i] for i in keep), never=frozenset(ids[i] for i in never))
    keep = algorithm.select(conversation, TokenBudget(budget), limits, ESTIMATE).keep
    return sorted(ids.index(name) for name in keep)


THREE_TURNS = conversation_of(
    ("user", 0.2), ("assistant", 0.2), ("user", 0.9), ("assistant", 0.3), ("user", 0.4), ("assistant", 0.4)
)
TOOL_TURN = conversation_of(
    ("user", 0.5), ("call", 0.9), ("tool", 0.9, 100), ("assistant", 0.5), ("user", 0.1)
)


# Greedy


def test_the_heaviest_turns_are_taken_first():
    greedy = GreedyByWeightAlgorithm()
    assert chosen(greedy, THREE_TURNS, 20) == [2, 3]
    assert chosen(greedy, THREE_TURNS, 40) == [2, 3, 4, 5]
    assert chosen(greedy, THREE_TURNS, 60) == [0, 1, 2, 3, 4, 5]


def test_a_turn_is_as_heavy_as_its_heaviest_message():
    conversation = conversation_of(("user", 0.5), ("assistant", 0.5), ("user", 0.1), ("assistant", 0.6))
    assert chosen(GreedyByWeightAlgorithm(), conversation, 20) == [2, 3]


def test_of_two_turns_alike_the_newer_is_taken():
    conversation = conversation_of(("user", 0.5), ("user", 0.5), ("user", 0.5))
    assert chosen(GreedyByWeightAlgorithm(), conversation, 20) == [1, 2]


def test_a_turn_is_taken_as_a_whole_or_not_at_all():
    assert chosen(GreedyByWeightAlgorithm(), THREE_TURNS, 19) == []
    assert chosen(GreedyByWeightAlgorithm(), THREE_TURNS, 39) == [2, 3]


def test_what_does_not_fit_is_skipped_for_something_lighter_that_does():
    conversation = conversation_of(("user", 0.9, 100), ("user", 0.5, 10), ("user", 0.1, 10))
    assert chosen(GreedyByWeightAlgorithm(), conversation, 20) == [1, 2]


def test_a_turn_too_large_is_taken_without_its_tool_steps():
    assert chosen(GreedyByWeightAlgorithm(), TOOL_TURN, 140) == [0, 1, 2, 3, 4]
    assert chosen(GreedyByWeightAlgorithm(), TOOL_TURN, 130) == [0, 1, 2, 3]
    assert chosen(GreedyByWeightAlgorithm(), TOOL_TURN, 30) == [0, 3, 4]


def test_a_turn_has_the_form_without_steps_only_if_it_has_both():
    def positions(conversation):
        return [
            [[m.position for m in form] for form in forms_of(turn)]
            for turn in turns_of(conversation.messages)
        ]

    assert positions(TOOL_TURN) == [[[0, 1, 2, 3], [0, 3]], [[4]]]
    assert positions(conversation_of(("call", 1), ("tool", 1))) == [[[0, 1]]]


@every_algorithm
def test_no_bound_keeps_everything(algorithm):
    assert chosen(algorithm, TOOL_TURN, 0) == [0, 1, 2, 3, 4]


@every_algorithm
def test_what_must_stay_stays_and_takes_its_room(algorithm):
    conversation = conversation_of(("system", 0, 15), ("user", 0.7), ("user", 0.1), ("user", 0.8))
    assert chosen(algorithm, conversation, 35, keep=[0, 2]) == [0, 2, 3]
    assert chosen(algorithm, conversation, 10, keep=[0, 2]) == [0, 2]


@every_algorithm
def test_what_may_not_be_chosen_is_not(algorithm):
    assert chosen(algorithm, THREE_TURNS, 0, never=[2]) == [0, 1, 4, 5]
    assert chosen(algorithm, TOOL_TURN, 0, never=[1, 2]) == [0, 3, 4]


@every_algorithm
def test_the_budget_is_kept(algorithm):
    for budget in range(5, 150, 5):
        for conversation in (THREE_TURNS, TOOL_TURN):
            positions = chosen(algorithm, conversation, budget)
            assert sum(conversation.messages[i].token_count for i in positions) <= budget


@every_algorithm
def test_instructions_are_nobodys_choice_but_the_keepers(algorithm):
    conversation = conversation_of(("system", 9), ("user", 0.5))
    assert chosen(algorithm, conversation, 0) == [1]
    assert chosen(algorithm, conversation, 0, keep=[0]) == [0, 1]


@every_algorithm
def test_an_empty_conversation_has_nothing_to_choose(algorithm):
    assert chosen(algorithm, Conversation(()), 100) == []


@every_algorithm
def test_choosing_is_pure(algorithm):
    before = copy.deepcopy(TOOL_TURN)
    first = algorithm.select(TOOL_TURN, TokenBudget(50), ConstraintSet(), ESTIMATE)
    assert algorithm.select(TOOL_TURN, TokenBudget(50), ConstraintSet(), ESTIMATE) == first
    assert before == TOOL_TURN


def test_the_newest_user_message_is_always_sent_so_nobody_can_waive_it():
    assert ConstraintSet().require_last_user
    with pytest.raises(BadSetting, match=r"^require_last_user: "):
        ConstraintSet(require_last_user=False)


# Recency


def recency(conversation, *factor):
    result = RecencyBiasedAlgorithm(*factor).select(conversation, TokenBudget(0), ConstraintSet(), ESTIMATE)
    return [result.recency[m.id] for m in conversation.messages]


def test_recency_rises_evenly_from_the_oldest_to_the_newest():
    assert recency(THREE_TURNS, 1.5) == pytest.approx([1.0, 1.3, 1.6, 1.9, 2.2, 2.5])
    assert recency(THREE_TURNS, 0) == [1.0] * 6
    assert recency(conversation_of(("user", 1)), 1.5) == [1.0]
    assert recency(THREE_TURNS) == recency(THREE_TURNS, 1.5)


def test_a_newer_message_outweighs_a_somewhat_heavier_older_one():
    conversation = conversation_of(("user", 0.6), ("user", 0.5), ("user", 0.1))
    assert chosen(GreedyByWeightAlgorithm(), conversation, 10) == [0]
    assert chosen(RecencyBiasedAlgorithm(0), conversation, 10) == [0]
    assert chosen(RecencyBiasedAlgorithm(1.5), conversation, 10) == [1]


def test_a_much_heavier_older_message_outweighs_a_newer_one():
    conversation = conversation_of(("user", 0.9), ("user", 0.1), ("user", 0.1))
    assert chosen(RecencyBiasedAlgorithm(1.5), conversation, 10) == [0]


def test_greedy_knows_no_recency():
    result = GreedyByWeightAlgorithm().select(THREE_TURNS, TokenBudget(20), ConstraintSet(), ESTIMATE)
    assert dict(result.recency) == {}


# Dependency


class Chooses:
    """Chooses the same positions whatever the budget."""

    def __init__(self, *positions):
        self.positions = positions

    def select(self, conversation, budget, constraints, token_counter):
        ids = frozenset(conversation.messages[i].id for i in self.positions)
        return SelectionResult(ids, dict.fromkeys(ids, 1.25))

    def name(self):
        return "fixed"


LONG_TURN = conversation_of(
    ("user", 1),
    ("call", 1),
    ("tool", 1),
    ("call", 1),
    ("tool", 1),
    ("assistant", 1),
    ("user", 1),
    ("assistant", 1),
)


@pytest.mark.parametrize(
    ("positions", "completed"),
    [
        ([], []),
        ([0], [0, 5]),
        ([5], [0, 5]),
        ([2], [0, 1, 2, 5]),
        ([3], [0, 3, 4, 5]),
        ([7], [6, 7]),
        ([1, 6], [0, 1, 2, 5, 6, 7]),
    ],
)
def test_a_choice_is_completed_by_what_it_depends_on(positions, completed):
    assert chosen(DependencyAwareAlgorithm(Chooses(*positions)), LONG_TURN, 10) == completed


def test_what_may_not_be_chosen_is_no_completion():
    assert chosen(DependencyAwareAlgorithm(Chooses(2)), LONG_TURN, 10, never=[0, 5]) == [1, 2]


def test_the_inner_algorithms_recency_is_passed_on():
    algorithm = DependencyAwareAlgorithm(Chooses(7))
    result = algorithm.select(LONG_TURN, TokenBudget(10), ConstraintSet(), ESTIMATE)
    assert dict(result.recency) == {LONG_TURN.messages[7].id: 1.25}
    assert (
        DependencyAwareAlgorithm().select(LONG_TURN, TokenBudget(10), ConstraintSet(), ESTIMATE).recency
        == RecencyBiasedAlgorithm(1.5).select(LONG_TURN, TokenBudget(10), ConstraintSet(), ESTIMATE).recency
    )


def test_algorithms_have_names_for_the_ledger():
    algorithms = (
        GreedyByWeightAlgorithm(),
        RecencyBiasedAlgorithm(),
        DependencyAwareAlgorithm(GreedyByWeightAlgorithm()),
    )
    assert [a.name() for a in algorithms] == ["greedy_by_weight", "recency_biased", "dependency_aware"]


@every_algorithm
def test_a_target_is_a_limit_too(algorithm):
    conversation = conversation_of(("user", 1, 40), ("assistant", 1, 40), ("user", 1, 40))
    target = TokenTargetBudget(50, overshoot=0)
    assert len(algorithm.select(conversation, target, ConstraintSet(), ESTIMATE).keep) == 1
