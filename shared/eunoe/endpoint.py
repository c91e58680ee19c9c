"""Clients of any OpenAI-compatible server: a chat model that helps, and an embedding model."""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from .api import ApiClient
from .conversation import RawMessage
from .errors import ModelFailed
from .ports import ChatReply
from .reply import read_reply

LONGEST_EMBEDDED = 8_000  # characters, about what a model with the usual 2,048 tokens takes
# To which lengths texts are cut for a server that refuses them: 512 tokens, and 512 in scripts without spaces.
_SHORTER_STEPS = (1_500, 400)
_PARALLEL_BATCHES = 4

_REFUSED_SIZES = frozenset({400, 413, 422})
_TOO_LARGE_FOR_LLAMA = 500  # what llama.cpp answers to a text longer than its batch


class OpenAIChatModel:
    """Answers through `POST {api_base}/chat/completions`, without streaming.

    Works with OpenAI, OpenRouter, LiteLLM, Ollama, vLLM, llama.cpp and the like; `api_base` may lack its
    `/v1`. `extra_body` goes into each request and wins over what is there; `timeout` is in seconds and for
    each of the `attempts` tries, which wait longer and longer for each other or as long as the server asks.
    """

    def __init__(
        self,
        api_base: str,
        api_key: str = "",
        model: str = "",
        *,
        extra_body: Mapping[str, Any] | None = None,
        timeout: float = 60.0,
        attempts: int = 3,
    ) -> None:
        self._model, self._extra = model, dict(extra_body or {})
        self._api = ApiClient(
            api_base,
            api_key,
            self.name(),
            timeout=timeout,
            attempts=attempts,
            other_names={"max_tokens": "max_completion_tokens"},  # OpenAI's reasoning models
        )

    async def complete(
        self, messages: Sequence[RawMessage], *, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> ChatReply:
        """Answer messages with at most `max_tokens`; reasoning is left out of the text.

        Raises:
            ModelFailed: there is no answer after all tries, or the server refused.
        """
        body: dict[str, Any] = {"messages": list(messages), "max_tokens": max_tokens}
        if self._model:  # a server with one model needs no name
            body["model"] = self._model
        if tools:
            body["tools"] = list(tools)
        answer = await self._api.post("/chat/completions", body | self._extra | {"stream": False})
        return read_reply(answer, self.name())

    def name(self) -> str:
        """Name the model."""
        return self._model or "the model"


class OpenAIEmbedder:
    """Embeds through `POST {api_base}/embeddings`, `batch` texts a request and a few requests at once.

    Texts over 8,000 characters are cut to their beginning and end. A server that refuses a request of many
    or of long texts gets fewer or shorter ones, and from then on at once. `dimensions` asks for shorter
    vectors from models that can make them.
    """

    def __init__(
        self,
        api_base: str,
        api_key: str = "",
        model: str = "",
        *,
        timeout: float = 60.0,
        attempts: int = 3,
        batch: int = 64,
        dimensions: int | None = None,
    ) -> None:
        self._model, self._dimensions = model, dimensions
        self._batch, self._longest = max(1, batch), LONGEST_EMBEDDED
        self._api = ApiClient(
            api_base,
            api_key,
            self.name(),
            timeout=timeout,
            attempts=attempts,
            other_names={"encoding_format": ""},
        )

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Give one vector for each text, all of one length.

        Raises:
            ModelFailed: there is no answer after all tries, the server refused, or its vectors are of no use.
        """
        vectors: list[Sequence[float]] = []
        while len(vectors) < len(texts):
            size = self._batch  # a refusal may lower it
            end = min(len(texts), len(vectors) + size * _PARALLEL_BATCHES)
            wave = [texts[i : min(i + size, end)] for i in range(len(vectors), end, size)]
            found = await asyncio.gather(*map(self._embedded, wave), return_exceptions=True)
            for answer in found:
                if isinstance(answer, BaseException):
                    raise answer
                vectors += answer
        if len({len(vector) for vector in vectors}) > 1:
            raise ModelFailed(self.name(), "its vectors differ in length")
        return vectors

    def name(self) -> str:
        """Name the model."""
        return self._model or "the embedding model"

    async def _embedded(self, texts: Sequence[str]) -> list[array[float]]:
        try:
            return await self._asked(texts)
        except ModelFailed as refusal:
            if refusal.status in _REFUSED_SIZES and len(texts) > 1:
                return await self._embedded_in_halves(texts)
            longest = min(self._longest, max(map(len, texts)))
            shorter = next((step for step in _SHORTER_STEPS if step < longest), None)
            if shorter is None or refusal.status not in {*_REFUSED_SIZES, _TOO_LARGE_FOR_LLAMA}:
                raise
        vectors = await self._embedded([ends_of(text, shorter) for text in texts])
        self._longest = min(self._longest, shorter)
        return vectors

    async def _embedded_in_halves(self, texts: Sequence[str]) -> list[array[float]]:
        before, half = (self._batch, self._longest), (len(texts) + 1) // 2
        vectors = [*await self._embedded(texts[:half]), *await self._embedded(texts[half:])]
        if before == (self._batch, self._longest):  # it was the number that the server would not take
            self._batch = min(self._batch, half)
        return vectors

    async def _asked(self, texts: Sequence[str]) -> list[array[float]]:
        body: dict[str, Any] = {
            "input": [ends_of(text, self._longest) or " " for text in texts],  # an empty text is refused
            "encoding_format": "float",
        }
        if self._model:
            body["model"] = self._model
        if self._dimensions:
            body["dimensions"] = self._dimensions
        answer = await self._api.post("/embeddings", body)
        return await asyncio.to_thread(read_vectors, answer, len(texts), self.name())


def ends_of(text: str, length: int) -> str:
    """Cut a text to its beginning and its end, the beginning twice as long; a short one stays as it is."""
    if len(text) <= length:
        return text
    tail = length // 3
    return f"{text[: length - tail - 3]}\n…\n{text[-tail:]}"


def read_vectors(answer: Any, count: int, model: str) -> list[array[float]]:
    """Read the body of an answer with `count` embeddings, numbers or base64, into their order.

    Raises:
        ModelFailed: there are more or fewer, or one is empty, of another length, or not finite.
    """
    data = answer.get("data") if isinstance(answer, Mapping) else None
    rows = [row for row in data if isinstance(row, Mapping)] if isinstance(data, list) else []
    if len(rows) != count:
        raise ModelFailed(model, f"it gave {len(rows)} vectors for {count} texts")
    places = [row.get("index") for row in rows]
    if sorted(p for p in places if isinstance(p, int)) == list(range(count)):
        rows.sort(key=lambda row: row["index"])
    vectors = [_read_vector(row.get("embedding")) for row in rows]
    if not all(vectors) or len({len(vector) for vector in vectors}) > 1:
        raise ModelFailed(model, "its vectors are empty or differ in length")
    if not all(math.isfinite(sum(vector)) for vector in vectors):
        raise ModelFailed(model, "its vectors are not finite")
    return vectors


def _read_vector(given: Any) -> array[float]:
    """Read one vector; an empty one if it has no form that is known."""
    vector = array("f")
    try:
        if isinstance(given, str):
            vector.frombytes(base64.b64decode(given, validate=True))
            if sys.byteorder == "big":
                vector.byteswap()
        elif isinstance(given, list):
            vector.extend(given)
    except (binascii.Error, ValueError, TypeError, OverflowError):
        return array("f")
    return vector
