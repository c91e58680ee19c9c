"""What Open WebUI gives a hook, and what that says of a turn and of a model call.

The host gives one `__metadata__` dictionary to all hooks of a turn; what a later hook must know travels
there, as plain values, because a turn can start in one version of this file and end in another.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from eunoe.conversation import text_of
from eunoe.flags import Directives
from eunoe.job import Request
from eunoe.listing import nested_entries, window_in
from eunoe.settings import Settings
from eunoe.tokens import counter_for

HOST = "open-webui"
STATE_KEY = "_eunoe"

Body = dict[str, Any]
Emitter = Callable[[dict[str, Any]], Awaitable[None]]

_SOURCES = re.compile(r"<context>.*?</context>", re.DOTALL)


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

    def listed(self, model: str) -> Any:
        """Give a model's entry in the host's list; None if it has none."""
        models = getattr(getattr(getattr(self.request, "app", None), "state", None), "MODELS", None)
        return models.get(model) if isinstance(models, Mapping) else None

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
        question=state["question"] or words_of_question(body, hook.metadata),
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


def words_of_question(body: Body, metadata: Body) -> str | None:
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
