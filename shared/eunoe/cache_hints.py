"""What is added to a request so that the provider caches it, or finds what it has cached.

Only towards those that are known to take it: elsewhere an unknown field is an error, and an error costs the answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from .cache_rules import CacheHint, rules_for
from .conversation import INSTRUCTION_ROLES, RawMessage, part_text

MOST_MARKS = 4  # Anthropic refuses a request with more
CACHE_MARK: Mapping[str, str] = {"type": "ephemeral"}

# Servers that take a hint: the owner of a model as its server names it, or the host of its address.
_TAKERS = {
    CacheHint.KEY: frozenset({"openai", "api.openai.com", "mistral", "mistralai", "api.mistral.ai"}),
    CacheHint.CONTROL: frozenset(
        {"anthropic", "api.anthropic.com", "openrouter", "openrouter.ai", "litellm"}
    ),
}
_CLAUDE_PREFIXES = ("anthropic/", "anthropic.", "openrouter/anthropic/", "~anthropic/")


def hint_for(setting: str, model: str, provider: str = "") -> CacheHint:
    """Say which hint a model gets by the setting `cache_hints` (auto, off, openai, anthropic).

    `provider` is the address of the model's server, or the owner that this server names. Open WebUI's own
    lists call every owner `openai`, which proves nothing: give the address there. With `auto` a key goes only
    to a provider that is known to take it; a mark also where the id says that the model is Anthropic's and
    no provider is told.
    """
    if setting == "openai":
        return CacheHint.KEY
    if setting == "anthropic":
        return CacheHint.CONTROL
    hint = rules_for(model).hint if setting == "auto" else CacheHint.NONE
    if hint is CacheHint.NONE:
        return hint
    name = _host_of(provider)
    if any(name == taker or name.endswith(f".{taker}") for taker in _TAKERS[hint]):
        return hint
    told = not name and model.lower().startswith(_CLAUDE_PREFIXES)
    return hint if hint is CacheHint.CONTROL and told else CacheHint.NONE


def hinted(
    body: Mapping[str, Any], hint: CacheHint, *, scope: str, chat: str, stable: int | None = None
) -> dict[str, Any]:
    """Give the fields of a request that have to be replaced or added; `body` itself stays as it is.

    `chat` names the chat within `scope`. `stable` is the place of the last message that will be sent just so
    next time; it and the last leading instruction are marked. What the request has already is kept, and no
    text changes.
    """
    if hint is CacheHint.KEY:
        return (
            {} if body.get("prompt_cache_key") or not chat else {"prompt_cache_key": cache_key(scope, chat)}
        )
    messages = body.get("messages")
    if hint is not CacheHint.CONTROL or not isinstance(messages, list):
        return {}
    new = list(messages)
    left = MOST_MARKS - sum(1 for _ in _marks(body))
    for place in _places(messages, stable)[: max(0, left)]:
        new[place] = _marked(new[place])
    changed = any(after is not before for after, before in zip(new, messages, strict=True))
    return {"messages": new} if changed else {}


def cache_key(scope: str, chat: str) -> str:
    """Name a chat for a provider by a digest: 38 characters that tell nothing."""
    digest = hashlib.blake2b(f"{scope}\x00{chat}".encode("utf-8", "surrogatepass"), digest_size=16)
    return f"eunoe-{digest.hexdigest()}"


def _host_of(provider: str) -> str:
    name = provider.strip().lower()
    try:
        return (urlsplit(name).hostname or "") if "://" in name else name
    except ValueError:  # no address
        return ""


def _places(messages: Sequence[Any], stable: int | None) -> list[int]:
    """Find the messages to mark, the most useful first: the last stable one, then the last leading instruction."""
    last = -1 if stable is None else min(stable, len(messages) - 1)
    lead = (
        next((i for i, raw in enumerate(messages) if _role(raw) not in INSTRUCTION_ROLES), len(messages)) - 1
    )
    found = [_markable_at(messages, last), _markable_at(messages, lead)]
    return [place for place in dict.fromkeys(found) if place is not None and not any(_marks(messages[place]))]


def _markable_at(messages: Sequence[Any], place: int) -> int | None:
    """Find the nearest message up to a place that ends with text, since nothing else takes a mark."""
    return next((i for i in range(place, -1, -1) if _ends_with_text(messages[i])), None)


def _ends_with_text(raw: Any) -> bool:
    content = raw.get("content") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or raw.get("tool_calls") or raw.get("function_call"):
        return False
    if isinstance(content, list):
        last = content[-1] if content else None
        return isinstance(last, dict) and last.get("type") == "text" and bool(part_text(last).strip())
    return isinstance(content, str) and bool(content.strip())


def _marked(raw: RawMessage) -> RawMessage:
    content = raw["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**raw, "content": [*parts[:-1], {**parts[-1], "cache_control": {**CACHE_MARK}}]}


def _role(raw: Any) -> Any:
    return raw.get("role") if isinstance(raw, dict) else None


def _marks(value: Any) -> Iterator[bool]:
    """Go through the marks that a request has, wherever they are."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "cache_control":
                yield bool(item)
            else:
                yield from _marks(item)
    elif isinstance(value, list):
        for item in value:
            yield from _marks(item)
