"""
EunoeError
├── BadSetting     a setting's value can't be used
├── BadMessages    the input is not a list of message objects
├── PlanBroken     a plan breaks one of its own rules; a fault of ours
├── ModelFailed    a model that was asked for help gave no answer
└── AnswerRefused  what a model answered is of no use
"""

from __future__ import annotations

from collections.abc import Sequence


class EunoeError(Exception):
    """The root of all errors this package raises. Their texts never hold message text."""


class BadSetting(EunoeError):
    """A setting's value can't be used."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem}. {fix}")
        self.field, self.problem, self.fix = field, problem, fix


class BadMessages(EunoeError):
    """The input is not a list of message objects."""

    def __init__(self, position: int, found: str) -> None:
        super().__init__(f"messages[{position}] is {found}, not an object with a role")
        self.position, self.found = position, found


class PlanBroken(EunoeError):
    """A plan breaks one of its own rules; a fault of ours."""

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("; ".join(violations))
        self.violations = tuple(violations)


class ModelFailed(EunoeError):
    """A model that was asked for help (a summary, labels, an embedding) gave no answer.

    `status` is the HTTP status, None if there was no answer at all; `passing` says that the same call
    may succeed later.
    """

    def __init__(self, model: str, problem: str, status: int | None = None, *, passing: bool = False) -> None:
        super().__init__(f"{model}: {problem}")
        self.model, self.problem, self.status, self.passing = model, problem, status, passing


class AnswerRefused(EunoeError):
    """What a model answered is of no use: empty, cut off, an error text, no labels."""

    def __init__(self, model: str, problem: str) -> None:
        super().__init__(f"{model}: {problem}")
        self.model, self.problem = model, problem
