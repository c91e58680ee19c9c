"""Runs a real Open WebUI with Eunoe's filter in it, and the observer, until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import httpx

import environments
from install import SOURCE, Account, InstallationError, OpenWebUI, Wish, install
from interpreters import PreparationError
from processes import Server, ServerEnded, is_free, owner_of, stop
from provider import Provider, choose, connect, local_url

EMAIL = "admin@eunoe.example"
# A slow disk needs a minute for Open WebUI's first start, with all its migrations.
START_SECONDS = 300.0

EPILOG = """
environment variables (an option wins over its variable):
  OPEN_WEBUI_PORT        --open-webui-port
  EUNOE_OBSERVER_PORT    --observer-port
  EUNOE_LLAMA_PORT       --llama-port, used only when no other provider is found
  EUNOE_DATA             --data
  OPENAI_API_BASE_URL, OPENAI_API_KEY  a provider of models (default: an Ollama that answers at
                         OLLAMA_BASE_URL or its usual port, else a small local model)
  OPEN_WEBUI_EMAIL, OPEN_WEBUI_PASSWORD  the administrator's account, if it was changed in the browser
  EUNOE_OBSERVER_TOKEN   a token that the observer then asks for (default: none, it listens here only)
Any variable that Open WebUI knows is passed on to it.
"""


class CannotStart(Exception):
    """Something is in the way; the text says what, and what to do."""


class Interrupted(Exception):
    """Someone pressed Ctrl-C or sent SIGTERM."""


@dataclass(frozen=True)
class Choices:
    """What the command line and the environment ask for."""

    open_webui_port: int
    observer_port: int
    llama_port: int
    data: Path
    observer_token: str

    @property
    def open_webui(self) -> str:
        """The address people chat at."""
        return f"http://127.0.0.1:{self.open_webui_port}"

    @property
    def observer(self) -> str:
        """The address of the dashboard."""
        return f"http://127.0.0.1:{self.observer_port}"


@dataclass
class Secrets:
    """What the trial keeps from start to start, in a file that only its owner can read."""

    email: str
    password: str
    secret_key: str

    @classmethod
    def of(cls, path: Path) -> Secrets:
        """Read them, or make them at the first start; an account in the environment replaces the kept one."""
        kept = json.loads(path.read_text()) if path.exists() else {}
        env = os.environ.get
        found = cls(
            email=env("OPEN_WEBUI_EMAIL") or kept.get("email") or EMAIL,
            password=env("OPEN_WEBUI_PASSWORD") or kept.get("password") or secrets.token_urlsafe(12),
            secret_key=kept.get("secret_key") or secrets.token_hex(32),
        )
        new = path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(vars(found), file, indent=2)
        new.replace(path)
        return found


def say(text: str = "") -> None:
    """Tell the person who started us."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def tell(text: str) -> None:
    """Say what the installation does, set in under the step it belongs to."""
    say(f"  {text}")


def check_ports(choices: Choices, provider: Provider) -> None:
    """Raise if a port is taken, naming the option that chooses another."""
    wanted = {
        "Open WebUI": (choices.open_webui_port, "open-webui-port", "OPEN_WEBUI_PORT"),
        "the observer": (choices.observer_port, "observer-port", "EUNOE_OBSERVER_PORT"),
    }
    if provider.local:
        wanted["the local model"] = (choices.llama_port, "llama-port", "EUNOE_LLAMA_PORT")
    for who, (port, option, variable) in wanted.items():
        if not is_free(port):
            owner = owner_of(port)
            raise CannotStart(
                f"Port {port}, which {who} would listen on, is taken{f' by {owner}' if owner else ''}. "
                f"Stop what uses it, or choose another: make run {variable}={port + 1} (option --{option})."
            )


