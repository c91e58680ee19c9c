"""Calls to an OpenAI-compatible server: where it is, how often it is tried, what its refusals mean."""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import random
import re
import weakref
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from typing import Any

import httpx

from .errors import ModelFailed

# Statuses after which the same call may succeed: too slow, in conflict, too early, too many. And all 5xx.
PASSING_STATUSES = frozenset({408, 409, 425, 429})

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 8.0  # seconds between tries, doubled each time
_LONGEST_ASKED_WAIT = 20.0  # a server that asks for more than this is not tried again
_CONNECT_SECONDS = 10.0

_REFUSALS = {
    401: "the key was refused",
    402: "the account has no credit",
    403: "the key has no right to this",
    404: "there is no such model or path",
    413: "the request is too large",
    429: "too many requests",
}
# An error code such as `model_not_found` may be told; anything longer could quote a message or a key.
_ERROR_CODE = re.compile(r"[a-z]+(?:_[a-z]+){0,5}")
_PATHS = ("/chat/completions", "/embeddings", "/completions")

_HeldClient = tuple[httpx.AsyncClient, AsyncGenerator[httpx.AsyncClient, None]]

# One client for each event loop that makes calls.
_CLIENTS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _HeldClient] = weakref.WeakKeyDictionary()


class ApiClient:
    """Posts JSON to one OpenAI-compatible server, several times if need be.

    `other_names` are fields that some servers want by another name, or, where the other name is empty, not
    at all: a server that says so when it refuses a request gets it again at once, and from then on.
    """

    def __init__(
        self,
        api_base: str,
        api_key: str,
        name: str,
        *,
        timeout: float,
        attempts: int,
        other_names: Mapping[str, str],
    ) -> None:
        self._root, self._key, self._name = api_root(api_base), api_key.strip(), name
        self._timeout, self._attempts = timeout, max(1, attempts)
        self._limits = httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS))
        self._other_names = other_names
        self._renamed: dict[str, str] = {}

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post `body` and give the JSON that comes back.

        Raises:
            ModelFailed: the server refused, or gave no answer to the last try.
        """
        wait, tries = _FIRST_WAIT, 0
        while True:
            tries += 1
            try:
                return await self._posted(path, body)
            except _NotAnswered as failure:
                asked = failure.asked_wait
                patient = asked is None or asked <= _LONGEST_ASKED_WAIT
                if not (failure.passing and patient and tries < self._attempts):
                    raise
            # Half of the wait is left to chance, so that several workers do not come back together.
            await asyncio.sleep(wait * random.uniform(0.5, 1) if asked is None else asked)  # noqa: S311  no secret
            wait = min(_LONGEST_WAIT, wait * 2)

    async def _posted(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post once, or once more for each field that the server wants by another name."""
        while True:
            answer = await self._answer(path, body)
            if answer.status_code not in {400, 422} or not self._learn_names(body, answer.text):
                return await asyncio.to_thread(self._read, answer)

    async def _answer(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        if not self._root.startswith(("http://", "https://")):
            raise _NotAnswered(self._name, "its address does not begin with http:// or https://")
        renamed = {new: v for field, v in body.items() if (new := self._renamed.get(field, field))}
        raw = await asyncio.to_thread(_json_bytes, renamed)
        headers = {"Content-Type": "application/json"}
        if not (self._key.isascii() and self._key.isprintable()):
            raise _NotAnswered(self._name, "its key has signs that no key can have")
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            client = await _shared_client()
            async with asyncio.timeout(self._timeout):  # httpx counts each read alone; a server may drip
                return await client.post(
                    self._root + path, content=raw, headers=headers, timeout=self._limits
                )
        except (TimeoutError, httpx.TimeoutException):
            raise _NotAnswered(self._name, f"no answer within {self._timeout:g} s", passing=True) from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, ValueError):
            raise _NotAnswered(self._name, "its address or the proxy can't be used") from None
        except httpx.RequestError as error:
            problem = f"it can't be reached ({type(error).__name__})"
            raise _NotAnswered(self._name, problem, passing=True) from None

    def _learn_names(self, body: Mapping[str, Any], refusal: str) -> bool:
        """Learn from a refusal by which other names the server wants fields; says whether it taught any."""
        taught = {
            field: other
            for field, other in self._other_names.items()
            if field in body and field not in self._renamed and (other or field) in refusal
        }
        self._renamed |= taught
        return bool(taught)

    def _read(self, answer: httpx.Response) -> Any:
        """Give the JSON of an answer; some gateways put an error into one with status 200."""
        try:
            value = json.loads(answer.content)
        except ValueError:  # also text that is not UTF-8
            value = None
        error = value.get("error") if isinstance(value, Mapping) else None
        status = answer.status_code
        if answer.is_success:
            if value is None:
                raise _NotAnswered(self._name, "its answer is no JSON", status, passing=True)
            if not error:
                return value
            given = error.get("code") if isinstance(error, Mapping) else None
            status = given if isinstance(given, int) and 400 <= given < 600 else 502
        raise _NotAnswered(
            self._name,
            self._reason(status, error),
            status,
            passing=status in PASSING_STATUSES or status >= 500,
            asked_wait=_asked_wait(answer.headers.get("Retry-After", "")),
        )

    def _reason(self, status: int, error: Any) -> str:
        """Say why a call was refused, without a word that the server wrote but its error code."""
        reason = f"it answered {status}"
        if status in _REFUSALS:
            reason += f", {_REFUSALS[status]}"
        given = [error.get("code"), error.get("type")] if isinstance(error, Mapping) else []
        codes = [c for c in given if isinstance(c, str) and len(c) <= 40 and _ERROR_CODE.fullmatch(c)]
        code = next((c for c in codes if c not in self._key), "")
        return f"{reason} ({code})" if code else reason


