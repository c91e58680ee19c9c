"""A scripted provider of models: OpenAI's API, with every request kept so that tests can judge it.

What a reply does is written at the end of the last user message, in double brackets:
`[[tool NAME N]]` calls a tool N times first, `[[slow S]]` waits S seconds before every piece,
`[[long N]]` answers with N words, `[[error 500]]` answers with that status.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import re
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import tiktoken
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tiktoken_ext import openai_public

import environments

from .listener import Listener

# Two without a declared window, two with one; "small" has vLLM's name for it.
MODELS: dict[str, dict[str, int]] = {
    "plain": {},
    "second": {},
    "wide": {"context_length": 128_000},
    "small": {"max_model_len": 4_000},
}
SCRIPT = re.compile(r"\[\[(\w+)((?: [\w.]+)*)\]\]\s*$")
PROSE = "the river turns slowly past the mill where the old road crosses and the bridge keeps its stones "
SUMMARY = "They spoke of the river, the mill and the bridge, in this order."


@dataclass(frozen=True)
class Call:
    """One request as it came in."""

    body: dict[str, Any]
    at: float
    tokens: int
    cached: int

    @property
    def model(self) -> str:
        """The model it asked for."""
        return str(self.body["model"])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages it sent."""
        return list(self.body["messages"])

    @property
    def question(self) -> str:
        """The text of the last user message."""
        return next(
            (text_of(message) for message in reversed(self.messages) if message["role"] == "user"), ""
        )

    @property
    def is_task(self) -> bool:
        """Whether Open WebUI asked for itself: for a title, tags, or questions to follow up with."""
        return self.question.lstrip().startswith("### Task")


def text_of(message: dict[str, Any]) -> str:
    """The text of a message, of all its parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


@functools.cache
def tokenizer() -> tiktoken.Encoding:
    """The tokenizer of current OpenAI models, built beside tiktoken's registry, which other tests look into."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(environments.tokenizers()))
        return tiktoken.Encoding(**openai_public.o200k_base())


def tokens_in(text: str) -> int:
    """Tokens of a text, exactly."""
    return len(tokenizer().encode_ordinary(text))


def compact(value: Any) -> str:
    """JSON without spaces, as it goes over the wire."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def pieces_of(body: dict[str, Any]) -> list[tuple[str, int]]:
    """A request as a provider's cache sees it, with tokens: tool definitions first, then each message.

    Counted without the product's help: content, calls and tool definitions, and 4 for each message.
    """
    tools = compact(body["tools"]) if body.get("tools") else ""
    pieces = [(tools, tokens_in(tools))] if tools else []
    for message in body["messages"]:
        calls = compact(message["tool_calls"]) if message.get("tool_calls") else ""
        pieces.append(
            (json.dumps(message, sort_keys=True), 4 + tokens_in(text_of(message)) + tokens_in(calls))
        )
    return pieces


def common_tokens(one: Sequence[tuple[str, int]], other: Sequence[tuple[str, int]]) -> int:
    """Tokens of the common beginning of two requests, in whole pieces."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(piece[1] for piece, _ in same)


class Upstream(Listener):
    """The provider, and what it was asked."""

    models: ClassVar[Mapping[str, Mapping[str, int]]] = MODELS

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.rounds: Counter[str] = Counter()
        self.seen: defaultdict[str, list[list[tuple[str, int]]]] = defaultdict(list)

    def routes(self) -> Sequence[Route]:
        """Serve the two calls of OpenAI's API that Open WebUI makes."""
        return [
            Route("/v1/models", self._models),
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
        ]

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"{self.address}/v1"

    def about(self, mark: str) -> list[Call]:
        """The calls whose messages hold `mark`, Open WebUI's own tasks left out."""
        return [call for call in self.calls if mark in json.dumps(call.messages) and not call.is_task]

    def tasks_about(self, mark: str) -> list[Call]:
        """The calls that Open WebUI made for itself about a chat with `mark`."""
        return [call for call in self.calls if mark in json.dumps(call.messages) and call.is_task]

    async def _models(self, _request: Request) -> Response:
        data = [
            {"id": name, "object": "model", "owned_by": "test", **extra}
            for name, extra in self.models.items()
        ]
        return JSONResponse({"object": "list", "data": data})

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        pieces = pieces_of(body)
        seen = self.seen[body["model"]]
        cached = max((common_tokens(pieces, before) for before in seen), default=0)
        call = Call(body, time.monotonic(), sum(tokens for _, tokens in pieces), cached)
        seen.append(pieces)
        self.calls.append(call)
        verb, arguments = script_of(call)
        if verb == "error":
            return JSONResponse({"error": {"message": "scripted failure"}}, status_code=int(arguments[0]))
        delay = float(arguments[0]) if verb == "slow" else 0.0
        reply = self.reply(call, verb, arguments)
        if not body.get("stream"):
            await asyncio.sleep(delay)
            return JSONResponse(completion(call, reply, self.usage(call, reply)))
        pieces_of_reply = stream(call, reply, self.usage(call, reply), delay)
        return StreamingResponse(pieces_of_reply, media_type="text/event-stream")

    def usage(self, call: Call, reply: dict[str, Any]) -> dict[str, Any]:
        """What it reports of a call, in OpenAI's shape."""
        out = max(1, tokens_in(reply["content"] + json.dumps(reply.get("tool_calls") or "")))
        return {
            "prompt_tokens": call.tokens,
            "completion_tokens": out,
            "total_tokens": call.tokens + out,
            "prompt_tokens_details": {"cached_tokens": call.cached},
        }

    def reply(self, call: Call, verb: str, arguments: list[str]) -> dict[str, Any]:
        """The assistant message that answers the call."""
        if verb == "tool":
            name, times = arguments[0], int(arguments[1])
            # Old rounds may have been left out of the request, so they are counted here.
            key = f"{call.model} {call.question}"
            if self.rounds[key] < times and name in json.dumps(call.body.get("tools") or []):
                self.rounds[key] += 1
                function = {"name": name, "arguments": json.dumps({"topic": f"part {self.rounds[key]}"})}
                calls = [{"id": f"call_{uuid.uuid4().hex[:8]}", "type": "function", "function": function}]
                return {"role": "assistant", "content": "", "tool_calls": calls}
            return {"role": "assistant", "content": f"Done after {self.rounds[key]} tool calls."}
        if verb == "long":
            words = itertools.islice(itertools.cycle(PROSE.split()), int(arguments[0]))
            return {"role": "assistant", "content": " ".join(words)}
        if "Write the notes that take its place" in text_of(call.messages[0]):
            return {"role": "assistant", "content": notes_on(call.question)}
        if "Reply with JSON alone, the letters" in text_of(call.messages[0]):
            return {"role": "assistant", "content": json.dumps({"labels": labels_for(call.question)})}
        if "Summarize the conversation history" in call.question:
            return {"role": "assistant", "content": SUMMARY}
        if call.is_task:
            return {
                "role": "assistant",
                "content": '{"title": "A title", "tags": ["tag"], "follow_ups": ["And?"]}',
            }
        return {"role": "assistant", "content": f"{call.model} answers: {call.question[-60:]}"}


