"""What people see, in a real browser: Debian's Chromium without a screen."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from install import OpenWebUI

from .browser import chromium, program, sign_in
from .client import Client
from .conftest import Valves
from .hosting import Observed
from .story import turns
from .upstream import Upstream

pytestmark = pytest.mark.e2e

WIDE: ViewportSize = {"width": 1440, "height": 1000}
# A browser shares two cores with three servers here.
PATIENCE = 20_000
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, headless."""
    if program() is None:
        pytest.fail("Chromium is missing: run `python filter/environments.py debian`, as `make test` does")
    with chromium() as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A new page that fails the test when a script on it fails."""
    context = browser.new_context(viewport=WIDE, color_scheme="light")
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    yield opened
    context.close()
    assert problems == []


@pytest.fixture
def runs_page(page: Page, observer: Observed, valves: Valves) -> Page:
    """The observer's list of runs, signed in, while the filter sends its events there."""
    valves.set(max_tokens=2000, observer_url=observer.address)
    sign_in(page, observer)
    expect(page.get_by_role("status")).to_have_text("live")
    return page


def test_a_run_appears_while_its_chat_is_running(
    runs_page: Page, client: Client, upstream: Upstream, artifacts: Path, mark: str
) -> None:
    chat = client.import_chat(turns(20, 60, mark))
    turn = threading.Thread(target=client.say, args=(chat, f"{mark} live? [[slow 0.7]]"))
    turn.start()
    try:
        row = runs_page.locator("tbody tr", has_text=f"{mark} live?")
        expect(row).to_be_visible()
        assert turn.is_alive(), "the row came after the turn was over"
        expect(row.locator(".c-state")).to_have_text("running")
        expect(row.locator(".c-tokens")).to_contain_text("of")
    finally:
        turn.join(60)
    expect(row.locator(".c-state")).to_have_text("done")
    runs_page.screenshot(path=artifacts / "runs.png")

    row.get_by_role("link").click()
    (call,) = upstream.about(f"{mark} live?")
    ledger = runs_page.locator("#ledger tbody tr")
    expect(ledger).to_have_count(41)
    expect(ledger.last).to_contain_text(f"{mark} live?")
    sent = sum(message["role"] != "system" for message in call.messages)
    expect(runs_page.locator("#ledger tbody tr:not(.gone)")).to_have_count(sent)
    expect(runs_page.locator("#head")).to_contain_text(f"{call.tokens:,}")
    runs_page.screenshot(path=artifacts / "run.png", full_page=True)


def test_the_valves_dialog_shows_our_labels(page: Page, installed: OpenWebUI, artifacts: Path) -> None:
    spec = installed.call("GET", "/api/v1/functions/id/eunoe/valves/spec")["properties"]
    # Open WebUI greets an administrator with its news until it is told that they were read.
    version = installed.config()["version"]
    installed.call("POST", "/api/v1/users/user/settings/update", {"ui": {"version": version}})
    token = installed.http.headers["Authorization"].removeprefix("Bearer ")
    page.add_init_script(f"localStorage.token = {token!r}")
    page.goto(f"{installed.url}/admin/functions")
    page.get_by_text("Eunoe", exact=True).first.wait_for()
    page.screenshot(path=artifacts / "functions.png")
    page.get_by_role("button", name="Valves").first.click()
    dialog = page.get_by_role("dialog")
    for name, field in spec.items():
        assert field["title"] != name.replace("_", " ").title(), f"{name} has no label of its own"
        expect(dialog.get_by_text(field["title"], exact=True)).to_be_attached()
    page.screenshot(path=artifacts / "valves.png")
