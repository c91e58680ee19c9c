"""Around any OpenAI-style client: plans the messages of each call, then settles it with what the provider reports.

Whatever fails here costs the plan, never the answer: the call then goes out as it came in, the log has a
line, and the observer a `pipeline.failed`.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from eunoe.conversation import Conversation, RawMessage
from eunoe.errors import BadSetting
from eunoe.failure import ProblemLog, report_failure
from eunoe.job import Request
from eunoe.orchestrator import ContextOrchestrator
from eunoe.prices import PriceSources
from eunoe.pricing import Price
from eunoe.settings import Settings
from eunoe.tokens import counter_for

from .middleware_call import Call, plain_value

HOST = "middleware"

Create = TypeVar("Create", bound=Callable[..., Any])
Options = dict[str, Any]


class Middleware:
    """Keeps the calls of an OpenAI-style client inside the budget of an orchestrator.

    `settings` say what the orchestrator does not know: the model's window and the prices. `model` is for
    functions that name none when they are called. `user` and `chat_id` are for calls that name no user:
    what is remembered of one user's chats is never found from another's, so a server with several users
    names them, in the call (`user=` or `safety_identifier=`, as OpenAI's API has them) or with a
    middleware for each chat on the same orchestrator. `ask_usage` says whether streams are asked to report
    usage: None asks OpenAI's own servers only, since others may refuse what they do not know.

    Raises:
        BadSetting: OpenRouter's prices are wanted and there is no place to keep them.
    """

    def __init__(
        self,
        orchestrator: ContextOrchestrator,
        settings: Settings | None = None,
        *,
        model: str = "",
        user: str | None = None,
        chat_id: str | None = None,
        ask_usage: bool | None = None,
    ) -> None:
        self.orchestrator = orchestrator
        self.settings = settings or Settings()
        self._model, self._user, self._chat_id = model, user, chat_id
        self._ask_usage = ask_usage
        self._prices = PriceSources(self.settings)
        self._problems = ProblemLog()

    async def __call__(
        self, messages: Iterable[Any], *, model: str = "", model_id: str = "", **options: Any
    ) -> list[Any]:
        """Give the messages to send; kept ones are the very objects that came.

        `options` are those of the call that is to come, such as `tools`, `max_tokens` and `user`;
        `model_id` is another name for `model`. Nothing is known of the answer here, so the run has no
        usage; `wrap` has it.
        """
        call = await self._planned(list(messages), {**options, "model": model or model_id})
        call.write_summaries()
        return call.messages

    def trimmed(
        self, messages: Iterable[Any], *, model: str = "", model_id: str = "", **options: Any
    ) -> list[Any]:
        """Give the messages to send, for code that does not await; works inside a running event loop too."""
        call = self._planned_now(list(messages), {**options, "model": model or model_id})
        call.write_summaries()
        return call.messages

    def wrap(self, create: Create) -> Create:
        """Give a function like `client.chat.completions.create` that sends planned messages.

        Everything else is passed on and comes back as it is, errors and streams too. Works as a decorator
        for any function that takes `messages`, sync or async.

        Raises:
            BadSetting: the function takes no `messages`.
        """
        names = _names_by_place(create)
        asks = _takes_stream_options(create) if self._ask_usage is None else self._ask_usage
        hides_async = inspect.iscoroutinefunction(inspect.unwrap(create))

        @functools.wraps(create)
        async def create_later(*args: Any, **kwargs: Any) -> Any:
            given = _Given.of(args, kwargs, names)
            if given is None:
                return await create(*args, **kwargs)
            call = await self._planned(given.messages, given.options, asks=asks)
            return await call.answered_later(lambda: create(*given.args(call), **given.kwargs(call)))

        @functools.wraps(create)
        def create_now(*args: Any, **kwargs: Any) -> Any:
            if hides_async and _is_in_loop():  # such as `create` of an async `openai` client
                return create_later(*args, **kwargs)
            given = _Given.of(args, kwargs, names)
            if given is None:
                return create(*args, **kwargs)
            call = self._planned_now(given.messages, given.options, asks=asks)
            return call.answered(lambda: create(*given.args(call), **given.kwargs(call)))

        return cast("Create", create_later if inspect.iscoroutinefunction(create) else create_now)

    def _planned_now(self, messages: list[Any], options: Options, *, asks: bool = False) -> Call:
        """Plan in a thread with an event loop of its own, whatever runs in this one."""
        context = contextvars.copy_context()

        def planned() -> Call:
            return context.run(asyncio.run, self._planned(messages, options, asks=asks))

        try:
            with ThreadPoolExecutor(1, thread_name_prefix="eunoe") as pool:
                return pool.submit(planned).result()
        except RuntimeError as error:  # no thread can be had: the program is about to end
            request = self._envelope(options)
            report_failure(error, "plan", request, self.orchestrator.sink)
            return Call(self.orchestrator, request, messages, self._problems, {})

    async def _planned(self, messages: list[Any], options: Options, *, asks: bool = False) -> Call:
        """Plan a call; if that fails, the call has the messages as they came."""
        started = time.perf_counter()
        request = self._envelope(options)
        asked = _usage_option(options) if asks else {}
        call = Call(self.orchestrator, request, messages, self._problems, asked)
        try:
            raws = [_raw_of(message) for message in messages]
            call.request = request = await asyncio.to_thread(self._request, request, options)
            result = await self.orchestrator.process(Conversation.from_openai_messages(raws), request)
            came = {id(raw): message for raw, message in zip(raws, messages, strict=True)}
            sent = result.conversation.to_openai_messages()
            call.messages, call.recap = [came.get(id(raw), raw) for raw in sent], result.recap
        except Exception as error:  # noqa: BLE001  the outermost point: a fault of ours must not cost the answer
            report_failure(error, "plan", request, self.orchestrator.sink)
        call.elapsed_ms = (time.perf_counter() - started) * 1000
        return call

    def _envelope(self, options: Options) -> Request:
        named = (options.get(name) for name in ("user", "safety_identifier"))
        user = next((name for name in named if isinstance(name, str) and name), self._user)
        model = options.get("model")
        model = model if isinstance(model, str) and model else self._model
        return Request(model=model, host=HOST, chat_id=self._chat_id, user=user)

    def _request(self, request: Request, options: Options) -> Request:
        """Say all that is known of a call; in a thread, since it may load a tokenizer and read a file."""
        settings = self.settings
        return replace(
            request,
            tools=[*_listed(options.get("tools")), *_listed(options.get("functions"))],
            unseen_tokens=_format_tokens(options.get("response_format"), request.model),
            reply_tokens=_reply_tokens(options),
            context_window=settings.context_window or None,
            reply_reserve=settings.reply_reserve,
            price=self._price_of(request.model),
            helper_price=self._price_of(settings.summary_model),
        )

    def _price_of(self, model: str) -> Price | None:
        """Find a model's price; a price file with a fault costs the price and one line in the log."""
        try:
            price = self._prices.price_of([model])
        except BadSetting as error:
            self._problems.tell("prices", str(error))
            return None
        self._problems.tell("prices", "")
        return price


@dataclass(frozen=True, slots=True)
class _Given:
    """The arguments of a call: `options` are all of them by name, as far as names are known.

    `place` says where the messages stand among the `unnamed` ones; None if they came by name.
    """

    messages: list[Any]
    options: Options
    named: Options
    unnamed: Sequence[Any]
    place: int | None

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Options, names: Sequence[str]) -> _Given | None:
        """Find the messages of a call, None if it has none; what can be read only once is made a list."""
        named = {
            name: list(value) if name in {"tools", "functions"} and _is_read_once(value) else value
            for name, value in kwargs.items()
        }
        options = {**dict(zip(names, args, strict=False)), **named}
        messages = options.get("messages")
        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
            return None
        place = None if "messages" in named else names.index("messages")
        return cls(list(messages), options, named, args, place)

    def args(self, call: Call) -> list[Any]:
        """Give the arguments without a name, with the planned messages."""
        return [call.messages if i == self.place else value for i, value in enumerate(self.unnamed)]

    def kwargs(self, call: Call) -> Options:
        """Give the arguments with a name, with the planned messages."""
        planned = {"messages": call.messages} if self.place is None else {}
        return {**self.named, **call.asked, **planned}


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _names_by_place(create: Callable[..., Any]) -> Sequence[str]:
    """Give the names of the arguments that a function takes without naming them, in order."""
    try:
        parameters = list(inspect.signature(create).parameters.values())
    except (TypeError, ValueError):  # written in C
        return ()
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    if not takes_any and all(parameter.name != "messages" for parameter in parameters):
        fix = "Wrap a function such as client.chat.completions.create."
        raise BadSetting("create", "the function takes no messages", fix)
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in by_place]


