"""Reading what a filter sends: from bytes to events, or to a list of what the sender has to change.

Everything here assumes the worst of its input: it may come from a broken or a hostile sender.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from eunoe.events import BODIES, MAX_EVENTS_PER_BATCH, EventKind, RunEvent

from .errors import BatchRefused, Problem
from .tables import LARGEST

MAX_PROBLEMS = 50  # enough to see the pattern; a thousand bad events have one cause
DEEPEST = 50  # nested lists and objects; real events have five levels
LARGEST_FIELD = 10**12  # no count, price or duration comes near, and sums of it still fit
EARLIEST, LATEST = 0.0, 4_102_444_800.0  # 1970 to 2100, in seconds


@dataclass(frozen=True, slots=True)
class Received:
    """One event that may be stored."""

    event: RunEvent
    at: float
    body: dict[str, Any]  # as it came, unknown fields included


def events_from(raw: bytes) -> list[Received]:
    """Read the body of `POST /v1/events`, or say everything that is wrong with it."""
    document = _json_of(raw)
    items = document.get("events") if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise BatchRefused(422, Problem("events", 'send an object of the form {"events": [...]}'))
    if len(items) > MAX_EVENTS_PER_BATCH:
        raise BatchRefused(
            422, Problem("events", f"send at most {MAX_EVENTS_PER_BATCH} events in one request")
        )
    received, problems = [], []
    for index, item in enumerate(items):
        place = f"events.{index}"
        result = _received(item, place)
        if isinstance(result, Received):
            received.append(result)
        else:
            problems += result
        if len(problems) >= MAX_PROBLEMS:
            break
    if problems:
        raise BatchRefused(422, *problems[:MAX_PROBLEMS])
    return received


def _json_of(raw: bytes) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON; send null for a number that is not known")

    try:
        return json.loads(raw, parse_constant=refuse)
    except RecursionError:
        problem = "is nested too deeply"
    except UnicodeDecodeError:
        problem = "is not UTF-8"
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg}, line {error.lineno} column {error.colno}"
    except ValueError as error:  # a constant refused above, or a number of thousands of digits
        problem = str(error).split(";")[0] if "digits" in str(error) else str(error)
    raise BatchRefused(400, Problem("body", problem))


def _received(item: Any, place: str) -> Received | list[Problem]:
    problems: list[Problem] = []
    body = _storable(item, place, 0, problems)
    if problems:
        return problems
    try:
        event = RunEvent.model_validate(body)
        details = BODIES[event.event].model_validate(event.data)
    except ValidationError as error:
        inside = "" if error.title == RunEvent.__name__ else ".data"
        return [
            _problem(each, place + inside) for each in error.errors(include_url=False, include_input=False)
        ]
    problems += _out_of_bounds(details, f"{place}.data")
    if event.at.tzinfo is None:
        problems.append(Problem(f"{place}.at", "needs a time zone, for example 2026-11-30T12:00:00Z"))
    elif not EARLIEST <= (at := event.at.timestamp()) <= LATEST:
        problems.append(Problem(f"{place}.at", "must lie between 1970 and 2100"))
    return problems or Received(event, at, body)


def _storable(value: Any, place: str, depth: int, problems: list[Problem]) -> Any:
    """Return `value` in a form that every database and every page can hold.

    Texts of chats may hold NUL characters and halves of surrogate pairs, which no database takes; refusing
    them would lose a report because of one odd character, so they become replacement characters.
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (bool, type(None))):
        return value
    if isinstance(value, (int, float)):
        if not math.isfinite(value) or (isinstance(value, int) and abs(value) > LARGEST):
            problems.append(Problem(place, "is a number too large to store"))
        return value
    if depth >= DEEPEST:
        problems.append(Problem(place, f"is nested more than {DEEPEST} levels deep"))
        return None
    if isinstance(value, list):
        return [_storable(each, f"{place}.{index}", depth + 1, problems) for index, each in enumerate(value)]
    return {_text(key): _storable(each, f"{place}.{key}", depth + 1, problems) for key, each in value.items()}


def _text(value: str) -> str:
    if "\0" in value:
        value = value.replace("\0", "\ufffd")
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _out_of_bounds(body: BaseModel, place: str) -> Iterator[Problem]:
    """Find numbers in the known fields that no real event has and that sums could not hold."""
    for name in type(body).model_fields:
        value = getattr(body, name)
        yield from _too_large(value, f"{place}.{name}")


def _too_large(value: Any, place: str) -> Iterator[Problem]:
    if isinstance(value, (int, float)):
        if not abs(value) <= LARGEST_FIELD:  # written so that NaN, which a text can spell, is caught too
            yield Problem(place, f"must be a number between -{LARGEST_FIELD:,} and {LARGEST_FIELD:,}")
    elif isinstance(value, BaseModel):
        yield from _out_of_bounds(value, place)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            if isinstance(each, BaseModel):
                yield from _out_of_bounds(each, f"{place}.{index}")
    elif isinstance(value, Mapping) and place.endswith(".parts"):
        for name, each in value.items():
            yield from _too_large(each, f"{place}.{name}")


def _problem(error: ErrorDetails, place: str) -> Problem:
    """Say in plain words what is wrong and what to send instead.

    The value itself is not repeated: it may be private.
    """
    field = ".".join([place, *(_text(str(part)) for part in error["loc"])])
    context, kind = error.get("ctx", {}), error["type"]
    if kind == "missing":
        text = "is missing; send it"
    elif kind == "enum":
        text = f"is not known; send one of {', '.join(EventKind)}"
    elif kind == "string_too_long":
        text = f"is too long; send at most {context['max_length']} characters"
    elif kind == "string_too_short":
        text = f"is too short; send at least {context['min_length']} characters"
    elif kind.startswith("int_"):
        text = "must be a whole number"
    elif kind.startswith("float_"):
        text = "must be a number"
    elif kind.startswith("datetime_"):
        text = "must be a time such as 2026-11-30T12:00:00Z"
    elif kind in ("dict_type", "model_type"):
        text = "must be an object"
    else:
        text = error["msg"][:1].lower() + error["msg"][1:]
    return Problem(field, text)
