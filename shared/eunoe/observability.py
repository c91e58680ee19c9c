"""Runs as log lines: what was sent, kept and dropped, in numbers and codes; a message's text is in none of them.

Lines go through the standard library's logger `eunoe`, so that a program can treat them like its other
logs. `configure_logging` gives that logger an output of its own; where structlog is installed it writes
the lines.
"""

from __future__ import annotations

import json
import logging
import sys
import weakref
from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any

from .errors import BadSetting
from .events import EventKind, RunEvent
from .ports import Sink

logger = logging.getLogger("eunoe")
_run_logger = logging.getLogger("eunoe.runs")

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LOG_FORMATS = ("json", "console")

_EVENT_LEVELS: Mapping[EventKind, int] = {
    EventKind.USAGE: logging.DEBUG,
    EventKind.FAILED: logging.ERROR,
    EventKind.LOST: logging.WARNING,
}
# Fields whose text is ours. Any other text of an event may come from a message: a preview, a tag, a title.
_OUR_TEXTS = frozenset(
    "algorithm weighting limit_source counter purpose cost_source stage error reason".split()
)
_DECISION_TEXTS = frozenset("key fate reason".split())
_ROLES = frozenset("system developer user assistant tool function".split())
_FIELDS = "eunoe_fields"  # the attribute of a log record that holds an event's fields

# What `configure_logging` added, so that its next call can take it away again.
_OUTPUTS: weakref.WeakSet[logging.Handler] = weakref.WeakSet()


def configure_logging(
    level: str = "INFO", fmt: str = "json", handlers: Sequence[logging.Handler] | None = None
) -> None:
    """Write Eunoe's log lines to stderr, or to handlers of your own.

    `level` is DEBUG, INFO, WARNING or ERROR; at DEBUG a run's line also has what became of each message.
    `fmt` is `json` (a line is one JSON object) or `console` (to be read by people). A handler that has a
    formatter keeps it. Only the logger `eunoe` is changed, never the root logger; a second call replaces
    what the first one set. Runs are logged where a `LogSink` is given to the orchestrator.

    Raises:
        BadSetting: there is no such level or format.
    """
    name = level.upper()
    if name not in LOG_LEVELS:
        raise BadSetting("level", "there is no such level", f"Use one of {', '.join(LOG_LEVELS)}.")
    if fmt not in LOG_FORMATS:
        raise BadSetting("fmt", "there is no such format", f"Use one of {', '.join(LOG_FORMATS)}.")
    for old in [h for h in logger.handlers if h in _OUTPUTS]:
        logger.removeHandler(old)
    wanted = [logging.StreamHandler(sys.stderr)] if handlers is None else handlers
    for handler in wanted:
        if handler.formatter is None or isinstance(handler.formatter, LineFormatter):
            handler.setFormatter(LineFormatter(fmt))
        if handler not in logger.handlers:
            logger.addHandler(handler)
            _OUTPUTS.add(handler)
    logger.setLevel(name)
    logger.propagate = False  # the host's own handlers would write each line again


class LineFormatter(logging.Formatter):
    """Writes log records of Eunoe as `json` or for a `console`, with structlog where it is installed."""

    def __init__(self, fmt: str) -> None:
        super().__init__()
        self._write = _structlog_writer(fmt) or (_json_line if fmt == "json" else _console_line)

    def format(self, record: logging.LogRecord) -> str:
        """Give the line of a record, and the traceback below it if there is one."""
        fields = getattr(record, _FIELDS, None)
        line: dict[str, Any] = {
            "event": record.getMessage() if fields is None else fields["event"],
            "level": record.levelname.lower(),
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "logger": record.name,
            **({} if fields is None else fields),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return self._write(line)


class LogSink:
    """Writes each event of a run as one log line, and gives it to another sink if there is one.

    Lines hold numbers, codes and ids; no text of a message, whatever the orchestrator captures. What a
    handler fails to write is counted in `lost`.
    """

    logs_events = True  # who reports a failure need not log it besides

    def __init__(self, then: Sink | None = None) -> None:
        self._then = then
        self.lost = 0

    def send(self, event: RunEvent) -> None:
        """Log one event; never raises."""
        if self._then is not None:
            self._then.send(event)
        level = _EVENT_LEVELS.get(event.event, logging.INFO)
        if not _run_logger.isEnabledFor(level):
            return
        try:
            fields = event_fields(event, with_decisions=_run_logger.isEnabledFor(logging.DEBUG))
            _run_logger.log(level, "%s", _told_line(fields), extra={_FIELDS: fields})
        except Exception:  # noqa: BLE001  a handler that somebody plugged in; a lost line must not cost the answer
            self.lost += 1


def event_fields(event: RunEvent, *, with_decisions: bool) -> dict[str, Any]:
    """Give what a log line says of an event: its envelope, numbers and codes, and how many messages had which fate."""
    about = {name: getattr(event, name) for name in ("host", "model", "chat_id", "message_id", "user")}
    data = event.data
    fields: dict[str, Any] = {
        "event": str(event.event),
        "run_id": event.run_id,
        **{name: value for name, value in about.items() if value},
        **{name: value for name, value in data.items() if _may_be_logged(name, value, _OUR_TEXTS)},
    }
    if flags := _names_of(data.get("flags")):
        fields["flags"] = flags
    if event.event is EventKind.FAILED:
        fields["places"] = [str(place) for place in data.get("places") or ()]
    decisions = [d for d in data.get("decisions") or () if isinstance(d, Mapping)]
    if decisions:
        fields["fates"] = dict(Counter(str(decision.get("fate")) for decision in decisions))
    if decisions and with_decisions:
        fields["decisions"] = [_decision_fields(decision) for decision in decisions]
    return fields


def _may_be_logged(name: str, value: Any, texts: frozenset[str]) -> bool:
    return isinstance(value, (bool, int, float)) or (name in texts and isinstance(value, str))


def _names_of(flags: Any) -> list[str]:
    """Name the flags in force; a flag's value may be a word of the user's."""
    given = flags if isinstance(flags, list) else []
    return [str(flag.get("name")) for flag in given if isinstance(flag, Mapping)]


def _decision_fields(decision: Mapping[str, Any]) -> dict[str, Any]:
    known = {n: v for n, v in decision.items() if _may_be_logged(n, v, _DECISION_TEXTS)}
    role = decision.get("role")
    return {**known, "role": role if role in _ROLES else "other"}


def _told_line(fields: Mapping[str, Any]) -> str:
    """Write fields for handlers that know nothing of them: the event's name, then name=value."""
    rest = (f"{name}={_plain(value)}" for name, value in fields.items() if name != "event")
    return " ".join([str(fields["event"]), *rest])


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() and " " not in value else _as_json(value)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _json_line(line: Mapping[str, Any]) -> str:
    return _as_json(line)


def _console_line(line: Mapping[str, Any]) -> str:
    rest = {k: v for k, v in line.items() if k not in {"level", "timestamp", "logger", "exception"}}
    text = f"{line['timestamp']} [{line['level']}] {_told_line(rest)}"
    return f"{text}\n{line['exception']}" if "exception" in line else text


def _structlog_writer(fmt: str) -> Any:
    """Give structlog's way to write a line, None where it is not installed; its own set-up stays as it is."""
    try:
        import structlog  # noqa: PLC0415  optional
    except ImportError:
        return None
    if fmt == "json":
        render: Any = structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
    else:
        render = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())

    def write(line: MutableMapping[str, Any]) -> str:
        return str(render(None, "", dict(line)))

    return write
