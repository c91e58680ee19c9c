"""What a chat model's answer says, whatever shape the server gives it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .errors import ModelFailed
from .ports import ChatReply
from .usage import read_usage

# A tag in backticks is spoken of, not used.
_TAG = r"(?:think|thinking|thought|reason|reasoning)"
_CLOSED_THOUGHT = re.compile(rf"(?<!`)<({_TAG})>.*?</\1>", re.DOTALL | re.IGNORECASE)
_HEADLESS_THOUGHT = re.compile(rf"\A.*?(?<!`)</{_TAG}>", re.DOTALL | re.IGNORECASE)
_OPEN_THOUGHT = re.compile(rf"^[ \t]*<{_TAG}>.*", re.DOTALL | re.IGNORECASE | re.MULTILINE)


def read_reply(answer: Any, model: str) -> ChatReply:
    """Read the body of a chat completion; reasoning is not part of the text.

    Raises:
        ModelFailed: there is no message in it.
    """
    body = answer if isinstance(answer, Mapping) else {}
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(message, Mapping):
        raise ModelFailed(model, "its answer has no message", passing=True)
    ending = str(choice.get("finish_reason") or "")
    if ending == "error":  # a gateway whose provider broke off
        raise ModelFailed(model, "its answer broke off", passing=True)
    calls = message.get("tool_calls")
    return ChatReply(
        text=without_reasoning(_spoken(message.get("content"))),
        finish_reason=ending,
        tool_calls=tuple(c for c in calls if isinstance(c, Mapping)) if isinstance(calls, list) else (),
        usage=read_usage(body.get("usage") or body.get("timings")),
    )


def without_reasoning(text: str) -> str:
    """Take `<think>` blocks out of a text.

    One that is not closed was cut off: nothing behind it is an answer. One that is only closed was opened
    by the prompt. A tag that is merely spoken of stays.
    """
    text = _CLOSED_THOUGHT.sub("", text)
    text = _HEADLESS_THOUGHT.sub("", text)
    return _OPEN_THOUGHT.sub("", text).strip()


def _spoken(content: Any) -> str:
    """Give the text parts of a content, which is a text, a list of parts, or nothing."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return "".join(map(_spoken_part, parts))


def _spoken_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else None
    is_text = isinstance(text, str) and part.get("type", "text") in {"text", "output_text"}
    return str(text) if is_text else ""
