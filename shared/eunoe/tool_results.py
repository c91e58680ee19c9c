"""Results of tools that are too long to send with every call: their beginning, end and errors stand in for them.

What is left out is said in a header in front. A result that has one is left alone, so that compressing twice
gives the same as once, and the same result is compressed alike in every turn.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .compress import fold_base64
from .conversation import RawMessage, calls_of, function_of, part_text, with_text
from .excerpt import Measure, excerpt_of
from .memo import Memo
from .pruning import elided, free_key, pruned_json, read_json, write_json
from .tokens import TokenCounter

UNTOUCHED_TOOLS = "context_"  # tools whose names begin so give back what was left out elsewhere

# What the peer that does this keeps (lines and characters of the beginning, of the end).
_MEASURE = Measure(40, 4_000, 20, 2_000)
_SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.08)  # tried in turn where a script has many tokens a character
_JSON_CHARACTERS = 8_000  # about what head, tail and error lines of a text come to
_MOST_CHARACTERS = 16_000  # a longer text behind a header is none of ours
_LEAST_RESULT_TOKENS = 200  # shorter ones are not compressed, whatever the setting
_LEAST_LINES = 8  # a text inside JSON with fewer lines loses its middle by characters

_JSON_KEY = "[…]"
_HEADER = re.compile(
    r'\s*(?:\[\s*"|\{\s*"\[…\]…*"\s*:\s*"|")?'
    r"\[… [\d,]+ tokens?(?: and [\d,]+ lines?)? of this tool result (?:is|are) left out"
    r'(?:; context_get\(id=\\?"[^"\n]*?\\?"\) gives the whole)? …\]'
)
_DATA_URI = re.compile(r"(data:[\w.+-]+/[\w.+-]+(?:;[\w.+=-]+)*;base64,)([A-Za-z0-9+/_%-]{64,}={0,2})")
# Base64 in lines, as PEM files and e-mails have it.
_WRAPPED_BASE64 = re.compile(r"(?:^[A-Za-z0-9+/]{60,76}\r?\n){4,}^[A-Za-z0-9+/]{1,76}={0,2}$", re.MULTILINE)

_COMPRESSED: Memo[tuple[str | None]] = Memo(500)  # at most 8 million characters


def compressed_result(
    raw: RawMessage, counter: TokenCounter, over_tokens: int, name: str | None = None, tool: str = ""
) -> RawMessage | None:
    """Shorten the result of a tool that has more than `over_tokens` of text; None if it stays as it is.

    `name` is the id by which `context_get` gives the whole; without one the header does not speak of it.
    `tool` is the tool's name where the message does not tell it. 0 compresses nothing. Only text changes:
    all other fields and parts are the same objects.
    """
    called = str(raw.get("name") or tool)
    if over_tokens <= 0 or raw.get("role") not in {"tool", "function"} or called.startswith(UNTOUCHED_TOOLS):
        return None
    content = raw.get("content")
    texts = [
        text for part in (content if isinstance(content, list) else [content]) if (text := part_text(part))
    ]
    if sum(map(counter.count_text, texts)) <= over_tokens or any(map(is_compressed, texts)):
        return None
    share = over_tokens // len(texts)
    new = with_text(raw, lambda text: compressed_text(text, counter, share, name) or text)
    return None if new["content"] == content else new


def compressed_text(
    text: str, counter: TokenCounter, over_tokens: int, name: str | None = None
) -> str | None:
    """Shorten the text of a tool's result to at most `over_tokens`; None if it stays as it is."""
    if len(text) <= _LEAST_RESULT_TOKENS or is_compressed(text):
        return None
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    key = digest, counter.name, over_tokens, name
    return _COMPRESSED.get(key, lambda: (_compress(text, counter, over_tokens, name),))[0]


def is_compressed(text: str) -> bool:
    """Say whether a text is a result that was compressed before."""
    return len(text) <= _MOST_CHARACTERS and _HEADER.match(text) is not None


