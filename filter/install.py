"""Installs Eunoe's filter into a running Open WebUI, or brings it up to date, through the HTTP API.

InstallationError
├── NotReachable    no Open WebUI answers at the address
├── NotAllowed      the account or token is wrong, or is not an administrator's
└── Refused         Open WebUI did not accept the filter or a valve
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

FUNCTION_ID = "eunoe"
NAME = "Eunoe"
DESCRIPTION = "Keeps long chats inside a token budget, and shows why each message was kept or dropped."
SOURCE = Path(__file__).resolve().with_name("eunoe_filter.py")
OLDEST = (0, 11, 2)  # the first Open WebUI with the `request` hook, which holds the bound in tool loops

EPILOG = """
environment variables (an option wins over its variable):
  OPEN_WEBUI_URL        --url
  OPEN_WEBUI_EMAIL      --email
  OPEN_WEBUI_PASSWORD   --password
  OPEN_WEBUI_TOKEN      --token
  EUNOE_OBSERVER_URL    the valve observer_url: where the filter sends its events
  EUNOE_OBSERVER_PUBLIC_URL
                        the valve observer_public_url: where browsers reach the observer
  EUNOE_OBSERVER_TOKEN  the valve observer_token: what the observer asks for

On a server without any account, the email and password make the first one, which is an administrator.
"""


class InstallationError(Exception):
    """The filter could not be installed; the text says what to do."""


class NotReachable(InstallationError):
    """No Open WebUI answers at the address."""


class NotAllowed(InstallationError):
    """The account or the token does not let us in, or is not an administrator's."""


class Refused(InstallationError):
    """Open WebUI did not accept the filter or a valve."""


@dataclass(frozen=True)
class Account:
    """Who installs: an email and password, or a token (a JWT or an API key)."""

    email: str = ""
    password: str = ""
    token: str = ""


@dataclass(frozen=True)
class Wish:
    """What is to be installed."""

    source: str
    valves: Mapping[str, Any] = field(default_factory=dict)  # set in any case
    observer_url: str = ""  # set unless a person changed it after we had set it
    observer_token: str = ""
    observer_public_url: str = ""  # set where none is set: the address for browsers
    activate: bool = False  # switch an existing filter on even if it was switched off
    function_id: str = FUNCTION_ID
    name: str = NAME


