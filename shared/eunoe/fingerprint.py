"""A chain of fingerprints over a conversation: each names its message and all that was said before it.

What hangs on such a name is found again in whatever chat begins in the same way: after an edit, in a branch,
a clone, an import or a chat without an id. Instructions are no part of the chain, since hosts put the date,
memories and documents into them, and flags are taken out before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from .conversation import Message, traits_in

START = ""  # the fingerprint of nothing


def chain_of(messages: Iterable[Message]) -> list[str]:
    """Give the fingerprint of each message, 32 hexadecimal digits; that of an instruction is its predecessor's."""
    members = list(messages)
    chain: list[str] = []
    last = START
    for known in traits_in(members):
        if not known.is_instruction:
            last = hashlib.blake2b(f"{last}{known.digest}".encode(), digest_size=16).hexdigest()
        chain.append(last)
    return chain
