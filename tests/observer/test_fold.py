"""Folding events into rows: in any order of arrival, and again from the log."""

from __future__ import annotations

import copy
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from eunoe.events import FailedBody
from eunoe_observer import tables
from eunoe_observer.fold import Rows, Stored, rows_of
from eunoe_observer.settings import Settings
from eunoe_observer.writer import rebuild

from .conftest import decided, event, outlet, plan, start, usage, whole_run


def fold(events: list[dict]) -> Rows:
    stored = [
        Stored(seq, datetime.fromisoformat(each["at"]).timestamp(), each)
        for seq, each in enumerate(events, 1)
    ]
    rows = rows_of("run-1", stored)
    assert rows
    return rows


def tool_loop() -> list[dict]:
    """Tell of a turn of three calls: the second sees a survivor and two new messages, the third one more."""
    return [
        event(start(), at="2026-11-30T12:00:00Z", model="gpt-5-mini"),
        event(
            plan(
                decided("system", 0, role="system", tokens_before=300, tokens_after=300),
                decided("old", 1, fate="dropped", tokens_before=800, tokens_after=0),
                decided("question", 2, preview="What now?", tokens_before=600, tokens_after=600),
                estimated_cost_usd=0.001,
            ),
            at="2026-11-30T12:00:01Z",
        ),
        event(usage(cost_usd=0.002), at="2026-11-30T12:00:02Z"),
        event(
            plan(
                decided("question", 1, why="the question", tokens_before=600, tokens_after=600),
                decided(
                    "call", 2, role="assistant", tool_calls=["search"], tokens_before=50, tokens_after=50
                ),
                decided("result", 3, role="tool", tokens_before=400, tokens_after=400),
                call=2,
                tokens_before=1350,
                tokens_after=1350,
                over_limit=True,
            ),
            at="2026-11-30T12:00:03Z",
        ),
        event(
            plan(
                decided("result", 3, role="tool", fate="compressed", tokens_before=400, tokens_after=90),
                decided("result-2", 4, role="tool", tokens_before=20, tokens_after=20),
                call=3,
                tokens_before=1370,
                tokens_after=980,
            ),
            at="2026-11-30T12:00:04Z",
        ),
        event(usage(call=3, prompt_tokens=990, cached_tokens=None), at="2026-11-30T12:00:05Z"),
        event(FailedBody(stage="outlet", error="KeyError", places=["a.py:1"]), at="2026-11-30T12:00:06Z"),
        event(outlet(calls=3, title=None), at="2026-11-30T12:00:07Z"),
    ]


def test_a_later_plan_updates_what_it_sees_keeps_the_rest_and_appends_what_is_new():
    decisions = fold(tool_loop()).decisions
    assert [
        (each["position"], each["key"], each["fate"], each["call"], each["tokens_after"])
        for each in decisions
    ] == [
        (0, "system", "kept", 1, 300),
        (1, "old", "dropped", 1, 0),
        (2, "question", "kept", 2, 600),
        (3, "call", "kept", 2, 50),
        (4, "result", "compressed", 3, 90),
        (5, "result-2", "kept", 3, 20),
    ]


