"""What providers keep of a prompt for the next one: how long it must be, in which steps, for how long, at what price.

The figures are those of the providers' own pages and of LiteLLM's price map in December 2026. A price list goes
before the factors here; they are for deciding, never for a cost that is shown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from .pricing import Price

HOUR = 3_600.0


class CacheHint(StrEnum):
    """What a request must say for a provider to cache it, or to find it again."""

    NONE = "none"
    KEY = "prompt_cache_key"  # a field of the request
    CONTROL = "cache_control"  # a mark on the message up to which is cached


@dataclass(frozen=True, slots=True)
class CacheRules:
    """How a provider caches the beginnings of prompts.

    `write` and `read` are factors of the input price for what goes into the cache and for what comes out of it.
    """

    family: str
    minimum: int | None  # tokens; None: nothing is ever cached
    step: int = 1  # tokens by which what is served grows
    kept_seconds: float = 300.0  # since the last use: so long it is sure enough to be there
    gone_seconds: float | None = HOUR  # since the last use: then it is gone; None: one can't be sure
    write: float = 1.0
    read: float = 0.1
    hint: CacheHint = CacheHint.NONE
    automatic: bool = True  # False: without the hint nothing is cached
    entry_roles: frozenset[str] | None = None  # entries end behind such messages only; None: anywhere


# Where nothing is known: the least prompt and the shortest life that are common, so that no saving is made up.
UNKNOWN_CACHE = CacheRules("unknown", 1_024)
NO_CACHE = CacheRules("none", None, gone_seconds=0.0, read=1.0)

# On one's own machine: any common beginning, until other chats need the memory. It costs time and no money.
_LOCAL = CacheRules("local", 1, gone_seconds=None, read=0.0)
_VLLM = replace(_LOCAL, family="vllm", minimum=16, step=16)  # whole blocks of 16 tokens

_OPENAI = CacheRules("openai", 1_024, 128, hint=CacheHint.KEY)  # 5 to 10 minutes idle, an hour at most
_OPENAI_DAY = replace(_OPENAI, kept_seconds=24 * HOUR, gone_seconds=24 * HOUR)  # GPT-5.5 has no shorter one
_OPENAI_QUARTER, _OPENAI_HALF = replace(_OPENAI, read=0.25), replace(_OPENAI, read=0.5)
# From GPT-5.6 on entries end at the newest message of the user or a tool; no shorter beginning is found.
_OPENAI_ENTRIES = CacheRules(
    "openai from gpt-5.6", 1_024, kept_seconds=HOUR / 2, gone_seconds=HOUR / 2, write=1.25,
    hint=CacheHint.KEY, entry_roles=frozenset({"user", "tool", "function"}),
)  # fmt: skip

_ANTHROPIC = CacheRules(
    "anthropic", 1_024, gone_seconds=300.0, write=1.25, hint=CacheHint.CONTROL, automatic=False
)
_ANTHROPIC_MINIMUMS = {
    ("opus", (4, 8)): 1_024, ("opus", (4, 7)): 2_048, ("opus", (4, 6)): 4_096, ("opus", (4, 5)): 4_096,
    ("opus", (4, 1)): 1_024, ("opus", (4, 0)): 1_024, ("opus", (5, 0)): 512, ("fable", (5, 0)): 512,
    ("mythos", (5, 0)): 512, ("haiku", (4, 5)): 4_096,
}  # fmt: skip
# Of other versions: the largest that is told of their line.
_ANTHROPIC_LINES = {"opus": 4_096, "sonnet": 1_024, "haiku": 4_096, "fable": 512, "mythos": 512}
_ANTHROPIC_READS = {("opus", (5, 5)): 0.05, ("sonnet", (5, 5)): 0.05, ("fable", (5, 1)): 0.025}

_GEMINI = CacheRules("gemini", 4_096, gone_seconds=None)  # how long is not told
_GEMINI_2_5 = replace(_GEMINI, minimum=2_048)
_DEEPSEEK = CacheRules("deepseek", 64, 64, kept_seconds=HOUR, gone_seconds=None, read=1 / 30)  # hours to days
_MISTRAL = CacheRules("mistral", 1_024, hint=CacheHint.KEY, automatic=False)  # the minimum is not told

# Names that servers on one's own machine give in their model lists as the owner of a model.
_LOCAL_OWNERS = {
    "ollama": _LOCAL,
    "llamacpp": _LOCAL,
    "llama.cpp": _LOCAL,
    "llama-cpp": _LOCAL,
    "vllm": _VLLM,
}

# An id may have a provider before the name, with a slash or a dot, and anything but a digit behind the version.
_BEFORE = r"(?:^|[/.])"
_OPEN_WEIGHTS = re.compile(r"gpt-oss|(?:^|[-_:/])\d+(?:\.\d+)?(?:x\d+)?b(?:$|[-_:.@])|\.gguf$")
_OLLAMA_TAG = re.compile(r":(?:latest|\d+(?:\.\d+)?(?:x\d+)?[bm](?:$|-))")


def rules_for(model: str, provider: str = "") -> CacheRules:
    """Find the rules for a model by its id; `provider` is the owner that the model's server names, if known.

    Ids may have a provider before the name (`openai/gpt-4.1-mini`, `anthropic.claude-opus-4-5`) and a date or
    a variant behind it. What is not known for sure has the careful rules `UNKNOWN_CACHE`.
    """
    name, owner = model.strip().lower(), provider.strip().lower()
    if owner in _LOCAL_OWNERS or _OLLAMA_TAG.search(name):
        return _LOCAL_OWNERS.get(owner, _LOCAL)
    if _OPEN_WEIGHTS.search(name):
        return UNKNOWN_CACHE  # whoever runs it has rules of his own
    found = ((pattern.search(name), rules) for pattern, rules in _FAMILIES)
    return next((rules(match) for match, rules in found if match), UNKNOWN_CACHE)


def hourly(rules: CacheRules) -> CacheRules:
    """Give Anthropic's rules for entries that are asked to live an hour; other rules stay."""
    if rules.family != _ANTHROPIC.family:
        return rules
    return replace(rules, kept_seconds=HOUR, gone_seconds=HOUR, write=2.0)


