"""How many prompt tokens a request may have: the smallest of all bounds that hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from .errors import BadSetting

# A reply reserve that nobody asked for never takes more of a small window than this.
DEFAULT_RESERVE_SHARE = 0.25
# A reply asked for by name takes at most this much: the question needs room too.
ASKED_RESERVE_SHARE = 0.75


class BoundSource(StrEnum):
    """Where a bound on prompt tokens comes from."""

    NONE = "none"
    MAX_TOKENS = "max_tokens"
    WINDOW = "window"
    USER = "user"
    TARGET = "target"
    COST = "cost"
    COMPACT = "compact"


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """A hard bound on prompt tokens; 0 is no bound."""

    max_tokens: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise BadSetting("max_tokens", "it is negative", "Use 0 for no bound, or a number of tokens.")


@dataclass(frozen=True, slots=True)
class TokenTargetBudget:
    """Aims for `target_tokens`; goes above by `overshoot` at most, and never above `max_tokens` (0: no cap)."""

    target_tokens: int
    overshoot: int = 150
    max_tokens: int = 0

    def __post_init__(self) -> None:
        if self.target_tokens < 1:
            raise BadSetting("target_tokens", "it is not positive", "Use a number of tokens from 1.")


@dataclass(frozen=True, slots=True)
class CostBudget:
    """A hard bound on what the prompt of one call costs, in USD; 0 is no bound.

    What stands at the prompt's beginning as it did in the call before is taken at its cached price. Where
    no price is known there is no bound, and the plan says so.
    """

    max_cost_usd: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.max_cost_usd < math.inf:
            raise BadSetting("max_cost_usd", "it is no amount", "Use 0 for no bound, or an amount in USD.")

    @property
    def max_tokens(self) -> int:
        """Bound no tokens."""
        return 0


@dataclass(frozen=True, slots=True)
class CompositeBudget:
    """A bound on tokens and one on cost; both hold."""

    token_budget: TokenBudget | TokenTargetBudget
    cost_budget: CostBudget

    @classmethod
    def unlimited(cls) -> CompositeBudget:
        """Give a budget that bounds nothing."""
        return cls(TokenBudget(), CostBudget())

    @property
    def max_tokens(self) -> int:
        """Give the bound on tokens."""
        return self.token_budget.max_tokens


Budget = TokenBudget | TokenTargetBudget | CostBudget | CompositeBudget


def max_cost_of(budget: Budget) -> float:
    """Give a budget's bound on cost, in USD; 0 is no bound."""
    match budget:
        case CostBudget():
            return budget.max_cost_usd
        case CompositeBudget():
            return budget.cost_budget.max_cost_usd
        case _:
            return 0.0


def with_max_tokens(budget: Budget, tokens: int) -> Budget:
    """Give a budget with another bound on tokens and all its other bounds."""
    match budget:
        case CostBudget():
            return CompositeBudget(TokenBudget(tokens), budget)
        case CompositeBudget():
            return replace(budget, token_budget=replace(budget.token_budget, max_tokens=tokens))
        case _:
            return replace(budget, max_tokens=tokens)


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound on prompt tokens that holds for a request; None is no bound."""

    tokens: int | None
    source: BoundSource
    reply_reserve: int | None = None

    def tightened(self, tokens: int | None, source: BoundSource) -> Bound:
        """Give the smaller of this bound and another; 0 and None bound nothing."""
        if not tokens or (self.tokens is not None and self.tokens <= tokens):
            return self
        return Bound(tokens, source, self.reply_reserve)


def bound_of(
    budget: Budget,
    *,
    context_window: int | None = None,
    reply_tokens: int | None = None,
    reply_reserve: int = 0,
    user_max_tokens: int = 0,
    target: int | None = None,
) -> Bound:
    """Find the bound that holds, in prompt tokens.

    The reply's room comes off the window alone, since `max_tokens` bounds the prompt: a request that
    asks for `reply_tokens` gets them, any other `reply_reserve`. A bound on cost is none of these: it
    depends on what is sent.
    """
    reserve = reserve_of(context_window, reply_tokens, reply_reserve)
    bound = Bound(None, BoundSource.NONE, reserve)
    bound = bound.tightened(budget.max_tokens, BoundSource.MAX_TOKENS)
    if context_window and reserve is not None:
        bound = bound.tightened(context_window - reserve, BoundSource.WINDOW)
    bound = bound.tightened(user_max_tokens, BoundSource.USER)
    tokens = budget.token_budget if isinstance(budget, CompositeBudget) else budget
    if isinstance(tokens, TokenTargetBudget):
        bound = bound.tightened(tokens.target_tokens + tokens.overshoot, BoundSource.TARGET)
    return bound.tightened(target, BoundSource.TARGET)


def reserve_of(context_window: int | None, reply_tokens: int | None, reply_reserve: int) -> int | None:
    """Say how many tokens of the window are left for the reply; None if the window is not known."""
    if not context_window:
        return None
    if reply_tokens and reply_tokens > 0:
        return min(reply_tokens, int(context_window * ASKED_RESERVE_SHARE))
    return min(reply_reserve, int(context_window * DEFAULT_RESERVE_SHARE))


def read_model_budgets(text: str) -> dict[str, int]:
    """Read the JSON map of model ids, or patterns of them, to their own bound in tokens.

    Raises:
        BadSetting: it is no such map.
    """
    try:
        budgets = json.loads(text or "{}")
    except ValueError:
        budgets = None
    if not isinstance(budgets, dict) or not all(_is_budget(tokens) for tokens in budgets.values()):
        fix = 'Write it like {"gpt-5*": 32000, "llama3.1:8b": 6000}; 0 is no bound.'
        raise BadSetting("model_budgets", "it is no JSON map of model ids to whole numbers", fix)
    return budgets


def tokens_for(model: str, budgets: Mapping[str, int], otherwise: int) -> int:
    """Find a model's own bound: by its id, else by the longest pattern that fits, else the general one."""
    if model in budgets:
        return budgets[model]
    fitting = [pattern for pattern in budgets if fnmatchcase(model.lower(), pattern.lower())]
    return budgets[max(fitting, key=len)] if fitting else otherwise


def _is_budget(tokens: Any) -> bool:
    return isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0
