"""The gate every request passes: who may come in, and what every answer carries."""

from __future__ import annotations

from urllib.parse import quote, urlencode

import structlog
from sse_starlette.sse import SendTimeoutError
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .session import CHALLENGE, COOKIE, bearer_is_right, cookie_is_right
from .settings import Settings, is_loopback

# Chat text is hostile input: even if some of it became markup, nothing could run, load or be sent away.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# These are for everyone; `/v1/events` looks at the token itself and takes no cookie.
OPEN_PATHS = frozenset({"/healthz", "/sign-in", "/v1/events"})

log = structlog.get_logger("eunoe")


class Gate:
    """Lets in who has the token; without a token, only requests made to a loopback name."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        """Stand in front of `app`."""
        self.app, self.token = app, settings.token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = self._refusal(Request(scope)) or self.app
        try:
            await answer(scope, receive, _with_headers(scope["path"], send))
        except SendTimeoutError:
            log.info("a browser stopped reading; its stream was closed and it will come back")

    def _refusal(self, request: Request) -> Response | None:
        if self.token is None:
            return None if _host_is_loopback(request) else _wrong_host()
        path = request.url.path
        if path in OPEN_PATHS or path.startswith("/static/"):
            return None
        if bearer_is_right(request.headers.get("authorization"), self.token):
            return None
        if cookie_is_right(request.cookies.get(COOKIE), self.token):
            return None
        if "text/html" not in request.headers.get("accept", "") or path.endswith((".json", "/live")):
            return JSONResponse({"detail": "Send the observer's token as a bearer."}, 401, CHALLENGE)
        here = quote(path) + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/sign-in?{urlencode({'next': here})}", 303)


def _host_is_loopback(request: Request) -> bool:
    """Say whether the browser thinks it talks to this machine.

    A page of some web site can have its own name point to 127.0.0.1 and then read what we answer; its
    requests still carry that name.
    """
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return is_loopback(name)


def _wrong_host() -> Response:
    return PlainTextResponse(
        "This observer has no token and so answers only to localhost. To reach it by another name, "
        "start it with --token.\n",
        421,
    )


def _with_headers(path: str, send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(SECURITY_HEADERS)
            # Pages hold people's chats; files of the program may be kept but have to be asked about.
            headers.setdefault("Cache-Control", "no-cache" if path.startswith("/static/") else "no-store")
        await send(message)

    return wrapped
