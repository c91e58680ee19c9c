"""Names for what is kept: a digest, so that no text can be read in them and no two things share one."""

from __future__ import annotations

import hashlib

from .entry import text_bytes


def cache_key(kind: str, scope: str, *parts: str) -> str:
    """Name what was made of `parts`, in order, for one scope.

    `kind` is a plain word such as `summary` and can be read in the key. `scope` is whose it is, a user's
    id or empty: the same parts in another scope have another key. All that the result depends on belongs
    into `parts`, models and settings included.
    """
    digest = hashlib.sha256()
    for text in (kind, scope, *parts):
        data = text_bytes(text)
        digest.update(len(data).to_bytes(8, "big"))  # where a part ends, so that "ab", "c" is not "a", "bc"
        digest.update(data)
    return f"eunoe:{kind}:{digest.hexdigest()}"
