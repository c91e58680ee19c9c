"""The events that hosts send and the observer stores: one envelope, one body for each kind.

An event says what was sent to the model, not what was planned and given up. Numbers that are not
known are `None`, never zero. Text of messages is in an event only as far as `Capture` allows.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1
MAX_EVENTS_PER_BATCH = 1000


class EventKind(StrEnum):
    """What an event tells."""

    START = "pipeline.start"  # a turn began
    PLAN = "pipeline.plan"  # what one model call was sent, message by message
    USAGE = "pipeline.usage"  # what the provider reported for one model call
    OUTLET = "pipeline.outlet"  # the turn is over
    FAILED = "pipeline.failed"  # the filter failed and left the request as it was
    LOST = "sink.lost"  # events that could not be delivered


class Capture(StrEnum):
    """How much of a message's text an event may carry."""

    FULL = "full"
    PREVIEW = "preview"
    NONE = "none"


class Purpose(StrEnum):
    """What a model was called for."""

    ANSWER = "answer"  # of the chat itself
    LABELS = "labels"  # it weighed messages
    SUMMARY = "summary"  # it summarized earlier turns


class EventBody(BaseModel):
    """The fields one kind of event has. Fields this version does not know are kept."""

    model_config = ConfigDict(extra="allow")


class StartBody(EventBody):
    """`pipeline.start`: a turn began; the settings it runs with."""

    messages: int = Field(description="Messages of the history, the question included.")
    algorithm: str = Field(description="The selection algorithm's name.")
    weighting: str = Field(description="The weighting strategy's name.")
    max_tokens: int = Field(description="The administrator's bound on prompt tokens; 0 is no bound.")
    context_window: int | None = Field(None, description="The model's window in tokens, if known.")
    reply_reserve: int | None = Field(None, description="Tokens of the window left free for the reply.")


class DecisionBody(EventBody):
    """What became of one message in one model call."""

    key: str = Field(description="Names the message within its chat, by content.")
    position: int = Field(description="Where it stood in the list the filter was given, from 0.")
    role: str
    fate: str = Field(description="kept, compressed, summarized, recalled or dropped.")
    reason: str = Field(description="A code to group by.")
    why: str = Field(description="The reason as a sentence.")
    weight: float = Field(description="The final weight, the product of its parts.")
    parts: dict[str, float] = Field(default_factory=dict, description="The weight's factors by name.")
    scores: dict[str, float] = Field(
        default_factory=dict, description="Where several strategies weigh: what each says."
    )
    tokens_before: int
    tokens_after: int = Field(description="0 if it was not sent.")
    pinned: bool = False
    preview: str | None = Field(None, description="The beginning of its text; None if text is not captured.")
    content: str | None = Field(None, description="Its whole text; only with capture `full`.")
    tool_calls: list[str] = Field(default_factory=list, description="Names of the functions it calls.")


class PlanBody(EventBody):
    """`pipeline.plan`: what one model call was sent, and why."""

    call: int = Field(description="Which model call of the turn this is, from 1.")
    algorithm: str
    weighting: str
    limit: int | None = Field(None, description="The bound on prompt tokens that held; None is no bound.")
    limit_source: str = Field(
        "", description="Where the bound comes from: max_tokens, window, user, target, cost."
    )
    context_window: int | None = None
    reply_reserve: int | None = None
    tokens_before: int = Field(description="Prompt tokens of everything, as counted.")
    tokens_after: int = Field(description="Prompt tokens of what was sent, as counted.")
    tokens_fixed: int = Field(description="Of these, system messages and tool definitions.")
    tokens_tools: int = Field(0, description="Of these, tool definitions.")
    tokens_inserted: int = Field(0, description="Of what was sent, summaries of earlier turns.")
    tokens_cached: int = Field(
        0,
        description="At its beginning as it was sent shortly before; the provider may have it in its cache.",
    )
    prefix_tokens: int | None = Field(
        None,
        description="At its beginning the same as in the chat's call before; None: no such call is known.",
    )
    prefix_break: str | None = Field(
        None,
        description="What ended that: a code such as system_changed, new_cut or cache_expired. None: nothing did.",
    )
    prefix_message: str | None = Field(None, description="The key of the message that it ended at.")
    prefix_lost_tokens: int | None = Field(
        None, description="Billed anew although the provider would have had them in its cache."
    )
    prefix_lost_usd: float | None = Field(None, description="What that costs; None: no price is known.")
    counter: str = Field(description="What counted: a tokenizer's name or an estimate.")
    over_limit: bool = Field(False, description="What must be kept alone is over the bound.")
    estimated_cost_usd: float | None = Field(None, description="None: no price is known.")
    elapsed_ms: float
    flags: list[dict[str, Any]] = Field(default_factory=list, description="name, value, lasting, in force.")
    notices: list[str] = Field(default_factory=list, description="What the user was told besides.")
    decisions: list[DecisionBody] = Field(default_factory=list)


