"""What can go wrong in the observer, drawn as a tree.

ObserverError
├── CannotStart         one line for the person who starts it; the process ends with code 2
│   ├── BadSettings     an option that can't hold, such as listening to the network without a token
│   ├── CannotListen    the address or the port isn't to be had
│   ├── DatabaseInUse   another observer has the file open
│   ├── DatabaseNewer   a newer version of the observer made it
│   └── DatabaseUnusable   it can't be written, or isn't a database
├── BatchRefused        the sender has to change something before sending again
├── QueueFull           more events wait than the writer may hold; send again later
└── NotStored           the database refused; send again later
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class ObserverError(Exception):
    """The observer can't do what it was asked."""


class CannotStart(ObserverError):
    """The observer can't start; the text says what to do."""


class BadSettings(CannotStart):
    """An option that can't hold."""


class CannotListen(CannotStart):
    """The address or the port isn't to be had."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"Cannot listen on {host} port {port}: {reason}. Choose another with --port or --host, "
            "or stop the program that uses it."
        )


class DatabaseInUse(CannotStart):
    """Another observer has the file open."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"Another observer is using {path}. Stop it first, or give this one its own file with --database."
        )


class DatabaseNewer(CannotStart):
    """A newer version of the observer made the database."""

    def __init__(self, path: Path, revision: str) -> None:
        super().__init__(
            f"{path} was made by a newer version of the observer (schema {revision}). "
            "Update this one, or choose another file with --database."
        )


class DatabaseUnusable(CannotStart):
    """The database can't be written, or isn't one."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"Cannot use {path} as the database: {reason}. Choose another with --database.")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing the sender has to change, and where."""

    field: str
    problem: str


class BatchRefused(ObserverError):
    """The sender has to change something before sending again."""

    def __init__(self, status: int, *problems: Problem) -> None:
        super().__init__("; ".join(f"{each.field}: {each.problem}" for each in problems))
        self.status, self.problems = status, problems


class QueueFull(ObserverError):
    """More events wait than the writer may hold."""


class NotStored(ObserverError):
    """The database refused the batch; nothing of it was stored."""
