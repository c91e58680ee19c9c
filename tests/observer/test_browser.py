"""The pages in a real browser."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from eunoe.events import FailedBody

from .conftest import TOKEN, decided, event, outlet, plan, start, usage, whole_run

pytestmark = pytest.mark.e2e
HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """Open a page that must stay free of errors and of requests to anywhere else."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(8000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console",
        lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on(
        "request",
        lambda request: (
            wrong.append(request.url) if not request.url.startswith("http://127.0.0.1:") else None
        ),
    )
    page.wrong = wrong
    yield page
    context.close()
    # A server that is stopped on purpose is reported by the browser itself.
    assert [each for each in wrong if "ERR_CONNECTION_REFUSED" not in each and "net::ERR" not in each] == []


def test_runs_arrive_and_change_in_place(serve, page: Page):
    server = serve()
    page.goto(f"{server.address}/runs")
    expect(page.get_by_text("No runs yet.")).to_be_visible()
    expect(page.locator("[data-live]")).to_have_text("live")
    server.send([event(start(), "run-1"), event(start(), "run-2", model="second")])
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(page.get_by_text("No runs yet.")).to_be_hidden()
    expect(rows.first).to_contain_text("second")  # the newest is on top
    server.send([event(outlet(title="Trip to Oslo"), "run-1")])
    expect(rows.last).to_contain_text("Trip to Oslo")
    expect(rows.last).to_contain_text("done")
    server.send([event(start(), "run-3", model="third")])
    expect(rows.first).to_contain_text("third")
    assert rows.count() == 3
    assert page.evaluate("[...document.querySelectorAll('tbody tr')].map(row => row.id)") == [
        "run-4",
        "run-2",
        "run-1",
    ]


def test_a_restarted_observer_is_found_again_without_gap_or_duplicate(serve, page: Page):
    server = serve()
    server.send([event(start(), "run-1")])
    page.goto(f"{server.address}/runs")
    expect(page.locator("[data-live]")).to_have_text("live")
    server.send([event(start(), "run-2")])
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    server.stop()
    expect(page.locator("[data-live]")).to_have_text("reconnecting")
    again = serve(port=server.port)
    again.send([event(start(), "run-3"), event(outlet(title="Trip to Oslo"), "run-1")])
    expect(rows).to_have_count(3)
    expect(rows.last).to_contain_text("Trip to Oslo")
    expect(page.locator("[data-live]")).to_have_text("live")
    page.wrong[:] = [
        each for each in page.wrong if "Failed to fetch" not in each and "network error" not in each
    ]


def test_a_stream_that_could_not_open_at_first_is_tried_again(serve, page: Page):
    server = serve()
    answers = iter([503, 503])

    def stream(route):
        status = next(answers, None)
        if status:
            route.fulfill(status=status, body="<tr><td>an error page</td></tr>", content_type="text/html")
        else:
            route.continue_()

    page.route("**/runs/live*", stream)
    page.goto(f"{server.address}/runs")
    server.send([event(start(), "run-1")])
    expect(page.locator("tbody tr")).to_have_count(1)
    assert "an error page" not in page.content()
    page.wrong[:] = [each for each in page.wrong if "503" not in each]


def test_a_script_that_loads_late_is_waited_for(serve, page: Page):
    server = serve()

    def late(route):
        time.sleep(0.3)
        route.continue_()

    for script in ("vendor/htmx.min.js", "vendor/hx-sse.min.js", "vendor/hx-upsert.min.js", "observer.js"):
        page.route(f"**/static/{script}", late)
        page.goto(f"{server.address}/runs")
        expect(page.locator("[data-live]")).to_have_text("live")
        page.unroute(f"**/static/{script}")


def test_a_run_refreshes_itself_and_keeps_open_what_the_reader_opened(serve, page: Page):
    server = serve()
    question = decided("q", 0, preview="What", content="What now, and why?")
    server.send([event(start()), event(plan(question))])
    page.goto(f"{server.address}/runs/run-1")
    expect(page.locator("[data-live]")).to_have_text("live")
    page.locator("details summary").click()
    expect(page.get_by_text("What now, and why?")).to_be_visible()
    server.send(
        [
            event(
                plan(question, decided("new", 1, role="tool", preview="a tool's answer"), call=2),
                at="2026-11-30T12:00:05Z",
            )
        ]
    )
    expect(page.get_by_text("a tool's answer")).to_be_visible()
    expect(page.get_by_text("What now, and why?")).to_be_visible()
    server.send([event(outlet(), at="2026-11-30T12:00:06Z")])
    expect(page.locator(".state")).to_have_text("done")
    expect(page.locator("[data-live]")).to_have_text("finished")


