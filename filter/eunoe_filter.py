"""
title: Eunoe
author: The Eunoe authors
version: 0.1.0
license: MIT
description: Keeps long Open WebUI chats inside a token budget, and shows why each message was kept or dropped.
required_open_webui_version: 0.11.2
"""

# This file is generated, do not edit it: change the files it is made of and run `make bundle`.
# It is Eunoe 0.1.0, made of 35 files; the SHA-256 digest of their text is
# dc48f05a0544fdc2ba43a9c32d8aa13ea4805b8da03d27550cb68758c1c68f96.

from __future__ import annotations

import asyncio
import bisect
import functools
import hashlib
import httpx
import json
import logging
import math
import os
import re
import tempfile
import threading
import time
import traceback
import unicodedata
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

try:
    from open_webui.env import VERSION
except ImportError:
    VERSION = ""

try:
    import tiktoken
except ImportError:
    tiktoken = None  # type: ignore[assignment]  # a host without it gets the estimate


# ──── eunoe/errors.py ───────────────────────────────────────────────────────────────────────────────────────

class EunoeError(Exception):
    """The root of all errors this package raises. Their texts never hold message text."""


class BadSetting(EunoeError):
    """A setting's value can't be used."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem}. {fix}")
        self.field, self.problem, self.fix = field, problem, fix


class BadMessages(EunoeError):
    """The input is not a list of message objects."""

    def __init__(self, position: int, found: str) -> None:
        super().__init__(f"messages[{position}] is {found}, not an object with a role")
        self.position, self.found = position, found


class PlanBroken(EunoeError):
    """A plan breaks one of its own rules; a fault of ours."""

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("; ".join(violations))
        self.violations = tuple(violations)


class ModelFailed(EunoeError):
    """A model that was asked for help (a summary, labels, an embedding) gave no answer.

    `status` is the HTTP status, None if there was no answer at all; `passing` says that the same call
    may succeed later.
    """

    def __init__(self, model: str, problem: str, status: int | None = None, *, passing: bool = False) -> None:
        super().__init__(f"{model}: {problem}")
        self.model, self.problem, self.status, self.passing = model, problem, status, passing


class AnswerRefused(EunoeError):
    """What a model answered is of no use: empty, cut off, an error text, no labels."""

    def __init__(self, model: str, problem: str) -> None:
        super().__init__(f"{model}: {problem}")
        self.model, self.problem = model, problem


# ──── eunoe/memo.py ─────────────────────────────────────────────────────────────────────────────────────────

Value = TypeVar("Value")


class Memo(Generic[Value]):
    """Remembers up to `size` results by key; when full it forgets the older half.

    Threads may share it: each step is one operation on a dictionary, and a lost update only costs
    computing again. Keys are digests, so no text is kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[str, Value] = {}

    def get(self, key: str, compute: Callable[[], Value]) -> Value:
        """Give the remembered result of `key`, or compute and remember it."""
        value = self._values.get(key)
        if value is None:
            value = compute()
            if len(self._values) >= self._size:
                self._values = dict(list(self._values.items())[max(1, self._size // 2) :])
            self._values[key] = value
        return value


# ──── eunoe/terms.py ────────────────────────────────────────────────────────────────────────────────────────

# A long log says what it is about at its ends; reading all of it would cost more than it tells.
_READ_FROM_START, _READ_FROM_END = 16_000, 8_000

_TOKEN = re.compile(
    r"[a-z0-9\u00c0-\u024f\u0370-\u0dff\u10a0-\u177f\u1800-\u1fff]+"
    r"|[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af]+"
)
# Thai, Lao, Tibetan, Burmese and Khmer; kana, Han and Hangul.
_WITHOUT_SPACES = re.compile(
    r"[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af]"
)

_STOP = frozenset(
    "a about after again all also am an and any are as at be because been before being both but by can could did do "
    "does doing down during each few for from further had has have having he her here hers him his how i if in into "
    "is it its itself just let like ll me more most my no nor not now of off on once only or other our out over own "
    "please re same she should so some such than that the their them then there these they this those through to too "
    "under until up ve very was we were what when where which while who whom why will with would you your yours "
    "der die das und ist ein eine nicht mit von zu den im für auf le la les des et est un une que dans pour el los "
    "las y es en por con para".split()
)

_STEM_ENDINGS = ("ingly", "edly", "ation", "ities", "ness", "ment", "ings", "ing", "ies", "ied", "ers", "est")
_KEPT_ENDINGS = ("ss", "ay", "ey", "oy", "uy")  # as in class, display, monkey, deploy, buy
_SHORT_ENDINGS = ("ed", "es", "er", "ly", "al", "s", "e", "y")

# English forms that no ending tells of, or whose stem is too short to lose one: they count as the first of their
# group. Left out is what is more often another word: `rose`, `lives`, `bit`, `lay`.
_IRREGULAR = """
begin began begun; bend bent; bite bitten; blow blew blown; break broke broken; bring brought; build built;
buy bought; catch caught; choose chose chosen; come came; dig dug; draw drew drawn; drink drank drunk; drive
drove driven; eat ate eaten; fall fell fallen; feed fed; feel felt; fight fought; find found; fly flies flew
flown; forget forgot forgotten; freeze froze frozen; get got gotten; give gave given; go goes going went
gone; grow grew grown; hang hung; hear heard; hide hid hidden; hold held; keep kept; know knew known; lead
led; leave left; lend lent; lose lost; make made; mean meant; meet met; pay paid; ride rode ridden; rise
risen; run ran; say said; see saw seen; seek sought; sell sold; send sent; shake shook shaken; shoot shot;
show shown; sing sang sung; sit sat; sleep slept; speak spoke spoken; spend spent; stand stood; steal stole
stolen; stick stuck; strike struck; swear swore sworn; swim swam swum; take took taken; teach taught; tear
tore torn; tell told; think thought; throw threw thrown; understand understood; wake woke woken; wear wore
worn; win won; write wrote written; become became; burn burnt; cry cries cried; die dies died dying; dry
dries dried; try tries tried; use used using; dream dreamt; learn learnt; child children; foot feet; half
halves; index indices indexes; knife knives; leaf leaves; man men; matrix matrices; mouse mice; person
people; shelf shelves; tooth teeth; vertex vertices; wife wives; wolf wolves; woman women
"""


@dataclass(frozen=True, slots=True)
class Terms:
    """How often each term occurs in a text, and how many terms it has."""

    counts: Mapping[str, int]
    length: int


def read_terms(text: str) -> Terms:
    """Cut a text into stemmed terms without stop words; scripts without spaces give pairs of characters."""
    if len(text) > _READ_FROM_START + _READ_FROM_END:
        text = f"{text[:_READ_FROM_START]} {text[-_READ_FROM_END:]}"
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)  # macOS writes accents as signs of their own
    tokens = _TOKEN.findall(text.lower())
    if text.isascii():
        counts = Counter(map(term_of, tokens))
    else:
        counts = Counter(term for token in tokens for term in _terms_in(token))
    counts.pop("", None)
    return Terms(counts, counts.total())


def _terms_in(token: str) -> list[str]:
    if token[0] >= "\u0e00" and _WITHOUT_SPACES.match(token):
        return [token[i : i + 2] for i in range(max(1, len(token) - 1))]
    return [term_of(token)]


@functools.lru_cache(maxsize=50_000)  # a chat has few words and says them often
def term_of(token: str) -> str:
    """Give the term a word counts as: its stem, or nothing for a stop word."""
    return "" if token in _STOP else stem(_regular().get(token, token))


@functools.cache
def _regular() -> Mapping[str, str]:
    """Read the table of irregular forms: the plain form of each."""
    groups = [group.split() for group in _IRREGULAR.split(";")]
    return {form: plain for plain, *forms in groups for form in forms}


def stem(word: str) -> str:
    """Fold the endings of a word, so that `moved`, `moving` and `moves` are one term."""
    if len(word) < 4 or not word.isascii() or word.isdigit():
        return word
    for ending in _STEM_ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return _undoubled(word[: -len(ending)])
    for ending in _SHORT_ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith(_KEPT_ENDINGS):
            return _undoubled(word[: -len(ending)])
    return word


def _undoubled(root: str) -> str:
    return root[:-1] if len(root) > 3 and root[-1] == root[-2] and root[-1] not in "ls" else root


# ──── eunoe/estimate.py ─────────────────────────────────────────────────────────────────────────────────────

def _ascii_classes() -> bytes:
    """Map each byte to its class: a lower case, A upper case, 0 digit, n line break, . sign, or a space."""
    table = bytearray(b" " * 256)
    for code in range(33, 127):
        char = chr(code)
        if char.islower():
            table[code] = ord("a")
        elif char.isupper():
            table[code] = ord("A")
        else:
            table[code] = ord("0") if char.isdigit() else ord(".")
    table[10] = table[13] = ord("n")
    table[128:] = b"a" * 128  # letters with accents, in Latin-1
    return bytes(table)


_CLASSES = _ascii_classes()
# Letters as they are, all else as spaces: what is left between spaces are words.
_LETTERS = bytes(code if chr(code) in "aA" else 32 for code in range(256))
_DIGITS = re.compile(r"[0-9]{1,3}")
_ACCENTED = re.compile(r"[\u0080-\u024f\u1e00-\u1eff]")

# Tokens a character, and tokens more for each run of the script.
_SCRIPTS = (
    (re.compile(r"[\u3400-\u9fff\uf900-\ufaff]+"), 0.70, 0.0),  # Han
    (re.compile(r"[\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f]+"), 0.68, 0.0),  # kana
    (re.compile(r"[\uac00-\ud7af]+"), 0.64, 0.2),  # Hangul
    (re.compile(r"[\u0400-\u052f]+"), 0.16, 0.75),  # Cyrillic
    (re.compile(r"[\u0370-\u03ff\u1f00-\u1fff]+"), 0.32, 0.6),  # Greek
    (re.compile(r"[\u0590-\u07ff\ufb1d-\ufefc]+"), 0.37, 0.2),  # Hebrew, Arabic
    (re.compile(r"[\u0900-\u0dff]+"), 0.42, 0.0),  # scripts of India
    (re.compile(r"[\u0e00-\u0fff\u1780-\u17ff]+"), 0.48, 0.0),  # Thai, Lao, Tibetan, Khmer
    (re.compile(r"[\u0530-\u058f\u10a0-\u10ff]+"), 0.45, 0.0),  # Armenian, Georgian
    (re.compile(r"[\u1e00-\u1eff\u0080-\u024f]+"), 0.0, 0.0),  # Latin: counted with its words below
    (re.compile(r"[^\x00-\x7f]+"), 1.5, 0.0),  # signs, emoji, everything rarer
)

# In other languages with Latin letters words break into more pieces; these words tell English apart.
_ENGLISH = (
    " the ",
    " of ",
    " to ",
    " and ",
    " a ",
    " is ",
    " in ",
    " i ",
    " you ",
    " for ",
    " it ",
    " that ",
)
_ENGLISH_SHARE = 0.05  # of all words; in English prose they are about a quarter
SAFETY = 1.08  # a bound that is kept on paper only is none
_TOKENS_A_LETTER = 0.32


def estimated_tokens(text: str) -> int:
    """Estimate the number of tokens of `text`; in time linear in its length."""
    if text.isascii():
        return round(SAFETY * _latin_tokens(text) + 0.49)
    total, rest = 0.0, text
    for script, per_char, per_run in _SCRIPTS:
        if per_char:
            runs = script.findall(rest)
            if runs:
                total += per_char * sum(map(len, runs)) + per_run * len(runs)
                rest = script.sub(" ", rest) if per_char < 1.5 else _without_rare(rest)
    accents = len(_ACCENTED.findall(rest))
    return round(SAFETY * (total + 0.45 * accents + _latin_tokens(_ACCENTED.sub("e", rest))) + 0.49)


def _without_rare(text: str) -> str:
    return text.encode("latin-1", "ignore").decode("latin-1")


def _latin_tokens(text: str) -> float:
    classes = b" " + text.encode("latin-1", "replace").translate(_CLASSES)
    count = classes.count
    signs, capitals = count(b"."), count(b"A")
    letters = count(b"a") + capitals
    starts = len(classes.translate(_LETTERS).split())
    words = 0.95 * starts
    if starts >= 12 and signs < 0.12 * letters and _english_share(text) < _ENGLISH_SHARE:
        words = max(words, _TOKENS_A_LETTER * letters)
    # Tokenizers put a single sign and the word after it into one piece more often than not.
    before_letter = count(b".a") + count(b".A") if signs else 0
    sign_runs = signs - count(b"..") - before_letter if signs else 0
    humps = count(b"aA") if capitals else 0
    # Names such as `parseHttpBody` have long pieces that are tokens; base64 and the like have short ones.
    per_hump = 0.6 if letters > 4 * (starts + humps) else 1.7
    mixed = per_hump * humps + (0.25 * count(b"AA") if capitals else 0)
    digits = len(_DIGITS.findall(text)) if b"0" in classes else 0
    breaks = count(b"n") - count(b"nn") if b"n" in classes else 0
    indents = count(b"  ") - count(b"   ") if b"  " in classes else 0
    return (
        words
        + mixed
        + 1.1 * digits
        + 0.69 * before_letter
        + 1.06 * sign_runs
        + 0.41 * breaks
        + 0.54 * indents
    )


def _english_share(text: str) -> float:
    beginning = f" {text[:600].lower()}"
    return sum(map(beginning.count, _ENGLISH)) / (1 + beginning.count(" "))


# ──── eunoe/events.py ───────────────────────────────────────────────────────────────────────────────────────

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
    limit_source: str = Field("", description="Where the bound comes from: max_tokens, window, user, target.")
    context_window: int | None = None
    reply_reserve: int | None = None
    tokens_before: int = Field(description="Prompt tokens of everything, as counted.")
    tokens_after: int = Field(description="Prompt tokens of what was sent, as counted.")
    tokens_fixed: int = Field(description="Of these, system messages and tool definitions.")
    tokens_tools: int = Field(0, description="Of these, tool definitions.")
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


# ──── eunoe/usage.py ────────────────────────────────────────────────────────────────────────────────────────

LARGEST_FIGURE = 10**12  # tokens or money; a larger one is a fault of whoever reports it


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens and the money of one model call; None where the provider said nothing.

    `prompt_tokens` is the size of the context: cached and newly written tokens are part of it.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def is_empty(self) -> bool:
        """Say whether it tells nothing."""
        return self == Usage()


def read_usage(raw: Any) -> Usage:
    """Read a usage report: OpenAI, Anthropic, Ollama and llama.cpp shapes.

    Anthropic's `input_tokens` leave out what came from or went to the cache, so both are added; in
    all other shapes cached tokens are part of the prompt already and are never counted twice.
    """
    if not isinstance(raw, Mapping):
        return Usage()
    details = _mapping(raw.get("prompt_tokens_details")) or _mapping(raw.get("input_tokens_details"))
    cached = _first(raw, "cache_read_input_tokens", "prompt_cache_hit_tokens")
    cached = cached if cached is not None else _first(details, "cached_tokens")
    cached = cached if cached is not None else _first(raw, "cache_n")
    written = _first(raw, "cache_creation_input_tokens")
    written = (
        written if written is not None else _first(details, "cache_write_tokens", "cache_creation_tokens")
    )
    prompt = _first(raw, "prompt_tokens", "prompt_eval_count")
    if prompt is None and (evaluated := _first(raw, "prompt_n")) is not None:  # llama.cpp's timings alone
        prompt = evaluated + (_first(raw, "cache_n") or 0)
    if prompt is None:
        prompt = _first(raw, "input_tokens")
        if prompt is not None and ("cache_read_input_tokens" in raw or "cache_creation_input_tokens" in raw):
            prompt += (cached or 0) + (written or 0)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=_first(raw, "completion_tokens", "output_tokens", "eval_count", "predicted_n"),
        cached_tokens=cached,
        cache_write_tokens=written,
        cost_usd=_money(raw.get("cost")),
    )


def usage_in(event: Any) -> dict[str, Any] | None:
    """Find the usage report in a piece of a streamed answer."""
    if not isinstance(event, dict):
        return None
    response = event.get("response")
    report = event.get("usage") or (response.get("usage") if isinstance(response, dict) else None)
    return report if isinstance(report, dict) else None


def add_usages(usages: Iterable[Usage]) -> Usage:
    """Add up what several calls were billed; a figure that one of them lacks is not known for all."""
    calls = list(usages)
    return Usage(
        prompt_tokens=_total(u.prompt_tokens for u in calls),
        completion_tokens=_total(u.completion_tokens for u in calls),
        cached_tokens=_total(u.cached_tokens for u in calls),
        cache_write_tokens=_total(u.cache_write_tokens for u in calls),
        cost_usd=_total_money(u.cost_usd for u in calls),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _first(raw: Mapping[str, Any], *names: str) -> int | None:
    figures = (_figure(raw.get(name)) for name in names)
    return next((int(figure) for figure in figures if figure is not None), None)


def _money(value: Any) -> float | None:
    figure = _figure(value)
    return None if figure is None else float(figure)


def _figure(value: Any) -> int | float | None:
    """Give a number that a report can mean; None for anything else, infinity and a minus included."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= LARGEST_FIGURE:
        return value
    return None


def _total(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)


def _total_money(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)


# ──── eunoe/budget.py ───────────────────────────────────────────────────────────────────────────────────────

# A reply reserve that nobody asked for never takes more of a small window than this.
DEFAULT_RESERVE_SHARE = 0.25
# A reply asked for by name takes at most this much: the question needs room too.
ASKED_RESERVE_SHARE = 0.75


class BoundSource(StrEnum):
    """Where a bound on prompt tokens comes from."""

    NONE = "none"
    MAX_TOKENS = "max_tokens"
    WINDOW = "window"
    USER = "user"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """A hard bound on prompt tokens; 0 is no bound."""

    max_tokens: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise BadSetting("max_tokens", "it is negative", "Use 0 for no bound, or a number of tokens.")


@dataclass(frozen=True, slots=True)
class TokenTargetBudget:
    """Aims for `target_tokens`; goes above by `overshoot` at most, and never above `max_tokens` (0: no cap)."""

    target_tokens: int
    overshoot: int = 150
    max_tokens: int = 0

    def __post_init__(self) -> None:
        if self.target_tokens < 1:
            raise BadSetting("target_tokens", "it is not positive", "Use a number of tokens from 1.")


Budget = TokenBudget | TokenTargetBudget


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound on prompt tokens that holds for a request; None is no bound."""

    tokens: int | None
    source: BoundSource
    reply_reserve: int | None = None

    def tightened(self, tokens: int | None, source: BoundSource) -> Bound:
        """Give the smaller of this bound and another; 0 and None bound nothing."""
        if not tokens or (self.tokens is not None and self.tokens <= tokens):
            return self
        return Bound(tokens, source, self.reply_reserve)


def bound_of(
    budget: Budget,
    *,
    context_window: int | None = None,
    reply_tokens: int | None = None,
    reply_reserve: int = 0,
    user_max_tokens: int = 0,
    target: int | None = None,
) -> Bound:
    """Find the bound that holds, in prompt tokens.

    The reply's room comes off the window alone, since `max_tokens` bounds the prompt: a request that
    asks for `reply_tokens` gets them, any other `reply_reserve`.
    """
    reserve = reserve_of(context_window, reply_tokens, reply_reserve)
    bound = Bound(None, BoundSource.NONE, reserve)
    bound = bound.tightened(budget.max_tokens, BoundSource.MAX_TOKENS)
    if context_window and reserve is not None:
        bound = bound.tightened(context_window - reserve, BoundSource.WINDOW)
    bound = bound.tightened(user_max_tokens, BoundSource.USER)
    if isinstance(budget, TokenTargetBudget):
        bound = bound.tightened(budget.target_tokens + budget.overshoot, BoundSource.TARGET)
    return bound.tightened(target, BoundSource.TARGET)


def reserve_of(context_window: int | None, reply_tokens: int | None, reply_reserve: int) -> int | None:
    """Say how many tokens of the window are left for the reply; None if the window is not known."""
    if not context_window:
        return None
    if reply_tokens and reply_tokens > 0:
        return min(reply_tokens, int(context_window * ASKED_RESERVE_SHARE))
    return min(reply_reserve, int(context_window * DEFAULT_RESERVE_SHARE))


def read_model_budgets(text: str) -> dict[str, int]:
    """Read the JSON map of model ids, or patterns of them, to their own bound in tokens.

    Raises:
        BadSetting: it is no such map.
    """
    try:
        budgets = json.loads(text or "{}")
    except ValueError:
        budgets = None
    if not isinstance(budgets, dict) or not all(_is_budget(tokens) for tokens in budgets.values()):
        fix = 'Write it like {"gpt-5*": 32000, "llama3.1:8b": 6000}; 0 is no bound.'
        raise BadSetting("model_budgets", "it is no JSON map of model ids to whole numbers", fix)
    return budgets


def tokens_for(model: str, budgets: Mapping[str, int], otherwise: int) -> int:
    """Find a model's own bound: by its id, else by the longest pattern that fits, else the general one."""
    if model in budgets:
        return budgets[model]
    fitting = [pattern for pattern in budgets if fnmatchcase(model.lower(), pattern.lower())]
    return budgets[max(fitting, key=len)] if fitting else otherwise


def _is_budget(tokens: Any) -> bool:
    return isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0


# ──── eunoe/conversation.py ─────────────────────────────────────────────────────────────────────────────────

RawMessage = dict[str, Any]

INSTRUCTION_ROLES = frozenset({"system", "developer"})

# Keys that hold something to say even where `content` is empty.
_PAYLOAD_KEYS = ("tool_calls", "function_call", "audio", "refusal", "images", "files", "reasoning_content",
                 "reasoning_details", "thinking", "thinking_blocks")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, with what the pipeline learned of it.

    `raw` is the dictionary as it came and is never changed. `digest` names its content, `id` is the
    digest made unique within the conversation, `position` counts from 0 in the input.
    """

    raw: RawMessage
    position: int
    digest: str
    id: str
    token_count: int = 0
    base_weight: float = 1.0
    weight: float = 1.0
    pinned: bool = False
    tags: frozenset[str] = frozenset()
    excluded: bool = False

    def weighing(self, weight: float) -> Message:
        """Give the message with a weight; written out, since `replace` takes ten times as long."""
        return Message(
            self.raw,
            self.position,
            self.digest,
            self.id,
            self.token_count,
            self.base_weight,
            weight,
            self.pinned,
            self.tags,
            self.excluded,
        )

    def counting(self, tokens: int) -> Message:
        """Give the message with its number of tokens."""
        return Message(
            self.raw,
            self.position,
            self.digest,
            self.id,
            tokens,
            self.base_weight,
            self.weight,
            self.pinned,
            self.tags,
            self.excluded,
        )

    def with_raw(self, raw: RawMessage) -> Message:
        """Give the message with other content; it keeps its place and its name."""
        return replace(self, raw=raw, digest=digest_of(raw))

    @property
    def role(self) -> str:
        """Give the role as it came; unknown roles are allowed."""
        return str(self.raw.get("role") or "")

    @property
    def content(self) -> Any:
        """Give the content as it came: text, a list of parts, or nothing."""
        return self.raw.get("content")

    @property
    def text(self) -> str:
        """Give the text of all text parts."""
        return text_of(self.raw.get("content"))

    @property
    def is_instruction(self) -> bool:
        """Say whether it is a system or developer message."""
        return self.role in INSTRUCTION_ROLES

    @property
    def calls_tools(self) -> bool:
        """Say whether it asks for tool calls, in today's form or the old one."""
        return bool(self.raw.get("tool_calls") or self.raw.get("function_call"))

    @property
    def is_result(self) -> bool:
        """Say whether it is the result of a tool call."""
        return self.role in {"tool", "function"}

    @property
    def is_answer(self) -> bool:
        """Say whether it is an assistant's text that calls no tool."""
        return self.role == "assistant" and not self.calls_tools


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of one request, in order."""

    messages: tuple[Message, ...]

    @classmethod
    def from_openai_messages(cls, messages: Iterable[RawMessage]) -> Conversation:
        """Read OpenAI-style messages.

        Raises:
            BadMessages: an item is not an object.
        """
        seen: dict[str, int] = {}
        read = []
        for position, raw in enumerate(messages):
            if not isinstance(raw, dict):
                raise BadMessages(position, type(raw).__name__)
            digest = digest_of(raw)
            count = seen[digest] = seen.get(digest, 0) + 1
            read.append(Message(raw, position, digest, digest if count == 1 else f"{digest}-{count}"))
        return cls(tuple(read))

    def to_openai_messages(self) -> list[RawMessage]:
        """Give the messages as dictionaries, the same objects that came in."""
        return [message.raw for message in self.messages]

    @property
    def question(self) -> Message | None:
        """Find the newest user message."""
        return next((m for m in reversed(self.messages) if m.role == "user"), None)


def digest_of(raw: Mapping[str, Any]) -> str:
    """Name a message by its content: 16 hexadecimal digits of BLAKE2b over all its fields."""
    content = raw.get("content")
    if (
        len(raw) == 2 and "role" in raw and isinstance(content, str)
    ):  # by far the most frequent form, without JSON
        text = f"{raw.get('role')}\n{content}"
    else:
        text = json.dumps(raw, ensure_ascii=False, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def text_of(content: Any) -> str:
    """Give the text of a message's content, whatever shape it has."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text for part in content if (text := part_text(part)))
    if isinstance(content, dict):
        return part_text(content)
    return "" if content is None else str(content)


def part_text(part: Any) -> str:
    """Give the text of one content part; empty if it holds none."""
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


def is_blank(raw: Mapping[str, Any]) -> bool:
    """Say whether a message holds nothing: no text, no image, no call."""
    if any(raw.get(key) for key in _PAYLOAD_KEYS):
        return False
    content = raw.get("content")
    if isinstance(content, list):
        return all(_is_blank_part(part) for part in content)
    return not text_of(content).strip()


def with_text(raw: RawMessage, change: Any) -> RawMessage:
    """Copy a message with `change` (text to text) applied to its text; other parts stay the same objects.

    Text parts that end up empty are left out, since providers refuse them.
    """
    content = raw.get("content")
    if isinstance(content, list):
        parts = [_changed_part(part, change) for part in content]
        return {**raw, "content": [part for part in parts if part is not None]}
    if isinstance(content, dict):
        return {**raw, "content": _changed_part(content, change) or ""}
    return {**raw, "content": change(text_of(content))}


def calls_of(raw: Mapping[str, Any]) -> Sequence[Any]:
    """Give the tool calls of a message; empty if there are none or they have no sensible form."""
    calls = raw.get("tool_calls")
    return calls if isinstance(calls, list) else ()


def function_of(call: Any) -> Mapping[str, Any]:
    """Give the function part of a tool call; empty if it has none."""
    function = call.get("function") if isinstance(call, dict) else None
    return function if isinstance(function, dict) else {}


def _changed_part(part: Any, change: Any) -> Any:
    text = part_text(part)
    if not text:
        return part
    new = change(text)
    if new == text:
        return part
    if not new:
        return None
    return new if isinstance(part, str) else {**part, "text": new}


def _is_blank_part(part: Any) -> bool:
    if isinstance(part, dict) and part.get("type", "text") not in {"text", "input_text", "output_text"}:
        return False
    return not part_text(part).strip()


# ──── eunoe/cues.py ─────────────────────────────────────────────────────────────────────────────────────────

class Cue(StrEnum):
    """What a question may ask for and a text may tell."""

    TIME = "time"
    NUMBER = "number"


_ASKED = {
    Cue.TIME: re.compile(
        r"^\W*when\b|\bwhen (?:did|do|does|was|were|is|are|will|has|have|had|would|should|can)\b"
        r"|\bhow (?:long|recently)\b|\b(?:what|which) (?:date|day|week|month|year|time)\b|\bsince when\b"
    ),
    Cue.NUMBER: re.compile(
        r"\bhow (?:many|much|old|often|far|big|tall|large)\b|\b(?:what|which) (?:number|price|age|amount|version)\b"
    ),
}
_MOST_READ = 2_000  # characters of a question; what is asked stands at its beginning or its end

# "May" is no sure sign, and "evening" has the stem of "even".
_TIMES = frozenset(
    map(
        term_of,
        "yesterday today tonight tomorrow ago last next since hour day week weekend month year morning afternoon "
        "midnight noon spring summer autumn winter january february march april june july august september october "
        "november december monday tuesday wednesday thursday friday saturday sunday".split(),
    )
)
_NUMBERS = frozenset(
    map(
        term_of,
        "two three four five six seven eight nine ten eleven twelve dozen hundred thousand million twice couple "
        "several".split(),
    )
)
_YEAR = re.compile(r"(?:19|20)\d\d")
_DIGIT = re.compile(r"[0-9]")


def cues_asked(question: str) -> frozenset[Cue]:
    """Say what an English question wants to be told."""
    if len(question) > 2 * _MOST_READ:
        question = f"{question[:_MOST_READ]} {question[-_MOST_READ:]}"
    lowered = question.lower()
    return frozenset(cue for cue, pattern in _ASKED.items() if pattern.search(lowered))


def cues_told(text: str, terms: Terms) -> frozenset[Cue]:
    """Say what a text tells; `terms` are its own."""
    words = terms.counts.keys()
    numbers = [word for word in words if word[0].isdigit()] if _DIGIT.search(text) else []
    told = set()
    if not _TIMES.isdisjoint(words) or any(_YEAR.fullmatch(number) for number in numbers):
        told.add(Cue.TIME)
    if numbers or not _NUMBERS.isdisjoint(words):
        told.add(Cue.NUMBER)
    return frozenset(told)


# ──── eunoe/kinds.py ────────────────────────────────────────────────────────────────────────────────────────

# Words that name a kind, then words for what is of that kind.
_KINDS = """\
family relative: mother mom mum father dad parent sister brother sibling son daughter child kid baby wife husband
  grandmother grandma grandfather grandpa aunt uncle cousin niece nephew
parent: mother mom mum father dad
child kid: son daughter baby toddler boy girl
partner spouse relationship: wife husband girlfriend boyfriend fiance bride date marry
pet animal: dog puppy pup cat kitten rabbit hamster parrot bird fish turtle horse snake
job work career profession occupation: employer boss manager office salary hire promotion interview company
  colleague engineer teacher nurse doctor lawyer
school study education degree: college university class course exam student teacher professor graduate lecture
  thesis homework
sport: football soccer basketball baseball tennis golf hockey volleyball swim run surf ski snowboard climb skate
  box rugby cricket marathon
exercise fitness workout: gym run jog yoga swim cycle hike lift train stretch pilates
hobby activity pastime interest: paint draw read garden cook bake hike camp fish swim dance sing knit photography
  pottery guitar piano chess
food meal dish eat cuisine: breakfast lunch dinner cook bake recipe pizza pasta soup salad bread cake chicken fish
  rice cheese vegetable fruit sushi curry
dessert sweet: cake cookie pie chocolate candy pastry
drink beverage: coffee tea water juice beer wine milk soda cocktail
health medical illness condition disease: doctor hospital sick pain injury surgery diagnose medicine medication
  symptom fever allergy asthma diabetes therapy clinic
injury hurt: break sprain wound ankle knee twist accident
instrument: guitar piano violin drum flute clarinet cello saxophone
music: song band concert album singer guitar piano jazz rock
art artwork: paint draw sculpture sketch gallery museum
book: novel read author series story chapter
film movie show: watch series cinema actor director scene
game: play video console board chess card player
vehicle transport: car truck bus train bike bicycle motorcycle boat plane van
car: drive vehicle truck engine
travel trip vacation holiday visit: flight hotel airport tour beach fly abroad road
country nation: abroad usa america england france germany italy spain canada mexico japan china india brazil
  australia ireland sweden
state: california texas florida oregon washington nevada colorado arizona michigan minnesota ohio georgia alaska
  hawaii virginia
city town: london paris york chicago boston seattle berlin tokyo rome toronto barcelona
outdoor nature: hike camp park forest mountain lake beach trail river
home house live: apartment flat rent mortgage room kitchen move landlord neighbor
money financial finance cost: price pay budget salary loan dollar euro debt bank invoice rent save tax
buy purchase: shop store order new
gift present: birthday christmas buy give
event celebration: party wedding birthday festival concert conference parade ceremony anniversary
religion religious faith: church god pray bible mosque temple
feeling feel emotion mood: happy sad angry excite anxious proud afraid nervous grateful stress lonely glad upset
fear afraid: scare anxious nervous worry
volunteer charity: donate shelter fundraiser community nonprofit
plant garden: flower tree vegetable seed tomato rose
clothes clothing wear: shirt dress shoe jacket jeans hat coat
weather: rain snow sun wind storm hot cold
color colour: red blue green yellow black white purple orange pink brown
day: monday tuesday wednesday thursday friday saturday sunday
error bug problem fail issue: exception traceback crash wrong broken failure fault
database db: sqlite postgres postgresql mysql redis mongodb sql table query schema
language: python javascript typescript java rust go ruby kotlin swift english german french spanish
test: pytest assert mock coverage unittest fixture
deploy server hosting: docker kubernetes aws azure nginx container cloud vm
subject field: math physics chemistry biology history geography economics psychology philosophy law literature
qualification degree: bachelor master phd diploma certificate graduate
company firm organization: google amazon microsoft apple startup agency bank corporation business
device gadget hardware: phone laptop computer tablet camera headphone printer keyboard monitor iphone android
platform system os: linux ubuntu debian windows mac macos ios android
framework library package: react django flask fastapi pandas numpy vue angular spring rails
editor ide: vim emacs vscode pycharm
browser: chrome firefox safari edge
format file: csv json xml yaml pdf png excel markdown zip
network connection: wifi router vpn dns proxy port firewall ip
security secret credential: password token key certificate encryption login
media: facebook instagram twitter youtube tiktok blog podcast newspaper
holiday: christmas easter thanksgiving halloween hanukkah ramadan eve
season: spring summer autumn winter
month: january february march april june july august september october november december
furniture: table chair sofa couch bed desk shelf lamp cupboard
room: kitchen bedroom bathroom garage basement attic office garden
appliance: fridge oven dishwasher washer microwave kettle heater
material fabric: wood metal plastic glass cotton leather wool stone steel silk
body: arm leg head hand foot back shoulder knee heart stomach eye ear skin
diet: vegan vegetarian keto calorie protein gluten sugar weight
craft handmade: knit sew crochet pottery quilt carve clay woodwork
dance: ballet salsa tango waltz hip ballroom
politics political government: election vote president minister senator party campaign law mayor
disaster: earthquake flood hurricane fire tornado storm
loss grief death: funeral pass mourn bury memory
crime: theft steal rob police arrest jail fraud
pay payment: card cash paypal transfer invoice bank
personality character trait: kind honest brave shy patient generous funny loyal creative smart
"""


def kin_of(asked: Iterable[str]) -> frozenset[str]:
    """Give the terms for what is of a kind that one of the terms names, without the terms themselves."""
    terms = frozenset(asked)
    kinds = _kinds()
    return frozenset().union(*(kinds[term] for term in terms & kinds.keys())) - terms


@functools.cache
def _kinds() -> Mapping[str, frozenset[str]]:
    """Read the table: for each term that names a kind the terms of that kind, other names of it among them."""
    kinds: dict[str, frozenset[str]] = {}
    for line in _KINDS.replace("\n  ", " ").splitlines():
        names, _, members = line.partition(":")
        named = frozenset(map(term_of, names.split()))
        for name in named:
            kinds[name] = kinds.get(name, frozenset()) | named | frozenset(map(term_of, members.split()))
    return kinds


# ──── eunoe/sink.py ─────────────────────────────────────────────────────────────────────────────────────────

logger = logging.getLogger("eunoe")

BATCH = 100  # a run of a long chat is some hundred kilobytes of decisions
LINGER = 0.3  # seconds to wait for company before a batch leaves
IDLE = 20.0  # seconds without an event after which the thread ends; the next event starts another
RETRY_FROM, RETRY_TO = 1.0, 60.0  # seconds between attempts while the observer is away
TIMEOUT = httpx.Timeout(10.0, connect=3.0)
_GIVE_UP = frozenset({400, 404, 405, 413, 415, 422})  # the same events would be refused again


class HttpSink:
    """Sends events in batches to `POST {url}/v1/events`.

    Holds up to `limit` events while the observer is away, then gives the oldest up; how many is
    reported with the next batch that arrives. Safe to use from any thread or event loop.
    """

    def __init__(self, url: str, token: str = "", *, limit: int = 2000) -> None:
        self._url = url.rstrip("/") + "/v1/events"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._limit = limit
        self._queue: deque[RunEvent] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._delay = RETRY_FROM
        self._size = BATCH  # events of the next batch; fewer after the observer found one too large
        self._in_flight = 0  # events at the head of the queue that may have arrived already
        self.lost = 0
        self.lost_reason = ""
        self.problem = ""  # why the last attempt failed, in words for an administrator; empty if it did not

    def send(self, event: RunEvent) -> None:
        """Take one event; returns at once."""
        with self._lock:
            self._queue.append(event)
            while len(self._queue) > max(self._limit, self._in_flight):
                del self._queue[self._in_flight]
                self._count_lost(1, "the observer was away too long")
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=_run, args=(weakref.ref(self), self._wake), name="eunoe-sink", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all events have left, or `timeout` seconds; says whether they have."""
        deadline = time.monotonic() + timeout
        while self._queue and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self._queue

    def _count_lost(self, number: int, reason: str) -> None:
        self.lost += number
        self.lost_reason = reason

    def _deliver(self, client: httpx.Client) -> float:
        """Send one batch; gives the seconds to wait before the next attempt."""
        batch, written, lost = self._take()
        if not batch:
            return 0.0
        headers = {"Content-Type": "application/json", **self._headers}
        try:
            answer = client.post(self._url, content=f'{{"events":[{",".join(written)}]}}', headers=headers)
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            ValueError,
        ) as error:  # the last: a token no header can hold
            return self._failed(f"the observer can't be reached ({type(error).__name__})", None)
        if answer.is_success:
            self._delay, self.problem = RETRY_FROM, ""
            self._size = min(BATCH, self._size * 2)
            self._remove(batch, reported=lost)
            return 0.0
        problem = f"the observer answered {answer.status_code}"
        if answer.status_code == 413 and len(batch) > 1:
            self._size = len(batch) // 2
            return 0.0
        if answer.status_code in _GIVE_UP:
            self._remove(batch, gave_up=problem)
            self.problem = f"the observer refused events ({answer.status_code})"
            return 0.0
        return self._failed(problem, answer.headers.get("Retry-After"))

    def _take(self) -> tuple[list[RunEvent], list[str], int]:
        """Give the next events, as they are and as JSON, with a report of what was lost before them.

        An event that can't be written is given up; the others go on without it.
        """
        with self._lock:
            batch = [self._queue[i] for i in range(min(self._size, len(self._queue)))]
            self._in_flight = len(batch)
        good: list[RunEvent] = []
        written = []
        for event in batch:
            try:
                written.append(event.model_dump_json())
                good.append(event)
            except ValueError:  # pydantic's error for what JSON can't hold
                self._remove([event], gave_up="it could not be written")
        with self._lock:
            lost, reason = self.lost, self.lost_reason
        if lost and good:
            report = new_event(EventKind.LOST, good[0].run_id, LostBody(events=lost, reason=reason))
            written.insert(0, report.model_dump_json())
        return good, written, lost

    def _failed(self, problem: str, retry_after: str | None) -> float:
        if problem != self.problem:  # say it once, not with every attempt
            logger.warning("eunoe: %s; chats go on, up to %d events are held", problem, self._limit)
        self.problem = problem
        delay, self._delay = self._delay, min(RETRY_TO, self._delay * 2)
        with self._lock:
            self._in_flight = 0
        asked = int(retry_after[:9]) if retry_after and retry_after.isascii() and retry_after.isdigit() else 0
        return max(delay, min(RETRY_TO, float(asked)))

    def _remove(self, events: list[RunEvent], reported: int = 0, gave_up: str = "") -> None:
        """Take events off the queue: they have arrived, or are given up for a reason."""
        gone = {event.event_id for event in events}
        with self._lock:
            self._in_flight = max(0, self._in_flight - len(events))
            self._queue = deque(event for event in self._queue if event.event_id not in gone)
            self.lost -= reported
            if gave_up:
                self._count_lost(len(events), gave_up)


def _run(reference: weakref.ref[HttpSink], wake: threading.Event) -> None:
    """Deliver while the sink lives and has events; the thread must not keep a replaced sink alive."""
    with httpx.Client(timeout=TIMEOUT) as client:
        while True:
            woken = wake.wait(IDLE)
            sink = reference()
            if sink is None or (not woken and _ended(sink)):
                return
            del sink
            time.sleep(LINGER)
            wake.clear()
            delay = _deliver_all(reference, client)
            if delay:
                _rest(reference, delay)
                wake.set()


def _deliver_all(reference: weakref.ref[HttpSink], client: httpx.Client) -> float:
    while (sink := reference()) is not None and sink._queue:  # noqa: SLF001  the thread is part of the class
        if delay := sink._deliver(client):  # noqa: SLF001
            return delay
    return 0.0


def _rest(reference: weakref.ref[HttpSink], seconds: float) -> None:
    """Wait, whatever new events come in, but not for a sink that is gone."""
    deadline = time.monotonic() + seconds
    while reference() is not None and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(0.5, left))


def _ended(sink: HttpSink) -> bool:
    """End the thread if nothing is waiting; the lock keeps an event from slipping in between."""
    with sink._lock:  # noqa: SLF001
        if sink._queue:  # noqa: SLF001
            return False
        sink._thread = None  # noqa: SLF001
        return True


# ──── eunoe/pricing.py ──────────────────────────────────────────────────────────────────────────────────────

PER_MILLION = 1_000_000
_DATE = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|20\d{6})$")  # gpt-4.1-mini-2025-04-14, claude-haiku-4-5-20251001

# Fields of a price file.
_FILE_FIELDS = (
    "input_price_per_1m",
    "cached_price_per_1m",
    "cache_write_price_per_1m",
    "output_price_per_1m",
)


@dataclass(frozen=True, slots=True)
class Price:
    """USD for a million tokens; `source` says where it comes from."""

    input: float
    cached: float | None = None  # None: the provider's list has none, cached tokens are billed as input
    cache_write: float | None = None  # None: written tokens are billed as input
    output: float | None = None
    source: str = ""


def cost_of(usage: Usage, price: Price | None) -> float | None:
    """Give the cost of a call in USD; None without a price or without the figures it takes."""
    if price is None or usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    if usage.completion_tokens and price.output is None:
        return None
    cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
    plain = max(0, usage.prompt_tokens - cached - written)
    total = plain * price.input
    total += cached * (price.input if price.cached is None else price.cached)
    total += written * (price.input if price.cache_write is None else price.cache_write)
    total += usage.completion_tokens * (price.output or 0.0)
    return total / PER_MILLION


def prompt_cost(tokens: int, price: Price | None) -> float | None:
    """Give the cost of a prompt of which nothing is cached; None without a price."""
    return None if price is None else tokens * price.input / PER_MILLION


def with_cost(usage: Usage, price: Price | None) -> Usage:
    """Give a usage with its cost by the price, unless the provider has reported one."""
    return usage if usage.cost_usd is not None else replace(usage, cost_usd=cost_of(usage, price))


def cost_source(usages: Sequence[Usage], price: Price | None) -> str:
    """Say where the cost of a turn comes from: the provider, the price, or both."""
    reported = sum(usage.cost_usd is not None for usage in usages)
    by_price = price.source if price else "price"
    if reported == len(usages):
        return "provider"
    return by_price if not reported else f"provider and {by_price}"


def find_price(prices: Mapping[str, Price], model: str, aliases: Mapping[str, str]) -> Price | None:
    """Find a model's price by its id, an alias, its id without a provider before it or a date behind it.

    Ids are never cut anywhere else: `gpt-4.1` is no price for `gpt-4.1-mini`.
    """
    name = aliases.get(model, model).lower()
    for candidate in _candidates(name):
        if candidate in prices:
            return prices[candidate]
    return None


def read_aliases(text: str) -> dict[str, str]:
    """Read the JSON map of model ids to the names that prices have.

    Raises:
        BadSetting: it is no map of texts.
    """
    try:
        aliases = json.loads(text or "{}")
    except ValueError:
        aliases = None
    if not isinstance(aliases, dict) or not all(isinstance(name, str) for name in aliases.values()):
        raise BadSetting(
            "model_aliases", "it is no JSON map of texts", 'Write it like {"my.model": "gpt-4.1"}.'
        )
    return aliases


def read_price_file(path: str) -> Mapping[str, Price]:
    """Read a price file: a list of models with USD for a million tokens. Read again only when it changes.

    Raises:
        BadSetting: the file can't be read or is no price list.
    """
    try:
        stat = Path(path).stat()
        return _read_price_file(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        problem = f"{path} can't be read ({error.strerror})"
        raise BadSetting(
            "pricing_config_path", problem, "Give the path of a file that the server can read."
        ) from None


@functools.lru_cache(maxsize=8)
def _read_price_file(path: str, _changed: int, _size: int) -> Mapping[str, Price]:
    fix = 'Write a list like [{"model_id": "m", "input_price_per_1m": 0.4, "output_price_per_1m": 1.6}].'
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
        prices = {str(row["model_id"]).lower(): priced(row, _FILE_FIELDS, 1, "price file") for row in rows}
    except (ValueError, TypeError, KeyError):
        raise BadSetting("pricing_config_path", f"{path} is no price list", fix) from None
    return {name: price for name, price in prices.items() if price is not None}


def priced(
    row: Mapping[str, Any], fields: tuple[str, str, str, str], factor: int, source: str
) -> Price | None:
    """Read a price from four fields: input, cached, cache write, output; None without the first."""
    plain, cached, written, output = (_amount(row.get(field), factor) for field in fields)
    return None if plain is None else Price(plain, cached, written, output, source)


def _amount(value: Any, factor: int) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        amount = float(value) * factor
    except (ValueError, OverflowError):
        return None
    return amount if 0 <= amount < PER_MILLION else None


def _candidates(name: str) -> list[str]:
    names = [name]
    while "/" in names[-1]:
        names.append(names[-1].split("/", 1)[1])
    return [form for each in names for form in (each, _DATE.sub("", each))]


# ──── eunoe/bonds.py ────────────────────────────────────────────────────────────────────────────────────────

ORPHAN_RESULT = "orphan_result"
UNANSWERED_CALL = "unanswered_call"
EMPTY_MESSAGE = "empty_message"


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a turn that can only go as a whole: a tool call with its results, or one message."""

    messages: tuple[Message, ...]

    @property
    def is_exchange(self) -> bool:
        """Say whether it is a tool call with its results."""
        return self.messages[0].calls_tools or self.messages[0].is_result

    @property
    def tokens(self) -> int:
        """Add up the tokens of its messages."""
        return sum(message.token_count for message in self.messages)


@dataclass(frozen=True, slots=True)
class Turn:
    """A user message and all that came of it, or what stands before the first user message."""

    blocks: tuple[Block, ...]
    messages: tuple[Message, ...]  # those of all blocks, in order

    @property
    def opener(self) -> Message | None:
        """Give the user message it opens with, if any."""
        first = self.blocks[0].messages[0]
        return first if first.role == "user" else None

    @property
    def answer(self) -> Message | None:
        """Give the last text of the assistant that calls no tool."""
        texts = (b.messages[0] for b in reversed(self.blocks) if not b.is_exchange)
        return next((m for m in texts if m.is_answer), None)

    @property
    def steps(self) -> tuple[Block, ...]:
        """Give what lies between the opener and the answer."""
        ends = {id(end) for end in (self.opener, self.answer) if end is not None}
        return tuple(block for block in self.blocks if id(block.messages[0]) not in ends)


@dataclass(frozen=True, slots=True)
class Repair:
    """What `repair` did to one message: `raw` is its new form, or None if it is not sent."""

    message: Message
    raw: RawMessage | None
    reason: str


def repair(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Repair, ...]]:
    """Take out what providers refuse: results without calls, calls without results, empty replies.

    Gives the messages that remain, the changed ones with a new `raw`, and what was done to which.
    """
    outcomes: list[Message | Repair] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        if message.role == "tool":
            outcomes.append(Repair(message, None, ORPHAN_RESULT))
        elif message.role == "assistant" and message.raw.get("tool_calls"):
            end = index
            while end < len(messages) and messages[end].role == "tool":
                end += 1
            outcomes += _repaired_exchange(message, messages[index:end])
            index = end
        elif message.role == "assistant" and is_blank(message.raw):
            outcomes.append(Repair(message, None, EMPTY_MESSAGE))
        else:
            outcomes.append(message)
    repairs = tuple(outcome for outcome in outcomes if isinstance(outcome, Repair))
    return tuple(kept for outcome in outcomes if (kept := _remaining(outcome))), repairs


def _remaining(outcome: Message | Repair) -> Message | None:
    if isinstance(outcome, Message):
        return outcome
    return None if outcome.raw is None else outcome.message.with_raw(outcome.raw)


def _repaired_exchange(call: Message, results: Sequence[Message]) -> list[Message | Repair]:
    asked = [c.get("id") if isinstance(c, dict) else None for c in calls_of(call.raw)]
    answers: dict[str, Message] = {}
    for result in results:
        answered = result.raw.get("tool_call_id")
        if isinstance(answered, str) and answered in asked:
            answers.setdefault(answered, result)
    good = [i for i, name in enumerate(asked) if name in answers and asked.index(name) == i]
    whole = bool(good) and len(good) == len(asked)
    first: Message | Repair = call if whole else Repair(call, _without_calls(call.raw, good), UNANSWERED_CALL)
    kept = {id(answer) for answer in answers.values()}
    return [first, *(r if id(r) in kept else Repair(r, None, ORPHAN_RESULT) for r in results)]


def _without_calls(raw: RawMessage, good: Sequence[int]) -> RawMessage | None:
    calls = calls_of(raw)
    if good:
        return {**raw, "tool_calls": [calls[i] for i in good]}
    rest = {key: value for key, value in raw.items() if key != "tool_calls"}
    return None if is_blank(rest) else rest


def turns_of(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """Cut messages into turns; system and developer messages belong to none."""
    turns: list[list[Block]] = []
    for block in _blocks_of([m for m in messages if not m.is_instruction]):
        if not turns or block.messages[0].role == "user":
            turns.append([])
        turns[-1].append(block)
    return tuple(Turn(tuple(blocks), tuple(m for b in blocks for m in b.messages)) for blocks in turns)


def _blocks_of(messages: Sequence[Message]) -> list[Block]:
    blocks: list[list[Message]] = []
    for message in messages:
        if message.is_result and blocks and (blocks[-1][0].calls_tools or blocks[-1][0].is_result):
            blocks[-1].append(message)
        else:
            blocks.append([message])
    return [Block(tuple(block)) for block in blocks]


# ──── eunoe/flags.py ────────────────────────────────────────────────────────────────────────────────────────

class Scope(StrEnum):
    """What a flag acts on."""

    TURN = "turn"  # the turn it is written in; with + all later turns too, until -
    MESSAGE = "message"  # the message that carries it, on every later turn


@dataclass(frozen=True, slots=True)
class FlagSpec:
    """A flag users may write; `read` turns its value into a useful one or raises ValueError."""

    name: str
    scope: Scope
    effect: str
    wants: str = ""  # what its value must be; empty if it takes none
    read: Callable[[str], Any] | None = None


def _whole(minimum: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if value < minimum or value > 10_000_000:
            raise ValueError(text)
        return value

    return read


def _factor(maximum: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not math.isfinite(value) or not 0 <= value <= maximum:
            raise ValueError(text)
        return value

    return read


def _label(text: str) -> str:
    if not text or len(text) > 100:
        raise ValueError(text)
    return text


FLAGS: Mapping[str, FlagSpec] = {
    spec.name: spec
    for spec in (
        FlagSpec("full", Scope.TURN, "Send the whole history, as far as the administrator's limit allows."),
        FlagSpec(
            "target", Scope.TURN, "Aim for this many prompt tokens.", "a whole number from 1", _whole(1)
        ),
        FlagSpec(
            "context", Scope.TURN, "Send only the last so many turns.", "a whole number from 1", _whole(1)
        ),
        FlagSpec("nosum", Scope.TURN, "Make no summaries: what does not fit is left out."),
        FlagSpec(
            "recent", Scope.TURN, "Keep the last so many messages first.", "a whole number from 1", _whole(1)
        ),
        FlagSpec("keep_tag", Scope.TURN, "Keep all messages with this tag.", "a tag", _label),
        FlagSpec("tool_penalty", Scope.TURN, "Weight of tool messages.", "a number from 0 to 1", _factor(1)),
        FlagSpec(
            "pair_coherence", Scope.TURN, "Weight an answer takes over.", "a number from 0 to 1", _factor(1)
        ),
        FlagSpec("only", Scope.TURN, "Send this question without any history."),
        FlagSpec("help", Scope.TURN, "List these flags in the line above the answer."),
        FlagSpec("exclude", Scope.MESSAGE, "Send this message now, and never again with its answer."),
        FlagSpec("pin", Scope.MESSAGE, "Keep this message on all later turns."),
        FlagSpec(
            "weight", Scope.MESSAGE, "Base weight of this message.", "a number from 0 to 100", _factor(100)
        ),
        FlagSpec("tag", Scope.MESSAGE, "Name this message, for keep_tag.", "a tag", _label),
    )
}

_ITEM = re.compile(r"""([+-]?)([A-Za-z_]+)(?:=("[^"]*"|'[^']*'|[^\s,"']*))?(,|(?=\s)|$)""")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as it was written."""

    name: str
    sign: str  # "+" lasting, "-" taken back, "" neither
    value: Any = None


@dataclass(frozen=True, slots=True)
class Marks:
    """What flags ask for one message."""

    pinned: bool = False
    weight: float = 1.0
    tags: frozenset[str] = frozenset()
    excluded: bool = False


@dataclass(frozen=True, slots=True)
class Directives:
    """What all flags of a history ask for in its newest turn.

    `turn` has the values of turn flags in force, `marks` those of messages by the digest of their text
    without flags, `rejected` the flags of the newest message whose value was no good.
    """

    turn: Mapping[str, Any] = field(default_factory=dict)
    lasting: frozenset[str] = frozenset()
    marks: Mapping[str, Marks] = field(default_factory=dict)
    rejected: tuple[str, ...] = ()

    def merged(self, newer: Directives) -> Directives:
        """Give both together; where they differ the newer ones hold."""
        return Directives(
            turn={**self.turn, **newer.turn},
            lasting=self.lasting | newer.lasting,
            marks={**self.marks, **newer.marks},
            rejected=(*self.rejected, *(r for r in newer.rejected if r not in self.rejected)),
        )

    def as_plain(self) -> dict[str, Any]:
        """Write as plain dictionaries, for a host that carries them from hook to hook."""
        marks = {d: [m.pinned, m.weight, sorted(m.tags), m.excluded] for d, m in self.marks.items()}
        return {
            "turn": dict(self.turn),
            "lasting": sorted(self.lasting),
            "marks": marks,
            "rejected": [*self.rejected],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Directives:
        """Read what `as_plain` wrote."""
        marks = {
            d: Marks(pinned, weight, frozenset(tags), *rest)
            for d, (pinned, weight, tags, *rest) in plain["marks"].items()
        }
        return cls(dict(plain["turn"]), frozenset(plain["lasting"]), marks, tuple(plain["rejected"]))


def split_flags(text: str) -> tuple[tuple[Flag, ...], tuple[str, ...], str]:
    """Take the flags off the beginning of a text: the flags, the ones with a bad value, the rest.

    Text that does not begin with known flags, and text that is nothing but flags, comes back whole:
    providers refuse empty messages. Several blocks of flags may follow each other.
    """
    flags: list[Flag] = []
    rejected: list[str] = []
    rest = text
    while rest.startswith("!") and (block := _split_block(rest)):
        flags += block[0]
        rejected += block[1]
        rest = block[2]
    return tuple(flags), tuple(rejected), rest or text


def _split_block(text: str) -> tuple[list[Flag], list[str], str] | None:
    flags: list[Flag] = []
    rejected: list[str] = []
    position, more = 1, ","
    while more == ",":
        item = _ITEM.match(text, position)
        if item is None or item[2].lower() not in FLAGS:
            return None
        flag, complaint = _read_flag(FLAGS[item[2].lower()], item[1], item[3])
        flags += [flag] if flag else []
        rejected += [complaint] if complaint else []
        position, more = item.end(), item[4]
    return flags, rejected, text[position:].lstrip()


def _read_flag(spec: FlagSpec, sign: str, value: str | None) -> tuple[Flag | None, str]:
    unquoted = value[1:-1] if value and value[0] in "\"'" else value
    if sign == "-":
        return Flag(spec.name, sign), ""
    if spec.read is None:
        if unquoted is None:
            return Flag(spec.name, sign, True), ""
        return None, f"!{spec.name} takes no value"
    try:
        return Flag(spec.name, sign, spec.read(unquoted or "")), ""
    except ValueError:
        return None, f"!{spec.name} needs {spec.wants}"


def read_flags(conversation: Conversation) -> tuple[Conversation, Directives]:
    """Take the flags out of all user messages and say what they ask for in the newest turn."""
    newest = conversation.question
    turn: dict[str, Any] = {}
    lasting: dict[str, Any] = {}
    marks: dict[str, Marks] = {}
    rejected: tuple[str, ...] = ()
    raws = conversation.to_openai_messages()
    changed = False
    for message in conversation.messages:
        if message.role != "user" or not _may_have_flags(message.raw):
            continue
        flags, refused, raw = _strip(message.raw)
        if not flags and not refused:
            continue
        changed = changed or raw is not message.raw
        raws[message.position] = raw
        rejected = refused if message is newest else rejected
        for flag in flags:
            if FLAGS[flag.name].scope is Scope.MESSAGE:
                _mark(marks, flag, digest_of(raw))
            elif flag.sign == "-":
                lasting.pop(flag.name, None)
            elif flag.sign == "+":
                lasting[flag.name] = flag.value
            elif message is newest:
                turn[flag.name] = flag.value
    cleaned = Conversation.from_openai_messages(raws) if changed else conversation
    return cleaned, Directives({**lasting, **turn}, frozenset(lasting) - set(turn), marks, rejected)


def apply_marks(conversation: Conversation, marks: Mapping[str, Marks]) -> Conversation:
    """Give the messages what their flags ask for."""
    if not marks:
        return conversation
    found = ((message, marks.get(message.digest)) for message in conversation.messages)
    return Conversation(
        tuple(
            replace(
                message, pinned=mark.pinned, base_weight=mark.weight, tags=mark.tags, excluded=mark.excluded
            )
            if mark
            else message
            for message, mark in found
        )
    )


def _mark(marks: dict[str, Marks], flag: Flag, digest: str) -> None:
    """Add what one flag asks for a message; with - it is taken back from all messages before."""
    if flag.sign == "-":
        for name, old in list(marks.items()):
            marks[name] = replace(old, **_marked(old, flag.name, None))
        return
    old = marks.get(digest, Marks())
    marks[digest] = replace(old, **_marked(old, flag.name, flag.value))


def _marked(old: Marks, name: str, value: Any) -> dict[str, Any]:
    if name == "pin":
        return {"pinned": value is not None}
    if name == "exclude":
        return {"excluded": value is not None}
    if name == "weight":
        return {"weight": 1.0 if value is None else value}
    return {"tags": frozenset() if value is None else old.tags | {value}}


def _may_have_flags(raw: RawMessage) -> bool:
    content = raw.get("content")
    if isinstance(content, list):
        return _first_text(content).startswith("!")
    return isinstance(content, str) and content.startswith("!")


def _first_text(parts: Iterable[Any]) -> str:
    return next((text for part in parts if (text := part_text(part))), "")


def _strip(raw: RawMessage) -> tuple[tuple[Flag, ...], tuple[str, ...], RawMessage]:
    content = raw.get("content")
    text = _first_text(content) if isinstance(content, list) else text_of(content)
    flags, rejected, rest = split_flags(text)
    if not flags and not rejected:
        return (), (), raw
    if rest == text and isinstance(content, list) and any(not part_text(part) for part in content):
        rest = ""  # nothing but flags beside an image: the image is the message
    if rest == text:
        return flags, rejected, raw
    pending = [rest]  # only the first text part loses its flags

    def change(part: str) -> str:
        return pending.pop() if pending and part == text else part

    return flags, rejected, with_text(raw, change)


def flags_help() -> str:
    """List the flags, for a line of text."""
    names = [f"!{spec.name}" if spec.read is None else f"!{spec.name}=…" for spec in FLAGS.values()]
    return f"Flags: {' '.join(names)}. With + they last, with - they end"


# ──── eunoe/tokens.py ───────────────────────────────────────────────────────────────────────────────────────

MESSAGE_OVERHEAD = 4  # role and separators of one message in OpenAI's chat format (cookbook: 3 to 4)
TOOL_OVERHEAD = 4  # what wraps one function definition when a provider renders it

# Flat prices of parts that are not text. An image is that of a 1024 x 1024 picture at high detail for
# gpt-4o (85 + 4 x 170); audio is OpenAI's ten tokens a second at 16 kB a second.
IMAGE_TOKENS, LOW_DETAIL_IMAGE_TOKENS = 765, 85
AUDIO_BYTES_PER_TOKEN = 1600
FILE_TOKENS, FILE_BYTES_PER_TOKEN = 200, 50

# The vocabularies tiktoken keeps: file name in its cache (SHA-1 of the address) and its SHA-256.
_VOCABULARIES = {
    "o200k_base": (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
}
_CL100K_MODELS = re.compile(r"(^|[/.:])(gpt-4(-|$|:)|gpt-3\.5|gpt-35|text-embedding)", re.IGNORECASE)

# tiktoken runs out of stack on a run of a million equal signs, and slows on long ones: count in slices.
_SLICE = 20_000


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Counts the tokens of text and messages; `name` says what counts."""

    name: str
    count_text: Callable[[str], int]

    def count_message(self, raw: RawMessage) -> int:
        """Count one message: text, calls, reasoning, images and other parts, name and overhead."""
        return MESSAGE_OVERHEAD + sum(self._field_tokens(key, value) for key, value in raw.items() if value)

    def count_tools(self, tools: Sequence[Any]) -> int:
        """Count tool definitions as the JSON that a provider is sent."""
        return sum(TOOL_OVERHEAD + self.count_text(spaced_json(tool)) for tool in tools)

    def _field_tokens(self, key: str, value: Any) -> int:
        if key == "content":
            return self._content_tokens(value)
        if key in {"role", "cache_control"}:
            return 0
        if key == "images" and isinstance(value, list):  # Ollama's form
            return IMAGE_TOKENS * len(value)
        return self.count_text(value if isinstance(value, str) else spaced_json(value))

    def _content_tokens(self, content: Any) -> int:
        if isinstance(content, str):
            return self.count_text(content)
        if isinstance(content, list):
            return sum(map(self._part_tokens, content))
        return self._part_tokens(content)

    def _part_tokens(self, part: Any) -> int:
        if text := part_text(part):
            return self.count_text(text)
        if not isinstance(part, Mapping):
            return self.count_text(compact_json(part))
        kind = part.get("type")
        if kind in {"image_url", "image", "input_image"}:
            image = part.get("image_url")
            low = isinstance(image, Mapping) and image.get("detail") == "low"
            return LOW_DETAIL_IMAGE_TOKENS if low else IMAGE_TOKENS
        if kind == "input_audio":
            return max(1, _encoded_bytes(part.get("input_audio")) // AUDIO_BYTES_PER_TOKEN)
        if kind in {"file", "input_file", "document"}:
            return FILE_TOKENS + _encoded_bytes(part) // FILE_BYTES_PER_TOKEN
        return self.count_text(compact_json(part))


ESTIMATE = TokenCounter("an estimate from the text", estimated_tokens)


def counter_for(model: str) -> TokenCounter:
    """Give the best counter at hand for a model; the first call for a vocabulary takes about 0.4 s.

    Models whose tokenizer is not public are counted with o200k_base, cl100k_base, or the estimate.
    """
    wanted = ("cl100k_base", "o200k_base") if _CL100K_MODELS.search(model) else ("o200k_base", "cl100k_base")
    for name in wanted:
        if counter := _tokenizer(name):
            return counter
    return ESTIMATE


@functools.cache
def _tokenizer(name: str) -> TokenCounter | None:
    """Load a vocabulary from tiktoken's cache on disk, or say there is none."""
    if tiktoken is None or not _is_cached(*_VOCABULARIES[name]):
        return None
    encode = tiktoken.get_encoding(name).encode_ordinary

    def count(text: str) -> int:
        try:
            if len(text) <= _SLICE:
                return len(encode(text))
            return sum(len(encode(text[i : i + _SLICE])) for i in range(0, len(text), _SLICE))
        except UnicodeEncodeError:  # a lone surrogate from a broken emoji
            return estimated_tokens(text)

    return TokenCounter(f"tiktoken {name}", count)


def _is_cached(file_name: str, sha256: str) -> bool:
    """Say whether tiktoken will find an intact file; it would download a missing or a broken one."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    path = Path(folder or Path(tempfile.gettempdir(), "data-gym-cache"), file_name)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


# What was counted before, by counter and content; a count takes longer than a look-up.
_COUNTS: Memo[int] = Memo(50_000)


def message_tokens(counter: TokenCounter, digest: str, raw: RawMessage) -> int:
    """Count a message, once for each content and counter."""
    return _COUNTS.get(f"{counter.name} {digest}", lambda: counter.count_message(raw))


def spaced_json(value: Any) -> str:
    """Write a value as JSON as templates render it, with spaces: about a fifth more tokens than without."""
    return json.dumps(value, ensure_ascii=False, default=str)


def compact_json(value: Any) -> str:
    """Write a value as JSON without needless spaces; what JSON can't hold is written as text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _encoded_bytes(value: Any) -> int:
    """Find how many bytes the base64 text in a part stands for."""
    if isinstance(value, str):
        return len(value) * 3 // 4
    if isinstance(value, Mapping):
        return sum(_encoded_bytes(item) for key, item in value.items() if key not in {"type", "filename"})
    return 0


# ──── eunoe/weighting/static.py ─────────────────────────────────────────────────────────────────────────────

class StaticWeightStrategy:
    """Gives every message relevance 1, so that only flags and recency tell them apart."""

    async def score(
        self,
        messages: Sequence[Message],
        query: str,  # noqa: ARG002  part of the port
        conversation: Conversation,  # noqa: ARG002
        context: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> Mapping[str, float]:
        """Give 1 to each."""
        return {message.id: 1.0 for message in messages}

    def name(self) -> str:
        """Name the strategy."""
        return "static"


# ──── eunoe/relevance.py ────────────────────────────────────────────────────────────────────────────────────

# BM25's usual constants fit documents; on chat messages these kept more of the evidence.
_K1, _B = 0.9, 0.4

# What a message takes over of the scores of the four before it, and of the four after it.
_FROM_BEFORE, _FROM_AFTER = (0.6, 0.35, 0.2, 0.12), (0.4, 0.25, 0.12, 0.06)

# Terms a message needs to take over all of that: a short one holds little, unless it is the reply to a question.
_ROOM_FOR_LENT = 20

_STRETCH_SHARE = 0.1  # of the score of its whole stretch of conversation
_STRETCH_LENGTH = 24  # messages, where nothing marks where one ends
_SPEAKER_FACTOR = 1.8  # if the question names who wrote it
_DATE_BONUS = 0.4  # if the question names the month it was written in
_MOST_TERMS = 100  # of a question; a pasted page asks for its rarest words only
_KIN_SHARE = 0.4  # of what a word of the question counts, for a word of a kind that it names
_MOST_WITH_KIN = 40  # terms of a question; a longer one names the things themselves
_UNION_BONUS = 0.5  # more for a message that holds all the words of the question than for each of them alone
_CUE_FACTOR = 1.3  # if the question asks for a time or a number and the message tells one

_QUESTION_MARKS = frozenset("?？؟")
_END = 200  # characters

_SPEAKER = re.compile(r"\s*(?:\[[^\]\n]{4,60}\]\s*)?([^\W\d_][\w'’-]{1,24}):\s")
_HEADING = re.compile(r"\s*\[([^\]\n]{4,60})\]")
_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
           "november", "december")  # fmt: skip
_MONTH = re.compile(r"\b(" + "|".join(_MONTHS) + r")\b(?:[ ,]+(?:\d{1,2}[ ,]+)?(\d{4}))?", re.IGNORECASE)

Posting: TypeAlias = list[tuple[int, int]]  # numbers of the documents that hold a term, and how often


@dataclass(frozen=True, slots=True)
class Features:
    """What of a message is compared with questions; read once for each content."""

    terms: Terms
    speaker: str  # who a line such as `Ada: …` says is speaking; empty if there is none
    date: tuple[str, str]  # month and year of a heading such as `[8 May, 2023]`; empty if there is none
    tells: frozenset[Cue]  # what it tells below such a heading
    asks: bool  # whether there is a question at its end


_FEATURES: Memo[Features] = Memo(20_000)


def features_of(digest: str, text: str) -> Features:
    """Give the features of a text, once for each digest."""
    return _FEATURES.get(digest, lambda: _read(text))


def relevance(messages: Sequence[Features], question: str) -> list[float]:
    """Score each message against a question, from 0 to 1; the best has 1 unless nothing fits."""
    asked = read_terms(question)
    own = _own_scores([message.terms for message in messages], asked)
    scores = _scaled(with_lent(own, messages, _FROM_BEFORE, _FROM_AFTER))
    stretches = _stretches(messages)
    topics = _scaled(_stretch_scores(messages, stretches, asked)) if len(stretches) > 1 else []
    for (start, end), topic in zip(stretches, topics, strict=False):
        for i in range(start, end):
            scores[i] += _STRETCH_SHARE * topic
    _raise_speaker(scores, messages, asked)
    _raise_dates(scores, messages, question)
    _raise_telling(scores, messages, question)
    return _scaled(scores)


def bm25(documents: Sequence[Terms], query: Terms) -> list[float]:
    """Score documents by Okapi BM25 (Robertson and Zaragoza 2009), with an inverse frequency above 0."""
    scores = [0.0] * len(documents)
    for _, hits in _term_scores(documents, _rarest(_holders(documents, query.counts.keys()))):
        for i, score in hits:
            scores[i] += score
    return scores


def _own_scores(documents: Sequence[Terms], asked: Terms) -> list[float]:
    """Score documents by BM25, with a share of it for kin of the question's words; more if many words meet."""
    kin = kin_of(asked.counts) if len(asked.counts) <= _MOST_WITH_KIN else frozenset[str]()
    holders = _holders(documents, asked.counts.keys() | kin)
    own = _rarest({term: found for term, found in holders.items() if term not in kin})
    akin = [holders[term] for term in sorted(kin & holders.keys())]
    scores, met, total = [0.0] * len(documents), [0.0] * len(documents), 0.0
    for rarity, hits in _term_scores(documents, own):
        total += rarity
        for i, score in hits:
            scores[i] += score
            met[i] += rarity
    for _, hits in _term_scores(documents, akin):
        for i, score in hits:
            scores[i] += _KIN_SHARE * score
    return [s * (1 + _UNION_BONUS * m / total) if m else s for s, m in zip(scores, met, strict=True)]


def _term_scores(
    documents: Sequence[Terms], postings: Sequence[Posting]
) -> Iterator[tuple[float, list[tuple[int, float]]]]:
    """Give for each term its rarity and what it adds to the score of each document that holds it."""
    lengths = [document.length for document in documents]
    mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
    norms = [_K1 * (1 - _B + _B * length / mean) for length in lengths]
    for posting in postings:
        rarity = math.log(1 + (len(documents) - len(posting) + 0.5) / (len(posting) + 0.5))
        yield rarity, [(i, rarity * count * (_K1 + 1) / (count + norms[i])) for i, count in posting]


def _holders(documents: Sequence[Terms], wanted: Set[str]) -> dict[str, Posting]:
    """Say for each wanted term which documents hold it how often."""
    holders: dict[str, Posting] = {}
    for i, document in enumerate(documents):
        for term in wanted & document.counts.keys():  # at the speed of C, and mostly empty
            holders.setdefault(term, []).append((i, document.counts[term]))
    return holders


def _rarest(holders: Mapping[str, Posting]) -> list[Posting]:
    """Give the postings of the rarest terms, the rarest first."""
    return [holders[term] for term in sorted(holders, key=lambda t: (len(holders[t]), t))[:_MOST_TERMS]]


def with_lent(
    own: Sequence[float],
    messages: Sequence[Features],
    from_before: Sequence[float],
    from_after: Sequence[float],
) -> list[float]:
    """Add to each score a share of its neighbors', as far as a message has room for it.

    `from_before` has the shares taken of the message before, the one before that and so on.
    """
    lent = [0.0] * len(own)
    for i, score in enumerate(own):
        if score:
            for distance, share in enumerate(from_before, start=1):
                if i + distance < len(own):
                    lent[i + distance] += share * score
            for distance, share in enumerate(from_after, start=1):
                if i >= distance:
                    lent[i - distance] += share * score
    for i, message in enumerate(messages):
        if message.terms.length < _ROOM_FOR_LENT and not (i and messages[i - 1].asks):
            lent[i] *= message.terms.length / _ROOM_FOR_LENT
    return [a + b for a, b in zip(own, lent, strict=True)]


def _stretches(messages: Sequence[Features]) -> list[tuple[int, int]]:
    """Cut the chat into stretches: at dated headings where it has some, else at equal lengths."""
    marks = [i for i, message in enumerate(messages) if message.date[0]]
    if len(marks) < 2:
        marks = list(range(0, len(messages), _STRETCH_LENGTH))
    starts = marks if marks and marks[0] == 0 else [0, *marks]
    return list(zip(starts, [*starts[1:], len(messages)], strict=True))


def _stretch_scores(
    messages: Sequence[Features], stretches: Sequence[tuple[int, int]], asked: Terms
) -> list[float]:
    wanted = asked.counts.keys()
    joined = []
    for start, end in stretches:
        counts: Counter[str] = Counter()
        for message in messages[start:end]:
            for term in wanted & message.terms.counts.keys():
                counts[term] += message.terms.counts[term]
        joined.append(Terms(counts, sum(message.terms.length for message in messages[start:end])))
    return bm25(joined, asked)


def _raise_speaker(scores: list[float], messages: Sequence[Features], asked: Terms) -> None:
    """Raise what was said by the one participant whom the question names."""
    speakers = {message.speaker for message in messages if message.speaker}
    named = {speaker for speaker in speakers if set(read_terms(speaker).counts) & set(asked.counts)}
    if len(speakers) < 2 or len(named) != 1:
        return
    for i, message in enumerate(messages):
        if message.speaker in named:
            scores[i] *= _SPEAKER_FACTOR


def _raise_dates(scores: list[float], messages: Sequence[Features], question: str) -> None:
    """Raise what was written in a month that the question names, in its year if it names one."""
    wanted = {(month.lower(), year) for month, year in _MONTH.findall(question)}
    if not wanted:
        return
    month = year = ""
    for i, message in enumerate(messages):
        if message.date[0]:
            month, year = message.date
        if any(month == m and y in {"", year} for m, y in wanted):
            scores[i] += _DATE_BONUS


def _raise_telling(scores: list[float], messages: Sequence[Features], question: str) -> None:
    """Raise what tells a time or a number, if the question asks for one."""
    asked = cues_asked(question)
    for i, message in enumerate(messages if asked else ()):
        if asked & message.tells:
            scores[i] *= _CUE_FACTOR


def _scaled(scores: list[float]) -> list[float]:
    best = max(scores, default=0.0)
    return [score / best for score in scores] if best else scores


def _read(text: str) -> Features:
    speaker = _SPEAKER.match(text)
    heading = _HEADING.match(text)
    date = _MONTH.search(heading[1]) if heading else None
    terms = read_terms(text)
    body = text[heading.end() :] if heading and date else text
    return Features(
        terms,
        speaker[1] if speaker else "",
        (date[1].lower(), date[2] or "") if date else ("", ""),
        cues_told(body, terms if body is text else read_terms(body)),
        not _QUESTION_MARKS.isdisjoint(text[-_END:]),
    )


# ──── eunoe/listing.py ──────────────────────────────────────────────────────────────────────────────────────

# The names under which providers' model lists tell the context window.
_WINDOW_KEYS = ("context_length", "max_model_len", "context_window", "max_context_length", "n_ctx", "num_ctx")

# The fields of the price that OpenRouter and its kin put into their lists: USD for a token, as text.
_LIST_FIELDS = ("prompt", "input_cache_read", "input_cache_write", "completion")


def window_in(entry: Any) -> int | None:
    """Find a context window among the fields of one entry."""
    if not isinstance(entry, Mapping):
        return None
    found = (entry.get(key) for key in _WINDOW_KEYS)
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)


def listed_price(entry: Mapping[str, Any]) -> Price | None:
    """Read the price that a provider's model list names, in USD for a token; None if it names none.

    Negative prices stand for "it depends" (as for a router's `auto` model) and are none.
    """
    pricing = entry.get("pricing")
    return priced(pricing, _LIST_FIELDS, PER_MILLION, "model list") if isinstance(pricing, Mapping) else None


def nested_entries(entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Give each entry and what it holds of the provider's own; llama.cpp tells its window in `meta`."""
    for entry in entries:
        openai = entry.get("openai")
        inner = (openai, openai.get("meta") if isinstance(openai, Mapping) else None)
        for each in (entry, entry.get("meta"), *inner, entry.get("ollama")):
            if isinstance(each, Mapping):
                yield each


# ──── eunoe/settings.py ─────────────────────────────────────────────────────────────────────────────────────

ENVIRONMENT_PREFIX = "EUNOE_"
_MASKED: dict[str, Any] = {"input": {"type": "password"}}


class Settings(BaseModel):
    """All settings with their defaults."""

    model_config = ConfigDict(extra="ignore")

    max_tokens: int = Field(
        16_000,
        ge=0,
        title="Largest prompt, in tokens",
        description="No model call gets more than this: instructions, tools, memory, documents and messages "
        "together. `0` sets no bound of its own; the model's window still bounds. Open WebUI's built-in "
        "tools alone take about 5,200 tokens.",
    )
    model_budgets: str = Field(
        "{}",
        title="Largest prompt of single models",
        description='A JSON map of model ids to their own limit, such as `{"gpt-5*": 32000, "llama3.1:8b": 6000}`. '
        "`*` stands for anything; of several that fit the longest counts. Models without an entry have the limit "
        "above.",
    )
    context_window: int = Field(
        0,
        ge=0,
        title="The model's context window, in tokens",
        description="`0` takes the window from Open WebUI's model list, where the provider tells it. Set it "
        "for local models whose list does not say.",
    )
    reply_reserve: int = Field(
        2_048,
        ge=0,
        title="Room for the reply, in tokens",
        description="This much of the window stays free for the answer, at most a quarter of it. A chat that "
        "sets its own maximum for the reply gets that instead. It matters only where the window is known.",
    )
    algorithm: Literal["recency_biased", "greedy_by_weight", "dependency_aware"] = Field(
        "recency_biased",
        title="How messages are chosen",
        description="When a chat is over the limit: `recency_biased` prefers what fits the question and is "
        "recent, `greedy_by_weight` looks at the question alone, `dependency_aware` is the first with all that "
        "a chosen message belongs to.",
    )
    recency_factor: float = Field(
        1.5,
        ge=0,
        le=100,
        title="How much newer messages count",
        description="The newest message's weight is multiplied by 1 + this number, the oldest's by 1.",
    )
    weighting: Literal["smart", "keyword", "static"] = Field(
        "smart",
        title="How messages are weighed",
        description="`smart` compares words with the question, looks at what stands beside a match, who spoke "
        "and when, lends a question's weight to its answer and lowers tool messages; `keyword` only compares "
        "words; `static` weighs all alike.",
    )
    tool_penalty: float = Field(
        0.5,
        ge=0,
        le=1,
        title="Weight of tool messages",
        description="Tool calls and their results have their weight multiplied by this. `1` treats them like "
        "any other message.",
    )
    pair_coherence: float = Field(
        0.8,
        ge=0,
        le=1,
        title="Weight an answer takes over from its question",
        description="An answer weighs at least this share of what its question weighs.",
    )
    nosum_by_default: bool = Field(
        False,
        title="Make no summaries",
        description="What does not fit is left out, never summarized. People can write `!nosum` for one turn.",
    )
    show_status: bool = Field(
        True,
        title="Show a line above each answer",
        description="How many messages and tokens were sent, how much came from the provider's cache, and "
        "what went wrong. People can switch it off for themselves.",
    )
    observer_url: str = Field(
        "",
        title="Observer address",
        description="Where runs are sent to be looked at, such as `http://localhost:7456`. Empty: nothing is "
        "sent anywhere.",
    )
    observer_token: str = Field(
        "",
        title="Observer token",
        description="The token the observer was started with. Empty if it was started without one.",
        json_schema_extra=_MASKED,
    )
    observer_public_url: str = Field(
        "",
        title="Observer address for browsers",
        description="Where administrators' browsers reach the observer. Set it to have each answer's status "
        "line link to its run; only administrators see the link. Empty: no link.",
    )
    observer_content: Literal["preview", "full", "none"] = Field(
        "preview",
        title="How much text the observer gets",
        description="`preview` sends the first 200 characters of each message, `full` the whole text, `none` "
        "no text at all.",
    )
    observer_log_level: Literal["DEBUG", "INFO", "WARNING"] = Field(
        "DEBUG",
        title="What the observer gets",
        description="`DEBUG`: every run with each message's fate. `INFO`: every run, numbers only. "
        "`WARNING`: only failures.",
    )
    pricing_config_path: str = Field(
        "",
        title="Price file",
        description="Path of a JSON file on the server with prices in USD for a million tokens: a list of "
        "`model_id`, `input_price_per_1m`, `cached_price_per_1m`, `cache_write_price_per_1m`, "
        "`output_price_per_1m`. Used where the provider reports no cost. Empty: prices come from the model list "
        "where it names them, else there is no price.",
    )
    model_aliases: str = Field(
        "{}",
        title="Other names of models",
        description="A JSON map of model ids to the names they have in the price file, such as "
        '`{"my.gpt-mini": "gpt-4.1-mini"}`. A provider before the name and a date behind it need no alias.',
    )
    store_path: str = Field(
        "",
        title="Where Eunoe keeps its own data",
        description="A file path on the server; empty is a folder of its own in Open WebUI's data folder. This "
        "version keeps nothing on disk; search in dropped turns will.",
    )
    priority: int = Field(
        100,
        title="Order among filters",
        description="Filters run from the lowest number to the highest. Keep this one last, so that it "
        "counts what the others add.",
    )

    @field_validator("model_budgets", "model_aliases")
    @classmethod
    def _readable(cls, text: str, info: ValidationInfo) -> str:
        """Refuse what can't be read when it is saved, and not in the middle of a chat."""
        try:
            read_model_budgets(text) if info.field_name == "model_budgets" else read_aliases(text)
        except BadSetting as error:
            raise ValueError(f"{error.problem}. {error.fix}") from None
        return text


def environment_name(field: str) -> str:
    """Name the environment variable of a setting."""
    return ENVIRONMENT_PREFIX + field.upper()


def settings_from(environment: Mapping[str, str]) -> Settings:
    """Read settings from environment variables; what is not there or empty has its default.

    Raises:
        BadSetting: a value can't be used; names the variable.
    """
    names = {environment_name(field): field for field in Settings.model_fields}
    given = {names[name]: value for name, value in environment.items() if name in names and value != ""}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        raise BadSetting(
            environment_name(field),
            first["msg"].rstrip("."),
            f"The default is {Settings.model_fields[field].default}.",
        ) from None


# ──── eunoe/plan.py ─────────────────────────────────────────────────────────────────────────────────────────

class Fate(StrEnum):
    """What became of a message."""

    KEPT = "kept"
    COMPRESSED = "compressed"  # still there, shortened, with a note saying so
    SUMMARIZED = "summarized"  # its content lives on in a summary
    RECALLED = "recalled"  # dropped, but quoted for this question
    DROPPED = "dropped"


class Reason(StrEnum):
    """Why a message has its fate; a code to group by."""

    ALL_FIT = "all_fit"
    INSTRUCTION = "instruction"
    QUESTION = "question"
    UNFINISHED = "unfinished"
    PIN = "pin"
    TAG = "tag"
    OPENING_TASK = "opening_task"
    NEWEST_STEP = "newest_step"
    TOOL_LOOP = "tool_loop"
    LAST_TURN = "last_turn"
    RECENT = "recent"
    WEIGHT = "weight"
    PAIR = "pair"
    OLD_THINKING = "old_thinking"
    LOW_WEIGHT = "low_weight"
    NO_ROOM = "no_room"
    STEPS = "steps"
    OLDER_STEP = "older_step"
    CONTEXT_FLAG = "context_flag"
    EXCLUDED = "excluded"
    ONLY = "only"
    DUPLICATE = "duplicate"
    ORPHAN_RESULT = "orphan_result"
    UNANSWERED_CALL = "unanswered_call"
    EMPTY_MESSAGE = "empty_message"


SENTENCES: Mapping[Reason, str] = {
    Reason.ALL_FIT: "Everything fits.",
    Reason.INSTRUCTION: "System and developer messages are always sent.",
    Reason.QUESTION: "The newest question.",
    Reason.UNFINISHED: "The reply that is being continued.",
    Reason.PIN: "Pinned with !pin.",
    Reason.TAG: "Asked for with !keep_tag.",
    Reason.OPENING_TASK: "The task the chat began with.",
    Reason.NEWEST_STEP: "The newest tool call with its results.",
    Reason.TOOL_LOOP: "A tool call of the present turn.",
    Reason.LAST_TURN: "The turn before the question.",
    Reason.RECENT: "Asked for with !recent.",
    Reason.WEIGHT: "Its weight earned it a place.",
    Reason.PAIR: "Belongs to a message that is kept.",
    Reason.OLD_THINKING: "Kept without old reasoning and raw data.",
    Reason.LOW_WEIGHT: "Other turns weigh more, and the limit is reached.",
    Reason.NO_ROOM: "Too large for the room that was left.",
    Reason.STEPS: "Tool steps of an earlier turn; its question and answer are kept.",
    Reason.OLDER_STEP: "An older tool step of the present turn.",
    Reason.CONTEXT_FLAG: "Older than the turns asked for with !context.",
    Reason.EXCLUDED: "Taken out with !exclude, or the answer to such a message.",
    Reason.ONLY: "Left out by !only.",
    Reason.DUPLICATE: "The same instruction stands before it.",
    Reason.ORPHAN_RESULT: "A tool result without its call, which providers refuse.",
    Reason.UNANSWERED_CALL: "A tool call without its result, which providers refuse.",
    Reason.EMPTY_MESSAGE: "An empty reply, which providers refuse.",
}

# What is sent even where the bound is lower. All else yields to the bound.
UNYIELDING = frozenset({Reason.INSTRUCTION, Reason.QUESTION, Reason.UNFINISHED})


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one message, and why.

    `weight` is the product of `parts`. `sent` is what the model sees, None if it was dropped.
    """

    message: Message
    fate: Fate
    reason: Reason
    tokens_before: int
    tokens_after: int
    sent: RawMessage | None
    weight: float = 1.0
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one model call is sent, and why.

    Token figures are of the whole prompt: `overhead_tokens` (tool definitions, text the host adds, the
    frame of the request) and all messages. `conversation` is the input after flags were taken out.
    """

    conversation: Conversation
    decisions: tuple[Decision, ...]
    bound: Bound
    overhead_tokens: int
    tools_tokens: int
    counter: str
    algorithm: str
    weighting: str
    directives: Directives = field(default_factory=Directives)
    notices: tuple[str, ...] = ()

    @property
    def messages(self) -> list[RawMessage]:
        """Give the messages to send, in order."""
        return [decision.sent for decision in self.decisions if decision.sent is not None]

    @property
    def tokens_before(self) -> int:
        """Add up the prompt as it came."""
        return self.overhead_tokens + sum(decision.tokens_before for decision in self.decisions)

    @property
    def tokens_after(self) -> int:
        """Add up the prompt as it is sent."""
        return self.overhead_tokens + sum(decision.tokens_after for decision in self.decisions)

    @property
    def instruction_tokens(self) -> int:
        """Add up what is sent of system and developer messages."""
        return sum(d.tokens_after for d in self.decisions if d.message.is_instruction)

    @property
    def over_limit(self) -> bool:
        """Say whether what must be sent is over the bound."""
        return self.bound.tokens is not None and self.tokens_after > self.bound.tokens

    @property
    def is_trimmed(self) -> bool:
        """Say whether anything is sent otherwise than it came."""
        return any(decision.fate is not Fate.KEPT for decision in self.decisions)

    def count(self, fate: Fate) -> int:
        """Count the messages with a fate."""
        return sum(decision.fate is fate for decision in self.decisions)

    def verify(self) -> Plan:
        """Give the plan itself if it keeps all its rules.

        Raises:
            PlanBroken: it breaks at least one; a fault of ours.
        """
        if violations := [*_accounting(self), *_keeping(self), *_validity(self), *_bonds(self)]:
            raise PlanBroken(violations)
        return self


def _accounting(plan: Plan) -> list[str]:
    broken = []
    if [d.message.position for d in plan.decisions] != [m.position for m in plan.conversation.messages]:
        broken.append("not every message has exactly one decision, in order")
    for decision in plan.decisions:
        if (decision.fate is Fate.DROPPED) != (decision.sent is None) or (
            decision.sent is None and decision.tokens_after
        ):
            broken.append(f"message {decision.message.position}: fate, tokens and what is sent disagree")
        if decision.fate is Fate.KEPT and decision.sent is not decision.message.raw:
            broken.append(f"message {decision.message.position} is kept but changed")
    return broken


def _keeping(plan: Plan) -> list[str]:
    broken = []
    question, over_limit = plan.conversation.question, plan.over_limit
    for decision in plan.decisions:
        message, dropped = decision.message, decision.fate is not Fate.KEPT
        if dropped and message.is_instruction and decision.reason is not Reason.DUPLICATE:
            broken.append(f"instruction {message.position} is not kept")
        if dropped and question is not None and message.id == question.id:
            broken.append(f"the question, message {message.position}, is not kept")
        if over_limit and decision.sent is not None and decision.reason not in UNYIELDING:
            broken.append(f"over the bound with message {message.position} ({decision.reason})")
    return broken


def _validity(plan: Plan) -> list[str]:
    sent = [m for m in Conversation.from_openai_messages(plan.messages).messages if not m.is_instruction]
    given = [m for m in plan.conversation.messages if not m.is_instruction]
    _, faults = repair(sent)
    broken = [f"a provider would refuse what is sent: {fault.reason}" for fault in faults]
    if sent and given and given[0].role == "user" and sent[0].role != "user":
        broken.append("the first message is not the user's")
    return broken


def _bonds(plan: Plan) -> list[str]:
    """Check that no question of an earlier turn stands without its answer, nor an answer without its question."""
    sent = {d.message.id for d in plan.decisions if d.sent is not None}
    whole, _ = repair(plan.conversation.messages)
    broken = []
    for turn in turns_of(whole)[:-1]:
        opener, answer = turn.opener, turn.answer
        if opener and answer and (opener.id in sent) != (answer.id in sent):
            broken.append(f"the turn of message {opener.position} is torn")
    return broken


# ──── eunoe/compress.py ─────────────────────────────────────────────────────────────────────────────────────

LEAST_TOKENS = 24  # less than this says nothing: then it is better left out
_HEAD_SHARE = 2 / 3  # the beginning says more than the end (errors and totals stand at the end)

_BASE64 = re.compile(r"[A-Za-z0-9+/]{240,}={0,2}")
_REASONING = re.compile(r'<details\b[^>]*\btype="reasoning"[^>]*>.*?</details>\s*', re.DOTALL)
_RESULT_ATTRIBUTE = re.compile(r'(<details\b[^>]*\bresult=")([^"]{400,})(")')
_DETAILS = re.compile(r"<details\b.*?</details>\s*", re.DOTALL)
_TAGS = re.compile(r"</?details\b[^>]*>?")
_ATTRIBUTE_HEAD, _ATTRIBUTE_TAIL = 200, 100

# Fields of an assistant's message that hold its thinking; old ones are the first to go.
THINKING_FIELDS = ("reasoning_content", "reasoning", "thinking")

# How many items and characters a JSON value may keep, from roomy to tight.
_JSON_STEPS = ((60, 2000), (30, 800), (15, 400), (8, 200), (5, 120), (3, 80), (2, 40), (1, 24), (0, 16))


_IS_LEAN: Memo[bool] = Memo(20_000)


def is_lean(digest: str, raw: RawMessage) -> bool:
    """Say whether `lean` would leave a message as it is; looked at once for each content."""
    return _IS_LEAN.get(digest, lambda: lean(raw) is raw)


def lean(raw: RawMessage) -> RawMessage:
    """Take out of an old message what no later turn needs: thinking, base64, long results in tags.

    Gives the same object if there is nothing of the kind.
    """
    slim = {k: v for k, v in raw.items() if not (k in THINKING_FIELDS and raw.get("role") == "assistant")}
    text = text_of(slim.get("content"))
    if "<details" in text or (len(text) > 240 and _BASE64.search(text)):
        slim = with_text(slim, lambda part: fold_base64(_lean_details(part)))
    if (len(slim) == len(raw) and slim.get("content") == raw.get("content")) or is_blank(slim):
        return raw
    return slim


def shortened(raw: RawMessage, tokens: int, counter: TokenCounter) -> RawMessage | None:
    """Shorten a message's text so that it has at most `tokens`; None if that can't be done sensibly."""
    if counter.count_message(raw) <= tokens:
        return raw
    raw = lean(raw) if raw.get("role") != "user" else raw
    texts = [text for part in _parts(raw) if (text := part_text(part))]
    counts = [counter.count_text(text) for text in texts]
    fixed = counter.count_message(raw) - sum(counts)
    room = tokens - fixed
    if not texts or room < LEAST_TOKENS:
        return raw if room >= sum(counts) else None
    share = min(1.0, room / max(1, sum(counts)))
    new = with_text(raw, lambda text: shorten_text(text, int(counter.count_text(text) * share), counter))
    return new if counter.count_message(new) <= tokens else None


def shortened_call(raw: RawMessage, tokens: int, counter: TokenCounter) -> RawMessage | None:
    """Shorten the arguments of a message's tool calls, which stay JSON; None if that is not enough."""
    calls = calls_of(raw)
    texts = [str(function_of(call).get("arguments") or "") for call in calls]
    counts = [counter.count_text(text) for text in texts]
    room = tokens - (counter.count_message(raw) - sum(counts))
    share = room / max(1, sum(counts))
    short = [_shorten_json(text, int(n * share), counter) for text, n in zip(texts, counts, strict=True)]
    if not calls or room < 0 or None in short:
        return None
    new = [
        {**call, "function": {**function_of(call), "arguments": text}}
        for call, text in zip(calls, short, strict=True)
    ]
    new_raw = {**raw, "tool_calls": new}
    return new_raw if counter.count_message(new_raw) <= tokens else None


def shorten_text(text: str, tokens: int, counter: TokenCounter) -> str:
    """Shorten a text to at most `tokens`, with a note where something is missing."""
    total = counter.count_text(text)
    if total <= tokens:
        return text
    folded = fold_base64(text)
    if counter.count_text(folded) <= tokens:
        return folded
    if (short := _shorten_json(folded, tokens, counter)) is not None:
        return short
    plain = _DETAILS.sub("", folded)
    plain = plain if plain.strip() else _TAGS.sub("", folded)
    if counter.count_text(plain) <= tokens:
        return plain
    return _head_and_tail(plain, total, tokens, counter)


def fold_base64(text: str) -> str:
    """Replace long runs of base64, which tell a model nothing, by their length."""
    return _BASE64.sub(lambda run: f"[… base64, {len(run[0]):,} …]", text)


def _parts(raw: RawMessage) -> list[Any]:
    content = raw.get("content")
    return content if isinstance(content, list) else [text_of(content)]


def _lean_details(text: str) -> str:
    text = _REASONING.sub("", text)
    return _RESULT_ATTRIBUTE.sub(lambda m: m[1] + _shorten_attribute(m[2]) + m[3], text)


def _shorten_attribute(value: str) -> str:
    """Cut the middle out of an HTML attribute without cutting an entity such as `&quot;` in two."""
    head = re.sub(r"&[^;\s]{0,9}$", "", value[:_ATTRIBUTE_HEAD])
    tail = re.sub(r"^[^&;\s]{0,9};", "", value[-_ATTRIBUTE_TAIL:])
    return f"{head} [… {len(value) - len(head) - len(tail):,} …] {tail}"


def _shorten_json(text: str, tokens: int, counter: TokenCounter) -> str | None:
    """Shorten JSON so that it stays JSON; None if the text is none or does not become short enough."""
    if text.lstrip()[:1] not in {"[", "{"}:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for items, characters in _JSON_STEPS:
        short = compact_json(_pruned(value, items, characters, depth=12))
        if counter.count_text(short) <= tokens:
            return short
    return None


def _pruned(value: Any, items: int, characters: int, depth: int) -> Any:
    def inner(item: Any) -> Any:
        return _pruned(item, items, characters, depth - 1)

    if depth == 0 or (isinstance(value, str) and len(value) > characters):
        text = value if isinstance(value, str) else compact_json(value)
        if len(text) <= characters:
            return text
        return f"{text[: characters * 2 // 3]} [… {len(text) - characters:,} …] {text[-(characters // 3) :]}"
    if isinstance(value, list):
        if len(value) <= items + 1:
            return [inner(item) for item in value]
        head = items - items // 3
        tail = items // 3
        middle = f"[… {len(value) - items:,} …]"
        return [*map(inner, value[:head]), middle, *map(inner, value[len(value) - tail :])]
    if isinstance(value, dict):
        pairs = list(value.items())
        kept = {key: inner(item) for key, item in pairs[: items * 2]}
        return kept if len(pairs) <= items * 2 else {**kept, "…": len(pairs) - items * 2}
    return value


def _head_and_tail(text: str, total: int, tokens: int, counter: TokenCounter) -> str:
    """Cut the middle out so that the rest has at most `tokens`; `total` is the count of the whole."""
    share = tokens / max(1, total)
    for _ in range(12):
        short = _cut(text, int(len(text) * share), total, counter)
        count = counter.count_text(short)
        if count <= tokens:
            return short
        share *= min(0.9, tokens / count)
    return _cut(text, 0, total, counter)


def _cut(text: str, length: int, total: int, counter: TokenCounter) -> str:
    head = _whole_lines(text[: int(length * _HEAD_SHARE)], from_start=True)
    tail = _whole_lines(
        text[len(text) - (length - int(length * _HEAD_SHARE)) :] if length else "", from_start=False
    )
    missing = max(1, total - counter.count_text(head) - counter.count_text(tail))
    head = f"{head}\n```" if head.count("```") % 2 else head
    tail = f"```\n{tail}" if tail.count("```") % 2 else tail
    return f"{head}\n[… {missing:,} tokens …]\n{tail}".strip()


def _whole_lines(text: str, *, from_start: bool) -> str:
    """Cut a piece back to whole lines, or whole words, where that costs little."""
    for mark in ("\n", " "):
        at = text.rfind(mark) if from_start else text.find(mark)
        rest = text[:at] if from_start else text[at + 1 :]
        if at >= 0 and len(rest) >= 0.8 * len(text):
            return rest
    return text


# ──── eunoe/job.py ──────────────────────────────────────────────────────────────────────────────────────────

REQUEST_OVERHEAD = 3  # what primes the reply in OpenAI's chat format


@dataclass(frozen=True, slots=True)
class Request:
    """What a host knows of a model call besides its messages.

    `unseen_tokens` is text the host adds after us; `question` is the user's own words where the newest
    user message holds more than them; `directives` are flags that were taken out earlier.
    """

    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    call: int = 1
    model: str = ""
    host: str = ""
    chat_id: str | None = None
    message_id: str | None = None
    user: str | None = None
    tools: Sequence[Any] = ()
    unseen_tokens: int = 0
    reply_tokens: int | None = None
    context_window: int | None = None
    reply_reserve: int = 0
    price: Price | None = None  # None: not known
    user_max_tokens: int = 0
    question: str | None = None
    directives: Directives = field(default_factory=Directives)

    def envelope(self) -> dict[str, Any]:
        """Give what every event of this run carries."""
        return {
            "host": self.host,
            "model": _named(self.model, 300) or "",
            "chat_id": _named(self.chat_id, 200),
            "message_id": _named(self.message_id, 200),
            "user": _named(self.user, 200),
        }


@dataclass(frozen=True, slots=True)
class Job:
    """A request made ready: flags read, faults repaired, tokens counted, the bound known."""

    request: Request
    conversation: Conversation  # all messages, flags taken out
    kept: tuple[Message, ...]  # those a provider would accept, counted
    repairs: tuple[Repair, ...]
    directives: Directives
    bound: Bound
    overhead: int
    tools_tokens: int
    counter: TokenCounter
    full_refused: bool = False

    @property
    def tokens(self) -> int:
        """Add up the prompt after repairs."""
        return self.overhead + sum(message.token_count for message in self.kept)

    @property
    def must_choose(self) -> bool:
        """Say whether anything has to go."""
        over = self.bound.tokens is not None and self.tokens > self.bound.tokens
        asked = "context" in self.directives.turn or "only" in self.directives.turn
        return over or asked or any(message.excluded for message in self.kept)


def prepare(conversation: Conversation, request: Request, budget: Budget, counter: TokenCounter) -> Job:
    """Make a request ready."""
    cleaned, found = read_flags(conversation)
    directives = request.directives.merged(found)
    if full := bool(directives.turn.get("full")):
        rest = {n: v for n, v in directives.turn.items() if n not in {"target", "context", "only"}}
        directives = replace(directives, turn=rest)
    marked = apply_marks(cleaned, directives.marks)
    counted = tuple(m.counting(message_tokens(counter, m.digest, m.raw)) for m in marked.messages)
    kept, repairs = repair(counted)
    changed = {r.message.id for r in repairs}
    kept = tuple(m.counting(message_tokens(counter, m.digest, m.raw)) if m.id in changed else m for m in kept)
    tools_tokens = counter.count_tools(request.tools)
    bound = bound_of(
        budget,
        context_window=request.context_window,
        reply_tokens=request.reply_tokens,
        reply_reserve=request.reply_reserve,
        user_max_tokens=0 if full else request.user_max_tokens,
        target=directives.turn.get("target"),
    )
    overhead = REQUEST_OVERHEAD + tools_tokens + request.unseen_tokens
    return Job(
        request,
        Conversation(counted),
        kept,
        repairs,
        directives,
        bound,
        overhead,
        tools_tokens,
        counter,
        full,
    )


def _named(name: str | None, longest: int) -> str | None:
    """Give a client's name for something as an event can hold it: writable and not too long."""
    return name.encode("utf-8", "replace").decode("utf-8")[:longest] if name else None


# ──── eunoe/ports.py ────────────────────────────────────────────────────────────────────────────────────────

class WeightingStrategy(Protocol):
    """Says how much each message matters for the question."""

    async def score(
        self,
        messages: Sequence[Message],
        query: str,
        conversation: Conversation,
        context: Mapping[str, Any] | None = None,
    ) -> Mapping[str, float]:
        """Give the relevance of every message by id, from 0 to 1.

        The same input gives the same scores. A message left out counts 1. `context` has overrides of
        this turn by name, such as `tool_penalty`, and under `scope` whose chat it is: what a strategy
        remembers must never be found from another scope.
        """
        ...

    def name(self) -> str:
        """Name the strategy, for the ledger."""
        ...


@dataclass(frozen=True, slots=True)
class ConstraintSet:
    """What an algorithm must respect: `keep` are ids that stay whatever they weigh, `never` may not be chosen.

    The newest user message is always sent, so `require_last_user` can only be true.
    """

    keep: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    require_last_user: bool = True

    def __post_init__(self) -> None:
        if not self.require_last_user:
            raise BadSetting("require_last_user", "the newest user message is always sent", "Leave it out.")


@dataclass(frozen=True, slots=True)
class SelectionResult:
    """What an algorithm chose: ids to keep, and the factor by which recency raised each weight."""

    keep: frozenset[str]
    recency: Mapping[str, float] = field(default_factory=dict)


class SelectionAlgorithm(Protocol):
    """Chooses messages within a budget."""

    def select(
        self,
        conversation: Conversation,
        budget: Budget,
        constraints: ConstraintSet,
        token_counter: TokenCounter,
    ) -> SelectionResult:
        """Choose ids; the messages carry `weight` and `token_count`, the budget is for all of them.

        Pure: no input or output, the same choice for the same input. What it chooses over the budget
        or in torn turns is put right afterwards, the lowest weights first.
        """
        ...

    def name(self) -> str:
        """Name the algorithm, for the ledger."""
        ...


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What a chat model answered: `text` without its reasoning, and the calls of tools it asks for."""

    text: str
    finish_reason: str = ""  # "length" if it was cut off, empty if the endpoint does not tell
    tool_calls: Sequence[Mapping[str, Any]] = ()
    usage: Usage = field(default_factory=Usage)


class ChatModel(Protocol):
    """A model that helps: it writes summaries and labels messages. Never the chat's own answer."""

    async def complete(
        self, messages: Sequence[RawMessage], *, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> ChatReply:
        """Answer OpenAI-style messages with at most `max_tokens`.

        Raises:
            ModelFailed: there is no answer, after as many tries as the model was given.
        """
        ...

    def name(self) -> str:
        """Name the model, for the ledger and for cache keys."""
        ...


class Embedder(Protocol):
    """Turns texts into vectors that are near each other where meanings are."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Give one vector for each text, all of one length.

        Raises:
            ModelFailed: there are no vectors, after as many tries as the model was given.
        """
        ...

    def name(self) -> str:
        """Name the model, for the ledger and for cache keys."""
        ...


class Summarizer(Protocol):
    """Says in fewer words what messages say."""

    async def summarize(
        self,
        messages: Sequence[Message],
        *,
        target_ratio: float = 0.3,
        context_messages: Sequence[Message] | None = None,
    ) -> str:
        """Give a summary of about `target_ratio` of the messages' length, in their language.

        `context_messages` stand before them and are not summarized.

        Raises:
            ModelFailed: the model gave no answer.
            AnswerRefused: its answer is no summary.
        """
        ...

    def name(self) -> str:
        """Name the summarizer, for the ledger and for cache keys."""
        ...


class CacheBackend(Protocol):
    """Keeps texts by key for a while. Losing one costs making it again, so it never raises."""

    async def get(self, key: str) -> str | None:
        """Give the text of `key`, None if there is none, it has expired or the backend is out of reach."""
        ...

    async def set(self, key: str, value: str, ttl: int | None = None) -> None:
        """Keep a text, for `ttl` seconds or as long as there is room."""
        ...

    async def delete(self, key: str) -> None:
        """Forget a text."""
        ...

    async def exists(self, key: str) -> bool:
        """Say whether there is a text."""
        ...


class Sink(Protocol):
    """Takes events to where somebody can see them."""

    def send(self, event: RunEvent) -> None:
        """Take one event; returns at once, never raises, and counts what it has to give up."""
        ...


class NoSink:
    """Takes events nowhere."""

    def send(self, event: RunEvent) -> None:
        """Forget the event."""


@dataclass(slots=True)
class ListSink:
    """Keeps events in a list, for tests and for hosts that show them themselves."""

    events: list[RunEvent] = field(default_factory=list)

    def send(self, event: RunEvent) -> None:
        """Append the event."""
        self.events.append(event)


class Clock(Protocol):
    """Tells how time passes."""

    def seconds(self) -> float:
        """Give seconds from an unknown start, never going back."""
        ...


class SystemClock:
    """The machine's own clock."""

    def seconds(self) -> float:
        """Give seconds from an unknown start, never going back."""
        return time.perf_counter()


# ──── eunoe/weighting/keyword.py ────────────────────────────────────────────────────────────────────────────

FLOOR = 0.05  # what shares no word still weighs something, so that recency can tell such messages apart


class KeywordRelevanceStrategy:
    """Scores messages with BM25 against the question, scaled so that the best has 1."""

    def __init__(self, floor: float = FLOOR) -> None:
        self._floor = floor

    async def score(
        self,
        messages: Sequence[Message],
        query: str,
        conversation: Conversation,
        context: Mapping[str, Any] | None = None,  # noqa: ARG002  part of the port
    ) -> Mapping[str, float]:
        """Give `floor` to a message without a word of the question, 1 to the best."""
        return await asyncio.to_thread(keyword_scores, messages, query, conversation.question, self._floor)

    def name(self) -> str:
        """Name the strategy."""
        return "keyword"


def keyword_scores(
    messages: Sequence[Message], query: str, question: Message | None, floor: float
) -> dict[str, float]:
    """Score messages by the words they share with `query`, the best with 1."""
    return scores_of(
        messages, question, floor, lambda features: bm25([f.terms for f in features], read_terms(query))
    )


def scores_of(
    messages: Sequence[Message],
    question: Message | None,
    floor: float,
    score: Callable[[Sequence[Features]], Sequence[float]],
) -> dict[str, float]:
    """Score all but the question, which as a document would dwarf the others, and scale from `floor` to 1."""
    others = [message for message in messages if question is None or message.id != question.id]
    raw = score([features_of(message.digest, message.text) for message in others])
    best = max(raw, default=0.0)
    scores = {
        m.id: floor + (1 - floor) * s / best if best else floor for m, s in zip(others, raw, strict=True)
    }
    if question is not None:
        scores[question.id] = 1.0
    return scores


# ──── eunoe/report.py ───────────────────────────────────────────────────────────────────────────────────────

PREVIEW = 200  # characters


def plan_body(
    plan: Plan, *, call: int, elapsed_ms: float, capture: Capture, with_decisions: bool = True
) -> PlanBody:
    """Report a plan; without decisions it is numbers only."""
    bound = plan.bound
    decisions = [decision_body(d, capture) for d in plan.decisions] if with_decisions else []
    return PlanBody(
        call=call,
        algorithm=plan.algorithm,
        weighting=plan.weighting,
        limit=bound.tokens,
        limit_source=bound.source,
        reply_reserve=bound.reply_reserve,
        tokens_before=plan.tokens_before,
        tokens_after=plan.tokens_after,
        tokens_fixed=plan.overhead_tokens + plan.instruction_tokens,
        tokens_tools=plan.tools_tokens,
        counter=plan.counter,
        over_limit=plan.over_limit,
        elapsed_ms=round(elapsed_ms, 2),
        flags=flags_report(plan.directives, capture),
        notices=list(plan.notices),
        decisions=decisions,
    )


def decision_body(decision: Decision, capture: Capture) -> DecisionBody:
    """Report what became of one message."""
    message = decision.message
    text = "" if capture is Capture.NONE else writable(message.text)
    return DecisionBody(
        key=message.id,
        position=message.position,
        role=writable(message.role),
        fate=decision.fate,
        reason=decision.reason,
        why=SENTENCES[decision.reason],
        weight=round(decision.weight, 4),
        parts={name: round(value, 4) for name, value in decision.parts.items()},
        tokens_before=decision.tokens_before,
        tokens_after=decision.tokens_after,
        pinned=message.pinned,
        preview=None if capture is Capture.NONE else text[:PREVIEW],
        content=text if capture is Capture.FULL else None,
        tool_calls=_called(message),
    )


def flags_report(directives: Directives, capture: Capture) -> list[dict[str, Any]]:
    """Report the flags in force: those of the turn with their values, and how many messages are marked."""
    turn = [
        {
            "name": name,
            "value": _told(value, capture),
            "lasting": name in directives.lasting,
            "scope": str(Scope.TURN),
        }
        for name, value in directives.turn.items()
        if name in FLAGS
    ]
    pins = sum(mark.pinned for mark in directives.marks.values())
    return turn + (
        [{"name": "pin", "value": pins, "lasting": True, "scope": str(Scope.MESSAGE)}] if pins else []
    )


def _told(value: Any, capture: Capture) -> Any:
    """Give a flag's value; the name of a tag is text of the user's."""
    if not isinstance(value, str):
        return value
    return None if capture is Capture.NONE else writable(value)


def writable(text: str) -> str:
    """Give text that can be written as UTF-8: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _called(message: Message) -> list[str]:
    return [writable(str(function_of(call).get("name") or "?")) for call in calls_of(message.raw)]


# ──── eunoe/statusline.py ───────────────────────────────────────────────────────────────────────────────────

@dataclass(frozen=True, slots=True)
class Sent:
    """The figures of a plan that the line shows."""

    kept: int
    given: int
    tokens: int
    limit: int | None
    over_limit: bool
    notices: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan) -> Sent:
        """Take the figures from a plan."""
        given = [d for d in plan.decisions if not d.message.is_instruction]
        kept = sum(decision.sent is not None for decision in given)
        return cls(kept, len(given), plan.tokens_after, plan.bound.tokens, plan.over_limit, plan.notices)

    def as_plain(self) -> dict[str, Any]:
        """Write as a plain dictionary, for a host that carries it from hook to hook."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Sent:
        """Read what `as_plain` wrote."""
        return cls(**{**plain, "notices": tuple(plain["notices"])})


def status_line(sent: Sent, billed: Usage | None = None, context_tokens: int | None = None) -> str:
    """Say what was sent and, once the provider has reported, what it took.

    >>> status_line(Sent(14, 61, 7900, 10000, False, ()), Usage(7900, 50, 6162), 7900)
    'Kept 14 of 61 messages, 7.9k of 10k tokens, 78 % cached'
    """
    if sent.kept == sent.given:
        messages = f"All {sent.given} messages sent" if sent.given != 1 else "1 message sent"
    else:
        messages = f"Kept {sent.kept} of {sent.given} messages"
    tokens = short_number(context_tokens if context_tokens is not None else sent.tokens)
    limit = f" of {short_number(sent.limit)}" if sent.limit is not None else ""
    parts = [messages, f"{tokens}{limit} tokens"]
    if billed is not None:
        parts += _billed(billed)
    return ". ".join([", ".join(parts), *(notice.rstrip(".") for notice in sent.notices)])


def short_number(number: int) -> str:
    """Write a number of tokens so that it can be taken in: 950, 7.9k, 61k, 1.2M."""
    for size, mark, least in ((1_000_000, "M", 999_500), (1_000, "k", 1_000)):
        if number >= least:
            value = number / size
            return f"{value:.0f}{mark}" if value >= 99.95 or number % size == 0 else f"{value:.1f}{mark}"
    return str(number)


def _billed(billed: Usage) -> Sequence[str]:
    parts = []
    # More cached than sent is what a host's mixture of several calls looks like; it says nothing.
    if (
        billed.cached_tokens is not None
        and billed.prompt_tokens
        and billed.cached_tokens <= billed.prompt_tokens
    ):
        parts.append(f"{100 * billed.cached_tokens / billed.prompt_tokens:.0f} % cached")
    if billed.cost_usd is not None:
        parts.append(f"${billed.cost_usd:.4f}")
    return parts


# ──── eunoe/draft.py ────────────────────────────────────────────────────────────────────────────────────────

NO_LIMIT = 1 << 60
LEAST_RESULT = 40  # tokens a tool result needs to say anything


@dataclass(frozen=True, slots=True)
class Place:
    """A place given to a message: what is sent of it, at how many tokens."""

    sent: RawMessage
    tokens: int
    fate: Fate
    reason: Reason


class Draft:
    """Gives messages places while there is room. Not shared, and gone when the plan is made."""

    def __init__(self, limit: int | None, overhead: int, counter: TokenCounter) -> None:
        self.room = NO_LIMIT if limit is None else limit - overhead
        self.places: dict[str, Place] = {}
        self.refused: dict[str, Reason] = {}
        self._counter = counter

    def has(self, message: Message) -> bool:
        """Say whether a message has a place."""
        return message.id in self.places

    def keeps(self, message: Message) -> bool:
        """Say whether a message has a place and is sent as it is."""
        return self.has(message) and self.places[message.id].fate is Fate.KEPT

    def force(self, message: Message, reason: Reason) -> None:
        """Give a message its place whatever it costs."""
        if not self.has(message):
            self._put(message, self._whole(message, reason))

    def claim(self, messages: Iterable[Message], reason: Reason, within: int | None = None) -> bool:
        """Give all of them their places, whole, or none; `within` is a bound besides the room."""
        return self._claim([(m, self._whole(m, reason)) for m in messages if not self.has(m)], within)

    def claim_lean(self, messages: Iterable[Message], reason: Reason, within: int | None = None) -> bool:
        """Give all of them places without old thinking and raw data, or none."""
        return self._claim([(m, self._lean(m, reason)) for m in messages if not self.has(m)], within)

    def claim_shortened(self, messages: Iterable[Message], reason: Reason, within: int) -> bool:
        """Give all of them places, each shortened to a fair share of `within` and the room, or none.

        A tool call stays whole while it leaves its results some room: providers check its thinking.
        """
        missing = [message for message in messages if not self.has(message)]
        total = min(within, self.room)
        calls = {m.id: m.token_count for m in missing if m.calls_tools}
        least = LEAST_RESULT * (len(missing) - len(calls))
        whole = calls if sum(calls.values()) + least <= total else {}
        rest = {m.id: m.token_count for m in missing if m.id not in whole}
        shares = whole | fair_shares(rest, total - sum(whole.values()))
        places: list[tuple[Message, Place]] = []
        for message in missing:
            place = self._shortened(message, reason, shares[message.id])
            if place is None:
                return False
            places.append((message, place))
        return self._claim(places, within)

    def claim_pair(self, whole: Message, partner: Message | None, reason: Reason, partner_share: int) -> bool:
        """Give a message its place, whole, and its partner one too, shortened to `partner_share` if need be."""
        if partner is None or self.has(partner):
            return self.claim([whole], reason)
        places = [] if self.has(whole) else [(whole, self._whole(whole, reason))]
        left = self.room - sum(place.tokens for _, place in places)
        reason = Reason.PAIR
        if partner.token_count <= min(partner_share, left):
            return self._claim([*places, (partner, self._whole(partner, reason))], None)
        place = self._shortened(partner, reason, min(partner_share, left))
        return place is not None and self._claim([*places, (partner, place)], None)

    def refuse(self, messages: Iterable[Message], reason: Reason) -> None:
        """Say why messages get no place; the first reason holds."""
        for message in messages:
            if not self.has(message):
                self.refused.setdefault(message.id, reason)

    def _claim(self, places: list[tuple[Message, Place]], within: int | None) -> bool:
        cost = sum(place.tokens for _, place in places)
        if cost > self.room or (within is not None and cost > within):
            return False
        for message, place in places:
            self._put(message, place)
        return True

    def _put(self, message: Message, place: Place) -> None:
        self.places[message.id] = place
        self.room -= place.tokens

    def _whole(self, message: Message, reason: Reason) -> Place:
        return Place(message.raw, message.token_count, Fate.KEPT, reason)

    def _lean(self, message: Message, reason: Reason) -> Place:
        raw = lean(message.raw)
        if raw is message.raw:
            return self._whole(message, reason)
        return Place(
            raw, message_tokens(self._counter, digest_of(raw), raw), Fate.COMPRESSED, Reason.OLD_THINKING
        )

    def _shortened(self, message: Message, reason: Reason, tokens: int) -> Place | None:
        if message.token_count <= tokens:
            return self._whole(message, reason)
        if tokens < LEAST_TOKENS:
            return None
        shorten = shortened_call if message.calls_tools else shortened
        raw = shorten(message.raw, tokens, self._counter)
        if raw is None:
            return None
        return Place(raw, self._counter.count_message(raw), Fate.COMPRESSED, reason)


def fair_shares(wants: Mapping[str, int], total: int) -> dict[str, int]:
    """Share `total` out: who wants less than an equal share gets it whole, the others split the rest."""
    shares: dict[str, int] = {}
    left, waiting = total, sorted(wants, key=lambda name: wants[name])
    while waiting:
        name = waiting.pop(0)
        shares[name] = min(wants[name], max(0, left) // (len(waiting) + 1))
        left -= shares[name]
    return shares


# ──── eunoe/algorithms/greedy.py ────────────────────────────────────────────────────────────────────────────

class GreedyByWeightAlgorithm:
    """Takes turns by weight, whole or without their tool steps, and skips what does not fit."""

    def select(
        self,
        conversation: Conversation,
        budget: Budget,
        constraints: ConstraintSet,
        token_counter: TokenCounter,  # noqa: ARG002  part of the port; the messages carry their counts
    ) -> SelectionResult:
        """Choose by the messages' weights."""
        return SelectionResult(fill_by_weight(conversation, budget, constraints, {}))

    def name(self) -> str:
        """Name the algorithm."""
        return "greedy_by_weight"


def turn_weight(turn: Turn, recency: Mapping[str, float]) -> float:
    """Give a turn the weight of its heaviest message, raised by recency."""
    return max(message.weight * recency.get(message.id, 1.0) for message in turn.messages)


def fill_by_weight(
    conversation: Conversation, budget: Budget, constraints: ConstraintSet, recency: Mapping[str, float]
) -> frozenset[str]:
    """Fill the budget with turns, the heaviest first; of two alike the newer."""
    kept = set(constraints.keep)
    spent = sum(m.token_count for m in conversation.messages if m.id in kept)
    limit = bound_of(budget).tokens
    room = None if limit is None else limit - spent
    turns = turns_of(conversation.messages)
    for turn in sorted(turns, key=lambda t: (turn_weight(t, recency), t.messages[0].position), reverse=True):
        for part in forms_of(turn):
            new = [m for m in part if m.id not in kept]
            if any(m.id in constraints.never for m in new):
                continue
            cost = sum(m.token_count for m in new)
            if room is None or cost <= room:
                kept |= {m.id for m in new}
                room = None if room is None else room - cost
                break
    return frozenset(kept)


def forms_of(turn: Turn) -> tuple[tuple[Message, ...], ...]:
    """Give the forms a turn may be kept in: whole, then its question and answer alone."""
    ends = tuple(message for message in (turn.opener, turn.answer) if message is not None)
    return (turn.messages, ends) if ends and len(ends) < len(turn.messages) else (turn.messages,)


# ──── eunoe/weighting/smart.py ──────────────────────────────────────────────────────────────────────────────

# Evidence kept rose with the power; from 3 on hardly. The newest messages count as a third more relevant then.
SHARPNESS = 3
LEAST = 0.001  # of what has nothing of the question, so that base weight and recency tell such messages apart


class SmartWeightingStrategy:
    """Multiplies relevance, raised to the question's for answers, by a penalty for tool messages.

    relevance = max(own, pair_coherence x that of the question before) x tool_penalty where it is a tool
    message or calls one; `own` looks at words, neighbors, the stretch, who spoke and when, and is `sharpened`.
    """

    def __init__(self, tool_penalty: float = 0.5, pair_coherence: float = 0.8, floor: float = LEAST) -> None:
        self._tool_penalty, self._pair_coherence, self._floor = tool_penalty, pair_coherence, floor

    async def score(
        self,
        messages: Sequence[Message],
        query: str,
        conversation: Conversation,
        context: Mapping[str, Any] | None = None,
    ) -> Mapping[str, float]:
        """Give each message its relevance; `context` may override `tool_penalty` and `pair_coherence`."""
        overrides = context or {}
        penalty = float(overrides.get("tool_penalty", self._tool_penalty))
        coherence = float(overrides.get("pair_coherence", self._pair_coherence))
        fitting = await asyncio.to_thread(
            scores_of, messages, conversation.question, self._floor, sharpened(query)
        )
        scores, asked = {}, 0.0
        for message in messages:
            own = fitting[message.id]
            if message.role == "user":
                asked = own
            elif not message.is_instruction:
                own = max(own, coherence * asked)
            is_tool = message.is_result or message.calls_tools
            scores[message.id] = own * penalty if is_tool else own
        return scores

    def name(self) -> str:
        """Name the strategy."""
        return "smart"


def sharpened(query: str) -> Callable[[Sequence[Features]], list[float]]:
    """Score by a power of relevance, so that recency, which comes on top, decides between what fits alike only."""
    return lambda features: [score**SHARPNESS for score in relevance(features, query)]


# ──── eunoe/anchors.py ──────────────────────────────────────────────────────────────────────────────────────

# Shares of the room that is left when their turn comes.
NEWEST_STEP_SHARE = 0.8
LAST_TURN_SHARE = 0.6
OPENING_SHARE = 0.25
PARTNER_SHARE = 0.12  # for the answer to a pinned or opening message, which is shortened to it
LEAST_PARTNER = 60


@dataclass(frozen=True, slots=True)
class Layout:
    """A conversation cut up: instructions, the turns before the question, the present turn."""

    instructions: tuple[Message, ...]
    earlier: tuple[Turn, ...]
    present: Turn | None

    @property
    def unfinished(self) -> Message | None:
        """Find the reply that is being continued: an assistant's text at the very end."""
        if self.present is None:
            return None
        message = self.present.blocks[-1].messages[-1]
        return message if message.is_answer else None

    @property
    def steps(self) -> tuple[Block, ...]:
        """Give what the present turn holds besides the question and the unfinished reply."""
        if self.present is None:
            return ()
        ends = {id(self.present.opener), id(self.unfinished)}
        return tuple(block for block in self.present.blocks if id(block.messages[0]) not in ends)


def layout_of(instructions: Sequence[Message], turns: Sequence[Turn]) -> Layout:
    """Lay a conversation out; the last turn is the present one."""
    return Layout(tuple(instructions), tuple(turns[:-1]), turns[-1] if turns else None)


def place_anchors(draft: Draft, layout: Layout, directives: Directives) -> None:
    """Give places to what is kept before anything is weighed, the most needed first."""
    for message in layout.instructions:
        draft.force(message, Reason.INSTRUCTION)
    _place_ends(draft, layout)
    layout = _without_refused(draft, layout, directives)
    context = directives.turn.get("context")
    # The present turn is one of the turns that !context counts.
    too_old = 0 if context is None else max(0, len(layout.earlier) + 1 - context)
    _place_newest_step(draft, layout)
    _place_pinned(draft, layout, directives)
    if layout.earlier and too_old == 0:
        _place_opening(draft, layout)
    _place_steps(draft, layout)
    _place_recent(draft, layout, directives)
    if too_old < len(layout.earlier):
        _place_last_turn(draft, layout.earlier[-1])
    for turn in layout.earlier[:too_old]:
        draft.refuse(turn.messages, Reason.CONTEXT_FLAG)


def _without_refused(draft: Draft, layout: Layout, directives: Directives) -> Layout:
    """Refuse the turns that flags take out, whatever else speaks for them."""
    remaining = []
    for turn in layout.earlier:
        if "only" in directives.turn:
            draft.refuse(turn.messages, Reason.ONLY)
        elif any(message.excluded for message in turn.messages):
            draft.refuse(turn.messages, Reason.EXCLUDED)
        else:
            remaining.append(turn)
    return replace(layout, earlier=tuple(remaining))


def _place_ends(draft: Draft, layout: Layout) -> None:
    if layout.present is None:
        return
    if layout.present.opener is not None:
        draft.force(layout.present.opener, Reason.QUESTION)
    if layout.unfinished is not None:
        draft.force(layout.unfinished, Reason.UNFINISHED)


def _place_newest_step(draft: Draft, layout: Layout) -> None:
    if not layout.steps:
        return
    newest = layout.steps[-1].messages
    if draft.claim(newest, Reason.NEWEST_STEP):
        return
    if not draft.claim_shortened(newest, Reason.NEWEST_STEP, within=int(draft.room * NEWEST_STEP_SHARE)):
        draft.claim_shortened(newest, Reason.NEWEST_STEP, within=draft.room)
    draft.refuse(newest, Reason.NO_ROOM)


def _place_steps(draft: Draft, layout: Layout) -> None:
    """Keep the older steps of the present turn as far back as they fit, without a gap."""
    going = True
    for block in reversed(layout.steps[:-1]):
        going = going and draft.claim(block.messages, Reason.TOOL_LOOP)
        draft.refuse(block.messages, Reason.OLDER_STEP)


def _place_pinned(draft: Draft, layout: Layout, directives: Directives) -> None:
    tag = directives.turn.get("keep_tag")
    for turn in reversed(layout.earlier):
        for message in turn.messages:
            tagged = tag is not None and tag in message.tags
            if message.pinned or tagged:
                _place_with_partner(draft, turn, message, Reason.PIN if message.pinned else Reason.TAG)


def _place_opening(draft: Draft, layout: Layout) -> None:
    first = layout.earlier[0]
    opener = first.opener or (layout.earlier[1].opener if len(layout.earlier) > 1 else None)
    if opener is None:
        return
    turn = first if first.opener else layout.earlier[1]
    share = int(draft.room * OPENING_SHARE)
    if opener.token_count <= share:
        _place_with_partner(draft, turn, opener, Reason.OPENING_TASK)
    else:
        ends = [opener] if turn.answer is None else [opener, turn.answer]
        draft.claim_shortened(ends, Reason.OPENING_TASK, within=share)


def _place_with_partner(draft: Draft, turn: Turn, message: Message, reason: Reason) -> None:
    partner = turn.answer if message is turn.opener else turn.opener
    share = max(LEAST_PARTNER, int(draft.room * PARTNER_SHARE))
    draft.claim_pair(message, partner, reason, share)


def _place_recent(draft: Draft, layout: Layout, directives: Directives) -> None:
    """Keep the turns that hold the last so many messages, the newest first, while they fit."""
    wanted = directives.turn.get("recent", 0) - (len(layout.present.messages) if layout.present else 0)
    for turn in reversed(layout.earlier):
        if wanted <= 0 or not draft.claim(turn.messages, Reason.RECENT):
            break
        wanted -= len(turn.messages)


def _place_last_turn(draft: Draft, turn: Turn) -> None:
    """Keep the turn before the question: whole, or its question and answer with shortened tool steps.

    A tool's newest results are what the question is likely about: with them it may take all the room.
    """
    has_results = any(block.is_exchange for block in turn.steps)
    share = draft.room if has_results else int(draft.room * LAST_TURN_SHARE)
    if draft.claim(turn.messages, Reason.LAST_TURN, within=share):
        return
    if draft.claim_lean(turn.messages, Reason.LAST_TURN, within=share):
        return
    if not _place_last_pair(draft, turn):
        return
    for block in reversed(turn.steps):
        if not draft.claim_shortened(block.messages, Reason.LAST_TURN, within=int(draft.room * 0.5)):
            break
    draft.refuse(turn.messages, Reason.STEPS)


def _place_last_pair(draft: Draft, turn: Turn) -> bool:
    ends = [message for message in (turn.opener, turn.answer) if message is not None]
    if draft.claim(ends, Reason.LAST_TURN) or draft.claim_lean(ends, Reason.LAST_TURN):
        return bool(ends)
    return draft.claim_shortened(ends, Reason.LAST_TURN, within=int(draft.room * LAST_TURN_SHARE))


# ──── eunoe/algorithms/recency.py ───────────────────────────────────────────────────────────────────────────

class RecencyBiasedAlgorithm:
    """Multiplies each weight by 1 + recency_factor x position, from 0 for the oldest to 1 for the newest."""

    def __init__(self, recency_factor: float = 1.5) -> None:
        self._factor = recency_factor

    def select(
        self,
        conversation: Conversation,
        budget: Budget,
        constraints: ConstraintSet,
        token_counter: TokenCounter,  # noqa: ARG002  part of the port; the messages carry their counts
    ) -> SelectionResult:
        """Choose by weight and recency."""
        last = max(1, len(conversation.messages) - 1)
        recency = {m.id: 1 + self._factor * i / last for i, m in enumerate(conversation.messages)}
        return SelectionResult(fill_by_weight(conversation, budget, constraints, recency), recency)

    def name(self) -> str:
        """Name the algorithm."""
        return "recency_biased"


# ──── eunoe/selection.py ────────────────────────────────────────────────────────────────────────────────────

def weigh(job: Job, scores: Mapping[str, float]) -> tuple[Message, ...]:
    """Give each message its weight: base times relevance. Recency comes with the choice."""
    return tuple(m.weighing(m.base_weight * scores.get(m.id, 1.0)) for m in job.kept)


def keep_all(job: Job) -> Draft:
    """Give every message its place."""
    draft = Draft(None, job.overhead, job.counter)
    draft.claim(job.kept, Reason.ALL_FIT)
    return draft


def refuse_duplicates(draft: Draft, layout: Layout) -> None:
    """Refuse instructions that stand word for word before; providers would bill them twice."""
    seen: set[str] = set()
    for message in layout.instructions:
        if message.digest in seen:
            draft.refuse([message], Reason.DUPLICATE)
        seen.add(message.digest)


def fill(draft: Draft, layout: Layout, choice: SelectionResult) -> None:
    """Give the chosen turns their places, the heaviest first, and name the reason for all others."""
    turns = sorted(
        layout.earlier, key=lambda t: (turn_weight(t, choice.recency), t.messages[0].position), reverse=True
    )
    for turn in turns:
        if any(message.id in choice.keep for message in turn.messages):
            place_turn(draft, turn, choice)
    for turn in turns:
        if draft.room >= LEAST_TOKENS:
            _place_lean(draft, turn)
        _refuse_rest(draft, turn)


def place_turn(draft: Draft, turn: Turn, choice: SelectionResult) -> None:
    """Give a turn its places, as much of it as was chosen but never a question without its answer."""
    forms = forms_of(turn)
    whole = all(m.id in choice.keep or draft.has(m) for m in turn.messages)
    usable = [
        form for form in (forms if whole else forms[-1:]) if not any(m.id in draft.refused for m in form)
    ]
    if not any(draft.claim(form, Reason.WEIGHT) for form in usable):
        return
    for block in turn.blocks:
        if all(m.id in choice.keep and m.id not in draft.refused for m in block.messages):
            draft.claim(block.messages, Reason.WEIGHT)


def _place_lean(draft: Draft, turn: Turn) -> None:
    """Keep a turn that did not fit whole without its thinking and raw data, if that fits."""
    ends = forms_of(turn)[-1]
    if any(draft.has(m) or m.id in draft.refused for m in ends) or all(
        is_lean(m.digest, m.raw) for m in ends
    ):
        return
    draft.claim_lean(ends, Reason.PAIR)


def _refuse_rest(draft: Draft, turn: Turn) -> None:
    """Name the reason for what got no place: the rest of a kept turn, or a turn the others outweigh."""
    if any(draft.has(message) for message in turn.messages):
        draft.refuse(turn.messages, Reason.STEPS)
    draft.refuse([message for message in turn.messages if message.pinned], Reason.NO_ROOM)
    draft.refuse(turn.messages, Reason.LOW_WEIGHT)


def finish(
    job: Job,
    draft: Draft,
    scores: Mapping[str, float],
    recency: Mapping[str, float],
    names: tuple[str, str],
) -> Plan:
    """Write the plan down, one decision for each message; `names` are those of algorithm and weighting."""
    repairs = {r.message.id: r for r in job.repairs}
    weight = {m.id: _weight_parts(m, scores, recency) for m in job.conversation.messages}
    decisions = [_decision(m, draft, repairs.get(m.id), weight[m.id]) for m in job.conversation.messages]
    return Plan(
        conversation=job.conversation,
        decisions=tuple(decisions),
        bound=job.bound,
        overhead_tokens=job.overhead,
        tools_tokens=job.tools_tokens,
        counter=job.counter.name,
        algorithm=names[0],
        weighting=names[1],
        directives=job.directives,
        notices=_notices(job, draft),
    )


def _weight_parts(
    message: Message, scores: Mapping[str, float], recency: Mapping[str, float]
) -> dict[str, float]:
    parts = {"base": message.base_weight}
    if message.id in scores:
        parts["relevance"] = scores[message.id]
    if message.id in recency:
        parts["recency"] = recency[message.id]
    return parts


def _decision(message: Message, draft: Draft, fault: Repair | None, parts: Mapping[str, float]) -> Decision:
    weight = 1.0
    for part in parts.values():
        weight *= part
    place = draft.places.get(message.id)
    if place is None:
        reason = Reason(fault.reason) if fault else draft.refused.get(message.id, Reason.NO_ROOM)
        return Decision(message, Fate.DROPPED, reason, message.token_count, 0, None, weight, parts)
    fate, reason = place.fate, place.reason
    if fault is not None:
        fate = Fate.COMPRESSED
        reason = reason if reason in UNYIELDING else Reason(fault.reason)
    return Decision(message, fate, reason, message.token_count, place.tokens, place.sent, weight, parts)


def _notices(job: Job, draft: Draft) -> tuple[str, ...]:
    notices = [*job.directives.rejected]
    if "help" in job.directives.turn:
        notices.append(flags_help())
    if draft.room < 0:
        notices.append("The question and the instructions alone are over the limit.")
    if job.full_refused and job.must_choose:
        notices.append("!full: the whole history is over the limit.")
    asked_for = {Reason.ONLY, Reason.EXCLUDED}
    unkept = [m for m in job.kept if m.pinned and not draft.keeps(m)]
    if any(draft.refused.get(m.id) not in asked_for for m in unkept):
        notices.append("Not all pinned messages fit.")
    return tuple(notices)


# ──── eunoe/algorithms/dependency.py ────────────────────────────────────────────────────────────────────────

class DependencyAwareAlgorithm:
    """Adds to what `inner` chose: the question an answer belongs to, the call of a result, the results of a call.

    What goes over the budget by that is taken back afterwards, the lightest turns first.
    """

    def __init__(self, inner: SelectionAlgorithm | None = None) -> None:
        self._inner = inner or RecencyBiasedAlgorithm()

    def select(
        self,
        conversation: Conversation,
        budget: Budget,
        constraints: ConstraintSet,
        token_counter: TokenCounter,
    ) -> SelectionResult:
        """Choose as `inner` does, then complete."""
        chosen = self._inner.select(conversation, budget, constraints, token_counter)
        keep = set(chosen.keep)
        for turn in turns_of(conversation.messages):
            if not any(m.id in keep for m in turn.messages):
                continue
            keep |= {end.id for end in (turn.opener, turn.answer) if end is not None}
            for block in turn.blocks:
                if any(m.id in keep for m in block.messages):
                    keep |= {m.id for m in block.messages}
        return SelectionResult(frozenset(keep) - constraints.never, chosen.recency)

    def name(self) -> str:
        """Name the algorithm."""
        return "dependency_aware"


# ──── eunoe/orchestrator.py ─────────────────────────────────────────────────────────────────────────────────

@dataclass(frozen=True, slots=True)
class OrchestratorResult:
    """What to send, and the plan that says why."""

    conversation: Conversation
    plan: Plan
    run_id: str
    token_count: int
    estimated_cost_usd: float | None = None  # None: no price is known


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a turn really took: `context_tokens` of its last call, the rest summed over all calls."""

    context_tokens: int | None
    billed: Usage  # with the cost by a price where the provider reported none
    calls: int
    cost_source: str | None = None  # None: the cost is not known


class ContextOrchestrator:
    """Decides what the model will see. Holds no state of a chat, so one may serve many at once."""

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        algorithm: SelectionAlgorithm | None = None,
        weighting: WeightingStrategy | None = None,
        constraints: ConstraintSet | None = None,
        model_budgets: Mapping[str, int] | None = None,
        sink: Sink | None = None,
        capture: Capture = Capture.PREVIEW,
        log_level: str = "DEBUG",
        clock: Clock | None = None,
    ) -> None:
        self.budget = budget or TokenBudget()
        self.algorithm = algorithm or RecencyBiasedAlgorithm()
        self.weighting = weighting or SmartWeightingStrategy()
        self.constraints = constraints or ConstraintSet()
        self.model_budgets = model_budgets or {}
        self.sink = sink or NoSink()
        self.capture, self.log_level = capture, log_level
        self.clock = clock or SystemClock()

    @classmethod
    def from_settings(cls, settings: Settings, sink: Sink | None = None) -> ContextOrchestrator:
        """Build one as the settings say."""
        return cls(
            TokenBudget(settings.max_tokens),
            algorithm=_algorithm_of(settings),
            weighting=_weighting_of(settings),
            model_budgets=read_model_budgets(settings.model_budgets),
            sink=sink,
            capture=Capture(settings.observer_content),
            log_level=settings.observer_log_level,
        )

    async def process(self, conversation: Conversation, request: Request | None = None) -> OrchestratorResult:
        """Choose what the model will see, and say why.

        Raises:
            EunoeError: the input is no conversation, or a plan broke one of its rules.
        """
        request = request or Request()
        started = self.clock.seconds()
        job, plan = await asyncio.to_thread(self._begin, conversation, request)
        if plan is None:
            scores = await self._scores(job)
            plan = await asyncio.to_thread(self._plan, job, scores)
        self._report(plan, request, len(conversation.messages), (self.clock.seconds() - started) * 1000)
        return OrchestratorResult(
            Conversation.from_openai_messages(plan.messages),
            plan,
            request.run_id,
            plan.tokens_after,
            prompt_cost(plan.tokens_after, request.price),
        )

    def note_usage(self, request: Request, usage: Usage) -> None:
        """Report what the provider said of one model call."""
        body = UsageBody(
            call=request.call,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cost_usd=usage.cost_usd,
        )
        self._send(EventKind.USAGE, request, body)

    def settle(
        self, request: Request, usages: Sequence[Usage], elapsed_ms: float | None = None
    ) -> Settlement:
        """Close a turn with what the provider reported for each of its model calls."""
        priced = [with_cost(usage, request.price) for usage in usages]
        billed = add_usages(priced)
        context = usages[-1].prompt_tokens if usages else None
        source = None if billed.cost_usd is None else cost_source(usages, request.price)
        body = OutletBody(
            calls=request.call,
            prompt_tokens=context,
            billed_prompt_tokens=billed.prompt_tokens,
            completion_tokens=billed.completion_tokens,
            cached_tokens=billed.cached_tokens,
            cost_usd=billed.cost_usd,
            cost_source=source,
            elapsed_ms=elapsed_ms,
        )
        self._send(EventKind.OUTLET, request, body)
        return Settlement(context, billed, request.call, source)

    async def _scores(self, job: Job) -> Mapping[str, float]:
        question = job.conversation.question
        query = job.request.question or (question.text if question else "")
        overrides = job.directives.turn
        return await self.weighting.score(job.kept, query, job.conversation, overrides)

    def _begin(self, conversation: Conversation, request: Request) -> tuple[Job, Plan | None]:
        """Make the request ready, and plan it at once where nothing has to go."""
        job = prepare(conversation, request, self._budget_for(request.model), counter_for(request.model))
        plan = None if job.must_choose else finish(job, keep_all(job), {}, {}, self._names()).verify()
        return job, plan

    def _plan(self, job: Job, scores: Mapping[str, float]) -> Plan:
        weighted = weigh(job, scores)
        draft = Draft(job.bound.tokens, job.overhead, job.counter)
        layout = layout_of([m for m in weighted if m.is_instruction], turns_of(weighted))
        refuse_duplicates(draft, layout)
        layout = replace(
            layout, instructions=tuple(m for m in layout.instructions if m.id not in draft.refused)
        )
        place_anchors(draft, layout, job.directives)
        choice = self._choose(job, weighted, draft)
        fill(draft, layout, choice)
        return finish(job, draft, scores, choice.recency, self._names()).verify()

    def _budget_for(self, model: str) -> Budget:
        tokens = tokens_for(model, self.model_budgets, self.budget.max_tokens)
        return self.budget if tokens == self.budget.max_tokens else replace(self.budget, max_tokens=tokens)

    def _names(self) -> tuple[str, str]:
        return self.algorithm.name(), self.weighting.name()

    def _choose(self, job: Job, weighted: Sequence[Message], draft: Draft) -> SelectionResult:
        placed = [
            m.counting(draft.places[m.id].tokens) if draft.has(m) else m
            for m in weighted
            if m.id not in draft.refused or m.id in draft.places
        ]
        if job.bound.tokens is None:
            return SelectionResult(frozenset(m.id for m in placed))
        budget = TokenBudget(max(1, job.bound.tokens - job.overhead))
        constraints = replace(self.constraints, keep=frozenset(draft.places), never=frozenset(draft.refused))
        return self.algorithm.select(Conversation(tuple(placed)), budget, constraints, job.counter)

    def _report(self, plan: Plan, request: Request, messages: int, elapsed_ms: float) -> None:
        if isinstance(self.sink, NoSink):
            return
        if request.call == 1:
            start = StartBody(
                messages=messages,
                algorithm=plan.algorithm,
                weighting=plan.weighting,
                max_tokens=self._budget_for(request.model).max_tokens,
                context_window=request.context_window,
                reply_reserve=plan.bound.reply_reserve,
            )
            self._send(EventKind.START, request, start)
        full = self.log_level == "DEBUG"
        body = plan_body(
            plan, call=request.call, elapsed_ms=elapsed_ms, capture=self.capture, with_decisions=full
        ).model_copy(
            update={
                "context_window": request.context_window,
                "estimated_cost_usd": prompt_cost(plan.tokens_after, request.price),
            }
        )
        self._send(EventKind.PLAN, request, body)

    def _send(self, kind: EventKind, request: Request, body: Any) -> None:
        if self.log_level != "WARNING":
            self.sink.send(new_event(kind, request.run_id, body, **request.envelope()))


def _algorithm_of(settings: Settings) -> SelectionAlgorithm:
    if settings.algorithm == "greedy_by_weight":
        return GreedyByWeightAlgorithm()
    recency = RecencyBiasedAlgorithm(settings.recency_factor)
    return recency if settings.algorithm == "recency_biased" else DependencyAwareAlgorithm(recency)


def _weighting_of(settings: Settings) -> WeightingStrategy:
    if settings.weighting == "static":
        return StaticWeightStrategy()
    if settings.weighting == "keyword":
        return KeywordRelevanceStrategy()
    return SmartWeightingStrategy(settings.tool_penalty, settings.pair_coherence)


# ──── eunoe_hosts/open_webui.py ─────────────────────────────────────────────────────────────────────────────

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


# Where each source file starts in this one; error reports use it.
_SECTIONS = (
    (56, "eunoe/errors.py", 15),
    (106, "eunoe/memo.py", 8),
    (133, "eunoe/terms.py", 12),
    (240, "eunoe/estimate.py", 14),
    (353, "eunoe/events.py", 17),
    (525, "eunoe/usage.py", 9),
    (633, "eunoe/budget.py", 14),
    (755, "eunoe/conversation.py", 13),
    (973, "eunoe/cues.py", 11),
    (1033, "eunoe/kinds.py", 14),
    (1144, "eunoe/sink.py", 15),
    (1316, "eunoe/pricing.py", 19),
    (1456, "eunoe/bonds.py", 14),
    (1589, "eunoe/flags.py", 20),
    (1877, "eunoe/tokens.py", 25),
    (2024, "eunoe/weighting/static.py", 11),
    (2044, "eunoe/relevance.py", 23),
    (2265, "eunoe/listing.py", 10),
    (2301, "eunoe/settings.py", 14),
    (2481, "eunoe/plan.py", 16),
    (2686, "eunoe/compress.py", 17),
    (2871, "eunoe/job.py", 17),
    (2981, "eunoe/ports.py", 18),
    (3183, "eunoe/weighting/keyword.py", 13),
    (3236, "eunoe/report.py", 12),
    (3323, "eunoe/statusline.py", 13),
    (3394, "eunoe/draft.py", 13),
    (3524, "eunoe/algorithms/greedy.py", 14),
    (3577, "eunoe/weighting/smart.py", 13),
    (3629, "eunoe/anchors.py", 17),
    (3795, "eunoe/algorithms/recency.py", 12),
    (3820, "eunoe/selection.py", 19),
    (3955, "eunoe/algorithms/dependency.py", 13),
    (3990, "eunoe/orchestrator.py", 42),
    (4193, "eunoe_hosts/open_webui.py", 45),
)
