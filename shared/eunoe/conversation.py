"""OpenAI-style messages in and out, loss-free: the dictionaries that go in are the ones that come out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .errors import BadMessages

RawMessage = dict[str, Any]

INSTRUCTION_ROLES = frozenset({"system", "developer"})

# Keys that hold something to say even where `content` is empty.
_PAYLOAD_KEYS = ("tool_calls", "function_call", "audio", "refusal", "images", "files", "reasoning_content",
                 "reasoning_details", "thinking", "thinking_blocks")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, with what the pipeline learned of it.

    `raw` is the dictionary as it came and is never changed. `digest` names its content, `id` is the
    digest made unique within the conversation, `position` counts from 0 in the input.
    """

    raw: RawMessage
    position: int
    digest: str
    id: str
    token_count: int = 0
    base_weight: float = 1.0
    weight: float = 1.0
    pinned: bool = False
    tags: frozenset[str] = frozenset()
    excluded: bool = False

    def weighing(self, weight: float) -> Message:
        """Give the message with a weight; written out, since `replace` takes ten times as long."""
        return Message(
            self.raw,
            self.position,
            self.digest,
            self.id,
            self.token_count,
            self.base_weight,
            weight,
            self.pinned,
            self.tags,
            self.excluded,
        )

    def counting(self, tokens: int) -> Message:
        """Give the message with its number of tokens."""
        return Message(
            self.raw,
            self.position,
            self.digest,
            self.id,
            tokens,
            self.base_weight,
            self.weight,
            self.pinned,
            self.tags,
            self.excluded,
        )

    def with_raw(self, raw: RawMessage) -> Message:
        """Give the message with other content; it keeps its place and its name."""
        return replace(self, raw=raw, digest=digest_of(raw))

    @property
    def role(self) -> str:
        """Give the role as it came; unknown roles are allowed."""
        return str(self.raw.get("role") or "")

    @property
    def content(self) -> Any:
        """Give the content as it came: text, a list of parts, or nothing."""
        return self.raw.get("content")

    @property
    def text(self) -> str:
        """Give the text of all text parts."""
        return text_of(self.raw.get("content"))

    @property
    def is_instruction(self) -> bool:
        """Say whether it is a system or developer message."""
        return self.role in INSTRUCTION_ROLES

    @property
    def calls_tools(self) -> bool:
        """Say whether it asks for tool calls, in today's form or the old one."""
        return bool(self.raw.get("tool_calls") or self.raw.get("function_call"))

    @property
    def is_result(self) -> bool:
        """Say whether it is the result of a tool call."""
        return self.role in {"tool", "function"}

    @property
    def is_answer(self) -> bool:
        """Say whether it is an assistant's text that calls no tool."""
        return self.role == "assistant" and not self.calls_tools


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of one request, in order."""

    messages: tuple[Message, ...]

    @classmethod
    def from_openai_messages(cls, messages: Iterable[RawMessage]) -> Conversation:
        """Read OpenAI-style messages.

        Raises:
            BadMessages: an item is not an object.
        """
        seen: dict[str, int] = {}
        read = []
        for position, raw in enumerate(messages):
            if not isinstance(raw, dict):
                raise BadMessages(position, type(raw).__name__)
            digest = digest_of(raw)
            count = seen[digest] = seen.get(digest, 0) + 1
            read.append(Message(raw, position, digest, digest if count == 1 else f"{digest}-{count}"))
        return cls(tuple(read))

    def to_openai_messages(self) -> list[RawMessage]:
        """Give the messages as dictionaries, the same objects that came in."""
        return [message.raw for message in self.messages]

    @property
    def question(self) -> Message | None:
        """Find the newest user message."""
        return next((m for m in reversed(self.messages) if m.role == "user"), None)


def digest_of(raw: Mapping[str, Any]) -> str:
    """Name a message by its content: 16 hexadecimal digits of BLAKE2b over all its fields."""
    content = raw.get("content")
    if (
        len(raw) == 2 and "role" in raw and isinstance(content, str)
    ):  # by far the most frequent form, without JSON
        text = f"{raw.get('role')}\n{content}"
    else:
        text = json.dumps(raw, ensure_ascii=False, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def text_of(content: Any) -> str:
    """Give the text of a message's content, whatever shape it has."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text for part in content if (text := part_text(part)))
    if isinstance(content, dict):
        return part_text(content)
    return "" if content is None else str(content)


def part_text(part: Any) -> str:
    """Give the text of one content part; empty if it holds none."""
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


def is_blank(raw: Mapping[str, Any]) -> bool:
    """Say whether a message holds nothing: no text, no image, no call."""
    if any(raw.get(key) for key in _PAYLOAD_KEYS):
        return False
    content = raw.get("content")
    if isinstance(content, list):
        return all(_is_blank_part(part) for part in content)
    return not text_of(content).strip()


def with_text(raw: RawMessage, change: Any) -> RawMessage:
    """Copy a message with `change` (text to text) applied to its text; other parts stay the same objects.

    Text parts that end up empty are left out, since providers refuse them.
    """
    content = raw.get("content")
    if isinstance(content, list):
        parts = [_changed_part(part, change) for part in content]
        return {**raw, "content": [part for part in parts if part is not None]}
    if isinstance(content, dict):
        return {**raw, "content": _changed_part(content, change) or ""}
    return {**raw, "content": change(text_of(content))}


def calls_of(raw: Mapping[str, Any]) -> Sequence[Any]:
    """Give the tool calls of a message; empty if there are none or they have no sensible form."""
    calls = raw.get("tool_calls")
    return calls if isinstance(calls, list) else ()


def function_of(call: Any) -> Mapping[str, Any]:
    """Give the function part of a tool call; empty if it has none."""
    function = call.get("function") if isinstance(call, dict) else None
    return function if isinstance(function, dict) else {}


def _changed_part(part: Any, change: Any) -> Any:
    text = part_text(part)
    if not text:
        return part
    new = change(text)
    if new == text:
        return part
    if not new:
        return None
    return new if isinstance(part, str) else {**part, "text": new}


def _is_blank_part(part: Any) -> bool:
    if isinstance(part, dict) and part.get("type", "text") not in {"text", "input_text", "output_text"}:
        return False
    return not part_text(part).strip()
