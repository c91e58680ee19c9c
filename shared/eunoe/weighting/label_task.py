"""What there is to label for a question, and how it is named in a cache."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..conversation import Conversation, Message
from ..tokens import TokenCounter
from .label_prompt import as_quotation, label_line, names_of_calls, shown_text
from .label_windows import LabelRoom, LabelWindow, fixed_tokens, windows_of
from .labels import LABEL_WEIGHTS

# Stands in the cache for a message that a turn had no call left for: its later tool rounds leave it, too.
LEFT_UNLABELED = "-"

_MOST_LABELS_CACHED = 4_000


@dataclass(frozen=True, slots=True)
class LabelTask:
    """The messages before a question, each with the name of its label; `question` is a quotation.

    A name is made of a message's digest and that of the message before it, so that a "yes" is known
    by what it answers. What follows the question belongs to its own turn, which is not chosen by weight.
    """

    messages: tuple[Message, ...]
    names: Mapping[str, str]  # by message id
    tools: Mapping[str, str]  # names by call id
    question: str
    before: str
    asked_digest: str
    room: LabelRoom
    counter: TokenCounter

    def missing(self, known: Mapping[str, str]) -> list[Message]:
        """Give one message for each name without a label."""
        first = {self.names[message.id]: message for message in reversed(self.messages)}
        wanted = {name: message for name, message in first.items() if name not in known}
        return sorted(wanted.values(), key=lambda message: message.position)

    def labels_by_id(self, known: Mapping[str, str]) -> dict[str, str]:
        """Give the labels of all messages that have one, by message id."""
        found = ((message.id, known.get(self.names[message.id])) for message in self.messages)
        return {name: label for name, label in found if label and label != LEFT_UNLABELED}

    def tokens_of_lines(self) -> int:
        """Say how many tokens of messages fit one request."""
        return self.room.for_lines(fixed_tokens(self.question, self.before, self.counter))

    def windows(self, messages: Sequence[Message], most: int) -> list[LabelWindow]:
        """Cut messages into windows, the newest first, at most so many."""
        tokens = self.tokens_of_lines()
        shown = LabelRoom.shown(tokens)
        found = windows_of(
            messages,
            lambda message: label_line(message, shown, self.counter, self.tools),
            tokens,
            self.counter,
        )
        return list(itertools.islice(found, most))


def label_task(
    messages: Sequence[Message],
    query: str,
    conversation: Conversation,
    room: LabelRoom,
    counter: TokenCounter,
) -> LabelTask:
    """Find what to label: all messages before the question but instructions, which stay anyway."""
    question = conversation.question
    earlier = tuple(
        message
        for message in messages
        if not message.is_instruction and (question is None or message.position < question.position)
    )
    last = next((message for message in reversed(earlier) if message.text.strip()), None)
    previous = ["", *(message.digest for message in earlier)]
    asked = f"{last.digest if last else ''}\n{query}".encode("utf-8", "surrogatepass")
    return LabelTask(
        messages=earlier,
        names={
            message.id: f"{message.digest}.{digest}"
            for message, digest in zip(earlier, previous, strict=False)
        },
        tools=names_of_calls(earlier),
        question=as_quotation(shown_text(query, room.question, counter)),
        before=as_quotation(shown_text(last.text, room.before, counter)) if last else "",
        asked_digest=hashlib.blake2b(asked, digest_size=16).hexdigest(),
        room=room,
        counter=counter,
    )


def read_known(text: str | None) -> dict[str, str]:
    """Read labels by name from a cache; what is damaged counts as nothing."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {name: label for name, label in value.items() if label in (*LABEL_WEIGHTS, LEFT_UNLABELED)}


def write_known(known: Mapping[str, str]) -> str:
    """Write labels by name for a cache, the latest if there are very many."""
    return json.dumps(dict(list(known.items())[-_MOST_LABELS_CACHED:]), separators=(",", ":"))
