"""The one line a user sees above an answer: what was sent, and what it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .plan import Plan
from .usage import Usage


@dataclass(frozen=True, slots=True)
class Sent:
    """The figures of a plan that the line shows."""

    kept: int
    given: int
    tokens: int
    limit: int | None
    over_limit: bool
    notices: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan) -> Sent:
        """Take the figures from a plan."""
        given = len(plan.decisions) - sum([d.message.traits.is_instruction for d in plan.decisions])
        kept = sum(not decision.message.is_instruction for decision in plan.kept)
        return cls(kept, given, plan.tokens_after, plan.bound.tokens, plan.over_limit, plan.notices)

    def as_plain(self) -> dict[str, Any]:
        """Write as a plain dictionary, for a host that carries it from hook to hook."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Sent:
        """Read what `as_plain` wrote."""
        return cls(**{**plain, "notices": tuple(plain["notices"])})


def status_line(sent: Sent, billed: Usage | None = None, context_tokens: int | None = None) -> str:
    """Say what was sent and, once the provider has reported, what it took.

    >>> status_line(Sent(14, 61, 7900, 10000, False, ()), Usage(7900, 50, 6162), 7900)
    'Kept 14 of 61 messages, 7.9k of 10k tokens, 78 % cached'
    """
    if sent.kept == sent.given:
        messages = f"All {sent.given} messages sent" if sent.given != 1 else "1 message sent"
    else:
        messages = f"Kept {sent.kept} of {sent.given} messages"
    tokens = short_number(context_tokens if context_tokens is not None else sent.tokens)
    limit = f" of {short_number(sent.limit)}" if sent.limit is not None else ""
    parts = [messages, f"{tokens}{limit} tokens"]
    if billed is not None:
        parts += _billed(billed)
    return ". ".join([", ".join(parts), *(notice.rstrip(".") for notice in sent.notices)])


def short_number(number: int) -> str:
    """Write a number of tokens so that it can be taken in: 950, 7.9k, 61k, 1.2M."""
    for size, mark, least in ((1_000_000, "M", 999_500), (1_000, "k", 1_000)):
        if number >= least:
            value = number / size
            return f"{value:.0f}{mark}" if value >= 99.95 or number % size == 0 else f"{value:.1f}{mark}"
    return str(number)


def _billed(billed: Usage) -> Sequence[str]:
    parts = []
    # More cached than sent is what a host's mixture of several calls looks like; it says nothing.
    if (
        billed.cached_tokens is not None
        and billed.prompt_tokens
        and billed.cached_tokens <= billed.prompt_tokens
    ):
        parts.append(f"{100 * billed.cached_tokens / billed.prompt_tokens:.0f} % cached")
    if billed.cost_usd is not None:
        parts.append(f"${billed.cost_usd:.4f}")
    return parts
