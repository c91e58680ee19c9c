"""Who may come in: the token as a bearer, or a signed cookie for people who showed it once."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from urllib.parse import urlsplit

COOKIE = "eunoe_observer"
COOKIE_SECONDS = 30 * 24 * 3600
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="eunoe observer"'}
# A path of this site: one slash, then neither a second one nor a backslash, which browsers read as one.
LOCAL_PATH = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*")


def bearer_is_right(header: str | None, token: str | None) -> bool:
    """Compare in constant time, so that nobody can find the token letter by letter."""
    if token is None:
        return True
    scheme, _, given = (header or "").partition(" ")
    return scheme.lower() == "bearer" and token_is_right(given.strip(), token)


def token_is_right(given: str, token: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode("utf-8", "surrogatepass"))


def new_cookie(token: str) -> str:
    """Make a value that proves, until it expires, that its holder knew the token."""
    expiry = str(int(time.time()) + COOKIE_SECONDS)
    return f"{expiry}.{_signature(expiry, token)}"


def cookie_is_right(value: str | None, token: str) -> bool:
    """Say whether we made this cookie with this token, and not too long ago."""
    expiry, _, signature = (value or "").partition(".")
    if not token_is_right(signature, _signature(expiry, token)):
        return False
    return int(expiry) > time.time()  # it is a number: we signed it


def _signature(expiry: str, token: str) -> str:
    message = f"{COOKIE}:{expiry}".encode("utf-8", "surrogatepass")
    return hmac.new(token.encode("utf-8", "surrogatepass"), message, hashlib.sha256).hexdigest()


def local_path(wanted: str | None) -> str:
    """Return `wanted` if it is a path of this site, else the list of runs."""
    if wanted and LOCAL_PATH.fullmatch(wanted):
        parts = urlsplit(wanted)
        if not parts.scheme and not parts.netloc:
            return wanted
    return "/runs"
