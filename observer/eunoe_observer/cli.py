"""The command `eunoe-observer`."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType

import structlog
import uvicorn

from .app import create_app
from .errors import CannotListen, CannotStart
from .settings import Settings, settings_from

# Open streams notice a stop within half a second and get two more to end by themselves.
GRACEFUL_STOP_SECONDS = 3

log = structlog.get_logger("eunoe")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the observer until it is told to stop; return the exit code."""
    try:
        settings = settings_from(sys.argv[1:] if arguments is None else arguments)
        _set_up_log()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _stop)
        asyncio.run(serve(settings))
    except CannotStart as error:
        sys.stderr.write(f"eunoe-observer: {error}\n")
        return 2
    return 0


def _stop(_number: int, _frame: FrameType | None) -> None:
    # uvicorn hands a signal on when it has stopped; the default would kill us with the database still open.
    raise SystemExit(0)


async def serve(settings: Settings) -> None:
    """Listen and answer until a signal comes."""
    app = create_app(settings)
    with _listening(settings) as listener:
        # Not uvicorn's own lifespan: it would turn a clear error into a traceback.
        async with app.router.lifespan_context(app):
            host, port = listener.getsockname()[:2]
            address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            log.info("observer ready", address=address, database=str(settings.database))
            config = uvicorn.Config(
                app,
                lifespan="off",
                access_log=False,
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=GRACEFUL_STOP_SECONDS,
            )
            await uvicorn.Server(config).serve(sockets=[listener])


def _listening(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol is named because asyncio sends small answers at once only on sockets that name it; otherwise
    # each answer waits 40 ms for the other side's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise CannotListen(settings.host, settings.port, error.strerror or str(error)) from error
    return listener


def _set_up_log() -> None:
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
