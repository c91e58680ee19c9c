"""OpenAI-style messages in and out, loss-free: the dictionaries that go in are the ones that come out."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import marshal
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from typing import Any, NamedTuple

from .errors import BadMessages
from .memo import Beginnings, Memo

RawMessage = dict[str, Any]

INSTRUCTION_ROLES = frozenset({"system", "developer"})

# Keys that hold something to say even where `content` is empty.
_PAYLOAD_KEYS = ("tool_calls", "function_call", "audio", "refusal", "images", "files", "reasoning_content",
                 "reasoning_details", "thinking", "thinking_blocks")  # fmt: skip


class Traits(NamedTuple):
    """What is asked of a message again and again, read once for each content."""

    digest: str
    role: str
    opening: str  # the first character of its first text
    calls_tools: bool
    is_instruction: bool
    is_result: bool
    is_answer: bool
    is_sound: bool  # whatever stands beside it, a provider accepts it


class Message(NamedTuple):
    """One message of a conversation, with what the pipeline learned of it.

    `raw` is the dictionary as it came and is never changed. `digest` names its content, `id` is the
    digest made unique within the conversation, `position` counts from 0 in the input.

    A named tuple, because a long chat makes thousands of them on each turn: a frozen dataclass takes ten
    times as long to make.
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
    known_traits: Traits | None = None  # None: they are read when asked for

    def weighing(self, weight: float) -> Message:
        """Give the message with a weight."""
        return self._replace(weight=weight)

    def counting(self, tokens: int) -> Message:
        """Give the message with its number of tokens."""
        return self._replace(token_count=tokens)

    def with_raw(self, raw: RawMessage) -> Message:
        """Give the message with other content; it keeps its place and its name."""
        traits = traits_of(raw)
        return self._replace(raw=raw, digest=traits.digest, known_traits=traits)

    @property
    def traits(self) -> Traits:
        """Give what is known of it by its content."""
        return self.known_traits or traits_of(self.raw)

    @property
    def role(self) -> str:
        """Give the role as it came; unknown roles are allowed."""
        return self.traits.role

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
        return self.traits.is_instruction

    @property
    def calls_tools(self) -> bool:
        """Say whether it asks for tool calls, in today's form or the old one."""
        return self.traits.calls_tools

    @property
    def is_result(self) -> bool:
        """Say whether it is the result of a tool call."""
        return self.traits.is_result

    @property
    def is_answer(self) -> bool:
        """Say whether it is an assistant's text that calls no tool."""
        return self.traits.is_answer


# Makes a message of a tuple of all its fields, at the speed of C.
_message_of: Callable[[Iterable[Any]], Message] = functools.partial(tuple.__new__, Message)


def traits_in(messages: Iterable[Message]) -> list[Traits]:
    """Give what is known of each message by its content."""
    return [message.known_traits or message.traits for message in messages]


def with_column(messages: Sequence[Message], name: str, values: Sequence[Any]) -> tuple[Message, ...]:
    """Give messages with a field of each replaced; much faster than one by one."""
    columns: list[Sequence[Any]] = list(zip(*messages, strict=True))
    if not columns:
        return ()
    columns[Message._fields.index(name)] = values
    return tuple(map(_message_of, zip(*columns, strict=True)))


class Conversation:
    """The messages of one request, in order; never changed."""

    def __init__(self, messages: Iterable[Message]) -> None:
        """Take messages."""
        self.__dict__["messages"] = tuple(messages)  # where `cached_property` looks for it

    @classmethod
    def from_openai_messages(cls, messages: Iterable[RawMessage]) -> Conversation:
        """Read OpenAI-style messages.

        Raises:
            BadMessages: an item is not an object.
        """
        new = cls.__new__(cls)
        new.__dict__["_raws"] = raws = list(messages)
        new.__dict__["traits"] = all_traits(raws)
        return new

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """Give the messages; of those that were read they are made now, since not every hook needs them."""
        return self._made(repeat(0)).messages

    @cached_property
    def traits(self) -> list[Traits]:
        """Give what is known of each message by its content."""
        return traits_in(self.messages)

    def counting(self, tokens: Iterable[int]) -> Conversation:
        """Give the conversation with the number of tokens of each message."""
        if "messages" in self.__dict__:
            return Conversation(with_column(self.messages, "token_count", list(tokens)))
        return self._made(tokens)

    def _made(self, tokens: Iterable[int]) -> Conversation:
        """Make the messages of what was read."""
        digests = [known.digest for known in self.traits]
        # The fields of `Message` in order, with their defaults.
        unread = (repeat(value) for value in (1.0, 1.0, False, frozenset[str](), False))
        columns = zip(
            self._raws,
            itertools.count(),
            digests,
            _unique(digests),
            tokens,
            *unread,
            self.traits,
            strict=False,
        )
        return Conversation(map(_message_of, columns))

    @cached_property
    def _raws(self) -> list[RawMessage]:
        return [message.raw for message in self.messages]

    def to_openai_messages(self) -> list[RawMessage]:
        """Give the messages as dictionaries, the same objects that came in."""
        return [*self._raws]

    @property
    def question(self) -> Message | None:
        """Find the newest user message."""
        return next((m for m in reversed(self.messages) if m.role == "user"), None)

    @property
    def question_text(self) -> str | None:
        """Give the text of the newest user message; None if there is none."""
        found = zip(reversed(self.traits), reversed(self._raws), strict=True)
        return next((text_of(raw.get("content")) for known, raw in found if known.role == "user"), None)

    def __eq__(self, other: object) -> bool:
        """Say whether all messages are equal."""
        return isinstance(other, Conversation) and self.messages == other.messages

    __hash__ = None  # type: ignore[assignment]  # messages have none

    def __repr__(self) -> str:
        """Show the messages."""
        return f"Conversation({self.messages!r})"


