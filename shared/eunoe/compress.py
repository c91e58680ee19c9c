"""Shortening what is too long to send whole: the beginning and the end stay, a note says what is missing.

The notes are made of signs and numbers, so that they read alike in every language. JSON stays JSON,
code fences and `<details>` blocks stay balanced, base64 is folded away.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .conversation import Message, RawMessage, calls_of, function_of, is_blank, part_text, text_of, with_text
from .memo import Memo
from .pruning import pruned_json, read_json
from .tokens import TokenCounter

LEAST_TOKENS = 24  # less than this says nothing: then it is better left out
_HEAD_SHARE = 2 / 3  # the beginning says more than the end (errors and totals stand at the end)

_LEAST_BASE64 = 240
_BASE64 = re.compile(rf"[A-Za-z0-9+/]{{{_LEAST_BASE64},}}={{0,2}}")
# A tag ends before the next one begins: one that is never closed must not be looked for to the end of the text.
_OPENING = re.compile(r"<details\b([^<>]*)>")
_DETAILS, _DETAILS_END = re.compile(r"<details\b"), "</details>"
_REASONING = 'type="reasoning"'
_RESULT_ATTRIBUTE = re.compile(r'\bresult="([^"]{400,})"')
_SPACE = re.compile(r"\s*")
_TAGS = re.compile(r"</?details\b[^>]*>?")
_ATTRIBUTE_HEAD, _ATTRIBUTE_TAIL = 200, 100

# Fields of an assistant's message that hold its thinking; old ones are the first to go.
THINKING_FIELDS = ("reasoning_content", "reasoning", "thinking")

_IS_LEAN: Memo[bool] = Memo(20_000)


def are_lean(messages: Sequence[Message]) -> list[bool]:
    """Say of each message whether `lean` would leave it as it is; looked at once for each content."""
    digests = [message.digest for message in messages]
    return _IS_LEAN.get_all(digests, lambda i: lean(messages[i].raw) is messages[i].raw)


def lean(raw: RawMessage) -> RawMessage:
    """Take out of an old message what no later turn needs: thinking, base64, long results in tags.

    Gives the same object if there is nothing of the kind.
    """
    slim = {k: v for k, v in raw.items() if not (k in THINKING_FIELDS and raw.get("role") == "assistant")}
    text = text_of(slim.get("content"))
    if "<details" in text or (_may_hold_base64(text) and _BASE64.search(text)):
        slim = with_text(slim, lambda part: fold_base64(_lean_details(part)))
    if (len(slim) == len(raw) and slim.get("content") == raw.get("content")) or is_blank(slim):
        return raw
    return slim


def _may_hold_base64(text: str) -> bool:
    """Look for a place where base64 may lie, many times faster than by its pattern: a long run without a space."""
    # Any so many characters in a row hold one of these places.
    for place in range(_LEAST_BASE64 - 1, len(text), _LEAST_BASE64):
        before = text.rfind(" ", place - _LEAST_BASE64 + 1, place + 1)
        after = text.find(" ", place, place + _LEAST_BASE64)
        start = place - _LEAST_BASE64 if before < 0 else before
        end = min(len(text), place + _LEAST_BASE64) if after < 0 else after
        if end - start > _LEAST_BASE64:
            return True
    return False


def shortened(raw: RawMessage, tokens: int, counter: TokenCounter) -> RawMessage | None:
    """Shorten a message's text so that it has at most `tokens`; None if that can't be done sensibly."""
    if counter.count_message(raw) <= tokens:
        return raw
    raw = lean(raw) if raw.get("role") != "user" else raw
    texts = [text for part in _parts(raw) if (text := part_text(part))]
    counts = [counter.count_text(text) for text in texts]
    fixed = counter.count_message(raw) - sum(counts)
    room = tokens - fixed
    if not texts or room < LEAST_TOKENS:
        return raw if room >= sum(counts) else None
    share = min(1.0, room / max(1, sum(counts)))
    new = with_text(raw, lambda text: shorten_text(text, int(counter.count_text(text) * share), counter))
    return new if counter.count_message(new) <= tokens else None


def shortened_call(raw: RawMessage, tokens: int, counter: TokenCounter) -> RawMessage | None:
    """Shorten the arguments of a message's tool calls, which stay JSON; None if that is not enough."""
    calls = calls_of(raw)
    texts = [str(function_of(call).get("arguments") or "") for call in calls]
    counts = [counter.count_text(text) for text in texts]
    room = tokens - (counter.count_message(raw) - sum(counts))
    share = room / max(1, sum(counts))
    short = [_shorten_json(text, int(n * share), counter) for text, n in zip(texts, counts, strict=True)]
    if not calls or room < 0 or None in short:
        return None
    new = [
        {**call, "function": {**function_of(call), "arguments": text}}
        for call, text in zip(calls, short, strict=True)
    ]
    new_raw = {**raw, "tool_calls": new}
    return new_raw if counter.count_message(new_raw) <= tokens else None


