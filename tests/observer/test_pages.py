"""The pages and their JSON."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from eunoe.events import FailedBody
from eunoe_observer import bars, formats
from eunoe_observer.settings import Settings

from .conftest import TOKEN, decided, event, outlet, plan, start, usage, whole_run

pytestmark = pytest.mark.anyio
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><b>"


async def post(client, *events) -> None:
    answer = await client.post("/v1/events", json={"events": list(events)})
    assert answer.status_code == 202, answer.text


def words(page: str) -> str:
    """Return what a reader sees, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


async def test_home_leads_to_the_runs(client):
    answer = await client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")


async def test_an_empty_list_says_what_to_do(client):
    seen = words((await client.get("/runs")).text)
    assert "No runs yet. In Open WebUI, open" in seen
    assert "set observer_url to http://127.0.0.1:7456 , then send a message" in seen


async def test_a_run_is_a_row_with_everything_at_a_glance(client):
    await post(client, *whole_run())
    page = (await client.get("/runs")).text
    [row] = re.findall(r'<tr id="run-1">.*?</tr>', page, re.DOTALL)
    assert words(re.sub(r"<title>.*?</title>", "", row)) == (
        "30 Nov 12:00:00 What now? Trip to Oslo gpt-5-mini 900 of 1,700 50 % no price 6.0 ms done"
    )
    assert 'aria-label="sent: 900 tokens of 1,000 (system and tools: 300 tokens, kept: 600 tokens)"' in row
    assert '<rect class="kept" x="30.00%" width="60.00%"' in row
    assert '<line class="tick" x1="100.00%"' in row


async def test_the_states_of_a_run(client):
    now = datetime.now(UTC)
    await post(client, event(start(), "running", now.isoformat()))
    await post(client, event(start(), "silent", (now - timedelta(hours=1)).isoformat()))
    await post(client, event(outlet(), "done"))
    await post(client, event(outlet(), "over"), event(plan(over_limit=True), "over"))
    await post(
        client, event(outlet(), "failed"), event(FailedBody(stage="inlet", error="KeyError"), "failed")
    )
    runs = (await client.get("/runs.json")).json()["runs"]
    assert {each["run_id"]: each["state"] for each in runs} == {
        "running": "running",
        "silent": "no end reported",
        "done": "done",
        "over": "over budget",
        "failed": "failed",
    }


async def test_pages_follow_one_another_without_gap_or_overlap(client):
    for number in range(7):
        await post(client, event(start(), f"run-{number}"))
    seen, address = [], "/runs.json?limit=3"
    while address:
        answer = (await client.get(address)).json()
        seen += [each["run_id"] for each in answer["runs"]]
        address = answer["next"]
        if len(seen) == 3:  # what comes meanwhile does not shift the pages
            await post(client, event(start(), "late"), event(outlet(), "run-0"))
    assert seen == [f"run-{number}" for number in (6, 5, 4, 3, 2, 1, 0)]
    page = (await client.get("/runs?limit=3")).text
    assert 'href="/runs?before=6&amp;limit=3"' in page
    older = (await client.get("/runs?before=6&limit=3")).text
    assert "hx-sse:connect" not in older
    assert "run-4" in older


async def test_the_run_page_explains_every_message(client):
    await post(client, *whole_run())
    page = (await client.get("/runs/run-1")).text
    seen = words(page)
    for sentence in (
        "prompt sent 900 of 1,000 allowed, counted by o200k_base",
        "provider reports 910 +1.1 % against the count",
        "from cache 50 % 455 of 910 prompt tokens, all calls",
        "cost no price no price is known for this model",
        "1 1,700 900 1,000 max_tokens o200k_base 910 +1.1 % 455 40 no price not reported 4.5 ms",
        "1 user dropped least weight 0.50",
        "800 → 0 old words",
        "budget that held 1,000 from max_tokens",
    ):
        assert sentence in seen, sentence
    assert "base 1.00 × relevance 0.50 = 0.50" in page
    assert '<rect class="p0" x="0.00%" width="33.33%"' in page
    assert "hx-sse:connect" not in page  # it is over


async def test_the_ledger_by_weight(client):
    await post(
        client,
        event(plan(decided("a", 0, weight=0.1), decided("b", 1, weight=0.9), decided("c", 2, weight=0.5))),
    )

    async def positions(address: str) -> list[str]:
        return re.findall(r'<tr id="m-(\d)"', (await client.get(address)).text)

    assert await positions("/runs/run-1") == ["0", "1", "2"]
    assert await positions("/runs/run-1?order=weight") == ["1", "2", "0"]


