"""Debian's Chromium, driven without a screen."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, Page, sync_playwright

from .hosting import Observed

# No sandbox: as root Chromium refuses to start with it. The others keep it from calling home.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def program() -> str | None:
    """Where Chromium is; None if it is not installed."""
    return shutil.which("chromium")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Run the browser."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program(), args=FLAGS)
        yield running
        running.close()


def sign_in(page: Page, observer: Observed) -> None:
    """Get into the observer; it then shows its list of runs."""
    page.goto(f"{observer.address}/runs")
    page.get_by_label("The observer's token").fill(observer.token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/runs")
