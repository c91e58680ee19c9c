"""Signing in: the token once, a cookie from then on."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from .formats import render
from .observer import observer_of
from .session import COOKIE, COOKIE_SECONDS, local_path, new_cookie, token_is_right

router = APIRouter()

MAX_FORM_BYTES = 16 * 1024


@router.get("/sign-in")
async def sign_in_page(request: Request, next: str = "") -> Response:  # noqa: A002 - the parameter's name is public
    """Ask for the token."""
    if observer_of(request).settings.token is None:
        return RedirectResponse("/runs", 303)
    return HTMLResponse(render("sign_in.html", next=local_path(next), wrong=False))


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Check the token and hand out the cookie."""
    token = observer_of(request).settings.token
    form = await _form_of(request)
    wanted = local_path(form.get("next"))
    if token is None:
        return RedirectResponse(wanted, 303)
    if not token_is_right(form.get("token", "").strip(), token):
        return HTMLResponse(render("sign_in.html", next=wanted, wrong=True), 403)
    answer = RedirectResponse(wanted, 303)
    answer.set_cookie(
        COOKIE,
        new_cookie(token),
        max_age=COOKIE_SECONDS,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer


async def _form_of(request: Request) -> dict[str, str]:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            return {}
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    return {name: values[0] for name, values in fields.items()}
