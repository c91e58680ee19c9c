"""What can be put in from outside: each port is one method, its contract in the docstring."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .budget import Budget
from .conversation import Conversation, Message, RawMessage
from .errors import BadSetting
from .events import RunEvent
from .tokens import TokenCounter
from .usage import Usage


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
        this turn by name, such as `tool_penalty`, and under `scope` whose chat it is: what a strategy
        remembers must never be found from another scope.
        """
        ...

    def name(self) -> str:
        """Name the strategy, for the ledger."""
        ...


@dataclass(frozen=True, slots=True)
class ConstraintSet:
    """What an algorithm must respect: `keep` are ids that stay whatever they weigh, `never` may not be chosen.

    `sent` are ids that the prompt before held; a provider may have them in its cache. `afresh` asks to forget
    them and to use the whole budget. The newest user message is always sent, so `require_last_user` can only be true.
    """

    keep: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    sent: frozenset[str] = frozenset()
    afresh: bool = False
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


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What a chat model answered: `text` without its reasoning, and the calls of tools it asks for."""

    text: str
    finish_reason: str = ""  # "length" if it was cut off, empty if the endpoint does not tell
    tool_calls: Sequence[Mapping[str, Any]] = ()
    usage: Usage = field(default_factory=Usage)


class ChatModel(Protocol):
    """A model that helps: it writes summaries and labels messages. Never the chat's own answer."""

    async def complete(
        self, messages: Sequence[RawMessage], *, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> ChatReply:
        """Answer OpenAI-style messages with at most `max_tokens`.

        Raises:
            ModelFailed: there is no answer, after as many tries as the model was given.
        """
        ...

    def name(self) -> str:
        """Name the model, for the ledger and for cache keys."""
        ...


class Embedder(Protocol):
    """Turns texts into vectors that are near each other where meanings are."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Give one vector for each text, all of one length.

        Raises:
            ModelFailed: there are no vectors, after as many tries as the model was given.
        """
        ...

    def name(self) -> str:
        """Name the model, for the ledger and for cache keys."""
        ...


class Summarizer(Protocol):
    """Says in fewer words what messages say."""

    async def summarize(
        self,
        messages: Sequence[Message],
        *,
        target_ratio: float = 0.3,
        context_messages: Sequence[Message] | None = None,
    ) -> str:
        """Give a summary of about `target_ratio` of the messages' length, in their language.

        `context_messages` stand before them and are not summarized.

        Raises:
            ModelFailed: the model gave no answer.
            AnswerRefused: its answer is no summary.
        """
        ...

    def name(self) -> str:
        """Name the summarizer, for the ledger and for cache keys."""
        ...


class CacheBackend(Protocol):
    """Keeps texts by key for a while. Losing one costs making it again, so it never raises."""

    async def get(self, key: str) -> str | None:
        """Give the text of `key`, None if there is none, it has expired or the backend is out of reach."""
        ...

    async def set(self, key: str, value: str, ttl: int | None = None) -> None:
        """Keep a text, for `ttl` seconds or as long as there is room."""
        ...

    async def delete(self, key: str) -> None:
        """Forget a text."""
        ...

    async def exists(self, key: str) -> bool:
        """Say whether there is a text."""
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