def shorten_text(text: str, tokens: int, counter: TokenCounter) -> str:
    """Shorten a text to at most `tokens`, with a note where something is missing."""
    total = counter.count_text(text)
    if total <= tokens:
        return text
    folded = fold_base64(text)
    if counter.count_text(folded) <= tokens:
        return folded
    if (short := _shorten_json(folded, tokens, counter)) is not None:
        return short
    plain = _without_details(folded, _DETAILS)
    plain = plain if plain.strip() else _TAGS.sub("", folded)
    if counter.count_text(plain) <= tokens:
        return plain
    return _head_and_tail(plain, total, tokens, counter)


def fold_base64(text: str) -> str:
    """Replace long runs of base64, which tell a model nothing, by their length."""
    return _BASE64.sub(lambda run: f"[… base64, {len(run[0]):,} …]", text)


def _parts(raw: RawMessage) -> list[Any]:
    content = raw.get("content")
    return content if isinstance(content, list) else [text_of(content)]


def _lean_details(text: str) -> str:
    text = _without_details(text, _OPENING, holding=_REASONING)
    return _OPENING.sub(lambda tag: _RESULT_ATTRIBUTE.sub(_short_result, tag[0]), text)


def _short_result(attribute: re.Match[str]) -> str:
    return f'result="{_shorten_attribute(attribute[1])}"'


def _without_details(text: str, opening: re.Pattern[str], holding: str = "") -> str:
    """Take out the blocks that begin like `opening` with `holding` in it, each up to the first closing tag."""
    kept, at, seen = [], 0, 0
    while found := opening.search(text, seen):
        seen = found.end()
        if holding not in found[0]:
            continue
        if (end := text.find(_DETAILS_END, seen)) < 0:
            break
        kept.append(text[at : found.start()])
        at = seen = _SPACE.match(text, end + len(_DETAILS_END)).end()  # type: ignore[union-attr]  # it always matches
    return "".join([*kept, text[at:]])


def _shorten_attribute(value: str) -> str:
    """Cut the middle out of an HTML attribute without cutting an entity such as `&quot;` in two."""
    head = re.sub(r"&[^;\s]{0,9}$", "", value[:_ATTRIBUTE_HEAD])
    tail = re.sub(r"^[^&;\s]{0,9};", "", value[-_ATTRIBUTE_TAIL:])
    return f"{head} [… {len(value) - len(head) - len(tail):,} …] {tail}"


def _shorten_json(text: str, tokens: int, counter: TokenCounter) -> str | None:
    """Shorten JSON so that it stays JSON; None if the text is none or does not become short enough."""
    value = read_json(text)
    if value is None:
        return None
    return pruned_json(value, lambda short: counter.count_text(short) <= tokens)


def _head_and_tail(text: str, total: int, tokens: int, counter: TokenCounter) -> str:
    """Cut the middle out so that the rest has at most `tokens`; `total` is the count of the whole."""
    share = tokens / max(1, total)
    for _ in range(12):
        short = _cut(text, int(len(text) * share), total, counter)
        count = counter.count_text(short)
        if count <= tokens:
            return short
        share *= min(0.9, tokens / count)
    return _cut(text, 0, total, counter)


def _cut(text: str, length: int, total: int, counter: TokenCounter) -> str:
    head = whole_lines(text[: int(length * _HEAD_SHARE)], from_start=True)
    tail = whole_lines(
        text[len(text) - (length - int(length * _HEAD_SHARE)) :] if length else "", from_start=False
    )
    missing = max(1, total - counter.count_text(head) - counter.count_text(tail))
    head = f"{head}\n```" if head.count("```") % 2 else head
    tail = f"```\n{tail}" if tail.count("```") % 2 else tail
    return f"{head}\n[… {missing:,} tokens …]\n{tail}".strip()


def whole_lines(text: str, *, from_start: bool) -> str:
    """Cut a piece back to whole lines, or whole words, where that costs little."""
    for mark in ("\n", " "):
        at = text.rfind(mark) if from_start else text.find(mark)
        rest = text[:at] if from_start else text[at + 1 :]
        if at >= 0 and len(rest) >= 0.8 * len(text):
            return rest
    return text
