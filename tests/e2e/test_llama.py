"""With a real model server: what its cache did reaches the run page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import environments
from install import OpenWebUI
from processes import Server, free_port, stop
from provider import Provider, connect, local_url

from .client import Chat, Client
from .conftest import Valves
from .hosting import Observed
from .story import passage

pytestmark = pytest.mark.e2e

MODEL = "gemma3-270m"


@pytest.fixture
def llama(installed: OpenWebUI, tmp_path: Path) -> Iterator[Server]:
    """A llama.cpp server that Open WebUI knows, as `make run` connects it."""
    port = free_port()
    python = environments.llama() / "bin" / "python"
    script = Path(environments.__file__).with_name("llama.py")
    command = [str(python), str(script), "--port", str(port), "--context", "4096", "--reply", "12"]
    server = Server.start("The local model", command, tmp_path / "llama.log", os.environ)
    openai = installed.call("GET", "/openai/config")
    try:
        server.wait(f"http://127.0.0.1:{port}/health", 120)
        connect(installed, Provider(local_url(port), "local", local=True), local_url(port))
        installed.call("GET", "/api/models?refresh=true")
        yield server
    finally:
        installed.call("POST", "/openai/config/update", openai)
        installed.call("GET", "/api/models?refresh=true")
        stop([server])


def test_the_real_cache_reaches_the_run_page(
    llama: Server, client: Client, valves: Valves, observer: Observed, mark: str
) -> None:
    valves.set(observer_url=observer.address, max_tokens=2000)
    chat = Chat([MODEL])
    client.say(chat, f"{mark} one: {passage(1, 100)}")
    turn = client.say(chat, f"{mark} two: and the garden?")
    usage = turn.replies[0]["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached > 100, "the server did not find the first turn in its cache"

    run = observer.run_about(f"{mark} two", finished=True)
    assert run["prompt_tokens"] == usage["prompt_tokens"]
    assert run["cached_tokens"] == cached
    assert run["context_window"] == 4096, "llama.cpp names the window in its model list, as meta.n_ctx"
    page = observer.http.get(f"/runs/{run['run_id']}").text
    assert f"{cached} of {usage['prompt_tokens']} prompt tokens" in page
