"""Two workers of one Open WebUI serve one chat: no state of a chat may live in a process.

They have no tokenizer either, as on a machine without a network, so the filter counts by an estimate.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

import run
from eunoe.events import EventKind
from install import SOURCE, OpenWebUI, Wish, install

from .client import Client
from .collector import Collector
from .conftest import TOKEN
from .hosting import hosted, tell
from .story import assert_valid, messages, turns
from .upstream import Upstream, text_of

pytestmark = pytest.mark.e2e

# On these texts the estimate is up to 7 % below the provider's count until it has been compared with it.
ESTIMATE = 1.08

WHO = '''
import os

class Tools:
    """Tells who answers."""

    def worker(self, topic: str) -> str:
        """
        Tell the number of this process.
        :param topic: Not used.
        """
        return f"process {os.getpid()}"
'''


def patient_command(port: int) -> list[str]:
    """Start Open WebUI so that a worker which a busy machine holds up for 5 seconds is not killed in a turn.

    That is what uvicorn does to workers it does not hear from, and Open WebUI has no setting for it.
    """
    command = run.open_webui_command(port)
    at = command.index("-c") + 1
    patience = "import functools, uvicorn; uvicorn.run = functools.partial(uvicorn.run, timeout_worker_healthcheck=60)"
    command[at] = f"{patience}; {command[at]}"
    return command


@pytest.fixture
def two_workers(
    upstream: Upstream, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenWebUI]:
    """Open WebUI with two workers, the filter in it, and a new connection for each call."""
    data = tmp_path_factory.mktemp("two-workers")
    extra = {"UVICORN_WORKERS": "2", "TIKTOKEN_CACHE_DIR": str(data)}
    with hosted(data, upstream.url, extra, patient_command) as running:
        api = running.api
        # A connection stays with the worker that took it; without keeping it each call may go to the other.
        headers = api.http.headers
        api.http.close()
        api.http = httpx.Client(
            base_url=api.url,
            timeout=60,
            headers=headers,
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=False,
        )
        install(api, Wish(SOURCE.read_text(encoding="utf-8"), {}, collector.address, TOKEN), tell)
        form = {"id": "who", "name": "Who", "content": WHO, "meta": {"description": "Tells who answers."}}
        api.call("POST", "/api/v1/tools/create", form)
        yield api


def test_both_workers_hold_the_bound(
    two_workers: OpenWebUI, upstream: Upstream, collector: Collector, mark: str
) -> None:
    client = Client(two_workers)
    always = {"observer_url": collector.address, "observer_token": TOKEN, "observer_content": "full"}
    path = "/api/v1/functions/id/eunoe/valves/update"
    two_workers.call("POST", path, {**always, "max_tokens": 2000})
    chat = client.import_chat(turns(20, 60, mark))
    said = 0
    workers: set[str] = set()
    while len(workers) < 2:
        assert said < 40, "only one worker answered in 40 turns"
        said += 1
        client.say(chat, f"{mark} turn {said} [[tool worker 1]]", tool_ids=["who"])
        workers.add(text_of(upstream.about(mark)[-1].messages[-1]))
    assert all(worker.startswith("process ") for worker in workers)
    calls = upstream.about(mark)
    assert len(calls) == 2 * said
    assert all(1000 < call.tokens <= 2000 * ESTIMATE for call in calls)
    for call in calls:
        assert_valid(call.messages)
    assert len(collector.wait_for(mark, EventKind.OUTLET, said)) == said
    assert EventKind.FAILED not in {event.event for run in collector.runs(mark) for event in run}

    # A changed valve is seen by both at once.
    two_workers.call("POST", path, {**always, "max_tokens": 1000})
    for number in range(8):
        client.complete(messages(turns(20, 60, mark), f"{mark} lower {number}"))
    assert all(call.tokens <= 1000 * ESTIMATE for call in upstream.about(f"{mark} lower"))