async def test_a_failure_is_shown_with_its_places(client):
    await post(
        client,
        event(start()),
        event(FailedBody(stage="inlet", error="KeyError", places=["plan.py:41 in verify"])),
    )
    seen = words((await client.get("/runs/run-1")).text)
    assert "in inlet : KeyError plan.py:41 in verify" in seen
    assert "No plan has arrived for this run yet" in seen


async def test_captured_text_is_shown_as_far_as_it_was_captured(client):
    long = "word " * 10_000
    await post(
        client,
        event(
            plan(
                decided("a", 0, preview="short", content=long),
                decided("b", 1),
                decided("c", 2, role="assistant", tool_calls=["search"]),
            )
        ),
    )
    page = (await client.get("/runs/run-1")).text
    assert "30,000 more characters, see the JSON" in page
    assert "text not captured" in page
    assert "calls search" in page
    assert (await client.get("/runs/run-1.json")).json()["decisions"][0]["content"] == long


async def test_hostile_text_stays_text(client):
    decision = decided(HOSTILE, 0, role=HOSTILE, fate=HOSTILE, reason=HOSTILE, why=HOSTILE, preview=HOSTILE)
    decision = decision.model_copy(
        update={"parts": {HOSTILE: 1.0}, "tool_calls": [HOSTILE], "content": HOSTILE * 2}
    )
    body = plan(decision, counter=HOSTILE, limit_source=HOSTILE, notices=[HOSTILE], flags=[{"name": HOSTILE}])
    run_id = HOSTILE[:50]
    context = {"model": HOSTILE, "chat_id": HOSTILE, "user": HOSTILE, "host": HOSTILE[:40]}
    failed = FailedBody(stage=HOSTILE, error=HOSTILE, places=[HOSTILE])
    await post(
        client, *(event(each, run_id, **context) for each in (body, failed, outlet(title=HOSTILE), usage()))
    )
    address = f"/runs/{formats.path_part(run_id)}"
    assert (await client.get(f"{address}.json")).json()["run"]["run_id"] == run_id
    for page in (
        "/runs",
        address,
        f"{address}?order={HOSTILE}",
        f"/nothing/{HOSTILE}",
        f"/runs?before={HOSTILE}",
    ):
        text = (await client.get(page)).text
        assert "<img" not in text
        assert '<b>"' not in text
        assert set(re.findall(r"<script[^>]*>", text)) == {
            '<script src="/static/vendor/htmx.min.js">',
            '<script src="/static/vendor/hx-sse.min.js">',
            '<script src="/static/vendor/hx-upsert.min.js">',
            '<script src="/static/observer.js">',
        }


@pytest.mark.parametrize("run_id", ["a/b", "../x", "50%", "é", "a?b#c", "x.json", " "])
async def test_any_run_id_can_be_opened(client, run_id):
    await post(client, event(start(), run_id))
    [address] = re.findall(r'href="(/runs/[^"]+)"', (await client.get("/runs")).text)
    assert (await client.get(f"{address}.json")).json()["run"]["run_id"] == run_id


async def test_what_is_missing_is_answered_in_kind(client):
    page = await client.get("/runs/none")
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "See all runs" in page.text
    for address in ("/runs/none.json", "/nothing.json", "/v1/nothing", "/runs/none/live"):
        answer = await client.get(address)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")
    for address in ("/runs?before=x", "/runs?before=99999999999999999999", "/runs?limit=0"):
        assert (await client.get(address)).status_code == 400
    assert (await client.post("/runs")).status_code == 405


async def test_health_fails_when_nothing_can_be_stored(client):
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    writer = client.app.state.observer.writer
    writer._closing = True
    answer = await client.get("/healthz")
    writer._closing = False
    assert (answer.status_code, answer.json()["status"]) == (503, "failing")


async def test_every_answer_is_guarded(client):
    for address in ("/runs", "/runs.json", "/static/observer.css", "/healthz", "/nothing"):
        headers = (await client.get(address)).headers
        assert headers["content-security-policy"].startswith("default-src 'self'; frame-ancestors 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    assert (await client.get("/runs")).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:7456", 200),
        ("localhost", 200),
        ("[::1]:7456", 200),
        ("[::1]", 200),
        ("app.localhost:1", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:7456", 421),
        ("", 421),
        ("192.168.1.2:7456", 421),
    ],
)
async def test_without_a_token_only_loopback_names_are_answered(client, host, status):
    for address in ("/runs", "/healthz"):
        assert (await client.get(address, headers={"host": host})).status_code == status
    answer = await client.post("/v1/events", json={"events": []}, headers={"host": host})
    assert (answer.status_code == 202) is (status == 200)


