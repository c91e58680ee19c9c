"""What goes wrong in a host: said in the log, once while it lasts, and never with the text of a message."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence

from .errors import EunoeError
from .events import EventKind, FailedBody, new_event
from .job import Request
from .ports import Sink

logger = logging.getLogger("eunoe")


class ProblemLog:
    """Logs a problem when it begins or becomes another one, and not again while it lasts."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def tell(self, about: str, problem: str) -> None:
        """Say what is wrong with something; an empty problem says that it is over."""
        if problem and self._problems.get(about) != problem:
            logger.warning("eunoe: %s", problem)
        self._problems[about] = problem


def report_failure(
    error: Exception, stage: str, request: Request, sink: Sink, places: Sequence[str] | None = None
) -> None:
    """Log a failure of ours and send `pipeline.failed`; for a host's outermost method. Never raises.

    Both hold the error's class, the source lines (`places`, else those of its traceback), and its text only
    if it is one of ours: another's may quote a message.
    """
    name = type(error).__name__
    text = f"{name}: {error}" if isinstance(error, EunoeError) else name
    told = list(_places_of(error) if places is None else places)
    if not getattr(sink, "logs_events", False):
        logger.error(
            "eunoe: %s failed, the chat goes on as it was: %s at %s", stage, text, "; ".join(told[-3:])
        )
    try:
        body = FailedBody(stage=stage, error=text, places=told)
        sink.send(new_event(EventKind.FAILED, request.run_id, body, **request.envelope()))
    except Exception:  # noqa: BLE001  a sink that somebody plugged in
        logger.error("eunoe: the failure could not be reported")  # noqa: TRY400  its text may quote a message


def _places_of(error: BaseException) -> list[str]:
    return [
        f"{frame.f_globals.get('__name__', '?')}:{line} in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
