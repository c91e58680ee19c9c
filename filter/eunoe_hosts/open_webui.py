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
import traceback
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from eunoe.assembly import PART_FIELDS, HostModels, Parts, orchestrator_for, parts_for
from eunoe.conversation import Conversation
from eunoe.errors import BadSetting
from eunoe.failure import ProblemLog, report_failure
from eunoe.flags import Directives, read_flags
from eunoe.job import Request
from eunoe.listing import listed_price, nested_entries
from eunoe.orchestrator import ContextOrchestrator
from eunoe.ports import NoSink, Sink
from eunoe.prices import PriceSources
from eunoe.pricing import Price
from eunoe.recap import Recap
from eunoe.sent import SentLog
from eunoe.settings import Settings, read_extra_body
from eunoe.sink import HttpSink
from eunoe.statusline import Sent, status_line
from eunoe.usage import Usage, read_usage, usage_in
from eunoe_hosts.open_webui_hook import (
    Body,
    Emitter,
    Hook,
    envelope_of,
    hook_of,
    model_entries,
    request_of,
    turn_state,
    usage_of_answer,
)
from eunoe_hosts.open_webui_models import (
    CALLER,
    TASK_MODEL,
    Caller,
    OpenWebUIChatModel,
    OpenWebUIEmbedder,
    embedding_name,
)

try:
    from open_webui.env import DATA_DIR, VERSION
except ImportError:
    DATA_DIR = ""
    VERSION = ""

logger = logging.getLogger("eunoe")

