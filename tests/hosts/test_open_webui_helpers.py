"""What the Open WebUI filter keeps between turns, and the models that help it; from the package and the single file."""

import asyncio
import json
import logging
import time

import pytest

from tests.engine.scripted import ScriptedServer, chat_answer, refusal

from .test_open_webui import Turn, chat, filter_with_sink, run

FRAME = "<summary_of_earlier_turns>"
NOTES = "- They went through questions about lorem ipsum, one by one, and all of them were answered."


def warnings(caplog):
    return [r.message for r in caplog.records if r.name == "eunoe" and r.levelno >= logging.WARNING]


async def all_is_done(filter_):
    if filter_._background:
        await asyncio.wait(set(filter_._background))


async def whole_turn(turn, messages):
    """A turn with all its hooks, and what it left to do behind it."""
    body = await turn.send(messages)
    await turn.call("stream", {"choices": [], "usage": {"prompt_tokens": 700, "completion_tokens": 9}})
    await turn.call("outlet", {"model": "m", "messages": []})
    await all_is_done(turn.filter)
    return [m["content"] for m in body["messages"]]


def summarizing(server, **valves):
    return {
        "max_tokens": 900,
        "summary_model": "s",
        "summary_api_base": server.url,
        "retry_attempts": 1,
        **valves,
    }


def test_a_summary_is_written_behind_the_answer_and_sent_with_the_next(host):
    with ScriptedServer(chat_answer(NOTES, usage={"prompt_tokens": 400, "completion_tokens": 20})) as server:
        filter_, sink = filter_with_sink(host)
        valves = summarizing(server)
        first = run(whole_turn(Turn(filter_, **valves), chat()))
        assert not any(text.startswith(FRAME) for text in first)
        assert 1 <= len(server.asked) <= 6
        (helped, *_) = [u for u in sink.bodies("pipeline.usage") if u.get("purpose") == "summary"]
        assert (helped["prompt_tokens"], helped["completion_tokens"]) == (400, 20)
        second = run(whole_turn(Turn(filter_, **valves), chat()))
        (summary,) = [text for text in second if text.startswith(FRAME)]
        assert NOTES in summary
        plan = sink.bodies("pipeline.plan")[1]
        assert plan["tokens_inserted"] > 0
        assert plan["tokens_after"] <= 900
        assert {d["fate"] for d in plan["decisions"]} >= {"kept", "summarized"}


def test_nobody_gets_a_summary_of_another_persons_chat(host):
    with ScriptedServer(chat_answer(NOTES)) as server:
        filter_ = host.Filter()
        for user in ("ada", "bob"):
            texts = run(whole_turn(Turn(filter_, user=user, **summarizing(server)), chat()))
            assert not any(text.startswith(FRAME) for text in texts), user


def test_a_model_that_refuses_is_said_once_without_a_word_of_the_chat(host, caplog):
    with ScriptedServer(refusal(401, "No lorem ipsum for you.")) as server:
        filter_ = host.Filter()
        for _ in range(3):
            turn = Turn(filter_, **summarizing(server))
            run(whole_turn(turn, chat()))
            assert "failed" not in turn.metadata["_eunoe"]
        (line,) = warnings(caplog)
        assert "401" in line
        assert "lorem" not in caplog.text


def test_no_summary_is_asked_for_where_all_fits_or_nobody_wants_one(host):
    with ScriptedServer(chat_answer(NOTES)) as server:
        for valves in ({"max_tokens": 50_000}, {"nosum_by_default": True}, {"summary_model": ""}):
            run(whole_turn(Turn(host.Filter(), **{**summarizing(server), **valves}), chat()))
        assert server.asked == []


def test_a_turn_survives_a_reload_of_the_file_between_its_hooks(host):
    """What the next hook needs is plain data, which JSON holds."""
    with ScriptedServer(chat_answer(NOTES)) as server:
        turn = Turn(host.Filter(), **summarizing(server))

        async def story():
            await turn.send(chat())
            turn.metadata["_eunoe"] = json.loads(json.dumps(turn.metadata["_eunoe"]))
            turn.filter = host.Filter()
            turn.filter.valves = turn.valves
            await turn.call("outlet", {"model": "m", "messages": []})
            await all_is_done(turn.filter)

        run(story())
        assert server.asked


def test_outlet_does_not_wait_for_summaries_and_few_are_written_at_once(host):
    def slow(body):
        time.sleep(0.4)
        return chat_answer(NOTES)

    with ScriptedServer(slow) as server:
        filter_ = host.Filter()
        turns = [Turn(filter_, user=f"user-{i}", chat=f"chat-{i}", **summarizing(server)) for i in range(9)]

        async def story():
            for turn in turns:
                await turn.send(chat())
            begin = time.monotonic()
            for turn in turns:
                await turn.call("outlet", {"model": "m", "messages": []})
            waited, writing = time.monotonic() - begin, len(filter_._background)
            await all_is_done(filter_)
            return waited, writing

        waited, writing = run(story())
        assert waited < 0.4
        assert writing == 4


