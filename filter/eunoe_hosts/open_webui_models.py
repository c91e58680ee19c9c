"""The models of an Open WebUI, asked on behalf of the person whose turn it is: no address and no key needed.

The host's own functions want the web request and the user of a turn. A filter serves many turns at once,
so these travel in a context variable, which tasks and threads of a turn inherit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from eunoe.conversation import RawMessage
from eunoe.endpoint import read_vectors
from eunoe.errors import ModelFailed
from eunoe.ports import ChatReply
from eunoe.reply import read_reply

TASK_MODEL = "auto"  # whatever the administrator has set for titles and tags
HELPER_TASK = "eunoe"  # marks our own calls, which no hook of ours may touch
_LONGEST_CALL = 180.0  # seconds; the host has limits of its own, which may be off
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose turn it is: the web request, the user's id, the chat's model, and what the host embeds with."""

    request: Any
    user_id: str
    model: str
    embedding: str = ""


CALLER: ContextVar[Caller | None] = ContextVar("eunoe_caller", default=None)


class OpenWebUIChatModel:
    """Asks a model of the host by its id, or the task model for `auto`.

    `extra_body` goes into each request and wins over what is there. The model need not be one that the
    person may choose: the administrator has named it.
    """

    def __init__(self, model: str, *, extra_body: Mapping[str, Any] | None = None, attempts: int = 3) -> None:
        self._model, self._extra, self._attempts = model or TASK_MODEL, dict(extra_body or {}), attempts

    async def complete(
        self, messages: Sequence[RawMessage], *, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> ChatReply:
        """Answer messages with at most `max_tokens`.

        Raises:
            ModelFailed: the host has no such model, or there is no answer after all tries.
        """
        body: dict[str, Any] = {"messages": list(messages), "max_tokens": max_tokens}
        if tools:
            body["tools"] = list(tools)
        body |= {**self._extra, "stream": False}
        for attempt in range(1, self._attempts + 1):
            try:
                return await asyncio.wait_for(self._answer(dict(body)), _LONGEST_CALL)
            except TimeoutError:
                raise ModelFailed(self.name(), "it took too long") from None
            except ModelFailed as failure:
                if not failure.passing or attempt == self._attempts:
                    raise
            await asyncio.sleep(0.5 * 2**attempt)
        raise ModelFailed(self.name(), "there was no try left")

    def name(self) -> str:
        """Name the model as the settings do."""
        return self._model

    async def _answer(self, body: dict[str, Any]) -> ChatReply:
        caller = CALLER.get()
        if caller is None or caller.request is None:
            raise ModelFailed(self.name(), "Open WebUI gave no request to ask with")
        try:
            answer = await _ask_host(caller, self._model, body)
        except ModelFailed:
            raise
        except Exception as error:  # noqa: BLE001  the host raises what it likes
            # The text of a host's exception may quote what was asked.
            raise ModelFailed(self.name(), f"Open WebUI could not ask it ({type(error).__name__})") from None
        if isinstance(answer, Mapping):
            return read_reply(answer, self.name())
        status = getattr(answer, "status_code", None)
        raise ModelFailed(self.name(), f"the provider answered {status}", status, passing=status in _PASSING)


class OpenWebUIEmbedder:
    """Embeds with what the host embeds documents with."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Give one vector for each text.

        Raises:
            ModelFailed: the host embeds nothing, or failed at it.
        """
        caller = CALLER.get()
        state = getattr(getattr(getattr(caller, "request", None), "app", None), "state", None)
        embed = getattr(state, "EMBEDDING_FUNCTION", None)
        if embed is None:
            raise ModelFailed(self.name(), "Open WebUI has no embedding model")
        try:
            found = await asyncio.wait_for(embed(list(texts)), _LONGEST_CALL)
            rows = [{"embedding": [float(value) for value in vector]} for vector in found]
        except Exception as error:  # noqa: BLE001  see above
            raise ModelFailed(self.name(), f"Open WebUI could not embed ({type(error).__name__})") from None
        return read_vectors({"data": rows}, len(texts), self.name())

    def name(self) -> str:
        """Name the model, as the host had it set when the turn began: vectors of two models never mix."""
        caller = CALLER.get()
        return caller.embedding if caller and caller.embedding else "Open WebUI's embedding model"


async def embedding_name() -> str:
    """Name what the host embeds with; empty if it does not tell."""
    try:
        from open_webui.models.config import Config  # noqa: PLC0415

        engine, model = [await Config.get(name) for name in ("rag.embedding_engine", "rag.embedding_model")]
    except Exception:  # noqa: BLE001  another version of the host; the name is only for telling models apart
        return ""
    return f"{engine} {model}".strip() if model else ""


async def _ask_host(caller: Caller, model: str, body: dict[str, Any]) -> Any:
    from open_webui.models.users import Users  # noqa: PLC0415  the host, which is loaded before us but not in every test
    from open_webui.utils.chat import generate_chat_completion  # noqa: PLC0415
    from starlette.requests import Request as WebRequest  # noqa: PLC0415

    user = await Users.get_user_by_id(caller.user_id)
    if user is None:
        raise ModelFailed(model, "Open WebUI does not know who asks")
    body |= {
        "model": await _task_model(caller) if model == TASK_MODEL else model,
        "metadata": {"task": HELPER_TASK},
    }
    # A request of its own: the host keeps what it has checked of the turn's call on that one.
    alone = WebRequest({**caller.request.scope, "state": {}})
    return await generate_chat_completion(alone, body, user, bypass_filter=True, bypass_system_prompt=True)


async def _task_model(caller: Caller) -> str:
    from open_webui.models.config import Config  # noqa: PLC0415
    from open_webui.utils.task import get_task_model_id  # noqa: PLC0415

    chosen = [await Config.get(name) for name in ("task.model.default", "task.model.external")]
    return str(get_task_model_id(caller.model, *chosen, caller.request.app.state.MODELS))
