"""Counting tokens: a real tokenizer where its vocabulary is at hand, else an estimate; never a download."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .conversation import RawMessage, Traits, part_text
from .estimate import estimated_tokens
from .memo import Memo

try:
    import tiktoken
except ImportError:
    tiktoken = None  # type: ignore[assignment]  # a host without it gets the estimate

MESSAGE_OVERHEAD = 4  # role and separators of one message in OpenAI's chat format (cookbook: 3 to 4)
TOOL_OVERHEAD = 4  # what wraps one function definition when a provider renders it

# Flat prices of parts that are not text. An image is that of a 1024 x 1024 picture at high detail for
# gpt-4o (85 + 4 x 170); audio is OpenAI's ten tokens a second at 16 kB a second.
IMAGE_TOKENS, LOW_DETAIL_IMAGE_TOKENS = 765, 85
AUDIO_BYTES_PER_TOKEN = 1600
FILE_TOKENS, FILE_BYTES_PER_TOKEN = 200, 50

# The vocabularies tiktoken keeps: file name in its cache (SHA-1 of the address) and its SHA-256.
_VOCABULARIES = {
    "o200k_base": (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
}
_CL100K_MODELS = re.compile(r"(^|[/.:])(gpt-4(-|$|:)|gpt-3\.5|gpt-35|text-embedding)", re.IGNORECASE)

# tiktoken runs out of stack on a run of a million equal signs, and slows on long ones: count in slices.
_SLICE = 20_000


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Counts the tokens of text and messages; `name` says what counts."""

    name: str
    count_text: Callable[[str], int]

    def count_message(self, raw: RawMessage) -> int:
        """Count one message: text, calls, reasoning, images and other parts, name and overhead."""
        return MESSAGE_OVERHEAD + sum(self._field_tokens(key, value) for key, value in raw.items() if value)

    def count_tools(self, tools: Sequence[Any]) -> int:
        """Count tool definitions as the JSON that a provider is sent."""
        return sum(TOOL_OVERHEAD + self.count_text(spaced_json(tool)) for tool in tools)

    def _field_tokens(self, key: str, value: Any) -> int:
        if key == "content":
            return self._content_tokens(value)
        if key in {"role", "cache_control"}:
            return 0
        if key == "images" and isinstance(value, list):  # Ollama's form
            return IMAGE_TOKENS * len(value)
        return self.count_text(value if isinstance(value, str) else spaced_json(value))

    def _content_tokens(self, content: Any) -> int:
        if isinstance(content, str):
            return self.count_text(content)
        if isinstance(content, list):
            return sum(map(self._part_tokens, content))
        return self._part_tokens(content)

    def _part_tokens(self, part: Any) -> int:
        if text := part_text(part):
            return self.count_text(text)
        if not isinstance(part, Mapping):
            return self.count_text(compact_json(part))
        kind = part.get("type")
        if kind in {"image_url", "image", "input_image"}:
            image = part.get("image_url")
            low = isinstance(image, Mapping) and image.get("detail") == "low"
            return LOW_DETAIL_IMAGE_TOKENS if low else IMAGE_TOKENS
        if kind == "input_audio":
            return max(1, _encoded_bytes(part.get("input_audio")) // AUDIO_BYTES_PER_TOKEN)
        if kind in {"file", "input_file", "document"}:
            return FILE_TOKENS + _encoded_bytes(part) // FILE_BYTES_PER_TOKEN
        return self.count_text(compact_json(part))


ESTIMATE = TokenCounter("an estimate from the text", estimated_tokens)


def counter_for(model: str) -> TokenCounter:
    """Give the best counter at hand for a model; the first call for a vocabulary takes about 0.4 s.

    Models whose tokenizer is not public are counted with o200k_base, cl100k_base, or the estimate.
    """
    wanted = ("cl100k_base", "o200k_base") if _CL100K_MODELS.search(model) else ("o200k_base", "cl100k_base")
    for name in wanted:
        if counter := _tokenizer(name):
            return counter
    return ESTIMATE


@functools.cache
def _tokenizer(name: str) -> TokenCounter | None:
    """Load a vocabulary from tiktoken's cache on disk, or say there is none."""
    if tiktoken is None or not _is_cached(*_VOCABULARIES[name]):
        return None
    encode = tiktoken.get_encoding(name).encode_ordinary

    def count(text: str) -> int:
        try:
            if len(text) <= _SLICE:
                return len(encode(text))
            return sum(len(encode(text[i : i + _SLICE])) for i in range(0, len(text), _SLICE))
        except UnicodeEncodeError:  # a lone surrogate from a broken emoji
            return estimated_tokens(text)

    return TokenCounter(f"tiktoken {name}", count)


def _is_cached(file_name: str, sha256: str) -> bool:
    """Say whether tiktoken will find an intact file; it would download a missing or a broken one."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    path = Path(folder or Path(tempfile.gettempdir(), "data-gym-cache"), file_name)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


# What was counted before, by counter and content; a count takes longer than a look-up.
_COUNTS: Memo[Memo[int]] = Memo(4)


def _counts_by(counter: TokenCounter) -> Memo[int]:
    return _COUNTS.get(counter.name, lambda: Memo(50_000))


def message_tokens(counter: TokenCounter, digest: str, raw: RawMessage) -> int:
    """Count a message, once for each content and counter."""
    return _counts_by(counter).get(digest, lambda: counter.count_message(raw))


def messages_tokens(counter: TokenCounter, traits: Sequence[Traits], raws: Sequence[RawMessage]) -> list[int]:
    """Count messages, each content once for each counter."""
    digests = [known.digest for known in traits]
    return _counts_by(counter).get_all(digests, lambda i: counter.count_message(raws[i]))


def spaced_json(value: Any) -> str:
    """Write a value as JSON as templates render it, with spaces: about a fifth more tokens than without."""
    return json.dumps(value, ensure_ascii=False, default=str)


def compact_json(value: Any) -> str:
    """Write a value as JSON without needless spaces; what JSON can't hold is written as text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _encoded_bytes(value: Any) -> int:
    """Find how many bytes the base64 text in a part stands for."""
    if isinstance(value, str):
        return len(value) * 3 // 4
    if isinstance(value, Mapping):
        return sum(_encoded_bytes(item) for key, item in value.items() if key not in {"type", "filename"})
    return 0
