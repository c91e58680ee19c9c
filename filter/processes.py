"""Starts, watches and stops the servers that Eunoe runs beside one another."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TAIL = 15
# Open WebUI closes its database and sockets on SIGTERM; after this long it is not going to.
STOP_SECONDS = 10.0
# Our servers are on this machine; a proxy that the environment names cannot reach them.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerEnded(Exception):
    """A server ended by itself or did not come up; the text has the end of its log."""


@dataclass(frozen=True)
class Server:
    """A running server: a process in a group of its own, with its output in a file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> Server:
        """Start `command`. Its own group keeps Ctrl-C from it, so that it is stopped in order."""
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists():
            log.replace(log.with_suffix(".previous.log"))
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603  the commands are ours
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                start_new_session=True,
            )
        return cls(name, process, log)

    def check(self) -> None:
        """Raise if the server has ended."""
        status = self.process.poll()
        if status is not None:
            raise ServerEnded(f"{self.name} ended (exit status {status}). {self.tail()}")

    def tail(self) -> str:
        """The end of its log, with the log's name."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL:]
        return f"The last lines of {self.log}:\n" + "\n".join("    " + line for line in lines)

    def wait(self, url: str, seconds: float, check: Callable[[], None] | None = None) -> None:
        """Wait until `url` answers with 200; raise if the server ends meanwhile or `check` raises."""
        deadline = time.monotonic() + seconds
        while not answers(url):
            self.check()
            if check:
                check()
            if time.monotonic() > deadline:
                raise ServerEnded(
                    f"{self.name} did not answer at {url} within {seconds:.0f} s. {self.tail()}"
                )
            time.sleep(0.2)


def answers(url: str) -> bool:
    """Whether a GET of `url` answers with 200."""
    try:
        with DIRECT.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def stop(servers: Sequence[Server]) -> None:
    """Stop the servers, the last one first: ask all, then end those that stay."""
    for server in reversed(servers):
        _signal(server, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    for server in reversed(servers):
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(max(0.0, deadline - time.monotonic()))
        # Workers of a server that has ended may be left in its group.
        _signal(server, signal.SIGKILL)
        server.process.wait()


def _signal(server: Server, number: signal.Signals) -> None:
    """Send a signal to the server's group, if there is still anyone in it."""
    try:
        os.killpg(server.process.pid, number)
    except (ProcessLookupError, PermissionError):
        return


def free_port() -> int:
    """A port of the loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` of the loopback."""
    with socket.socket() as probe:
        # Without this a port whose connections were closed a moment ago counts as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def owner_of(port: int) -> str:
    """The process that listens on `port`, as far as Linux lets us see it; else an empty text."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        except OSError:
            continue
        # State 0A is LISTEN; the port is hexadecimal behind the address.
        inodes |= {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in inodes:
            command = (entry.parent.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            return f"process {entry.parts[2]}, {command[:100]}"
    return ""