def test_hostile_text_does_nothing(serve, page: Page):
    server = serve()
    page.goto(f"{server.address}/runs")
    decision = decided(
        HOSTILE, 0, role=HOSTILE, why=HOSTILE, preview=HOSTILE, content=HOSTILE * 2, tool_calls=[HOSTILE]
    )
    failed = FailedBody(stage=HOSTILE, error=HOSTILE, places=[HOSTILE])
    bodies = (plan(decision, counter=HOSTILE), failed, outlet(title=HOSTILE))
    server.send([event(body, model=HOSTILE, chat_id=HOSTILE) for body in bodies])  # once live, once as a page
    expect(page.locator("tbody tr")).to_have_count(1)
    for address in ("/runs", "/runs/run-1"):
        page.goto(server.address + address)
        expect(page.get_by_text(HOSTILE).first).to_be_attached()
        page.wait_for_timeout(200)
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main script").count() == 0


def test_pages_fit_and_can_be_read(serve, page: Page):
    server = serve()
    long = "averyveryverylongwordwithoutanyspace" * 8
    server.send(whole_run(model=f"vendor/{long}"))
    fates = ("kept", "recalled", "compressed", "summarized", "dropped")
    server.send(
        [
            event(
                plan(
                    *(decided(f"k{n}", n, fate=fate, why=long, preview=long) for n, fate in enumerate(fates)),
                    tokens_inserted=120,
                    tokens_cached=640,
                ),
                "run-2",
            ),
            event(usage(cost_usd=0.002), "run-2"),
            event(usage(purpose="labels"), "run-2"),
            event(usage(purpose="summary", cost_usd=0.0012), "run-2"),
        ]
    )
    for scheme, width in itertools.product(("light", "dark"), (400, 1440)):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        for address in ("/runs", "/runs/run-1", "/runs/run-2", "/runs/none"):
            page.goto(server.address + address)
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
                address,
                width,
            )
            assert page.evaluate(TOO_FAINT) == [], (address, scheme)
    page.wrong[:] = [each for each in page.wrong if "404" not in each]


# Every text against the first ground behind it: the ratio that WCAG asks for at level AA.
TOO_FAINT = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const rgba = color => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = rgba(getComputedStyle(e).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const text = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!text || !element.checkVisibility() || element.closest('svg')) continue;
    const [a, b] = [light(rgba(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) found.push(`${element.className || element.tagName} ${ratio.toFixed(2)}`);
  }
  return found;
}"""


def test_a_run_page_shows_the_readers_time_after_a_refresh_too(serve, chromium: Browser):
    server = serve()
    server.send([event(start(), at="2020-06-01T12:00:00Z")])
    context = chromium.new_context(timezone_id="Asia/Tokyo", locale="en-GB")
    page = context.new_page()
    page.goto(f"{server.address}/runs/run-1")
    expect(page.locator("[data-live]")).to_have_text("live")
    server.send([event(outlet(), at="2020-06-01T12:00:05Z")])
    expect(page.locator(".state")).to_have_text("done")
    expect(page.locator("main time")).to_have_text("01 Jun 21:00:00")
    context.close()


def test_signing_in(serve, page: Page):
    server = serve("--token", TOKEN)
    server.send(whole_run(), authorization=f"Bearer {TOKEN}")
    page.goto(f"{server.address}/runs/run-1?order=weight")
    page.get_by_label("token").fill("wrong")
    page.get_by_role("button").click()
    expect(page.get_by_text("That is not the token.")).to_be_visible()
    page.get_by_label("token").fill(TOKEN)
    page.get_by_role("button").click()
    expect(page).to_have_url(f"{server.address}/runs/run-1?order=weight")
    page.goto(f"{server.address}/runs")
    expect(page.locator("[data-live]")).to_have_text("live")
    page.wrong[:] = [each for each in page.wrong if "403" not in each]


def test_times_are_the_readers_own(serve, chromium: Browser):
    server = serve()
    server.send([event(start(), at="2020-06-01T12:00:00Z")])
    context = chromium.new_context(timezone_id="Asia/Tokyo", locale="en-GB")
    page = context.new_page()
    page.goto(f"{server.address}/runs")
    expect(page.locator("tbody time")).to_have_text("01 Jun 21:00:00")
    context.close()