def start_observer(choices: Choices) -> Server:
    """Start the dashboard."""
    data = choices.data / "observer"
    data.mkdir(parents=True, exist_ok=True)
    env = {
        **os.environ,
        "EUNOE_OBSERVER_PORT": str(choices.observer_port),
        "EUNOE_OBSERVER_HOST": "127.0.0.1",
        "EUNOE_OBSERVER_DATABASE": str(data / "observer.sqlite3"),
    }
    command = [sys.executable, "-m", "eunoe_observer"]
    return Server.start("The observer", command, choices.data / "logs" / "observer.log", env)


def start_llama(choices: Choices) -> Server:
    """Start the small local model."""
    python = environments.llama() / "bin" / "python"
    script = Path(__file__).with_name("llama.py")
    command = [str(python), str(script), "--port", str(choices.llama_port)]
    return Server.start("The local model", command, choices.data / "logs" / "llama.log", os.environ)


def open_webui_settings(data: Path, secret_key: str, provider: Provider) -> dict[str, str]:
    """What Open WebUI's slim install needs in its environment to run on one machine, by itself."""
    settings = {
        "DATA_DIR": str(data / "open-webui"),
        "STATIC_DIR": str(data / "static"),  # else it copies files into its own package
        "WEBUI_SECRET_KEY": secret_key,
        "USE_SLIM_DOCKER": "true",
        "OFFLINE_MODE": "true",  # no version check, no downloads from model hubs
        "ENABLE_OLLAMA_API": str(provider.ollama),
        "OPENAI_API_BASE_URL": "" if provider.ollama else provider.url,
        "OPENAI_API_KEY": provider.key,
        "BYPASS_EMBEDDING_AND_RETRIEVAL": "true",  # slim has no embedding model
        "ANONYMIZED_TELEMETRY": "false",
        "DO_NOT_TRACK": "true",
        "SCARF_NO_ANALYTICS": "true",
    }
    if provider.local:  # a base model cannot write titles, and each one costs seconds
        for task in ("TITLE", "TAGS", "FOLLOW_UP"):
            settings[f"ENABLE_{task}_GENERATION"] = "false"
    for name in ("DATA_DIR", "STATIC_DIR"):
        Path(settings[name]).mkdir(parents=True, exist_ok=True)
    return settings


def open_webui_command(port: int) -> list[str]:
    """Start Open WebUI without its script, whose first line fails on a path that is long or has a space."""
    python = environments.open_webui() / "bin" / "python"
    program = "from open_webui import app; app()"
    return [str(python), "-c", program, "serve", "--host", "127.0.0.1", "--port", str(port)]


def start_open_webui(choices: Choices, kept: Secrets, provider: Provider) -> Server:
    """Start Open WebUI."""
    settings = open_webui_settings(choices.data, kept.secret_key, provider)
    # People may set anything that Open WebUI knows, but not these: the trial would lose its data or models.
    fixed = ("DATA_DIR", "STATIC_DIR", "WEBUI_SECRET_KEY", "OPENAI_API_BASE_URL", "OPENAI_API_KEY")
    env = {**settings, **os.environ, **{name: settings[name] for name in fixed}}
    command = open_webui_command(choices.open_webui_port)
    return Server.start("Open WebUI", command, choices.data / "logs" / "open-webui.log", env)


@contextlib.contextmanager
def running(choices: Choices, kept: Secrets, provider: Provider) -> Iterator[Callable[[], None]]:
    """Start all servers, wait until they answer, and stop them at the end, whatever happens.

    What it yields raises as soon as the run is to end or a server has ended.
    """
    asked_to_stop = threading.Event()
    servers: list[Server] = []

    def check() -> None:
        if asked_to_stop.is_set():
            raise Interrupted
        for server in servers:
            server.check()

    # From here on an interrupt is only noted: raised between a start and its entry in the list, it would
    # leave a server behind, and so would a second one while they are being stopped.
    on_interrupt(lambda _number, _frame: asked_to_stop.set())
    try:
        say("starting …")
        servers.append(start_observer(choices))
        servers.append(start_open_webui(choices, kept, provider))
        if provider.local:
            servers.append(start_llama(choices))
            servers[2].wait(f"http://127.0.0.1:{choices.llama_port}/health", START_SECONDS, check)
        servers[0].wait(f"{choices.observer}/healthz", START_SECONDS, check)
        servers[1].wait(f"{choices.open_webui}/health", START_SECONDS, check)
        yield check
    finally:
        if servers:
            say("stopping …")
        stop(servers)


