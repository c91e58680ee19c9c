"""What the observer is started with: options, else the environment, else the defaults."""

from __future__ import annotations

import argparse
import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import BadSettings

DEFAULT_PORT = 7456
# Whoever may listen beyond this machine may also guess; sixteen characters make guessing hopeless.
SHORTEST_TOKEN = 16


def default_database(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file in the user's data directory."""
    home = (
        environment.get("XDG_DATA_HOME") or Path(environment.get("HOME") or Path.home()) / ".local" / "share"
    )
    return Path(home) / "eunoe" / "eunoe-observer.sqlite3"


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach `host`."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Settings:
    """What one observer runs with."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    database: Path = field(default_factory=default_database)
    token: str | None = None
    max_body_bytes: int = 8 * 1024 * 1024
    max_waiting_events: int = 10_000
    rebuild: bool = False

    def __post_init__(self) -> None:
        """Refuse what would be unsafe."""
        if not 0 <= self.port <= 65_535:
            raise BadSettings(f"--port must be between 0 and 65535, not {self.port}.")
        if is_loopback(self.host):
            return
        if not self.token:
            raise BadSettings(
                f"Listening on {self.host} would show your chats to the network. Set a token with --token or "
                "EUNOE_OBSERVER_TOKEN and put the same one into the filter's valves, or use --host 127.0.0.1."
            )
        if len(self.token) < SHORTEST_TOKEN:
            raise BadSettings(
                f"The token is too short to protect {self.host}: use at least {SHORTEST_TOKEN} characters."
            )


def settings_from(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the command line; what it leaves out comes from the environment."""
    given = _parser().parse_args(arguments)
    port = given.port if given.port is not None else environment.get("EUNOE_OBSERVER_PORT") or DEFAULT_PORT
    try:
        port = int(port)
    except ValueError:
        raise BadSettings(f"The port must be a number, not {port!r}.") from None
    database = given.database or environment.get("EUNOE_OBSERVER_DATABASE")
    return Settings(
        host=given.host or environment.get("EUNOE_OBSERVER_HOST") or "127.0.0.1",
        port=port,
        database=Path(database).expanduser() if database else default_database(environment),
        token=given.token or environment.get("EUNOE_OBSERVER_TOKEN") or None,
        rebuild=given.rebuild,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eunoe-observer",
        description="Shows live what Eunoe keeps, compresses, summarizes and drops, and why.",
    )
    parser.add_argument("--host", help="address to listen on (EUNOE_OBSERVER_HOST; default 127.0.0.1)")
    parser.add_argument("--port", help=f"port to listen on (EUNOE_OBSERVER_PORT; default {DEFAULT_PORT})")
    parser.add_argument(
        "--database", help="SQLite file (EUNOE_OBSERVER_DATABASE; default in the user's data directory)"
    )
    parser.add_argument(
        "--token",
        help="secret for sending events and reading pages (EUNOE_OBSERVER_TOKEN); "
        "prefer the environment, other users of this machine can see options",
    )
    parser.add_argument(
        "--rebuild", action="store_true", help="fold all runs anew from the stored events at start"
    )
    return parser
