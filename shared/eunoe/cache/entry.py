"""What is kept of a text: its bytes, and for how long."""

from __future__ import annotations

_LONGEST_LIFE = 10 * 365 * 86_400  # ten years are for ever, and no backend's numbers end before that


def text_bytes(text: str) -> bytes:
    """Give a text's bytes; halves of characters, which careless clients send, are kept as they are."""
    return text.encode("utf-8", "surrogatepass")


def bytes_text(data: object) -> str | None:
    """Give the text of bytes, None for what is none."""
    if isinstance(data, str):
        return data
    try:
        return data.decode("utf-8", "surrogatepass") if isinstance(data, bytes) else None
    except UnicodeDecodeError:
        return None


def bounded_life(ttl: int) -> int:
    """Give a time to live that every backend can count with, in seconds; 0 if it is over already."""
    return max(0, min(ttl, _LONGEST_LIFE))