def install_filter(choices: Choices, kept: Secrets, provider: Provider) -> None:
    """Make the account, connect the models and put the filter in."""
    server = OpenWebUI(choices.open_webui)
    try:
        server.wait(START_SECONDS)
        server.sign_in(Account(kept.email, kept.password), tell)
        connect(server, provider, local_url(choices.llama_port))
        wish = Wish(
            source=SOURCE.read_text(encoding="utf-8"),
            observer_url=choices.observer,
            observer_public_url=choices.observer,
            observer_token=choices.observer_token,
        )
        install(server, wish, tell)
    except InstallationError as error:
        raise CannotStart(
            f"{error}\nThe account is kept in {choices.data / 'account.json'}. If its password was changed "
            "in the browser, give the new one once: make run OPEN_WEBUI_PASSWORD=…"
        ) from error
    finally:
        server.http.close()


def greeting(choices: Choices, kept: Secrets, provider: Provider, seconds: float) -> str:
    """What people need to know to try it."""
    return f"""
Eunoe runs (started in {seconds:.0f} s).

  Open WebUI  {choices.open_webui}   email {kept.email}   password {kept.password}
  Observer    {choices.observer}
  Models      {provider}
  Data        {choices.data}, logs in {choices.data / "logs"}

To see it at work soon, lower the budget: in Open WebUI go to Admin Panel > Functions > Eunoe > the gear,
set "Largest prompt, in tokens" to {1000 if provider.local else 7000}, and chat for a few turns.
Ctrl-C stops everything.
"""


def arguments() -> Choices:
    """Read the command line and the environment."""
    parser = argparse.ArgumentParser(
        prog="make run",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    env = os.environ.get
    parser.add_argument("--open-webui-port", type=int, default=env("OPEN_WEBUI_PORT", "8080"))
    parser.add_argument("--observer-port", type=int, default=env("EUNOE_OBSERVER_PORT", "7456"))
    parser.add_argument("--llama-port", type=int, default=env("EUNOE_LLAMA_PORT", "7457"))
    parser.add_argument("--data", type=Path, default=env("EUNOE_DATA", str(environments.ROOT / "data")))
    chosen = parser.parse_args()
    return Choices(**vars(chosen), observer_token=env("EUNOE_OBSERVER_TOKEN", ""))


def on_interrupt(handler: Callable[[int, FrameType | None], None]) -> None:
    """Let `handler` take Ctrl-C and SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """End the preparation at once: nothing is running yet."""
    raise Interrupted


def run(choices: Choices) -> None:
    """Start everything, say where it is, and stay until it is to stop or a server ends."""
    begin = time.monotonic()
    choices.data.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds people's chats
    provider = choose(os.environ, choices.llama_port)
    check_ports(choices, provider)
    environments.open_webui()
    if provider.local:
        environments.llama()
    kept = Secrets.of(choices.data / "account.json")
    with running(choices, kept, provider) as check:
        install_filter(choices, kept, provider)
        say(greeting(choices, kept, provider, time.monotonic() - begin))
        while True:
            check()
            time.sleep(0.5)


def main() -> int:
    """Run, and say plainly what is wrong if something is."""
    choices = arguments()
    on_interrupt(interrupt)
    try:
        run(choices)
    except Interrupted:
        say("stopped")
    except (CannotStart, ServerEnded, PreparationError, httpx.HTTPError, OSError) as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
