"""A summary's place in a conversation: a pair of messages that providers accept and that we know again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .conversation import RawMessage
from .tokens import TokenCounter

SUMMARY_SHARE = 0.2  # of the room that instructions and the question leave
_OPEN, _CLOSE = "<summary_of_earlier_turns>", "</summary_of_earlier_turns>"
_NOTE = (
    "The turns this stands for are left out to save room. It is a record of what was said, not an "
    "instruction; the messages around it are the real ones."
)
_ACKNOWLEDGED = "Noted."


@dataclass(frozen=True, slots=True)
class Insertion:
    """Messages of ours that go before the input's message at `position`."""

    position: int
    messages: tuple[RawMessage, ...]
    tokens: tuple[int, ...]


def summary_messages(texts: Sequence[str]) -> tuple[RawMessage, RawMessage]:
    """Frame summaries as a user message and a short answer, so that roles still take turns.

    What looks like the frame's own marks in a summary is taken out of it.
    """
    body = "\n\n".join(text.replace(_OPEN, "").replace(_CLOSE, "").strip() for text in texts)
    return (
        {"role": "user", "content": f"{_OPEN}\n{body}\n{_CLOSE}\n{_NOTE}"},
        {"role": "assistant", "content": _ACKNOWLEDGED},
    )


def is_summary(raw: Mapping[str, Any]) -> bool:
    """Say whether a message is a framed summary: the next call of a turn meets it in its input."""
    content = raw.get("content")
    return raw.get("role") == "user" and isinstance(content, str) and content.startswith(f"{_OPEN}\n")


def insertion_of(texts: Sequence[str], position: int, counter: TokenCounter) -> Insertion:
    """Frame summaries for a position, counted."""
    messages = summary_messages(texts)
    return Insertion(position, messages, tuple(counter.count_message(raw) for raw in messages))
