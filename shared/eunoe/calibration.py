"""An estimate of a prompt's tokens from what the provider reported of the last one, and from how much was added.

A tokenizer counts what one provider makes of a text; another one, its chat template and what it adds unseen
differ by a fifth and more. What was reported last holds all of this, so only the difference is estimated.
The estimate decides whether a new cut is made, and nothing else: what is sent stays the same.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .conversation import RawMessage
from .tokens import compact_json
from .usage import Usage

BINARY_CHARACTERS = (
    6_400  # what an image, a recording or a file counts as: 1,600 tokens at four characters each
)
LEAST_RATIO, GREATEST_RATIO = (
    1.0,
    8.0,
)  # characters per token; what lies outside is a fault of whoever reports

_MOST_CHATS, _MOST_MODELS = 2_000, 500
_BINARY_KINDS = frozenset(
    {
        "image_url",
        "image",
        "input_image",
        "input_audio",
        "audio",
        "video_url",
        "file",
        "input_file",
        "document",
    }
)
_UNCOUNTED_KEYS = frozenset({"role", "cache_control", "id", "tool_call_id", "type"})


@dataclass(frozen=True, slots=True)
class UsageSample:
    """One prompt as it was sent and as the provider counted it; cached tokens are part of `tokens`."""

    characters: int
    tokens: int

    @property
    def ratio(self) -> float:
        """Give the characters per token, from 1 to 8."""
        return min(GREATEST_RATIO, max(LEAST_RATIO, self.characters / self.tokens))

    def tokens_at(self, characters: int) -> int:
        """Estimate the tokens of a prompt of the same chat that has `characters`."""
        return max(0, self.tokens + math.ceil((characters - self.characters) / self.ratio))


def sample_of(characters: int, usage: Usage) -> UsageSample | None:
    """Read a sample off a usage report; None where it says nothing of the prompt, or nothing was sent."""
    return UsageSample(characters, usage.prompt_tokens) if characters > 0 and usage.prompt_tokens else None


def request_characters(messages: Sequence[RawMessage], tools: Sequence[Any] = (), system: Any = None) -> int:
    """Count the characters of a request: `system` where it stands beside the messages, tools and messages.

    An image and other data that is not text counts as 6,400.
    """
    return (
        _characters(system)
        + sum(len(compact_json(tool)) for tool in tools)
        + sum(map(_message_characters, messages))
    )


class CalibrationLog:
    """Remembers the last sample of each chat and model. No text is kept; losing it costs nothing.

    `scope` says whose the chat is and `chat` names it, both in whatever way the host does. Threads may share
    a log.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: OrderedDict[Hashable, UsageSample] = OrderedDict()
        self._ratios: OrderedDict[Hashable, float] = OrderedDict()

    def note(self, scope: str, model: str, chat: str, characters: int, usage: Usage) -> None:
        """Remember what the provider reported of a request with so many characters; a report of nothing is none."""
        sample = sample_of(characters, usage)
        if sample is None:
            return
        with self._lock:
            _put(self._samples, (scope, model, chat), sample, _MOST_CHATS)
            _put(self._ratios, (scope, model), sample.ratio, _MOST_MODELS)

    def estimate(self, scope: str, model: str, chat: str, characters: int) -> int | None:
        """Estimate the tokens of a request with so many characters.

        A chat of which nothing was reported yet takes the ratio that this model had last for the same scope;
        None if there is none: then the count of the counter holds.
        """
        with self._lock:
            sample = self._samples.get((scope, model, chat))
            ratio = self._ratios.get((scope, model))
        if sample is not None:
            return sample.tokens_at(characters)
        return None if ratio is None else math.ceil(max(0, characters) / ratio)


def _put(table: OrderedDict[Hashable, Any], key: Hashable, value: Any, most: int) -> None:
    table.pop(key, None)
    table[key] = value
    while len(table) > most:
        table.popitem(last=False)


def _message_characters(raw: RawMessage) -> int:
    content = raw.get("content")
    if len(raw) == 2 and isinstance(content, str) and "role" in raw and not content.startswith("data:"):
        return len(content)  # by far the most frequent form
    return _characters(raw)


def _characters(value: Any) -> int:
    """Count what a value holds to be read: texts, and numbers as they are written; names and ids are no text."""
    if isinstance(value, str):
        return BINARY_CHARACTERS if value.startswith("data:") and ";base64," in value[:100] else len(value)
    if isinstance(value, Mapping):
        if value.get("type") in _BINARY_KINDS:
            return BINARY_CHARACTERS
        return sum(_characters(item) for key, item in value.items() if key not in _UNCOUNTED_KEYS)
    if isinstance(value, (list, tuple)):
        return sum(map(_characters, value))
    return 0 if value is None or isinstance(value, bool) else len(str(value))