def _takes_stream_options(create: Callable[..., Any]) -> bool:
    """Say whether a function is `create` of an `openai` client that talks to OpenAI's own servers."""
    owner = getattr(create, "__self__", None)
    if not type(owner).__module__.startswith("openai.") or getattr(create, "__name__", "") != "create":
        return False
    address = getattr(getattr(owner, "_client", None), "base_url", None)
    host = str(getattr(address, "host", ""))
    return host == "api.openai.com" or host.endswith(".api.openai.com")


def _usage_option(options: Options) -> Options:
    """Give what asks a stream to report its usage; nothing where the caller has decided."""
    extra = options.get("extra_body")
    if options.get("stream") is not True or (isinstance(extra, Mapping) and "stream_options" in extra):
        return {}
    given = options.get("stream_options")
    known = dict(given) if isinstance(given, Mapping) else {}
    if "include_usage" in known or ("stream_options" in options and given is None):
        return {}
    return {"stream_options": {**known, "include_usage": True}}


def _raw_of(message: Any) -> RawMessage:
    """Give a message as a dictionary; clients also take their own answers back as messages."""
    if isinstance(message, dict):
        return message
    return cast("RawMessage", plain_value(message))


def _is_read_once(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (Sequence, Mapping))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else []


def _format_tokens(wanted: Any, model: str) -> int:
    """Count the schema that an answer has to fit, which the provider puts before the model."""
    if isinstance(wanted, type) and hasattr(wanted, "model_json_schema"):
        wanted = wanted.model_json_schema()
    return (
        counter_for(model).count_text(json.dumps(wanted, default=str)) if isinstance(wanted, Mapping) else 0
    )


def _reply_tokens(options: Options) -> int | None:
    wanted = (options.get("max_completion_tokens"), options.get("max_tokens"))
    return next((n for n in wanted if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)
