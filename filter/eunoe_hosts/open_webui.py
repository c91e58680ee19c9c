"""The Open WebUI filter: `inlet` reads flags, `request` holds the bound, `stream` reads usage, `outlet` settles.

The host gives one `__metadata__` dictionary to all hooks of a turn; what a later hook must know travels
there, as plain values, because a turn can start in one version of this file and end in another. The
filter object itself is shared by all users of a worker and holds nothing of a turn.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import re
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, Field

from eunoe.conversation import Conversation, text_of
from eunoe.errors import BadSetting, EunoeError
from eunoe.events import EventKind, FailedBody, new_event
from eunoe.flags import Directives, read_flags
from eunoe.job import Request
from eunoe.listing import listed_price, nested_entries, window_in
from eunoe.orchestrator import ContextOrchestrator
from eunoe.ports import NoSink, Sink
from eunoe.pricing import Price, find_price, read_aliases, read_price_file
from eunoe.settings import Settings
from eunoe.sink import HttpSink
from eunoe.statusline import Sent, status_line
from eunoe.tokens import counter_for
from eunoe.usage import Usage, read_usage, usage_in

try:
    from open_webui.env import VERSION
except ImportError:
    VERSION = ""

logger = logging.getLogger("eunoe")

HOST = "open-webui"
STATE_KEY = "_eunoe"
REQUEST_HOOK_SINCE = (0, 11, 2)  # older hosts plan in `inlet`, which sees less

Body = dict[str, Any]
Emitter = Callable[[dict[str, Any]], Awaitable[None]]

_SOURCES = re.compile(r"<context>.*?</context>", re.DOTALL)


class Filter:
    """Keeps each chat inside its token budget, and says why each message was kept or dropped."""

    class Valves(Settings):
        """The administrator's settings."""

    class UserValves(BaseModel):
        """What people may set for themselves."""

        max_tokens: int = Field(
            0,
            ge=0,
            title="Largest prompt, in tokens",
            description="Send less than the administrator's limit allows, to save money. `0` uses that limit.",
        )
        show_status: bool = Field(
            True, title="Show a line above each answer", description="How many messages and tokens were sent."
        )

    def __init__(self) -> None:
        self.valves = self.Valves()
        self._sink: tuple[tuple[str, str], Sink] = (("", ""), NoSink())
        self._price_problem = ""  # what was last wrong with the price file, so that it is said once

    async def inlet(
        self,
        body: Body,
        __metadata__: Body | None = None,
        __user__: Body | None = None,
        __model__: Body | None = None,
    ) -> Body:
        """Take flags out of the messages and ask the provider to report usage."""
        hook = hook_of("inlet", self.valves, body, __metadata__, __user__, model=__model__)
        if hook is None:
            return body
        try:
            cleaned, directives = read_flags(Conversation.from_openai_messages(body["messages"]))
            question = cleaned.question
            hook.state.update(directives=directives.as_plain(), question=question.text if question else None)
            new: Body = {"messages": cleaned.to_openai_messages()}
            if body.get("stream"):
                new["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
            if not host_has_request_hook():
                new["messages"] = await self._planned(hook, new["messages"])
        except Exception as error:  # noqa: BLE001  the outermost point: a fault of ours must not cost the answer
            self._fail(hook, error)
            return body
        body.update(new)
        hook.stop_clock()
        return body

    async def request(
        self,
        body: Body,
        __metadata__: Body | None = None,
        __user__: Body | None = None,
        __model__: Body | None = None,
        __request__: Any = None,
        __event_emitter__: Emitter | None = None,
    ) -> Body:
        """Hold the bound on one model call: the first of a turn, or a later one of its tool loop."""
        hook = hook_of(
            "request", self.valves, body, __metadata__, __user__, __event_emitter__, __model__, __request__
        )
        if hook is None:
            return body
        try:
            body["messages"] = await self._planned(hook, body["messages"])
        except Exception as error:  # noqa: BLE001  see inlet
            self._fail(hook, error)
        hook.stop_clock()
        if hook.call <= 1:
            await self._show_plan(hook)
        return body

    async def stream(self, event: Body, __metadata__: Body | None = None) -> Body:
        """Read the usage that the provider reports with the end of its answer."""
        try:
            state = turn_state(__metadata__)
            if state is not None:
                state["answered"] = state["call"]
                if report := usage_in(event):
                    state["usages"][str(max(1, state["call"]))] = report
        except Exception:
            logger.exception("eunoe: usage could not be read")
        return event

    async def outlet(
        self,
        body: Body,
        __metadata__: Body | None = None,
        __user__: Body | None = None,
        __model__: Body | None = None,
        __request__: Any = None,
        __event_emitter__: Emitter | None = None,
    ) -> Body:
        """Settle the turn with the provider's figures; the stored chat stays as it is."""
        hook = hook_of(
            "outlet", self.valves, body, __metadata__, __user__, __event_emitter__, __model__, __request__
        )
        if hook is None:
            return body
        try:
            await self._settle(hook)
        except Exception as error:  # noqa: BLE001  see inlet
            self._fail(hook, error)
        return body

    async def _planned(self, hook: Hook, messages: list[Body]) -> list[Body]:
        # The host also asks for a plan that it then does not send, when it resumes after an approval.
        if hook.call == hook.state["answered"]:
            hook.state["call"] += 1
        orchestrator = ContextOrchestrator.from_settings(hook.valves, self._sink_for(hook.valves))
        call = await asyncio.to_thread(self._call_of, hook)
        result = await orchestrator.process(Conversation.from_openai_messages(messages), call)
        hook.state["sent"] = Sent.of(result.plan).as_plain()
        return result.conversation.to_openai_messages()

    async def _settle(self, hook: Hook) -> None:
        calls = max(1, hook.call)
        reports = hook.state["usages"] or {
            str(calls): usage_of_answer(hook.body)
        }  # the latter if nothing streamed
        known = {int(c): usage for c, report in reports.items() if not (usage := read_usage(report)).is_empty}
        orchestrator = ContextOrchestrator.from_settings(hook.valves, self._sink_for(hook.valves))
        for call, usage in sorted(known.items()):
            orchestrator.note_usage(replace(envelope_of(hook), call=call), usage)
        usages = [known.get(call, Usage()) for call in range(1, calls + 1)]
        about = replace(envelope_of(hook), price=await asyncio.to_thread(self._price_for, hook))
        settlement = orchestrator.settle(about, usages, round(hook.state["ms"], 2))
        hook.state["settled"] = {
            "cost_usd": settlement.billed.cost_usd,
            "cost_source": settlement.cost_source,
        }
        if "sent" in hook.state:
            sent = Sent.from_plain(hook.state["sent"])
            await self._show(hook, status_line(sent, settlement.billed, settlement.context_tokens))

    async def _show_plan(self, hook: Hook) -> None:
        """Say at once what a user should know before the answer; the figures come with the answer's end."""
        if "failed" in hook.state:
            await self._show(hook, "Eunoe failed and left this request as it was")
        elif "sent" in hook.state:
            sent = Sent.from_plain(hook.state["sent"])
            if sent.notices:
                await self._show(hook, status_line(sent))

    async def _show(self, hook: Hook, line: str) -> None:
        wanted = getattr(hook.user.get("valves"), "show_status", True)
        if hook.emitter is None or not hook.valves.show_status or not wanted:
            return
        data: Body = {"description": line, "done": True}
        if hook.valves.observer_public_url and hook.user.get("role") == "admin":
            # The host shows a list of links below a status of this kind, and of no other.
            link = f"{hook.valves.observer_public_url.rstrip('/')}/runs/{hook.state['run']}"
            data |= {
                "action": "web_search",
                "items": [{"title": "See why, message by message", "link": link}],
            }
        try:
            await hook.emitter({"type": "status", "data": data})
        except Exception:
            logger.exception("eunoe: the status line could not be shown")

    def _fail(self, hook: Hook, error: Exception) -> None:
        """Log a fault of ours and report it; message text is in neither."""
        name = type(error).__name__
        text = f"{name}: {error}" if isinstance(error, EunoeError) else name
        places = locate(error)
        hook.state["failed"] = hook.name
        logger.error(
            "eunoe: %s failed, the chat goes on as it was: %s at %s", hook.name, text, "; ".join(places[-3:])
        )
        try:
            about = envelope_of(hook)
            failed = FailedBody(stage=hook.name, error=text, places=places)
            event = new_event(EventKind.FAILED, about.run_id, failed, **about.envelope())
            self._sink_for(hook.valves).send(event)
        except Exception:
            logger.exception("eunoe: the failure could not be reported")

    def _call_of(self, hook: Hook) -> Request:
        """Say all that is known of a model call; in a thread, since it may load a tokenizer and read a file."""
        return replace(request_of(hook), price=self._price_for(hook))

    def _price_for(self, hook: Hook) -> Price | None:
        """Find the model's price; a price file with a fault costs the price and one line in the log."""
        try:
            price = price_of(hook)
            self._price_problem = ""
        except BadSetting as error:
            price = None
            if str(error) != self._price_problem:
                logger.warning("eunoe: %s", error)
            self._price_problem = str(error)
        return price

    def _sink_for(self, valves: Settings) -> Sink:
        """Give the sink for the present observer; a changed address or token makes a new one."""
        wanted = (valves.observer_url.strip(), valves.observer_token.strip())
        key, sink = self._sink
        if key != wanted:
            sink = HttpSink(*wanted) if wanted[0] else NoSink()
            self._sink = (wanted, sink)
        return sink


@dataclass(frozen=True, slots=True)
class Hook:
    """One call of a hook, with what the host gave; `state` is shared by all hooks of the turn."""

    name: str
    valves: Settings
    state: Body
    body: Body
    metadata: Body
    user: Body
    emitter: Emitter | None
    model: Any
    request: Any
    started: float

    @property
    def call(self) -> int:
        """Say which model call of the turn it is, from 1; 0 before the first."""
        return int(self.state["call"])

    def stop_clock(self) -> None:
        """Add the time since the hook began to the turn's."""
        self.state["ms"] += (time.perf_counter() - self.started) * 1000


def hook_of(
    name: str,
    valves: Settings,
    body: Body,
    metadata: Body | None,
    user: Body | None,
    emitter: Emitter | None = None,
    model: Any = None,
    request: Any = None,
) -> Hook | None:
    """Gather what the host gave; None if the request is none of ours."""
    metadata = {} if metadata is None else metadata
    state = turn_state(metadata)
    if state is None or not isinstance(body.get("messages"), list):
        return None
    return Hook(name, valves, state, body, metadata, user or {}, emitter, model, request, time.perf_counter())


def turn_state(metadata: Body | None) -> Body | None:
    """Give what this turn's hooks share; None for the host's own requests, such as titles and tags."""
    if metadata is None or metadata.get("task"):
        return None
    state: Body = metadata.setdefault(STATE_KEY, {})
    if "run" not in state:
        state["run"] = uuid.uuid4().hex
    # Filled key by key: the turn may have begun in a version that knew fewer.
    for key, value in (("call", 0), ("answered", 0), ("ms", 0.0), ("directives", None), ("question", None)):
        state.setdefault(key, value)
    state.setdefault("usages", {})
    return state


def host_has_request_hook() -> bool:
    """Say whether the host calls `request` before every model call; a host that does not tell its version does."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", VERSION)[:3])
    return not numbers or numbers >= REQUEST_HOOK_SINCE


def request_of(hook: Hook) -> Request:
    """Say what the host knows of a model call."""
    body, state = hook.body, hook.state
    own_limit = getattr(hook.user.get("valves"), "max_tokens", 0)
    window = window_in(body.get("options")) or window_of(hook.model, hook.request)
    return replace(
        envelope_of(hook),
        tools=body.get("tools") or (),
        unseen_tokens=unseen_tokens(body, hook.metadata),
        reply_tokens=reply_tokens_of(body),
        context_window=hook.valves.context_window or window,
        reply_reserve=hook.valves.reply_reserve,
        user_max_tokens=own_limit if isinstance(own_limit, int) else 0,
        question=state["question"] or own_words(body, hook.metadata),
        directives=Directives.from_plain(state["directives"]) if state["directives"] else Directives(),
    )


def envelope_of(hook: Hook) -> Request:
    """Name the run and the call, for events."""
    about, body = hook.metadata, hook.body
    return Request(
        run_id=hook.state["run"],
        call=max(1, hook.call),
        model=str(body.get("model") or ""),
        host=HOST,
        chat_id=str(about.get("chat_id") or body.get("chat_id") or "") or None,
        message_id=str(about.get("message_id") or body.get("id") or "") or None,
        user=str(about.get("user_id") or hook.user.get("id") or "") or None,
    )


def price_of(hook: Hook) -> Price | None:
    """Find the model's price: in the administrator's file, else in the host's model list.

    Raises:
        BadSetting: the file or the aliases can't be read.
    """
    model = str(hook.body.get("model") or "")
    aliases = read_aliases(hook.valves.model_aliases)
    entries = list(model_entries(hook.model or hook.metadata.get("model"), hook.request))
    if path := hook.valves.pricing_config_path.strip():
        prices = read_price_file(path)
        names = [model, *(str(entry.get("id") or "") for entry in entries)]
        if price := next(filter(None, (find_price(prices, name, aliases) for name in names)), None):
            return price
    return next(filter(None, map(listed_price, nested_entries(entries))), None)


def own_words(body: Body, metadata: Body) -> str | None:
    """Give the user's own words where the host has put documents around them."""
    words = metadata.get("base_user_prompt")
    if not isinstance(words, str) or not words:
        asked = [m for m in body["messages"] if isinstance(m, dict) and m.get("role") == "user"]
        words = text_of(asked[-1].get("content")) if asked else ""
    return _SOURCES.sub(" ", words).strip() or None


def unseen_tokens(body: Body, metadata: Body) -> int:
    """Count the workspace model's own system prompt, which the host adds after the first `request`."""
    prompt = metadata.get("base_system_prompt")
    if not isinstance(prompt, str) or not prompt:
        return 0
    systems = [m for m in body["messages"] if isinstance(m, dict) and m.get("role") == "system"]
    seen = "\n".join(text_of(m.get("content")) for m in systems)
    if prompt in seen:
        return 0
    own = prompt.removesuffix(seen) if seen else prompt
    return counter_for(str(body.get("model") or "")).count_text(own)


def reply_tokens_of(body: Body) -> int | None:
    """Find how long a reply the request asks for."""
    options = body.get("options") if isinstance(body.get("options"), dict) else {}
    wanted = (body.get("max_completion_tokens"), body.get("max_tokens"), (options or {}).get("num_predict"))
    return next((n for n in wanted if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)


def window_of(model: Any, request: Any) -> int | None:
    """Find the model's context window in the host's model list; None if nobody tells."""
    return next(filter(None, map(window_in, nested_entries(model_entries(model, request)))), None)


def model_entries(model: Any, request: Any) -> Iterator[Mapping[str, Any]]:
    """Give a model's entry in the host's list, then that of the model it is made from, and so on."""
    models = getattr(getattr(getattr(request, "app", None), "state", None), "MODELS", None)
    seen: set[str] = set()
    while isinstance(model, Mapping):
        yield model
        info = model.get("info")
        base = info.get("base_model_id") if isinstance(info, Mapping) else None
        if not base or base in seen or models is None:
            return
        seen.add(base)
        model = models.get(base)


def usage_of_answer(body: Body) -> Any:
    """Find the usage that the host stored with the newest answer."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return last.get("usage") if isinstance(last, dict) else None


def locate(error: BaseException) -> list[str]:
    """Name the source lines behind an error, outermost first; in the single file too, by its section table."""
    sections = globals().get("_SECTIONS", ())
    starts = [start for start, _, _ in sections]
    places = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_name
        if starts and frame.f_globals is globals() and line >= starts[0]:
            start, path, source = sections[bisect.bisect_right(starts, line) - 1]
            places.append(f"{path}:{line - start + source} in {name}")
        else:
            module = str(frame.f_globals.get("__package__") or frame.f_code.co_filename.rpartition("/")[2])
            places.append(f"{module}:{line} in {name}")
    return places
