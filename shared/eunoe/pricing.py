"""What a model call costs: prices from a file or the host's model list, never from the network.

A price that is not known is `None` and stays so: no cost is ever guessed, and none is ever 0 for want of a price.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import BadSetting
from .usage import Usage

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
    total += cached * _read_price(price)
    total += written * (price.input if price.cache_write is None else price.cache_write)
    total += usage.completion_tokens * (price.output or 0.0)
    return total / PER_MILLION


def prompt_cost(tokens: int, price: Price | None, cached_tokens: int = 0) -> float | None:
    """Give the cost of a prompt in USD of which `cached_tokens` are in the provider's cache; None without a price."""
    if price is None:
        return None
    cached = min(cached_tokens, tokens)
    return ((tokens - cached) * price.input + cached * _read_price(price)) / PER_MILLION


def prompt_cost_at_most(tokens: int, cached_tokens: int, price: Price) -> float:
    """Give the most that a prompt costs in USD of which `cached_tokens` are in the provider's cache.

    What is not cached may be written to the cache, which some providers bill above the input price.
    """
    cached = min(cached_tokens, tokens)
    return (cached * _read_price(price) + (tokens - cached) * _dearest(price)) / PER_MILLION


def tokens_within(cost_usd: float, price: Price) -> int | None:
    """Say how many tokens of which none is cached a cost pays for; None if they are free."""
    dearest = _dearest(price)
    return int(cost_usd * PER_MILLION / dearest + 1e-9) if dearest else None


def _read_price(price: Price) -> float:
    return price.input if price.cached is None else price.cached


def _dearest(price: Price) -> float:
    return max(price.input, price.cache_write or 0.0)


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
