"""The heaviest turns first, as long as they fit."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from itertools import islice

from ..bonds import Turn, messages_in, turns_of
from ..breath import breathe
from ..budget import Budget, bound_of
from ..conversation import Conversation, Message
from ..ports import ConstraintSet, SelectionResult
from ..tokens import TokenCounter


class GreedyByWeightAlgorithm:
    """Takes turns by weight, whole or without their tool steps, and skips what does not fit."""

    def select(
        self,
        conversation: Conversation,
        budget: Budget,
        constraints: ConstraintSet,
        token_counter: TokenCounter,  # noqa: ARG002  part of the port; the messages carry their counts
    ) -> SelectionResult:
        """Choose by the messages' weights."""
        return SelectionResult(fill_by_weight(conversation, budget, constraints, {}))

    def name(self) -> str:
        """Name the algorithm."""
        return "greedy_by_weight"


def by_weight(turns: Iterable[Turn], recency: Mapping[str, float]) -> list[Turn]:
    """Sort turns by their heaviest message, raised by recency, the heaviest first; of two alike the newer."""
    turns = list(turns)
    weights = iter([message.weight * recency.get(message.id, 1.0) for message in messages_in(turns)])
    weighed = [(max(islice(weights, len(turn.messages))), turn.messages[0].position, turn) for turn in turns]
    weighed.sort(key=_WEIGHT_AND_POSITION, reverse=True)
    return [turn for _, _, turn in weighed]


_WEIGHT_AND_POSITION = operator.itemgetter(0, 1)


def fill_by_weight(
    conversation: Conversation, budget: Budget, constraints: ConstraintSet, recency: Mapping[str, float]
) -> frozenset[str]:
    """Fill the budget with turns, the heaviest first; of two alike the newer."""
    kept = set(constraints.keep)
    limit = bound_of(budget).tokens
    costs = {message.id: message.token_count for message in conversation.messages}
    room = math.inf if limit is None else limit - sum([costs[name] for name in kept if name in costs])
    costs |= dict.fromkeys(kept, 0)
    least = min(filter(None, costs.values()), default=0)
    turns = by_weight(turns_of(conversation.messages), recency)
    breathe()
    # No message is in two turns, so what a whole turn costs is known beforehand.
    in_order = iter([costs[message.id] for message in messages_in(turns)])
    for turn in turns:
        if room < least:  # nothing fits any more
            break
        whole = sum(islice(in_order, len(turn.messages)))
        for part in forms_of(turn):
            cost = whole if part is turn.messages else sum(costs[message.id] for message in part)
            if cost > room:
                continue
            new = [message.id for message in part if message.id not in kept]
            if constraints.never.isdisjoint(new):
                kept.update(new)
                room -= cost
                break
    return frozenset(kept)


def forms_of(turn: Turn) -> tuple[tuple[Message, ...], ...]:
    """Give the forms a turn may be kept in: whole, then its question and answer alone."""
    messages, opener, answer = turn
    ends = (opener is not None) + (answer is not None)
    return (messages,) if ends in {0, len(messages)} else (messages, turn.ends)
