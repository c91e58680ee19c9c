"""A LangChain runnable that trims messages: `MessageTrimmer(orchestrator) | model`.

LangChain's messages are planned as the OpenAI messages they stand for, one for one. What is kept is the
very object that came in; what is shortened is a copy of the same class with everything else it had.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from eunoe.conversation import Conversation, RawMessage, calls_of, function_of
from eunoe.failure import ProblemLog, report_failure
from eunoe.job import Request
from eunoe.orchestrator import ContextOrchestrator
from eunoe.plan import Plan
from eunoe.recap import Recap
from eunoe.settings import Settings

try:
    from langchain_core.language_models import LanguageModelInput
    from langchain_core.messages import (
        AIMessage,
        AIMessageChunk,
        BaseMessage,
        ChatMessage,
        FunctionMessage,
        HumanMessage,
        SystemMessage,
        ToolMessage,
        convert_to_messages,
    )
    from langchain_core.prompt_values import PromptValue
    from langchain_core.runnables import Runnable, RunnableConfig
    from langchain_core.runnables.config import ensure_config, get_executor_for_config
    from langchain_core.utils.function_calling import convert_to_openai_tool
except ImportError as missing:
    raise ImportError(
        'The LangChain adapter needs langchain-core: pip install "eunoe[langchain]"', name=missing.name
    ) from missing

HOST = "langchain"

# Summaries that are being written at once; those that find no place are written after a later call.
_WRITERS = threading.BoundedSemaphore(4)

_ROLES = {HumanMessage: "user", AIMessage: "assistant", ToolMessage: "tool", FunctionMessage: "function"}

# Parts of an assistant's content that say once more what its tool calls say.
_CALL_PARTS = frozenset(
    "tool_use function_call tool_call tool_call_chunk invalid_tool_call input_json_delta".split()
)


class MessageTrimmer(Runnable[LanguageModelInput, list[BaseMessage]]):
    """Trims messages to the budget of an orchestrator, in a chain before the model.

    `settings` give the model's window and the room for its reply; `tools` are those the model behind is
    bound to (LangChain's or OpenAI's), since they take part of the budget. `thread_id` and `user_id` of
    the config's `configurable` tell chats and users apart: what is remembered of one user's chats is never
    found from another's. A failure of ours costs the trimming, never the call.
    """

    def __init__(
        self,
        orchestrator: ContextOrchestrator,
        settings: Settings | None = None,
        *,
        model: str = "",
        tools: Sequence[Any] = (),
        name: str | None = None,
    ) -> None:
        self.name = name
        self._orchestrator, self._settings = orchestrator, settings or Settings()
        self._model, self._tools = model, tools
        self._problems = ProblemLog()

    def invoke(
        self,
        input: LanguageModelInput,  # noqa: A002  LangChain's name
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> list[BaseMessage]:
        """Give the messages to send; `tools` and `model` may come with the call."""
        known = ensure_config(config)
        return self._call_with_config(lambda given: self._trimmed_now(given, known, kwargs), input, config)

    async def ainvoke(
        self,
        input: LanguageModelInput,  # noqa: A002  LangChain's name
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> list[BaseMessage]:
        """Give the messages to send; `tools` and `model` may come with the call."""
        known = ensure_config(config)

        async def trim(given: LanguageModelInput) -> list[BaseMessage]:
            return await self._planned(messages_of(given), known, kwargs)

        return await self._acall_with_config(trim, input, config)

    def _trimmed_now(
        self, given: LanguageModelInput, config: RunnableConfig, options: Mapping[str, Any]
    ) -> list[BaseMessage]:
        """Trim in a thread with an event loop of its own, whatever runs in this one."""
        messages = messages_of(given)
        try:
            with get_executor_for_config(config) as pool:
                return pool.submit(lambda: asyncio.run(self._planned(messages, config, options))).result()
        except RuntimeError as error:  # no thread can be had: the program is about to end
            report_failure(error, "plan", self._envelope(config, options), self._orchestrator.sink)
            return messages

    async def _planned(
        self, messages: list[BaseMessage], config: RunnableConfig, options: Mapping[str, Any]
    ) -> list[BaseMessage]:
        request = self._envelope(config, options)
        try:
            raws = [raw_of(message) for message in messages]
            tools = [convert_to_openai_tool(tool) for tool in options.get("tools") or self._tools]
            request = replace(request, tools=tools)
            result = await self._orchestrator.process(Conversation.from_openai_messages(raws), request)
            self._write_summaries(request, result.recap)
            return sent_messages(messages, raws, result.plan)
        except Exception as error:  # noqa: BLE001  the outermost point: a fault of ours must not cost the answer
            report_failure(error, "plan", request, self._orchestrator.sink)
            return messages

    def _envelope(self, config: RunnableConfig, options: Mapping[str, Any]) -> Request:
        known = config.get("configurable") or {}
        settings = self._settings
        return Request(
            model=str(options.get("model") or self._model),
            host=HOST,
            chat_id=str(known.get("thread_id") or "") or None,
            user=str(known.get("user_id") or "") or None,
            context_window=settings.context_window or None,
            reply_reserve=settings.reply_reserve,
        )

    def _write_summaries(self, request: Request, recap: Recap | None) -> None:
        """Have the summaries written that the next calls will need; nobody waits for it."""
        if recap is None or sys.is_finalizing() or not _WRITERS.acquire(blocking=False):
            return  # a thread that starts while the program ends never begins

        def write() -> None:
            try:
                report = asyncio.run(self._orchestrator.write_summaries(request, recap))
                self._problems.tell("summaries", report.problem)
            except Exception as error:  # noqa: BLE001  see _planned
                report_failure(error, "summaries", request, self._orchestrator.sink)
            finally:
                _WRITERS.release()

        try:
            threading.Thread(target=write, name="eunoe-summaries", daemon=True).start()
        except RuntimeError:  # no thread can be had
            _WRITERS.release()


def messages_of(given: LanguageModelInput) -> list[BaseMessage]:
    """Give the messages of what a chat model takes: a text, a prompt or a list of messages."""
    if isinstance(given, str):
        return convert_to_messages([("human", given)])
    if isinstance(given, PromptValue):
        return given.to_messages()
    return convert_to_messages([given] if isinstance(given, BaseMessage) else given)


def raw_of(message: BaseMessage) -> RawMessage:
    """Give the OpenAI message that a LangChain message stands for; untouched parts stay the same objects."""
    raw: RawMessage = {"role": role_of(message), "content": content_of(message)}
    extra = message.additional_kwargs
    for name, value in (
        ("name", message.name),
        ("tool_call_id", getattr(message, "tool_call_id", None)),
        ("function_call", extra.get("function_call")),
        ("reasoning_content", extra.get("reasoning_content")),
    ):
        if value:
            raw[name] = value
    if calls := tool_calls_of(message):
        raw["tool_calls"] = calls
    return raw


def role_of(message: BaseMessage) -> str:
    """Name the role that a message has for OpenAI."""
    if isinstance(message, ChatMessage):
        return message.role
    if isinstance(message, SystemMessage):
        return str(message.additional_kwargs.get("__openai_role__", "system"))
    return next((role for kind, role in _ROLES.items() if isinstance(message, kind)), message.type)


def content_of(message: BaseMessage) -> Any:
    """Give a message's content without the calls that it also has elsewhere."""
    if not isinstance(message.content, list):
        return message.content
    return [_counted_part(part) for part in _own_parts(message)]


