"""What a provider reports after a call, in whatever shape it reports it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