def cached_share(rules: CacheRules, common_tokens: int) -> int:
    """Say how many tokens a provider serves of a beginning with `common_tokens` that it has in its cache.

    0 where that is shorter than it caches; else as far as its steps reach from the least length on.
    """
    if rules.minimum is None or common_tokens < rules.minimum:
        return 0
    return common_tokens - (common_tokens - rules.minimum) % rules.step


def is_warm(rules: CacheRules, seconds: float) -> bool:
    """Say whether what was used so many seconds ago is likely still in the cache."""
    return rules.minimum is not None and seconds <= rules.kept_seconds


def is_cold(rules: CacheRules, seconds: float | None) -> bool:
    """Say whether the cache has surely forgotten what was last used so many seconds ago; None: it is not known."""
    if rules.minimum is None:
        return True
    return seconds is not None and rules.gone_seconds is not None and seconds > rules.gone_seconds


def factors_of(rules: CacheRules, price: Price | None = None) -> tuple[float, float]:
    """Give what writing and reading a token costs in input tokens: by the price list, else by the rules."""
    if price is None or price.input <= 0:
        return rules.write, rules.read
    write = rules.write if price.cache_write is None else price.cache_write / price.input
    read = rules.read if price.cached is None else price.cached / price.input
    return write, read


def break_even_requests(kept: int, dropped: int, write: float, read: float) -> float:
    """Say after how many requests a cut with a warm cache has earned what it costs.

    The kept tokens are written again instead of read, and each later request reads the dropped ones no more:
    K (w - r) / (r D). 0 where writing costs no more than reading; infinite where reading costs nothing.
    """
    extra, saved = kept * (write - read), read * dropped
    if extra <= 0:
        return 0.0
    return extra / saved if saved > 0 else math.inf


def _openai_rules(found: re.Match[str]) -> CacheRules:
    version = _version(found[1], found[2])
    if version >= (5, 6):
        return _OPENAI_ENTRIES
    if version >= (5, 0):
        return _OPENAI_DAY if version == (5, 5) else _OPENAI
    return {(4, 5): _OPENAI_HALF, (4, 1): _OPENAI_QUARTER}.get(version, NO_CACHE)


def _anthropic_rules(found: re.Match[str]) -> CacheRules:
    line = found[3]  # the version stood before it once: claude-3-5-haiku
    version = _version(found[4], found[5]) if found[4] else _version(found[1], found[2])
    minimum = _ANTHROPIC_MINIMUMS.get((line, version), _ANTHROPIC_LINES[line])
    return replace(_ANTHROPIC, minimum=minimum, read=_ANTHROPIC_READS.get((line, version), _ANTHROPIC.read))


def _gemini_rules(found: re.Match[str]) -> CacheRules:
    version = _version(found[1], found[2])
    if version < (2, 5):
        return UNKNOWN_CACHE
    return _GEMINI if version >= (3, 0) else _GEMINI_2_5


def _version(major: str | None, minor: str | None) -> tuple[int, int]:
    return int(major or 0), int(minor or 0)


# Ids by family, and what a match says of the rules. The first that fits counts.
_FAMILIES: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], CacheRules]]] = (
    (re.compile(_BEFORE + r"(?:(?:chat)?gpt-4o|o1|o3-mini)(?!\w)"), lambda _: _OPENAI_HALF),
    (re.compile(_BEFORE + r"(?:o3|o4-mini|codex-mini)(?!\w)"), lambda _: _OPENAI_QUARTER),
    (re.compile(_BEFORE + r"gpt-(?!35)(\d{1,2})(?:\.(\d{1,2}))?(?![\w.])"), _openai_rules),
    (
        re.compile(
            _BEFORE + r"claude-(?:(\d)(?:[.-](\d))?-)?(opus|sonnet|haiku|fable|mythos)"
            r"(?:-(\d)(?!\d)(?:[.-](\d{1,2})(?!\d))?)?"
        ),
        _anthropic_rules,
    ),
    (re.compile(_BEFORE + r"gemini-(\d+)(?:\.(\d+))?"), _gemini_rules),
    (re.compile(_BEFORE + r"deepseek-(?:chat|reasoner|v\d)"), lambda _: _DEEPSEEK),
    (
        re.compile(_BEFORE + r"(?:mistral|magistral|codestral|devstral|ministral|pixtral)-"),
        lambda _: _MISTRAL,
    ),
)