def say(text: str) -> None:
    """Tell the person who installs."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class OpenWebUI:
    """The calls of Open WebUI's HTTP API that an installation needs."""

    def __init__(self, url: str, timeout: float = 60.0) -> None:
        self.url = url.rstrip("/")
        # A proxy that the environment names cannot reach a server on this machine.
        here = any(f"//{host}" in self.url for host in ("127.0.0.1", "localhost", "[::1]"))
        self.http = httpx.Client(base_url=self.url, timeout=timeout, trust_env=not here)

    def wait(self, seconds: float) -> None:
        """Wait until the server is up."""
        deadline = time.monotonic() + seconds
        last = "no answer"
        while True:
            try:
                status = self.http.get("/health", timeout=5).status_code
                if status == httpx.codes.OK:
                    return
                last = f"HTTP {status} from /health"
            except httpx.InvalidURL as error:
                raise NotReachable(f"{self.url} is not an address: {error}. Check --url.") from error
            except httpx.HTTPError as error:
                last = str(error) or type(error).__name__
            if time.monotonic() >= deadline:
                raise NotReachable(
                    f"No Open WebUI at {self.url} within {seconds:.0f} s ({last}). "
                    "Check that it runs and that --url (OPEN_WEBUI_URL) names it."
                )
            time.sleep(0.5)

    def sign_in(self, account: Account, tell: Callable[[str], None] = say) -> None:
        """Get in with a token, or with an account, which is made if the server has none yet."""
        token = account.token or self._token_of(account, tell)
        self.http.headers["Authorization"] = f"Bearer {token}"

    def _token_of(self, account: Account, tell: Callable[[str], None]) -> str:
        if not account.email or not account.password:
            raise NotAllowed(
                "Give an administrator's account with --email and --password (OPEN_WEBUI_EMAIL, "
                "OPEN_WEBUI_PASSWORD) or a token with --token (OPEN_WEBUI_TOKEN)."
            )
        form = {"email": account.email, "password": account.password}
        if self.config().get("onboarding"):
            answer = self.http.post("/api/v1/auths/signup", json={"name": "Admin", **form})
            if answer.status_code != httpx.codes.OK:
                raise NotAllowed(f"The first account was not accepted: {reason_of(answer)}")
            tell(f"made the first account, an administrator: {account.email}")
        else:
            answer = self.http.post("/api/v1/auths/signin", json=form)
            if answer.status_code != httpx.codes.OK:
                raise NotAllowed(
                    f"Signing in as {account.email} failed: {reason_of(answer)} "
                    "Check --email and --password (OPEN_WEBUI_EMAIL, OPEN_WEBUI_PASSWORD)."
                )
        return str(answer.json()["token"])

    def config(self) -> dict[str, Any]:
        """What the server says of itself to anyone."""
        answer = self.http.get("/api/config")
        try:
            return dict(answer.json())
        except ValueError as error:
            raise NotReachable(f"What answers at {self.url} is not Open WebUI. Check --url.") from error

    def function(self, function_id: str) -> dict[str, Any] | None:
        """The function with its source; None if there is none."""
        ids = [item["id"] for item in self.call("GET", "/api/v1/functions/list")]
        return dict(self.call("GET", f"/api/v1/functions/id/{function_id}")) if function_id in ids else None

    def call(self, method: str, path: str, form: Mapping[str, Any] | None = None) -> Any:
        """Call the API as the account and answer what it says."""
        answer = self.http.request(method, path, json=form)
        if answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
            raise NotAllowed(
                f"{path} answers {answer.status_code}: {reason_of(answer)} "
                "The account or token must be an administrator's."
            )
        if answer.status_code != httpx.codes.OK:
            raise Refused(f"{path} answers {answer.status_code}: {reason_of(answer)}")
        return answer.json()


def reason_of(answer: httpx.Response) -> str:
    """What the server gives as the reason of a failure."""
    try:
        detail = answer.json().get("detail", "")
    except (ValueError, AttributeError):
        detail = answer.text[:300]
    return detail if isinstance(detail, str) else json.dumps(detail)


def digest(value: str) -> str:
    """A short fingerprint: enough to see later whether a person changed what we had set."""
    return hashlib.sha256(value.encode()).hexdigest()[:16]


def install(server: OpenWebUI, wish: Wish, tell: Callable[[str], None] = say) -> None:
    """Create or update the filter, switch a new one on, and set the valves it must have."""
    warn_if_old(server, tell)
    old = server.function(wish.function_id)
    # The observer's address that an earlier installation set, as a digest: people can see this field.
    remembered = ((old or {}).get("meta") or {}).get("eunoe_observer_url")
    put_source(server, wish, old, tell)
    switch_on(server, wish, old, tell)
    set_valves(server, wish, remembered, tell)