def test_without_its_host_the_filter_plans_and_says_what_it_could_not_ask(host, caplog):
    """No `open_webui` package here: neither labels nor vectors nor summaries can be had."""
    filter_ = host.Filter()
    for weighting in ("hybrid", "embedding"):
        turn = Turn(filter_, max_tokens=900, weighting=weighting, summary_model="auto", llm_analysis=True)
        texts = run(whole_turn(turn, chat()))
        assert len(texts) < 32
        assert "failed" not in turn.metadata["_eunoe"]
    assert warnings(caplog)
    assert "lorem" not in caplog.text


@pytest.mark.parametrize("valves", [{"cache_backend": "redis", "redis_url": "nonsense"}])
def test_a_setting_that_cant_be_met_costs_its_feature_and_one_line(host, valves, caplog):
    filter_ = host.Filter()
    for _ in range(3):
        turn = Turn(filter_, max_tokens=900, **valves)
        assert len(run(turn.send(chat()))["messages"]) < 32
        assert "failed" not in turn.metadata["_eunoe"]
    (line,) = warnings(caplog)
    assert line.startswith("eunoe: redis_url: it is no address of a Redis")


def test_what_the_engine_remembers_lasts_until_a_valve_changes(host):
    filter_ = host.Filter()

    def engine(**valves):
        run(Turn(filter_, **valves).send(chat(2)))
        return filter_._engine[1]

    first = engine(max_tokens=900)
    assert engine(max_tokens=900) is first
    second = engine(max_tokens=901)
    assert second is not first
    assert second.weighting is first.weighting  # with all its vectors
    assert second.sent is first.sent
    assert engine(max_tokens=901, tool_penalty=0.1).weighting is not first.weighting


# Cost


def test_the_cost_of_a_prompt_is_bounded_where_its_price_is_known(host):
    filter_, sink = filter_with_sink(host)
    listed = {"id": "m", "openai": {"pricing": {"prompt": "0.00001", "completion": "0"}}}
    run(Turn(filter_, model=listed, max_cost_usd=0.006).send(chat()))
    (plan,) = sink.bodies("pipeline.plan")
    assert (plan["limit"], plan["limit_source"]) == (600, "cost")
    assert plan["estimated_cost_usd"] <= 0.006
    unpriced = Turn(filter_, max_cost_usd=0.006)
    assert len(run(unpriced.send(chat()))["messages"]) == 32
    assert unpriced.lines == [
        "All 31 messages sent, "
        + unpriced.lines[0].split(", ")[1].split(". ")[0]
        + ". No price is known for this model, so its cost is not bounded"
    ]


def test_openrouters_prices_are_read_from_disk_and_never_waited_for(host, tmp_path):
    prices = {"fetched_at": time.time(), "prices": {"vendor/m": {"input": 2.0, "cached": None, "cache_write": None,
                                                               "output": 8.0}, "m": {"input": 2.0}}}  # fmt: skip
    (tmp_path / "eunoe-openrouter-prices.json").write_text(json.dumps(prices))
    filter_, sink = filter_with_sink(host)
    valves = {"openrouter_pricing": True, "store_path": str(tmp_path / "store.sqlite3")}
    run(Turn(filter_, **valves).send(chat(2)))
    (plan,) = sink.bodies("pipeline.plan")
    assert plan["estimated_cost_usd"] == pytest.approx(plan["tokens_after"] * 2 / 1e6)
    run(Turn(filter_, store_path=valves["store_path"]).send(chat(2)))
    assert "estimated_cost_usd" not in sink.bodies("pipeline.plan")[1]


def test_helpers_cost_what_their_own_model_costs(host, tmp_path):
    rows = [{"model_id": "s", "input_price_per_1m": 5, "output_price_per_1m": 10}]
    (tmp_path / "prices.json").write_text(json.dumps(rows))
    with ScriptedServer(chat_answer(NOTES, usage={"prompt_tokens": 400, "completion_tokens": 20})) as server:
        filter_, sink = filter_with_sink(host)
        valves = summarizing(server, pricing_config_path=str(tmp_path / "prices.json"))
        run(whole_turn(Turn(filter_, **valves), chat()))
    helped = [u for u in sink.bodies("pipeline.usage") if u.get("purpose") == "summary"]
    assert helped[0]["cost_usd"] == pytest.approx((400 * 5 + 20 * 10) / 1e6)
    assert "cost_usd" not in sink.bodies("pipeline.outlet")[0]  # the answer's own model has no price