class TestToken:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(database=tmp_path / "observer.sqlite3", token=TOKEN)

    async def test_pages_lead_to_the_sign_in_and_back(self, client):
        browser = {"accept": "text/html"}
        answer = await client.get("/runs/a%2Fb?order=weight", headers=browser)
        assert answer.headers["location"] == "/sign-in?next=%2Fruns%2Fa%2Fb%3Forder%3Dweight"
        form = (await client.get(answer.headers["location"])).text
        [wanted] = re.findall(r'name="next" value="([^"]+)"', form)
        wrong = await client.post("/sign-in", data={"token": "wrong", "next": wanted})
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
        right = await client.post("/sign-in", data={"token": TOKEN, "next": wanted})
        assert (right.status_code, right.headers["location"]) == (303, "/runs/a/b?order=weight")
        cookie = right.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert "secure" not in cookie
        assert TOKEN not in cookie
        assert (await client.get("/runs", headers=browser)).status_code == 200

    async def test_over_https_the_cookie_is_secure(self, client):
        answer = await client.post("https://observer.example/sign-in", data={"token": TOKEN})
        assert "; Secure" in answer.headers["set-cookie"]

    async def test_programs_use_the_bearer(self, client):
        assert (await client.get("/runs.json")).status_code == 401
        assert (await client.get("/runs/live")).status_code == 401
        good = {"authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/runs.json", headers=good)).status_code == 200
        assert (await client.get("/runs", headers=good)).status_code == 200

    @pytest.mark.parametrize("forged", ["", ".", "9999999999.", "9999999999.00", "x.y", "é.é"])
    async def test_a_forged_cookie_is_worth_nothing(self, client, forged):
        answer = await client.get("/runs.json", headers={"cookie": f"eunoe_observer={forged}".encode()})
        assert answer.status_code == 401

    async def test_an_old_cookie_is_worth_nothing(self, client, monkeypatch):
        monkeypatch.setattr("eunoe_observer.session.COOKIE_SECONDS", -1)
        await client.post("/sign-in", data={"token": TOKEN})
        assert (await client.get("/runs.json")).status_code == 401

    @pytest.mark.parametrize(
        "wanted",
        [
            "https://evil.example",
            "//evil.example",
            "/\\evil.example",
            "\\/evil.example",
            "/\t/evil.example",
            "javascript:alert(1)",
            "evil.example",
            "/%0a",
            "",
            "/\n/evil.example",
            "/ /evil.example",
            "///evil.example",
        ],
    )
    async def test_signing_in_leads_to_no_other_site(self, client, wanted):
        answer = await client.post("/sign-in", data={"token": TOKEN, "next": wanted})
        assert answer.headers["location"] in ("/runs", "/%0a")

    async def test_static_files_and_health_are_open(self, client):
        assert (await client.get("/static/observer.css")).status_code == 200
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/static/../runs.json")).status_code in (401, 404)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "no price"),
        (0, "$0"),
        (12.345, "$12.35"),
        (0.5, "$0.50"),
        (0.0031, "$0.0031"),
        (0.00004, "$0.000040"),
        (-0.0021, "−$0.0021"),
        (1234.5, "$1,234.50"),
        (1e-12, "$0.000000000"),
    ],
)
def test_money(value, text):
    assert formats.money(value) == text


def test_numbers_that_are_not_known_have_a_word():
    assert (
        formats.count(None),
        formats.percent(None, 3),
        formats.percent(1, None),
        formats.duration(None),
    ) == (
        "–",
        "–",
        "–",
        "–",
    )
    assert (formats.count(12345), formats.percent(1, 3), formats.duration(4.56)) == (
        "12,345",
        "33 %",
        "4.6 ms",
    )
    assert (formats.difference(90, 100), formats.difference(None, 100)) == ("−10.0 %", "")


def test_a_bar_never_leaves_its_frame():
    run = {
        "token_limit": 1000,
        "tokens_before": 9000,
        "tokens_after": 3000,
        "tokens_fixed": -5,
        "tokens_inserted": None,
        "fates": {
            "kept": {"messages": 1, "tokens_before": 1, "tokens_after": 5000},
            "new": {"messages": 1, "tokens_before": 1, "tokens_after": -3},
        },
    }
    bar = bars.sent_bar(run)
    assert [(piece.kind, piece.length) for piece in bar.pieces] == [("kept", "100.00%")]
    assert bar.tick == "20.00%"