def warn_if_old(server: OpenWebUI, tell: Callable[[str], None]) -> None:
    """Say so if the server lacks the hook that holds the bound in tool loops."""
    version = str(server.config().get("version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if numbers and numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        tell(f"warning: Open WebUI {version} is older than {oldest}: tool loops may pass the budget")


def put_source(
    server: OpenWebUI, wish: Wish, old: Mapping[str, Any] | None, tell: Callable[[str], None]
) -> None:
    """Store the filter's source unless it is there already."""
    meta = {"description": DESCRIPTION, **((old or {}).get("meta") or {})}
    if wish.observer_url:
        meta["eunoe_observer_url"] = digest(wish.observer_url)
    form = {"id": wish.function_id, "name": wish.name, "content": wish.source, "meta": meta}
    if old is None:
        server.call("POST", "/api/v1/functions/create", form)
        tell(f"installed the filter {wish.function_id}")
        return
    same = old["content"] == wish.source and (old.get("meta") or {}) == meta
    if same:
        tell(f"the filter {wish.function_id} is up to date")
        return
    server.call("POST", f"/api/v1/functions/id/{wish.function_id}/update", {**form, "name": old["name"]})
    tell(f"updated the filter {wish.function_id}")


def switch_on(
    server: OpenWebUI, wish: Wish, old: Mapping[str, Any] | None, tell: Callable[[str], None]
) -> None:
    """Switch a new filter on for all models; leave an existing one as its administrator set it."""
    # An update through this API keeps both switches, so the old state is the present one.
    active, everywhere = (bool(old and old[name]) for name in ("is_active", "is_global"))
    path = f"/api/v1/functions/id/{wish.function_id}/toggle"
    if old is not None and not wish.activate:
        if not active:
            tell("it was switched off by an administrator and stays off (--activate switches it on)")
        elif not everywhere:
            tell("it is on for chosen models only, as before (--activate switches it on for all)")
        return
    if not active:
        server.call("POST", path)
    if not everywhere:
        server.call("POST", path + "/global")
    if not (active and everywhere):
        tell("switched it on for all models")


def set_valves(server: OpenWebUI, wish: Wish, remembered: str | None, tell: Callable[[str], None]) -> None:
    """Set the wished valves and keep all others: the API replaces the whole set."""
    path = f"/api/v1/functions/id/{wish.function_id}/valves"
    stored = server.call("GET", path) or {}
    wanted = dict(wish.valves)
    if wish.observer_token:
        wanted["observer_token"] = wish.observer_token
    present = stored.get("observer_url")
    if wish.observer_url and present != wish.observer_url:
        changed_by_hand = present is not None and remembered is not None and digest(present) != remembered
        if changed_by_hand:
            tell(f"kept observer_url = {present}, which was changed by hand (--valve observer_url=… sets it)")
        else:
            wanted.setdefault("observer_url", wish.observer_url)
    if wish.observer_public_url and not stored.get("observer_public_url"):
        wanted.setdefault("observer_public_url", wish.observer_public_url)
    changes = {name: value for name, value in wanted.items() if stored.get(name) != value}
    if changes:
        try:
            server.call("POST", path + "/update", {**stored, **changes})
        except Refused as error:  # Open WebUI itself does not say which one, or why
            raise Refused(
                f"One of the valves {', '.join(sorted(changes))} has a wrong value: {error}"
            ) from error
        tell("set the valves " + ", ".join(sorted(changes)))
    kept = sorted(set(stored) - set(changes))
    if kept:
        tell("kept the valves " + ", ".join(kept))


def valve(text: str) -> tuple[str, Any]:
    """Read `name=value`; a value that is JSON counts as what it says, anything else as text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Install Eunoe's filter into a running Open WebUI, or bring it up to date.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    env = os.environ.get
    parser.add_argument("--url", default=env("OPEN_WEBUI_URL", "http://127.0.0.1:8080"), help="Open WebUI")
    parser.add_argument("--email", default=env("OPEN_WEBUI_EMAIL", ""), help="an administrator's")
    parser.add_argument("--password", default=env("OPEN_WEBUI_PASSWORD", ""))
    parser.add_argument("--token", default=env("OPEN_WEBUI_TOKEN", ""), help="a JWT or API key instead")
    parser.add_argument("--valve", type=valve, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--activate", action="store_true", help="switch it on even if it was switched off")
    parser.add_argument("--filter", type=Path, default=SOURCE, help="the file (default: beside this one)")
    parser.add_argument("--wait", type=float, default=180, help="seconds to wait for the server")
    return parser.parse_args()


def main() -> int:
    """Install as the command line says."""
    chosen = arguments()
    try:
        source = chosen.filter.read_text(encoding="utf-8")
        wish = Wish(
            source=source,
            valves=dict(chosen.valve),
            observer_url=os.environ.get("EUNOE_OBSERVER_URL", ""),
            observer_public_url=os.environ.get("EUNOE_OBSERVER_PUBLIC_URL", ""),
            observer_token=os.environ.get("EUNOE_OBSERVER_TOKEN", ""),
            activate=chosen.activate,
        )
        server = OpenWebUI(chosen.url)
        server.wait(chosen.wait)
        server.sign_in(Account(chosen.email, chosen.password, chosen.token))
        install(server, wish)
    except (InstallationError, httpx.HTTPError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
