"""A model call to be planned: what the host knows of it, and what is known once it is read and counted."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .bonds import Repair, repair
from .budget import Bound, BoundSource, Budget, bound_of, max_cost_of
from .conversation import Conversation, Message, traits_in, with_column
from .flags import Directives, apply_marks, read_flags
from .pricing import Price
from .tokens import TokenCounter, messages_tokens

UNPRICED = "No price is known for this model, so its cost is not bounded."
LIMITING_FLAGS = frozenset({"target", "context", "only", "compact"})  # those that !full overrules
COMPACT_SHARE = 0.5  # of what would be sent
REQUEST_OVERHEAD = 3  # what primes the reply in OpenAI's chat format


@dataclass(frozen=True, slots=True)
class Request:
    """What a host knows of a model call besides its messages.

    `unseen_tokens` is text the host adds after us; `question` is the user's own words where the newest
    user message holds more than them; `directives` are flags that were taken out earlier.
    """

    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    call: int = 1
    model: str = ""
    host: str = ""
    chat_id: str | None = None
    message_id: str | None = None
    user: str | None = None
    tools: Sequence[Any] = ()
    unseen_tokens: int = 0
    reply_tokens: int | None = None
    context_window: int | None = None
    reply_reserve: int = 0
    price: Price | None = None  # None: not known
    helper_price: Price | None = None  # of the model for labels and summaries
    user_max_tokens: int = 0
    question: str | None = None
    directives: Directives = field(default_factory=Directives)

    @property
    def scope(self) -> str:
        """Name whose chat it is: what is remembered for one scope is never found from another."""
        return self.user or ""

    def envelope(self) -> dict[str, Any]:
        """Give what every event of this run carries."""
        return {
            "host": self.host,
            "model": _named(self.model, 300) or "",
            "chat_id": _named(self.chat_id, 200),
            "message_id": _named(self.message_id, 200),
            "user": _named(self.user, 200),
        }


@dataclass(frozen=True, slots=True)
class Job:
    """A request made ready: flags read, faults repaired, tokens counted, the bound known."""

    request: Request
    conversation: Conversation  # all messages, flags taken out
    kept: tuple[Message, ...]  # those a provider would accept, counted
    repairs: tuple[Repair, ...]
    directives: Directives
    bound: Bound
    overhead: int
    tools_tokens: int
    counter: TokenCounter
    full_refused: bool = False
    notices: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Add up the prompt after repairs."""
        return self.overhead + sum([message.token_count for message in self.kept])

    @property
    def must_choose(self) -> bool:
        """Say whether anything has to go."""
        over = self.bound.tokens is not None and self.tokens > self.bound.tokens
        asked = "context" in self.directives.turn or "only" in self.directives.turn
        return over or asked or any(message.excluded for message in self.kept)

    def within(self, tokens: int, source: BoundSource) -> Job:
        """Give the job with a bound that is at most so many tokens."""
        return replace(self, bound=self.bound.tightened(tokens, source))


def prepare(conversation: Conversation, request: Request, budget: Budget, counter: TokenCounter) -> Job:
    """Make a request ready."""
    cleaned, found = read_flags(conversation)
    directives = request.directives.merged(found)
    if full := bool(directives.turn.get("full")):
        rest = {n: v for n, v in directives.turn.items() if n not in LIMITING_FLAGS}
        directives = replace(directives, turn=rest)
    marked = apply_marks(cleaned, directives.marks)
    counted = marked.counting(messages_tokens(counter, marked.traits, marked.to_openai_messages()))
    kept, repairs = repair(counted.messages)
    if repairs:
        counts = messages_tokens(counter, traits_in(kept), [message.raw for message in kept])
        kept = with_column(kept, "token_count", counts)
    tools_tokens = counter.count_tools(request.tools)
    bound = bound_of(
        budget,
        context_window=request.context_window,
        reply_tokens=request.reply_tokens,
        reply_reserve=request.reply_reserve,
        user_max_tokens=0 if full else request.user_max_tokens,
        target=directives.turn.get("target"),
    )
    unpriced = max_cost_of(budget) and request.price is None
    overhead = REQUEST_OVERHEAD + tools_tokens + request.unseen_tokens
    if "compact" in directives.turn and request.call == 1:  # later calls build on what the first was sent
        present = sum(message.token_count for message in kept)
        fitting = present if bound.tokens is None else min(present, max(0, bound.tokens - overhead))
        bound = bound.tightened(overhead + max(1, int(fitting * COMPACT_SHARE)), BoundSource.COMPACT)
    return Job(
        request,
        counted,
        kept,
        repairs,
        directives,
        bound,
        overhead,
        tools_tokens,
        counter,
        full,
        (UNPRICED,) if unpriced else (),
    )


def _named(name: str | None, longest: int) -> str | None:
    """Give a client's name for something as an event can hold it: writable and not too long."""
    return name.encode("utf-8", "replace").decode("utf-8")[:longest] if name else None
