"""What can be put in from outside: each port is one method, its contract in the docstring."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .budget import Budget
from .conversation import Conversation, Message
from .errors import BadSetting
from .events import RunEvent
from .tokens import TokenCounter


class WeightingStrategy(Protocol):
    """Says how much each message matters for the question."""

    async def score(
        self,
        messages: Sequence[Message],
        query: str,
        conversation: Conversation,
        context: Mapping[str, Any] | None = None,
    ) -> Mapping[str, float]:
        """Give the relevance of every message by id, from 0 to 1.

        The same input gives the same scores. A message left out counts 1. `context` has overrides of
        this turn by name, such as `tool_penalty`.
        """
        ...

    def name(self) -> str:
        """Name the strategy, for the ledger."""
        ...


@dataclass(frozen=True, slots=True)
class ConstraintSet:
    """What an algorithm must respect: `keep` are ids that stay whatever they weigh, `never` may not be chosen.

    The newest user message is always sent, so `require_last_user` can only be true.
    """

    keep: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    require_last_user: bool = True

    def __post_init__(self) -> None:
        if not self.require_last_user:
            raise BadSetting("require_last_user", "the newest user message is always sent", "Leave it out.")


@dataclass(frozen=True, slots=True)
class SelectionResult:
    """What an algorithm chose: ids to keep, and the factor by which recency raised each weight."""

    keep: frozenset[str]
    recency: Mapping[str, float] = field(default_factory=dict)


class SelectionAlgorithm(Protocol):
    """Chooses messages within a budget."""

    def select(
        self,
        conversation: Conversation,
        budget: Budget,
        constraints: ConstraintSet,
        token_counter: TokenCounter,
    ) -> SelectionResult:
        """Choose ids; the messages carry `weight` and `token_count`, the budget is for all of them.

        Pure: no input or output, the same choice for the same input. What it chooses over the budget
        or in torn turns is put right afterwards, the lowest weights first.
        """
        ...

    def name(self) -> str:
        """Name the algorithm, for the ledger."""
        ...


class Sink(Protocol):
    """Takes events to where somebody can see them."""

    def send(self, event: RunEvent) -> None:
        """Take one event; returns at once, never raises, and counts what it has to give up."""
        ...


class NoSink:
    """Takes events nowhere."""

    def send(self, event: RunEvent) -> None:
        """Forget the event."""


@dataclass(slots=True)
class ListSink:
    """Keeps events in a list, for tests and for hosts that show them themselves."""

    events: list[RunEvent] = field(default_factory=list)

    def send(self, event: RunEvent) -> None:
        """Append the event."""
        self.events.append(event)


class Clock(Protocol):
    """Tells how time passes."""

    def seconds(self) -> float:
        """Give seconds from an unknown start, never going back."""
        ...


class SystemClock:
    """The machine's own clock."""

    def seconds(self) -> float:
        """Give seconds from an unknown start, never going back."""
        return time.perf_counter()