def test_the_run_sums_up_its_calls():
    run = fold(tool_loop()).run
    assert {name: run[name] for name in run if name not in ("run_id", "first_seq", "last_seq")} == {
        "events": 8,
        "started_at": 1796040000.0,
        "last_at": 1796040007.0,
        "host": "",
        "model": "gpt-5-mini",
        "chat_id": None,
        "message_id": None,
        "user_id": None,
        "title": None,
        "question": None,
        "algorithm": "sticky",
        "weighting": "smart",
        "messages": 3,
        "max_tokens": 1000,
        "context_window": None,
        "reply_reserve": None,
        "token_limit": 1000,
        "limit_source": "max_tokens",
        "counter": "o200k_base",
        "calls": 3,
        "tokens_before": 1700 + 50 + 400 + 20,  # everything at first and what came later
        "tokens_after": 980,  # of the last call
        "tokens_fixed": 300,
        "tokens_tools": 0,
        "fates": {
            "compressed": {"messages": 1, "tokens_before": 400, "tokens_after": 90},
            "dropped": {"messages": 1, "tokens_before": 800, "tokens_after": 0},
            "kept": {"messages": 4, "tokens_before": 670, "tokens_after": 670},
        },
        "prompt_tokens": 990,
        "billed_prompt_tokens": 1900,
        "completion_tokens": 80,
        "cached_tokens": 455,
        "estimated_cost_usd": None,  # of two calls no price is known
        "cost_usd": None,  # and of two no bill
        "cost_source": None,
        "filter_ms": 6.0,
        "over_limit": True,
        "helpers": [],
        "tokens_inserted": 0,
        "failures": 1,
        "finished": True,
    }


def test_unknown_is_not_zero():
    run = fold([event(start())]).run
    unknown = (
        "tokens_before",
        "tokens_after",
        "prompt_tokens",
        "cached_tokens",
        "cost_usd",
        "filter_ms",
        "title",
    )
    assert {run[name] for name in unknown} == {None}


@pytest.mark.parametrize(
    ("events", "cost"),
    [
        ([plan(estimated_cost_usd=0.1)], (0.1, "estimate")),
        ([plan(estimated_cost_usd=0.1), usage(cost_usd=0.2)], (0.2, "provider")),
        ([usage(cost_usd=0.2), outlet(cost_usd=0.3, cost_source="OpenRouter")], (0.3, "OpenRouter")),
        ([plan(estimated_cost_usd=0.1), plan(call=2), usage(cost_usd=0.2)], (None, None)),
        ([usage()], (None, None)),
    ],
)
def test_the_cost_is_the_best_known_one_and_names_its_source(events, cost):
    run = fold([event(body) for body in events]).run
    assert (run["cost_usd"], run["cost_source"]) == cost


def test_the_same_words_twice_are_two_messages():
    twice = plan(decided("ok", 0, why="first"), decided("ok", 1, why="second"))
    rows = fold([event(twice, at="2026-11-30T12:00:01Z"), event(twice.model_copy(update={"call": 2}))])
    assert [(each["position"], each["key"], each["why"]) for each in rows.decisions] == [
        (0, "ok", "first"),
        (1, "ok", "second"),
    ]


def seen(rows: Rows) -> tuple:
    """Return the rows without what only says when they arrived."""
    run = {name: value for name, value in rows.run.items() if name not in ("first_seq", "last_seq")}
    return run, rows.decisions, rows.calls


@given(st.permutations(range(8)))
def test_the_order_of_arrival_does_not_matter(order):
    events = tool_loop()
    assert seen(fold([events[index] for index in order])) == seen(fold(events))


@given(st.permutations(range(8)), st.integers(0, 8))
def test_after_every_event_the_rows_fold_without_the_rest(order, known):
    events = [tool_loop()[index] for index in order][: known or 1]
    fold(copy.deepcopy(events))


@pytest.mark.anyio
async def test_rebuilding_gives_the_same_rows(client, settings: Settings):
    for each in [*reversed(tool_loop()), *whole_run("run-2")]:
        for _ in range(2):
            await client.post("/v1/events", json={"events": [each]})
    observer = client.app.state.observer

    async def rows() -> list:
        async with observer.database.reader.connect() as connection:
            return [
                (await connection.execute(select(table).order_by(*table.primary_key))).all()
                for table in (tables.run, tables.decision, tables.call)
            ]

    before = await rows()
    assert [len(each) for each in before] == [2, 9, 4]
    assert await rebuild(observer.database.writer) == 2
    assert await rows() == before


@pytest.mark.anyio
async def test_a_run_id_used_for_everything_stays_affordable(client, monkeypatch):
    monkeypatch.setattr("eunoe_observer.writer.EVENTS_PER_RUN", 5)
    for _ in range(4):
        answer = await client.post("/v1/events", json={"events": [event(start()), event(outlet())]})
        assert answer.json()["accepted"] == 2
    run = (await client.get("/runs/run-1.json")).json()["run"]
    assert run["events"] == 5