async def test_what_helping_models_took_stands_beside_the_run(client):
    extra = {"prompt_tokens": 4_000, "completion_tokens": 210, "cached_tokens": None}
    await post(
        client,
        *whole_run(),
        event(usage(purpose="summary", cost_usd=0.0012, **extra)),
        event(usage(purpose="labels", cost_usd=None, **extra)),
    )
    seen = words((await client.get("/runs/run-1")).text)
    assert "summaries $0.0012 1 call of a helping model, 4,000 + 210 tokens" in seen
    assert "labels no price 1 call of a helping model, 4,000 + 210 tokens" in seen
    assert "helping models come on top" in seen
    run = (await client.get("/runs/run-1.json")).json()["run"]
    assert [helper["purpose"] for helper in run["helpers"]] == ["labels", "summary"]
    assert run["prompt_tokens"] != 4_000


@pytest.mark.parametrize(
    ("answer", "helpers", "total", "told"),
    [
        ({"cost_usd": 0.002}, [0.01, 0.005], 0.017, "source: provider; $0.017 with helping models"),
        ({"cost_usd": 0.002}, [0.01, None], None, "source: provider; helping models come on top"),
        ({"cost_usd": 0.002}, [], 0.002, "source: provider"),
        ({}, [0.01], None, "no price is known for this model; helping models come on top"),
    ],
)
async def test_the_total_has_helping_models_in_it_where_all_is_known(client, answer, helpers, total, told):
    reports = [event(usage(purpose="summary", cost_usd=cost)) for cost in helpers]
    await post(client, event(plan()), event(usage(**answer)), *reports)
    [run] = (await client.get("/runs.json")).json()["runs"]
    assert run["cost_with_helpers_usd"] == (None if total is None else pytest.approx(total))
    assert (await client.get("/runs/run-1.json")).json()["run"]["cost_with_helpers_usd"] == (
        run["cost_with_helpers_usd"]
    )
    seen = words((await client.get("/runs/run-1")).text)
    assert f"{told} with everything in it" in seen
    assert ("$0.017 with helping models" in (await client.get("/runs")).text) is (total == 0.017)


async def test_an_estimate_of_the_prompt_makes_no_total(client):
    await post(
        client, event(plan(estimated_cost_usd=0.001)), event(usage(call=2, purpose="labels", cost_usd=0.01))
    )
    [run] = (await client.get("/runs.json")).json()["runs"]
    assert (run["cost_usd"], run["cost_source"], run["cost_with_helpers_usd"]) == (0.001, "estimate", None)
    assert "prompt only; helping models come on top" in words((await client.get("/runs/run-1")).text)


async def test_expected_cached_tokens_stand_beside_a_report_that_has_none(client):
    await post(client, event(plan(tokens_cached=640)), event(usage(cached_tokens=None)))
    seen = words((await client.get("/runs/run-1")).text)
    assert "not reported 640 expected" in seen
    assert "of 640 expected" not in seen


async def test_a_summary_is_a_piece_of_what_was_sent(client):
    old = decided("old", 0, fate="summarized", reason="in_summary", why="A summary stands for it.",
                  tokens_before=800, tokens_after=0, scores={"smart": 0.25, "llm_analyzer": 0.75})  # fmt: skip
    new = decided("new", 1, tokens_before=300, tokens_after=300)
    await post(
        client,
        event(plan(old, new, tokens_before=1_400, tokens_after=720, tokens_inserted=120, tokens_cached=640)),
        event(usage(cached_tokens=512)),
    )
    page = (await client.get("/runs/run-1")).text
    assert "summaries: 120 tokens" in page
    assert "A summary stands for it." in words(page)
    assert "summarized 1 summaries 120 tokens" in words(page)
    assert "512 of 640 expected" in words(page)
    assert "relevance of smart 0.25, llm_analyzer 0.75" in page


@pytest.mark.parametrize(("source", "advice"), [("cost", "max_cost_usd"), ("compact", "!compact")])
async def test_over_budget_names_what_to_do_about_it(client, source, advice):
    await post(client, event(plan(over_limit=True, limit_source=source)))
    assert advice in words((await client.get("/runs/run-1")).text)


async def test_a_weight_too_small_for_its_column_is_not_shown_as_none(client):
    light = decided("light", 0, weight=0.0034, parts={"base": 1.0, "relevance": 0.0034})
    await post(client, event(plan(light, decided("none", 1, weight=0.0, parts={"base": 0.0}))))
    page = (await client.get("/runs/run-1")).text
    assert '<span class="num">&lt;0.01</span>' in page
    assert "base 1.00 × relevance 0.0034 = 0.0034" in page
    assert '<span class="num">0.00</span>' in page