class UsageBody(EventBody):
    """`pipeline.usage`: what the provider reported for one model call."""

    call: int
    purpose: Purpose = Field(
        Purpose.ANSWER,
        description="answer, or labels or summary: a helping model's call, not the chat's own.",
    )
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = Field(None, description="Prompt tokens read from the provider's cache.")
    cache_write_tokens: int | None = None
    cost_usd: float | None = Field(None, description="What the provider says it costs.")


class OutletBody(EventBody):
    """`pipeline.outlet`: the turn is over; sums over its model calls, context of the last one."""

    calls: int = Field(description="Model calls of the turn.")
    prompt_tokens: int | None = Field(None, description="Of the last call: the size of the context.")
    billed_prompt_tokens: int | None = Field(None, description="Sum over all calls.")
    completion_tokens: int | None = Field(None, description="Sum over all calls.")
    cached_tokens: int | None = Field(None, description="Sum over all calls.")
    cost_usd: float | None = None
    cost_source: str | None = Field(None, description="provider, or the name of a price list.")
    elapsed_ms: float | None = Field(None, description="Time in the filter, all hooks of the turn.")
    title: str | None = Field(None, description="The chat's title; None if text is not captured.")


class FailedBody(EventBody):
    """`pipeline.failed`: an exception in the filter; the request went out as it came in."""

    stage: str = Field(description="The hook it happened in.")
    error: str = Field(description="The exception's class; its text only if it is one of ours.")
    places: list[str] = Field(default_factory=list, description="Source lines, innermost last.")


class LostBody(EventBody):
    """`sink.lost`: events that were given up since the last report."""

    events: int
    reason: str


BODIES: Mapping[EventKind, type[EventBody]] = {
    EventKind.START: StartBody,
    EventKind.PLAN: PlanBody,
    EventKind.USAGE: UsageBody,
    EventKind.OUTLET: OutletBody,
    EventKind.FAILED: FailedBody,
    EventKind.LOST: LostBody,
}


class RunEvent(BaseModel):
    """One event as it goes over the wire: `POST /v1/events` takes `{"events": [RunEvent, ...]}`."""

    model_config = ConfigDict(extra="allow")

    event_id: str = Field(min_length=8, max_length=64, description="Unique; sending it twice stores it once.")
    event: EventKind
    run_id: str = Field(min_length=1, max_length=64, description="One turn of one model is one run.")
    at: datetime = Field(description="When it happened, with a time zone.")
    schema_version: int = SCHEMA_VERSION
    host: str = Field("", max_length=40, description="open-webui, middleware, litellm, ...")
    model: str = Field("", max_length=300)
    chat_id: str | None = Field(None, max_length=200)
    message_id: str | None = Field(None, max_length=200)
    user: str | None = Field(
        None, max_length=200, description="The host's user id, not a name or an address."
    )
    data: dict[str, Any] = Field(default_factory=dict, description="The body of this kind.")


class EventBatch(BaseModel):
    """The body of `POST /v1/events`."""

    events: list[RunEvent] = Field(max_length=MAX_EVENTS_PER_BATCH)


def new_event(kind: EventKind, run_id: str, body: EventBody, **context: Any) -> RunEvent:
    """Make an event of `kind` that happened now; `context` fills the envelope's optional fields."""
    return RunEvent(
        event_id=uuid.uuid4().hex,
        event=kind,
        run_id=run_id,
        at=datetime.now(UTC),
        data=body.model_dump(mode="json", exclude_defaults=True, exclude_none=True),
        **context,
    )