def helped(purpose: str = "summary", **figures) -> dict:
    return usage(**{"purpose": purpose, "cached_tokens": None, **figures})


def test_a_helping_models_usage_is_not_the_answers():
    rows = fold([
        event(usage(prompt_tokens=900, completion_tokens=50, cost_usd=0.002)),
        event(outlet(prompt_tokens=900, cost_usd=0.002)),
        event(helped(prompt_tokens=4_000, completion_tokens=200, cost_usd=0.01), at="2026-11-30T12:09:00Z"),
        event(helped(prompt_tokens=1_000, completion_tokens=100, cost_usd=0.005), at="2026-11-30T12:09:01Z"),
        event(helped("labels", prompt_tokens=300, completion_tokens=9, cost_usd=None), at="2026-11-30T11:00:00Z"),
    ])  # fmt: skip
    (call,) = rows.calls
    assert (call["prompt_tokens"], call["cost_usd"]) == (900, 0.002)
    assert (rows.run["prompt_tokens"], rows.run["cost_usd"]) == (900, 0.002)
    labels, summary = rows.run["helpers"]
    assert labels == {
        "purpose": "labels", "calls": 1, "prompt_tokens": 300, "completion_tokens": 9, "cost_usd": None,
    }  # fmt: skip
    assert (summary["calls"], summary["prompt_tokens"], summary["completion_tokens"]) == (2, 5_000, 300)
    assert summary["cost_usd"] == pytest.approx(0.015)


def test_a_part_of_what_helpers_cost_is_not_their_cost():
    rows = fold([event(helped(cost_usd=0.01)), event(helped(cost_usd=None, prompt_tokens=None))])
    (summary,) = rows.run["helpers"]
    assert (summary["calls"], summary["cost_usd"], summary["prompt_tokens"]) == (2, None, None)
    assert fold([event(usage())]).run["helpers"] == []


def test_summaries_and_scores_reach_the_rows():
    scores = {"smart": 0.2, "llm_analyzer": 0.9}
    told = decided(
        "old", 0, fate="summarized", reason="in_summary", tokens_before=800, tokens_after=0, scores=scores
    )
    rows = fold([event(plan(told, tokens_inserted=120, tokens_cached=640))])
    assert (rows.run["tokens_inserted"], rows.calls[0]["tokens_inserted"]) == (120, 120)
    assert rows.calls[0]["tokens_cached"] == 640
    assert rows.decisions[0]["scores"] == scores


def test_a_summary_that_a_later_call_meets_is_no_message_of_the_chat():
    old = decided("old", 0, fate="summarized", reason="in_summary", tokens_before=800, tokens_after=0)
    question = decided("question", 1, tokens_before=600, tokens_after=600)
    met = [
        decided("notes", 0, reason="summary", tokens_before=100, tokens_after=100),
        decided("noted", 1, role="assistant", reason="summary", tokens_before=20, tokens_after=20),
    ]
    result = decided("result", 3, role="tool", tokens_before=50, tokens_after=50)
    first = plan(old, question, tokens_before=1_700, tokens_after=1_020, tokens_inserted=120)
    later = plan(*met, question.model_copy(update={"position": 2}), result, call=2,
                 tokens_before=1_070, tokens_after=1_070)  # fmt: skip
    rows = fold([event(first), event(later, at="2026-11-30T12:00:05Z")])
    assert rows.run["tokens_before"] == 1_700 + 50  # all there was to say, and the tool's result
    assert rows.run["tokens_inserted"] == 120
    kept = rows.run["fates"]["kept"]
    assert (kept["messages"], kept["tokens_before"], kept["tokens_after"]) == (4, 650, 650)
    assert [each["key"] for each in rows.decisions] == ["old", "question", "notes", "noted", "result"]
