"""Flags: what a user writes before a message to steer what the model sees, as in `!pin,target=4000 text`.

Only a first token that consists wholly of known flags is taken; any other text that begins with `!` is
text. Flags are taken out of every user message in the same way on every turn, so the prompt stays the
same, and what they ask for is read again from the history each time: edits and branches need no state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from .conversation import (
    Conversation,
    RawMessage,
    digest_of,
    part_text,
    text_of,
    with_text,
)


class Scope(StrEnum):
    """What a flag acts on."""

    TURN = "turn"  # the turn it is written in; with + all later turns too, until -
    MESSAGE = "message"  # the message that carries it, on every later turn


@dataclass(frozen=True, slots=True)
class FlagSpec:
    """A flag users may write; `read` turns its value into a useful one or raises ValueError."""

    name: str
    scope: Scope
    effect: str
    wants: str = ""  # what its value must be; empty if it takes none
    read: Callable[[str], Any] | None = None


def _whole(minimum: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if value < minimum or value > 10_000_000:
            raise ValueError(text)
        return value

    return read


def _factor(maximum: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not math.isfinite(value) or not 0 <= value <= maximum:
            raise ValueError(text)
        return value

    return read


def _label(text: str) -> str:
    if not text or len(text) > 100:
        raise ValueError(text)
    return text


FLAGS: Mapping[str, FlagSpec] = {
    spec.name: spec
    for spec in (
        FlagSpec("full", Scope.TURN, "Send the whole history, as far as the administrator's limit allows."),
        FlagSpec(
            "target", Scope.TURN, "Aim for this many prompt tokens.", "a whole number from 1", _whole(1)
        ),
        FlagSpec(
            "context", Scope.TURN, "Send only the last so many turns.", "a whole number from 1", _whole(1)
        ),
        FlagSpec("nosum", Scope.TURN, "Make no summaries: what does not fit is left out."),
        FlagSpec(
            "recent", Scope.TURN, "Keep the last so many messages first.", "a whole number from 1", _whole(1)
        ),
        FlagSpec("keep_tag", Scope.TURN, "Keep all messages with this tag.", "a tag", _label),
        FlagSpec("tool_penalty", Scope.TURN, "Weight of tool messages.", "a number from 0 to 1", _factor(1)),
        FlagSpec(
            "pair_coherence", Scope.TURN, "Weight an answer takes over.", "a number from 0 to 1", _factor(1)
        ),
        FlagSpec("only", Scope.TURN, "Send this question without any history."),
        FlagSpec("compact", Scope.TURN, "Cut now: send half of what would be sent."),
        FlagSpec("undo", Scope.TURN, "Take the last cut back: choose again from the whole history."),
        FlagSpec("help", Scope.TURN, "List these flags in the line above the answer."),
        FlagSpec("exclude", Scope.MESSAGE, "Send this message now, and never again with its answer."),
        FlagSpec("pin", Scope.MESSAGE, "Keep this message on all later turns."),
        FlagSpec(
            "weight", Scope.MESSAGE, "Base weight of this message.", "a number from 0 to 100", _factor(100)
        ),
        FlagSpec("tag", Scope.MESSAGE, "Name this message, for keep_tag.", "a tag", _label),
    )
}

_ITEM = re.compile(r"""([+-]?)([A-Za-z_]+)(?:=("[^"]*"|'[^']*'|[^\s,"']*))?(,|(?=\s)|$)""")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as it was written."""

    name: str
    sign: str  # "+" lasting, "-" taken back, "" neither
    value: Any = None


@dataclass(frozen=True, slots=True)
class Marks:
    """What flags ask for one message."""

    pinned: bool = False
    weight: float = 1.0
    tags: frozenset[str] = frozenset()
    excluded: bool = False


@dataclass(frozen=True, slots=True)
class Directives:
    """What all flags of a history ask for in its newest turn.

    `turn` has the values of turn flags in force, `marks` those of messages by the digest of their text
    without flags, `rejected` the flags of the newest message whose value was no good.
    """

    turn: Mapping[str, Any] = field(default_factory=dict)
    lasting: frozenset[str] = frozenset()
    marks: Mapping[str, Marks] = field(default_factory=dict)
    rejected: tuple[str, ...] = ()

    def merged(self, newer: Directives) -> Directives:
        """Give both together; where they differ the newer ones hold."""
        return Directives(
            turn={**self.turn, **newer.turn},
            lasting=self.lasting | newer.lasting,
            marks={**self.marks, **newer.marks},
            rejected=(*self.rejected, *(r for r in newer.rejected if r not in self.rejected)),
        )

    def as_plain(self) -> dict[str, Any]:
        """Write as plain dictionaries, for a host that carries them from hook to hook."""
        marks = {d: [m.pinned, m.weight, sorted(m.tags), m.excluded] for d, m in self.marks.items()}
        return {
            "turn": dict(self.turn),
            "lasting": sorted(self.lasting),
            "marks": marks,
            "rejected": [*self.rejected],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Directives:
        """Read what `as_plain` wrote."""
        marks = {
            d: Marks(pinned, weight, frozenset(tags), *rest)
            for d, (pinned, weight, tags, *rest) in plain["marks"].items()
        }
        return cls(dict(plain["turn"]), frozenset(plain["lasting"]), marks, tuple(plain["rejected"]))


def split_flags(text: str) -> tuple[tuple[Flag, ...], tuple[str, ...], str]:
    """Take the flags off the beginning of a text: the flags, the ones with a bad value, the rest.

    Text that does not begin with known flags, and text that is nothing but flags, comes back whole:
    providers refuse empty messages. Several blocks of flags may follow each other.
    """
    flags: list[Flag] = []
    rejected: list[str] = []
    rest = text
    while rest.startswith("!") and (block := _split_block(rest)):
        flags += block[0]
        rejected += block[1]
        rest = block[2]
    return tuple(flags), tuple(rejected), rest or text


def _split_block(text: str) -> tuple[list[Flag], list[str], str] | None:
    flags: list[Flag] = []
    rejected: list[str] = []
    position, more = 1, ","
    while more == ",":
        item = _ITEM.match(text, position)
        if item is None or item[2].lower() not in FLAGS:
            return None
        flag, complaint = _read_flag(FLAGS[item[2].lower()], item[1], item[3])
        flags += [flag] if flag else []
        rejected += [complaint] if complaint else []
        position, more = item.end(), item[4]
    return flags, rejected, text[position:].lstrip()


def _read_flag(spec: FlagSpec, sign: str, value: str | None) -> tuple[Flag | None, str]:
    unquoted = value[1:-1] if value and value[0] in "\"'" else value
    if sign == "-":
        return Flag(spec.name, sign), ""
    if spec.read is None:
        if unquoted is None:
            return Flag(spec.name, sign, True), ""
        return None, f"!{spec.name} takes no value"
    try:
        return Flag(spec.name, sign, spec.read(unquoted or "")), ""
    except ValueError:
        return None, f"!{spec.name} needs {spec.wants}"


def read_flags(conversation: Conversation) -> tuple[Conversation, Directives]:
    """Take the flags out of all user messages and say what they ask for in the newest turn."""
    if "!" not in [known.opening for known in conversation.traits]:
        return conversation, Directives()
    newest = conversation.question
    turn: dict[str, Any] = {}
    lasting: dict[str, Any] = {}
    marks: dict[str, Marks] = {}
    rejected: tuple[str, ...] = ()
    raws = conversation.to_openai_messages()
    changed = False
    for message in conversation.messages:
        if message.traits.opening != "!" or message.role != "user":
            continue
        flags, refused, raw = _strip(message.raw)
        if not flags and not refused:
            continue
        changed = changed or raw is not message.raw
        raws[message.position] = raw
        rejected = refused if message is newest else rejected
        for flag in flags:
            if FLAGS[flag.name].scope is Scope.MESSAGE:
                _mark(marks, flag, digest_of(raw))
            elif flag.sign == "-":
                lasting.pop(flag.name, None)
            elif flag.sign == "+":
                lasting[flag.name] = flag.value
            elif message is newest:
                turn[flag.name] = flag.value
    cleaned = Conversation.from_openai_messages(raws) if changed else conversation
    return cleaned, Directives({**lasting, **turn}, frozenset(lasting) - set(turn), marks, rejected)


def apply_marks(conversation: Conversation, marks: Mapping[str, Marks]) -> Conversation:
    """Give the messages what their flags ask for."""
    if not marks:
        return conversation
    found = ((message, marks.get(message.digest)) for message in conversation.messages)
    return Conversation(
        tuple(
            message._replace(
                pinned=mark.pinned, base_weight=mark.weight, tags=mark.tags, excluded=mark.excluded
            )
            if mark
            else message
            for message, mark in found
        )
    )


def _mark(marks: dict[str, Marks], flag: Flag, digest: str) -> None:
    """Add what one flag asks for a message; with - it is taken back from all messages before."""
    if flag.sign == "-":
        for name, old in list(marks.items()):
            marks[name] = replace(old, **_marked(old, flag.name, None))
        return
    old = marks.get(digest, Marks())
    marks[digest] = replace(old, **_marked(old, flag.name, flag.value))


def _marked(old: Marks, name: str, value: Any) -> dict[str, Any]:
    if name == "pin":
        return {"pinned": value is not None}
    if name == "exclude":
        return {"excluded": value is not None}
    if name == "weight":
        return {"weight": 1.0 if value is None else value}
    return {"tags": frozenset() if value is None else old.tags | {value}}


def _first_text(parts: Iterable[Any]) -> str:
    return next((text for part in parts if (text := part_text(part))), "")


def _strip(raw: RawMessage) -> tuple[tuple[Flag, ...], tuple[str, ...], RawMessage]:
    content = raw.get("content")
    text = _first_text(content) if isinstance(content, list) else text_of(content)
    flags, rejected, rest = split_flags(text)
    if not flags and not rejected:
        return (), (), raw
    if rest == text and isinstance(content, list) and any(not part_text(part) for part in content):
        rest = ""  # nothing but flags beside an image: the image is the message
    if rest == text:
        return flags, rejected, raw
    pending = [rest]  # only the first text part loses its flags

    def change(part: str) -> str:
        return pending.pop() if pending and part == text else part

    return flags, rejected, with_text(raw, change)


def flags_help() -> str:
    """List the flags, for a line of text."""
    names = [f"!{spec.name}" if spec.read is None else f"!{spec.name}=…" for spec in FLAGS.values()]
    return f"Flags: {' '.join(names)}. With + they last, with - they end"
