"""Messages as text that a model can summarize: tool calls and their results are flattened, raw data is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..compress import lean, shorten_text
from ..conversation import Message, calls_of, function_of, text_of
from ..endpoint import ends_of
from ..tokens import TokenCounter, message_tokens
from .prompts import as_lines

_MOST_OF_RESULT = 400  # tokens: what matters of a result was mostly said by the assistant
_CHARACTERS_PER_TOKEN = 8  # more than any text has, so that no text is cut that would fit
_LEAST_SHOWN = 12
_FRAME_TOKENS = 5  # who speaks, and the marks
_FILLED_SHARE = 0.9  # of each piece; a message that is too long for its rest goes into the next one
_CHAT_ROLES = frozenset({"user", "assistant", "tool", "function"})


@dataclass(frozen=True, slots=True)
class Quotation:
    """A message as it is quoted, and how many tokens that takes."""

    message: Message
    text: str
    tokens: int


def tokens_of(messages: Sequence[Message], counter: TokenCounter) -> int:
    """Add up the tokens of messages, counted or not."""
    return sum(m.token_count or message_tokens(counter, m.digest, m.raw) for m in messages)


def plain_text(message: Message) -> str:
    """Give what a message says: its text without thinking and raw data, and the arguments of its calls."""
    raw = lean(message.raw)
    calls = [f"{name} {arguments}".strip() for name, arguments in _calls(message)]
    return "\n".join(part for part in (text_of(raw.get("content")).strip(), *calls) if part)


def most_shown(message: Message, room: int) -> int:
    """Say how many tokens of a message are shown where `room` tokens are quoted at a time."""
    if message.is_result:
        return min(_MOST_OF_RESULT, room // 4)
    return room // 2 if message.role == "user" else room // 3


def quoted(message: Message, most: int, counter: TokenCounter) -> Quotation:
    """Quote a message with at most `most` tokens of its text, head and tail where it is longer."""
    most = max(_LEAST_SHOWN, most)
    text = ends_of(plain_text(message), most * _CHARACTERS_PER_TOKEN)
    lines = as_lines(shorten_text(text, most, counter))
    written = "\n".join((f"{_speaker(message)}:", *([lines] if lines else [])))
    return Quotation(message, written, counter.count_text(written) + 1)


def first_quotations(
    messages: Sequence[Message], room: int, share: float, counter: TokenCounter
) -> list[Quotation]:
    """Quote as many of the first messages as fit, one at least, and end between two turns where that is possible.

    `share` is how much is shown of what would be shown of each message if there were room, from 0 to 1.
    """
    taken: list[Quotation] = []
    used, border = 0, 0
    for quotation in _all_quoted(messages, room, share, counter):
        if taken and used + quotation.tokens > room:
            return taken[: border or len(taken)]
        if quotation.message.role == "user":
            border = len(taken)
        taken.append(quotation)
        used += quotation.tokens
    return taken


def _all_quoted(
    messages: Sequence[Message], room: int, share: float, counter: TokenCounter
) -> Iterator[Quotation]:
    for message in messages:
        most = most_shown(message, room)
        if share < 1:
            most = int(min(most, tokens_of([message], counter)) * share)
        yield quoted(message, most, counter)


def share_shown(messages: Sequence[Message], room: int, pieces: int, counter: TokenCounter) -> float:
    """Say how much of each message may be shown so that all are quoted in `pieces` times `room` tokens.

    0 where they are too many, however little is shown of each.
    """
    sizes = [min(tokens_of([m], counter), most_shown(m, room)) for m in messages]
    free = _FILLED_SHARE * pieces * room - _FRAME_TOKENS * len(messages)
    if free < sum(min(size, _LEAST_SHOWN) for size in sizes):
        return 0.0
    return min(1.0, free / max(1, sum(sizes)))


def _speaker(message: Message) -> str:
    role = message.role if message.role in _CHAT_ROLES else "other"
    parts = message.content if isinstance(message.content, list) else []
    kinds = {str(part.get("type")) for part in parts if isinstance(part, dict)}
    named = [name for name in ("image", "audio", "file") if any(name in kind for kind in kinds)]
    calls = ["calls tools"] if message.calls_tools else []
    return ", ".join((role, *calls, *(f"with {name}" for name in named)))


def _calls(message: Message) -> list[tuple[str, str]]:
    old = message.raw.get("function_call")
    functions = [function_of(call) for call in calls_of(message.raw)] + (
        [old] if isinstance(old, dict) else []
    )
    return [(str(f.get("name") or ""), str(f.get("arguments") or "")) for f in functions]