REQUEST_HOOK_SINCE = (0, 11, 2)  # older hosts plan in `inlet`, which sees less
_MOST_IN_BACKGROUND = 4  # summaries being written at once; one more is left to the chat's next turn


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
        self._engine: tuple[Settings, ContextOrchestrator] | None = None  # made anew when a valve changes
        self._parts: tuple[str, Parts] | None = None
        self._sent = SentLog()
        self._prices: tuple[Settings, PriceSources] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._problems = ProblemLog()

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
            cleaned, directives = await asyncio.to_thread(without_flags, body["messages"])
            hook.state.update(directives=directives.as_plain(), question=cleaned.question_text)
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
        orchestrator = await self._engine_for(hook)
        call, conversation = await asyncio.to_thread(self._call_of, hook, messages)
        result = await orchestrator.process(conversation, call)
        hook.state["sent"] = Sent.of(result.plan).as_plain()
        if result.recap is not None:
            hook.state["recap"] = result.recap.as_plain()
        return result.conversation.to_openai_messages()

    async def _settle(self, hook: Hook) -> None:
        calls = max(1, hook.call)
        reports = hook.state["usages"] or {
            str(calls): usage_of_answer(hook.body)
        }  # the latter if nothing streamed
        known = {int(c): usage for c, report in reports.items() if not (usage := read_usage(report)).is_empty}
        orchestrator = await self._engine_for(hook)
        for call, usage in sorted(known.items()):
            orchestrator.note_usage(replace(envelope_of(hook), call=call), usage)
        usages = [known.get(call, Usage()) for call in range(1, calls + 1)]
        about = await asyncio.to_thread(self._priced, hook)
        settlement = orchestrator.settle(about, usages, round(hook.state["ms"], 2))
        hook.state["settled"] = {
            "cost_usd": settlement.billed.cost_usd,
            "cost_source": settlement.cost_source,
        }
        if "sent" in hook.state:
            sent = Sent.from_plain(hook.state["sent"])
            await self._show(hook, status_line(sent, settlement.billed, settlement.context_tokens))
        if recap := hook.state.pop("recap", None):
            self._run_later(self._write_summaries(orchestrator, about, Recap.from_plain(recap)))

    async def _write_summaries(self, orchestrator: ContextOrchestrator, about: Request, recap: Recap) -> None:
        report = await orchestrator.write_summaries(about, recap)
        self._problems.tell("summary", report.problem)

    def _run_later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work after the hook; what fails there costs nobody anything."""
        if len(self._background) >= _MOST_IN_BACKGROUND:
            work.close()
            return

        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001  there is nobody to raise it to
                logger.warning("eunoe: work in the background failed (%s)", type(error).__name__)

        task = asyncio.create_task(guarded())
        self._background.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._background.discard)

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
        hook.state["failed"] = hook.name
        try:
            about, sink = envelope_of(hook), self._sink_for(hook.valves)
        except Exception:  # noqa: BLE001  the failure may be of one of these; it is logged all the same
            about, sink = Request(), NoSink()
        report_failure(error, hook.name, about, sink, locate(error))

    def _priced(self, hook: Hook) -> Request:
        helper = self._helper_price(hook) if uses_helper(hook.valves) else None
        return replace(envelope_of(hook), price=self._price_for(hook), helper_price=helper)

    def _call_of(self, hook: Hook, messages: list[Body]) -> tuple[Request, Conversation]:
        """Say all that is known of a model call; in a thread, since it may load a tokenizer and read a file."""
        priced = self._priced(hook)
        call = replace(request_of(hook), price=priced.price, helper_price=priced.helper_price)
        return call, Conversation.from_openai_messages(messages)

    def _helper_price(self, hook: Hook) -> Price | None:
        """Find the price of the model for summaries and labels; None where nobody tells."""
        model = hook.valves.summary_model.strip()
        return self._price_for(hook, model) if model not in {"", TASK_MODEL} else None

    def _price_for(self, hook: Hook, model: str = "") -> Price | None:
        """Find a model's price; a price file with a fault costs the price and one line in the log."""
        try:
            price = self._found_price(hook, model)
            self._problems.tell("price", "")
        except BadSetting as error:
            price = None
            self._problems.tell("price", str(error))
        return price

    def _found_price(self, hook: Hook, model: str) -> Price | None:
        wanted = model or str(hook.body.get("model") or "")
        entry = hook.listed(model) if model else hook.model or hook.metadata.get("model")
        entries = list(model_entries(entry, hook.request))
        names = [wanted, *(str(entry.get("id") or "") for entry in entries)]
        listed = next(filter(None, map(listed_price, nested_entries(entries))), None)
        return self._sources_for(hook.valves).price_of(names, listed)

    def _sources_for(self, valves: Settings) -> PriceSources:
        if self._prices is None or self._prices[0] != valves:
            self._prices = (valves.model_copy(), PriceSources(valves, own_folder()))
        return self._prices[1]

    async def _engine_for(self, hook: Hook) -> ContextOrchestrator:
        """Give the orchestrator for the present valves; what it remembers lasts as long as they do."""
        valves = hook.valves
        names_embedder = valves.weighting in {"embedding", "hybrid"} and not valves.embedding_api_base.strip()
        CALLER.set(
            Caller(
                hook.request,
                str(hook.user.get("id") or hook.metadata.get("user_id") or ""),
                str(hook.body.get("model") or ""),
                await embedding_name() if names_embedder else "",
            )
        )
        if self._engine is None or self._engine[0] != valves:
            parts, sink = self._parts_for(valves), self._sink_for(valves)
            orchestrator = orchestrator_for(valves, sink, parts=parts, sent=self._sent)
            self._engine = (valves.model_copy(), orchestrator)
        return self._engine[1]

    def _parts_for(self, valves: Settings) -> Parts:
        """Give what remembers, made anew only when a valve changes that it is made of.

        A setting that can't be met costs its feature and one line in the log.
        """
        key = valves.model_dump_json(include=set(PART_FIELDS))
        if self._parts is None or self._parts[0] != key:
            extra = read_extra_body(valves.summary_extra_body)
            chat = OpenWebUIChatModel(
                valves.summary_model.strip(), extra_body=extra, attempts=valves.retry_attempts
            )
            models = HostModels(chat, OpenWebUIEmbedder())
            try:
                parts = parts_for(valves, models, own_folder())
            except BadSetting as error:
                self._problems.tell("settings", str(error))
                parts = parts_for(valves.model_copy(update={"cache_backend": "memory"}), models)
            self._parts = (key, parts)
        return self._parts[1]

    def _sink_for(self, valves: Settings) -> Sink:
        """Give the sink for the present observer; a changed address or token makes a new one."""
        wanted = (valves.observer_url.strip(), valves.observer_token.strip())
        key, sink = self._sink
        if key != wanted:
            sink = HttpSink(*wanted) if wanted[0] else NoSink()
            self._sink = (wanted, sink)
        return sink


def without_flags(messages: list[Body]) -> tuple[Conversation, Directives]:
    """Take the flags out of messages; in a thread, since a chat may be long."""
    return read_flags(Conversation.from_openai_messages(messages))


def host_has_request_hook() -> bool:
    """Say whether the host calls `request` before every model call; a host that does not tell its version does."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", VERSION)[:3])
    return not numbers or numbers >= REQUEST_HOOK_SINCE


def own_folder() -> Path | None:
    """Give the folder for our own files below the host's data; None where there is no host."""
    return Path(DATA_DIR) / "eunoe" if DATA_DIR else None


def uses_helper(valves: Settings) -> bool:
    """Say whether a model is asked for summaries or labels."""
    return bool(valves.summary_model.strip()) or valves.llm_analysis


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