def script_of(call: Call) -> tuple[str, list[str]]:
    """What the end of the last user message asks for."""
    # A task's prompt may end with what the user said, script and all.
    found = None if call.is_task else SCRIPT.search(call.question)
    return (found[1], found[2].split()) if found else ("", [])


def notes_on(asked: str) -> str:
    """Notes as a model writes them: the years and places of what is quoted, in a few short lines."""
    if parts := re.findall(r"<part (\d+)> \(notes of at most (\d+) words\)\n(.*?)</part", asked, re.DOTALL):
        return "\n".join(f"## {n}\n{notes_on(f'{part} and {most} words in all')}" for n, most, part in parts)
    told = dict.fromkeys(re.findall(r"The (\w+) of the (\w+) (\w+ \w+) .*?in year (\d+)", asked))
    words = int(re.findall(r"and (\d+) words in all", asked)[-1])
    lines = [f"- {place}: {thing} {deed}, {year}" for thing, place, deed, year in told]
    return "\n".join(lines[: max(1, words // 8)])


def labels_for(asked: str) -> list[str]:
    """K for lines that hold the word KEEPME, D for all others."""
    return ["K" if "KEEPME" in line else "D" for line in re.findall(r"^\d+ .*$", asked, re.MULTILINE)]


def completion(call: Call, reply: dict[str, Any], usage: dict[str, Any]) -> dict[str, Any]:
    """The whole reply at once."""
    finish = "tool_calls" if reply.get("tool_calls") else "stop"
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": call.model,
        "choices": [{"index": 0, "message": reply, "finish_reason": finish}],
        "usage": usage,
    }


def deltas_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """A reply in pieces, tool arguments split over several."""
    if not reply.get("tool_calls"):
        parts = re.findall(r"\S+\s*", reply["content"])
        size = max(1, len(parts) // 8)
        return [{"content": "".join(parts[i : i + size])} for i in range(0, len(parts), size)]
    (called,) = reply["tool_calls"]
    head = {"index": 0, **called, "function": {"name": called["function"]["name"], "arguments": ""}}
    text = called["function"]["arguments"]
    third = max(1, len(text) // 3)
    tail = [{"index": 0, "function": {"arguments": text[i : i + third]}} for i in range(0, len(text), third)]
    return [{"tool_calls": [piece]} for piece in [head, *tail]]


async def stream(
    call: Call, reply: dict[str, Any], usage: dict[str, Any], delay: float
) -> AsyncIterator[str]:
    """The reply as server-sent events; usage only if it was asked for."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": int(time.time())}

    def event(choices: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json.dumps({**head, 'model': call.model, 'choices': choices, **more})}\n\n"

    yield event([{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}])
    for delta in deltas_of(reply):
        await asyncio.sleep(delay)
        yield event([{"index": 0, "delta": delta, "finish_reason": None}])
    finish = "tool_calls" if reply.get("tool_calls") else "stop"
    yield event([{"index": 0, "delta": {}, "finish_reason": finish}])
    if (call.body.get("stream_options") or {}).get("include_usage"):
        yield event([], usage=usage)
    yield "data: [DONE]\n\n"