def tool_calls_of(message: BaseMessage) -> list[dict[str, Any]]:
    """Give a message's tool calls in OpenAI's form, those too whose arguments are no JSON."""
    if not isinstance(message, AIMessage):
        return []
    good = [(c["id"], c["name"], json.dumps(c["args"], ensure_ascii=False)) for c in message.tool_calls]
    bad = [(c["id"], c["name"], c["args"]) for c in message.invalid_tool_calls]
    return [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id_, name, arguments in (*good, *bad)
    ]


def sent_messages(
    messages: Sequence[BaseMessage], raws: Sequence[RawMessage], plan: Plan
) -> list[BaseMessage]:
    """Give what a plan sends as LangChain messages."""
    came = {id(raw): message for raw, message in zip(raws, messages, strict=True)}
    changed = {id(d.sent): d.message.position for d in plan.decisions if d.sent is not None}
    sent: list[BaseMessage] = []
    for raw in plan.messages:
        if id(raw) in came:
            sent.append(came[id(raw)])
        elif id(raw) in changed:
            place = changed[id(raw)]
            sent.append(changed_copy(messages[place], raws[place], raw))
        else:  # a summary of ours
            sent += convert_to_messages([raw])
    return sent


def changed_copy(message: BaseMessage, before: RawMessage, after: RawMessage) -> BaseMessage:
    """Copy a message with what a plan changed of it: its content, its calls, its old reasoning."""
    changes: dict[str, Any] = {}
    if after.get("content") != before.get("content"):
        content = _with_old_parts(message, before["content"], after.get("content"))
        changes["content"] = "" if content is None else content
    drops_reasoning = "reasoning_content" in before and "reasoning_content" not in after
    changes_calls = after.get("tool_calls") != before.get("tool_calls")
    if changes_calls and isinstance(message, AIMessage):
        changes |= _changed_calls(message, before, after, changes.get("content", message.content))
    if drops_reasoning or changes_calls:  # the latter stand there once more, as the provider sent them
        gone = {"reasoning_content"} if drops_reasoning else set()
        gone |= {"tool_calls"} if changes_calls else set()
        extra = message.additional_kwargs
        changes["additional_kwargs"] = {k: v for k, v in extra.items() if k not in gone}
    return message.model_copy(update=changes)


