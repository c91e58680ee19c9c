"""What a message is stored as: one block for each text, call, result or attachment in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..conversation import RawMessage, calls_of, function_of, part_text
from ..tokens import compact_json

LONGEST_BLOCK = 1_000_000  # characters; what a longer text has beyond that is not stored
_OWN_TOOLS = "context_"  # what these gave is in the store already
_ATTACHMENTS = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "input_audio": "audio",
    "audio": "audio",
    "file": "file",
    "input_file": "file",
    "document": "file",
}
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning_details", "thinking_blocks")


class StoredBlock(NamedTuple):
    """One part of a message: its number in it, what it is, the tool it is of, and its text.

    `kind` is text, reasoning, tool_call, tool_result, image, audio, file or other. An attachment has no text
    but its name.
    """

    number: int
    kind: str
    tool: str
    text: str

    @property
    def is_searched(self) -> bool:
        """Say whether a search looks at it: it has text that was said to somebody, not quoted by ourselves."""
        return self.kind != "reasoning" and not self.tool.startswith(_OWN_TOOLS) and bool(self.text.strip())


def blocks_of(raw: RawMessage, called: Mapping[str, str] | None = None) -> list[StoredBlock]:
    """Cut a message into blocks; `called` names the tool of each call's id, since most results do not tell it."""
    found = enumerate(_found_in(raw, called or {}))
    return [StoredBlock(number, kind, tool, storable(text)) for number, (kind, tool, text) in found]


def block_id(message: str, number: int) -> str:
    """Name a block by its message's fingerprint, short enough for a prompt."""
    return f"{message_id(message)}.{number}"


def message_id(message: str) -> str:
    """Shorten a message's fingerprint: 48 bits, which no two messages of a chat share by chance."""
    return message[:12]


def storable(text: str) -> str:
    """Give a text as SQLite can hold it: no halves of characters, no end marks, not endlessly long."""
    text = text[:LONGEST_BLOCK].replace("\x00", "\ufffd")
    return text.encode("utf-8", "replace").decode("utf-8")


def _found_in(raw: RawMessage, called: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Find kind, tool and text of each block."""
    for key in _REASONING_KEYS:
        if value := raw.get(key):
            yield "reasoning", "", _text_or_json(value)
    is_result = raw.get("role") in {"tool", "function"}
    tool = str(raw.get("name") or called.get(str(raw.get("tool_call_id")), "")) if is_result else ""
    content = raw.get("content")
    for part in content if isinstance(content, list) else [content]:
        if part not in (None, ""):
            yield from _found_in_part(part, called, ("tool_result" if is_result else "text", tool))
    if refusal := raw.get("refusal"):
        yield "text", "", str(refusal)
    for call in calls_of(raw):
        yield _call_in(function_of(call))
    if isinstance(old := raw.get("function_call"), dict):
        yield _call_in(old)


def _found_in_part(
    part: Any, called: Mapping[str, str], otherwise: tuple[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Read one part of a content, in OpenAI's forms and Anthropic's."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "tool_use":
        yield "tool_call", str(part.get("name") or ""), _text_or_json(part.get("input") or {})
    elif kind == "tool_result":
        content = part.get("content")
        tool = called.get(str(part.get("tool_use_id")), "")
        for inner in content if isinstance(content, list) else [content]:
            if inner:
                yield from _found_in_part(inner, called, ("tool_result", tool))
    elif kind in {"thinking", "redacted_thinking"}:
        yield "reasoning", "", str(part.get("thinking") or "")
    elif kind in _ATTACHMENTS:
        yield _ATTACHMENTS[kind], "", _name_in(part)
    elif text := part_text(part):
        yield (*otherwise, text)
    elif isinstance(part, dict):
        yield "other", "", _name_in(part)


def _call_in(function: Mapping[str, Any]) -> tuple[str, str, str]:
    return "tool_call", str(function.get("name") or ""), _text_or_json(function.get("arguments") or "")


def _name_in(part: Mapping[str, Any]) -> str:
    """Find the name of an attachment; its data is never stored."""
    file = part.get("file")
    places = (part, file if isinstance(file, dict) else {})
    names = (place.get(key) for place in places for key in ("filename", "name", "title"))
    return next((name for name in names if isinstance(name, str)), "")


def _text_or_json(value: Any) -> str:
    return value if isinstance(value, str) else compact_json(value)