def tools_called(messages: Iterable[RawMessage]) -> Mapping[str, str]:
    """Give the name of the tool by the id of each call, since most results do not tell it."""
    return {
        str(call.get("id")): str(function_of(call).get("name") or "")
        for raw in messages
        for call in calls_of(raw)
        if isinstance(call, dict)
    }


def _compress(text: str, counter: TokenCounter, over_tokens: int, name: str | None) -> str | None:
    total = counter.count_text(text)
    most = min(max(over_tokens, _LEAST_RESULT_TOKENS), total - 1)
    if total <= over_tokens:
        return None

    def fits(short: str) -> bool:
        return len(short) < min(len(text), _MOST_CHARACTERS) and counter.count_text(short) <= most

    def header(body: str, lines: int) -> str:
        return _header(max(1, total - counter.count_text(body)), lines, name)

    if value := read_json(text):
        return _compressed_json(value, fits, header)
    if (quoted := _quoted(text)) is not None:
        short = _compressed_lines(_folded(quoted), lambda short: fits(write_json(short)), header)
        return None if short is None else write_json(short)
    return _compressed_lines(_folded(text), fits, header)


def _compressed_json(
    value: Any, fits: Callable[[str], bool], header: Callable[[str, int], str]
) -> str | None:
    """Compress an object or a list; the header is its first field or item."""

    def with_header(body: str) -> str:
        note = header(body, 0)
        short = json.loads(body)
        marked = [note, *short] if isinstance(short, list) else {free_key(_JSON_KEY, short): note, **short}
        return write_json(marked)

    def fits_with_header(body: str) -> bool:
        return len(body) <= _JSON_CHARACTERS and fits(with_header(body))

    body = pruned_json(value, fits_with_header, _cut_inside)
    return None if body is None else with_header(body)


def _quoted(text: str) -> str | None:
    """Read JSON that is one text; None if it is none."""
    if text.lstrip()[:1] != '"':
        return None
    try:
        return str(json.loads(text))
    except ValueError:
        return None


def _compressed_lines(
    text: str, fits: Callable[[str], bool], header: Callable[[str, int], str]
) -> str | None:
    if fits(folded := f"{header(text, 0)}\n{text}"):
        return folded  # base64 was all that was too much
    for share in _SHARES:
        excerpt = excerpt_of(text, _MEASURE.scaled(share))
        if excerpt is None:
            continue
        short = f"{header(excerpt.text, excerpt.missing_lines)}\n{excerpt.text}"
        if fits(short):
            return short
    return None


def _cut_inside(text: str, characters: int) -> str:
    """Shorten a text inside JSON: JSON in it stays JSON, a log keeps its error lines."""
    folded = _folded(text)
    if len(folded) <= characters:
        return folded
    value = read_json(folded)
    if value and (short := pruned_json(value, lambda short: len(short) <= characters)):
        return short
    if folded.count("\n") >= _LEAST_LINES:
        # Errors get their share besides head and tail, and the notes some characters.
        measure = Measure(_MEASURE.head_lines, characters // 2, _MEASURE.tail_lines, characters // 4)
        excerpt = excerpt_of(folded, measure)
        if excerpt and len(excerpt.text) <= characters * 1.25:
            return excerpt.text
    return elided(folded, characters)


def _folded(text: str) -> str:
    text = _DATA_URI.sub(lambda uri: f"{uri[1]}[… {len(uri[2]):,} …]", text)
    text = _WRAPPED_BASE64.sub(lambda lines: f"[… base64, {len(lines[0]):,} …]", text)
    return fold_base64(text)


def _header(tokens: int, lines: int, name: str | None) -> str:
    left_out = f"{tokens:,} token{'s' * (tokens != 1)}"
    if lines:
        left_out += f" and {lines:,} line{'s' * (lines != 1)}"
    verb = "is" if tokens == 1 and not lines else "are"
    how = "" if name is None else f'; context_get(id="{name}") gives the whole'
    return f"[… {left_out} of this tool result {verb} left out{how} …]"