def _own_parts(message: BaseMessage) -> list[Any]:
    """Give the parts of a message's content that are no calls it also has elsewhere."""
    has_calls = isinstance(message, AIMessage) and bool(message.tool_calls or message.invalid_tool_calls)
    return [part for part in message.content if not (has_calls and _is_call(part))]


def _is_call(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _CALL_PARTS


def _counted_part(part: Any) -> Any:
    """Give a part in the form in which its tokens can be counted; the part itself where that is its own."""
    if not isinstance(part, dict) or part.get("type") in {"image", "image_url"}:
        return part
    data = part.get("base64") or part.get("data")
    if not isinstance(data, str):
        return part
    if part.get("type") == "audio":
        return {"type": "input_audio", "input_audio": {"data": data}}
    return {"type": "file", "data": data}


def _with_old_parts(message: BaseMessage, shown: Any, content: Any) -> Any:
    """Give changed content with the message's own parts where they did not change."""
    if not isinstance(content, list) or not isinstance(message.content, list):
        return content
    own = _own_parts(message)
    old = {id(seen): part for seen, part in zip(shown, own, strict=True)}
    calls = [part for part in message.content if not any(part is other for other in own)]
    return [*(old.get(id(part), part) for part in content), *calls]


def _changed_calls(message: AIMessage, before: RawMessage, after: RawMessage, content: Any) -> dict[str, Any]:
    """Give the fields of a message that hold its calls: those that are left, with their new arguments."""
    old, left = (
        {call.get("id"): function_of(call).get("arguments") for call in calls_of(raw)}
        for raw in (before, after)
    )
    short = {id_: json.loads(text or "{}") for id_, text in left.items() if text != old.get(id_)}
    changes: dict[str, Any] = {
        "tool_calls": [
            {**call, "args": short.get(call["id"], call["args"])}
            for call in message.tool_calls
            if call["id"] in left
        ],
        "invalid_tool_calls": [call for call in message.invalid_tool_calls if call["id"] in left],
    }
    if isinstance(message, AIMessageChunk):
        changes["tool_call_chunks"] = []  # pieces of the calls above
    if isinstance(content, list):
        changes["content"] = [
            _changed_part(part, short) for part in content if not _is_call(part) or _call_id(part) in left
        ]
    return changes


def _call_id(part: Mapping[str, Any]) -> Any:
    return part.get("call_id") or part.get("id")


def _changed_part(part: Any, short: Mapping[Any, Any]) -> Any:
    """Give a part that tells a call with its new arguments, under whatever name it has them."""
    if not _is_call(part) or _call_id(part) not in short:
        return part
    args = short[_call_id(part)]
    forms = {"input": args, "args": args, "arguments": json.dumps(args, ensure_ascii=False)}
    return {**part, **{name: value for name, value in forms.items() if name in part}}
