"""One call of a client: its planned messages, and the usage in its answer, whatever form that comes in."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eunoe.failure import ProblemLog, report_failure
from eunoe.job import Request
from eunoe.orchestrator import ContextOrchestrator
from eunoe.recap import Recap
from eunoe.usage import Usage, read_usage

# Summaries that are being written at once; those that find no place are written after a later call.
_WRITERS = threading.BoundedSemaphore(4)


@dataclass(slots=True)
class Call:
    """One planned call, until its answer is there."""

    orchestrator: ContextOrchestrator
    request: Request
    messages: list[Any]
    problems: ProblemLog
    asked: dict[str, Any]  # what we add to the call so that a stream reports usage; empty if nothing
    recap: Recap | None = None
    elapsed_ms: float = 0.0
    usage: Usage = field(default_factory=Usage)
    settled: bool = False

    def answered(self, create: Callable[[], Any]) -> Any:
        """Make the call and give its answer; a stream is watched until it ends."""
        try:
            answer = create()
        except BaseException:
            self.recap = None  # a provider in trouble is spared
            self.settle()
            raise
        if inspect.isawaitable(answer):  # an async client that does not look like one
            return self.answered_later(lambda: answer)
        return self._watched(answer, sync_first=True)

    async def answered_later(self, create: Callable[[], Any]) -> Any:
        """Make the call, await its answer and give it; a stream is watched until it ends."""
        try:
            answer = await create()
        except BaseException:
            self.recap = None  # a provider in trouble is spared
            self.settle()
            raise
        return self._watched(answer, sync_first=False)

    def _watched(self, answer: Any, *, sync_first: bool) -> Any:
        kinds: list[tuple[str, type[WatchedStream]]] = [("__next__", SyncStream), ("__anext__", AsyncStream)]
        for method, kind in kinds if sync_first else reversed(kinds):
            if hasattr(type(answer), method):
                return kind(answer, self)
        self.note(answer)
        self.settle()
        return answer

    def note(self, answer: Any) -> bool:
        """Read the usage in an answer or a piece of one; says whether the caller would not have got it unasked."""
        try:
            usage = read_usage(plain_value(_member(answer, "usage")))
            if usage.is_empty:
                return False
            self.usage = usage
            return bool(self.asked) and not _member(answer, "choices")
        except Exception as error:  # noqa: BLE001  see Middleware
            report_failure(error, "usage", self.request, self.orchestrator.sink)
            return False

    def settle(self) -> None:
        """Close the call with the usage that was found, once."""
        if self.settled:
            return
        self.settled = True
        try:
            if not self.usage.is_empty:
                self.orchestrator.note_usage(self.request, self.usage)
            self.orchestrator.settle(self.request, [self.usage], round(self.elapsed_ms, 2))
        except Exception as error:  # noqa: BLE001  see Middleware
            report_failure(error, "settle", self.request, self.orchestrator.sink)
        self.write_summaries()

    def write_summaries(self) -> None:
        """Have the summaries written that the next calls will need; nobody waits for it."""
        recap, self.recap = self.recap, None
        if recap is None or sys.is_finalizing() or not _WRITERS.acquire(blocking=False):
            return  # a thread that starts while the program ends never begins
        writer = threading.Thread(target=self._write, args=(recap,), name="eunoe-summaries", daemon=True)
        try:
            writer.start()
        except RuntimeError:  # no thread can be had
            _WRITERS.release()

    def _write(self, recap: Recap) -> None:
        try:
            report = asyncio.run(self.orchestrator.write_summaries(self.request, recap))
            self.problems.tell("summaries", report.problem)
        except Exception as error:  # noqa: BLE001  see Middleware
            report_failure(error, "summaries", self.request, self.orchestrator.sink)
        finally:
            _WRITERS.release()


class WatchedStream:
    """Stands before a stream and lets everything through but the usage that only we asked for."""

    def __init__(self, stream: Any, call: Call) -> None:
        self._stream, self._call = stream, call

    @property  # type: ignore[misc]  # programs ask a stream whether it is one of the client's
    def __class__(self) -> type[Any]:
        return type(self._stream)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._stream, name)
        if name not in {"close", "aclose"}:
            return value

        def close(*args: Any, **kwargs: Any) -> Any:
            self._call.settle()
            return value(*args, **kwargs)

        return close

    def __del__(self) -> None:
        if "_call" in self.__dict__:  # a stream that nobody read to its end
            self._call.settle()


class SyncStream(WatchedStream):
    """Stands before a stream that is read with `for`."""

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        try:
            while self._call.note(piece := next(self._stream)):
                pass
        except BaseException:
            self._call.settle()
            raise
        return piece

    def __enter__(self) -> Any:
        self._stream.__enter__()
        return self

    def __exit__(self, *details: Any) -> Any:
        self._call.settle()
        return self._stream.__exit__(*details)


class AsyncStream(WatchedStream):
    """Stands before a stream that is read with `async for`."""

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        try:
            while self._call.note(piece := await anext(self._stream)):
                pass
        except BaseException:
            self._call.settle()
            raise
        return piece

    async def __aenter__(self) -> Any:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> Any:
        self._call.settle()
        return await self._stream.__aexit__(*details)


def plain_value(value: Any) -> Any:
    """Give an object of a client as plain values; anything else as it is."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True, warnings=False)
    return dict(value) if isinstance(value, Mapping) else value


def _member(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)
