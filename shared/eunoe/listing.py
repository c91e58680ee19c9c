"""What a provider's list of models tells of one: its context window and its price."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .pricing import PER_MILLION, Price, priced

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