class _NotAnswered(ModelFailed):
    """A call that gave nothing; `asked_wait` is how many seconds the server wants to be left alone."""

    def __init__(
        self,
        model: str,
        problem: str,
        status: int | None = None,
        *,
        passing: bool = False,
        asked_wait: float | None = None,
    ) -> None:
        super().__init__(model, problem, status, passing=passing)
        self.asked_wait = asked_wait


def api_root(api_base: str) -> str:
    """Give the address that paths are put behind: without a slash at its end, with `/v1` if it has no path."""
    root = api_base.strip().rstrip("/")
    for path in _PATHS:  # somebody copied the address of a call
        root = root.removesuffix(path).rstrip("/")
    _, _, rest = root.partition("://")
    return f"{root}/v1" if rest and "/" not in rest else root


async def _shared_client() -> httpx.AsyncClient:
    """Give this event loop's client, whose connections are used again by later calls."""
    loop = asyncio.get_running_loop()
    if loop not in _CLIENTS:
        client = await asyncio.to_thread(_new_client)  # reading certificates takes 20 ms
        if loop not in _CLIENTS:
            holder = _held_open(client, loop)
            _CLIENTS[loop] = (client, holder)
            await anext(holder)
    return _CLIENTS[loop][0]


def _new_client() -> httpx.AsyncClient:
    try:
        return httpx.AsyncClient()
    except (ImportError, OSError):  # a SOCKS proxy without its library, a certificate file that is none
        raise ValueError("the environment's proxy or certificates can't be used") from None


async def _held_open(
    client: httpx.AsyncClient, loop: asyncio.AbstractEventLoop
) -> AsyncGenerator[httpx.AsyncClient, None]:
    """Hold a client open until the event loop ends.

    A loop that ends closes the generators it has seen, which is the only hook it offers for this.
    """
    try:
        yield client
    finally:
        _CLIENTS.pop(loop, None)
        await client.aclose()


def _json_bytes(body: Mapping[str, Any]) -> bytes:
    """Write JSON; halves of characters, which careless clients send, become question marks."""
    return json.dumps(body, ensure_ascii=False, default=str).encode("utf-8", "replace")


def _asked_wait(header: str) -> float | None:
    """Read `Retry-After`, seconds or a date; None if there is none or it can't be read."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            until = email.utils.parsedate_to_datetime(header)
            seconds = (until - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):  # the latter: a date without a zone
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
