"""Chooses where a trial's models come from, and tells Open WebUI."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from install import OpenWebUI
from processes import DIRECT

OPENAI = "https://api.openai.com/v1"  # where a key without an address belongs
LOCAL_MODEL = "gemma3-270m"  # as filter/llama.py names it
OLLAMA = "http://127.0.0.1:11434"


@dataclass(frozen=True)
class Provider:
    """A server of models."""

    url: str
    key: str = ""
    ollama: bool = False
    local: bool = False  # the small model that we start ourselves

    def __str__(self) -> str:
        """Name it for the person who starts it."""
        if self.local:
            return "a small local model: quick, but its text is poor (set OPENAI_API_KEY for a better one)"
        return f"Ollama at {self.url}" if self.ollama else self.url


def choose(env: Mapping[str, str], local_port: int) -> Provider:
    """Take the provider that the environment names, else an Ollama with a model, else a local model."""
    url, key = env.get("OPENAI_API_BASE_URL", ""), env.get("OPENAI_API_KEY", "")
    if url or key:
        return Provider(url.rstrip("/") or OPENAI, key)
    ollama = env.get("OLLAMA_BASE_URL", OLLAMA).rstrip("/")
    if has_ollama_models(ollama):
        return Provider(ollama, ollama=True)
    return Provider(local_url(local_port), "local", local=True)


def local_url(port: int) -> str:
    """The address of the model server that we start ourselves."""
    return f"http://127.0.0.1:{port}/v1"


def has_ollama_models(url: str) -> bool:
    """Whether an Ollama answers at `url` and has a model."""
    try:
        with DIRECT.open(f"{url}/api/tags", timeout=2) as answer:
            return bool(json.load(answer).get("models"))
    except (urllib.error.URLError, OSError, ValueError, AttributeError):
        return False


def connect(server: OpenWebUI, provider: Provider, local: str) -> None:
    """Make the provider one of Open WebUI's connections; keep those that people added.

    Open WebUI reads its environment on its first start only, so later choices go through its API. `local`
    is the address of our own model server, which is taken out while another provider is used.
    """
    openai = server.call("GET", "/openai/config")
    urls, keys, configs = _with(openai, provider, local)
    server.call(
        "POST",
        "/openai/config/update",
        {
            "ENABLE_OPENAI_API": bool(urls),
            "OPENAI_API_BASE_URLS": urls,
            "OPENAI_API_KEYS": keys,
            "OPENAI_API_CONFIGS": configs,
        },
    )
    if provider.local:
        without_tools(server)
    if provider.ollama:
        ollama = server.call("GET", "/ollama/config")
        others = [url for url in ollama["OLLAMA_BASE_URLS"] if url not in {provider.url, OLLAMA}]
        form = {**ollama, "ENABLE_OLLAMA_API": True, "OLLAMA_BASE_URLS": [provider.url, *others]}
        server.call("POST", "/ollama/config/update", form)


def without_tools(server: OpenWebUI) -> None:
    """Send the local model none of Open WebUI's tools, unless somebody has set it up already.

    They are more than 5,000 tokens of its 8,192, and so small a model can't call any.
    """
    if LOCAL_MODEL in {model["id"] for model in server.call("GET", "/api/v1/models/export") or []}:
        return
    meta = {"capabilities": {"builtin_tools": False}}
    form = {"id": LOCAL_MODEL, "base_model_id": None, "name": LOCAL_MODEL, "params": {}, "meta": meta}
    server.call("POST", "/api/v1/models/create", form)


def _with(
    openai: Mapping[str, Any], provider: Provider, local: str
) -> tuple[list[str], list[str], dict[str, Any]]:
    """Open WebUI's OpenAI-compatible connections with the provider first among them."""
    rows = [
        (url, key, openai["OPENAI_API_CONFIGS"].get(str(index), {}))
        for index, (url, key) in enumerate(
            zip(openai["OPENAI_API_BASE_URLS"], openai["OPENAI_API_KEYS"], strict=True)
        )
    ]
    ours = [row for row in rows if row[0] == provider.url]
    others = [row for row in rows if row[0] not in {provider.url, local} and (row[0], row[1]) != (OPENAI, "")]
    if not provider.ollama:
        settings = ours[0][2] if ours else {}
        others.insert(0, (provider.url, provider.key, settings))
    configs = {str(index): row[2] for index, row in enumerate(others) if row[2]}
    return [row[0] for row in others], [row[1] for row in others], configs