def _unique(digests: Sequence[str]) -> Sequence[str]:
    """Number what comes again; names stay the same when messages are added behind."""
    if len(set(digests)) == len(digests):
        return digests
    seen: dict[str, int] = {}
    names = []
    for digest in digests:
        count = seen[digest] = seen.get(digest, 0) + 1
        names.append(digest if count == 1 else f"{digest}-{count}")
    return names


# What was read before. A short message is found by its very words, which takes a tenth of the time that
# naming it takes; so at most 40 million characters are kept, for as long as the process lives.
_TRAITS: Memo[Traits] = Memo(10_000)
_LONGEST_KEY = 4_000
_CHATS: Beginnings[Traits] = Beginnings(most_characters=30_000_000)
_ROLE_AND_CONTENT = operator.itemgetter("role", "content")


def all_traits(raws: Sequence[RawMessage]) -> list[Traits]:
    """Give what is known of each message by its content.

    Raises:
        BadMessages: an item is not an object.
    """
    if not {dict}.issuperset(map(type, raws)):
        for position, raw in enumerate(raws):
            if not isinstance(raw, dict):
                raise BadMessages(position, type(raw).__name__)
    pairs = _text_pairs(raws)
    if pairs is None:
        return _TRAITS.get_all(list(map(_traits_key, raws)), lambda i: _read_traits(raws[i]))

    def read(new: Sequence[tuple[str, str]]) -> list[Traits]:
        rest = raws[len(raws) - len(new) :]
        return _TRAITS.get_all(list(map(_traits_key, rest)), lambda i: _read_traits(rest[i]))

    return _CHATS.get(pairs, read)


def _text_pairs(raws: Sequence[RawMessage]) -> list[tuple[str, str]] | None:
    """Give role and content of each message; None unless these are texts and all there is, as in most chats."""
    try:
        pairs: list[tuple[str, str]] = list(map(_ROLE_AND_CONTENT, raws))
    except KeyError:
        return None
    plain = {2}.issuperset(map(len, raws)) and {str}.issuperset(map(type, chain.from_iterable(pairs)))
    return pairs if plain else None


def traits_of(raw: RawMessage) -> Traits:
    """Give what is known of a message by its content."""
    return _TRAITS.get(_traits_key(raw), lambda: _read_traits(raw))


def _traits_key(raw: RawMessage) -> Hashable:
    """Give a key that no two different messages share."""
    if len(raw) == 2:
        role, content = raw.get("role"), raw.get("content")
        if type(content) is str and type(role) is str:
            return (role, content) if len(content) <= _LONGEST_KEY else digest_of(raw)
    try:
        written = marshal.dumps(raw, 2)  # many times as fast as JSON, and never read again
    except ValueError:  # something that only `repr` can write
        return digest_of(raw)
    return written if len(written) <= _LONGEST_KEY else hashlib.blake2b(written, digest_size=32).digest()


def _read_traits(raw: RawMessage) -> Traits:
    role = str(raw.get("role") or "")
    calls = bool(raw.get("tool_calls") or raw.get("function_call"))
    replies = role == "assistant"
    content = raw.get("content")
    first = next(filter(None, map(part_text, content)), "") if isinstance(content, list) else content
    return Traits(
        digest=digest_of(raw),
        role=role,
        opening=first[:1] if isinstance(first, str) else "",
        calls_tools=calls,
        is_instruction=role in INSTRUCTION_ROLES,
        is_result=role in {"tool", "function"},
        is_answer=replies and not calls,
        is_sound=role != "tool" and not (replies and (raw.get("tool_calls") or is_blank(raw))),
    )


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
    content = raw.get("content")
    if isinstance(content, str) and content[:1].strip():
        return False
    if any(raw.get(key) for key in _PAYLOAD_KEYS):
        return False
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
