"""The Open WebUI filter, called hook by hook as the host calls it; from the package and from the single file."""

import asyncio
import copy
import inspect
import json
import logging
import threading
from types import SimpleNamespace

import pytest

LARK = "The code word is LARK."


class ListSink:
    def __init__(self):
        self.events = []

    def send(self, event):
        self.events.append(event)

    def bodies(self, kind):
        return [e.data for e in self.events if e.event == kind]


class Turn:
    """One turn of one user, with the arguments Open WebUI 0.12.4 gives to each hook."""

    def __init__(
        self, filter_, user="user-1", role="user", chat="chat-1", model=None, request=None, **valves
    ):
        self.filter, self.events = filter_, []
        self.valves = filter_.Valves(**valves)
        self.user = {"id": user, "role": role, "email": f"{user}@example.org", "valves": filter_.UserValves()}
        self.metadata = {"user_id": user, "chat_id": chat, "message_id": f"{chat}-answer", "params": {}}
        self.model = model or {"id": "m", "info": {}}
        self.request_object = request

    async def emit(self, event):
        self.events.append(event)

    @property
    def lines(self):
        return [e["data"]["description"] for e in self.events]

    async def call(self, name, body):
        hook = getattr(self.filter, name)
        self.filter.valves = self.valves
        given = {"__metadata__": self.metadata, "__user__": self.user, "__model__": self.model,
                 "__request__": self.request_object, "__event_emitter__": self.emit}  # fmt: skip
        wanted = inspect.signature(hook).parameters
        first = {"event": body} if name == "stream" else {"body": body}
        return await hook(**first, **{k: v for k, v in given.items() if k in wanted})

    async def send(self, messages, **body):
        """Give what the model is sent: inlet, then request."""
        body = {
            "model": "m",
            "stream": True,
            "messages": copy.deepcopy(messages),
            "metadata": self.metadata,
            **body,
        }
        return await self.call("request", await self.call("inlet", body))


def chat(turns=15):
    filler = "lorem ipsum dolor sit amet " * 8
    messages = [{"role": "system", "content": "Be brief."}]
    for i in range(turns):
        messages += [
            {"role": "user", "content": f"Question {i}. {filler}"},
            {"role": "assistant", "content": f"Answer {i}. {filler}"},
        ]
    return [*messages, {"role": "user", "content": "And then?"}]


def filter_with_sink(host):
    filter_ = host.Filter()
    sink = ListSink()
    filter_._sink = (("", ""), sink)
    return filter_, sink


def contents(body):
    return [m["content"] for m in body["messages"]]


def run(coroutine):
    return asyncio.run(coroutine)


def test_the_bound_holds_and_one_line_says_so(host):
    turn = Turn(host.Filter(), max_tokens=900)

    async def story():
        body = await turn.send(chat())
        await turn.call("stream", {"choices": [], "usage": usage(700, 9, 350)})
        await turn.call("outlet", {"model": "m", "messages": []})
        return body

    body = run(story())
    assert turn.metadata["_eunoe"]["sent"]["tokens"] <= 900
    assert len(body["messages"]) < 32
    assert turn.lines == [f"Kept {len(body['messages']) - 1} of 31 messages, 700 of 900 tokens, 50 % cached"]


def test_below_the_bound_the_messages_are_the_same_objects_and_no_line_is_shown_before_the_answer(host):
    turn = Turn(host.Filter())
    messages = chat()
    body = {"model": "m", "messages": messages}
    sent = run(turn.call("request", run(turn.call("inlet", body))))
    assert all(a is b for a, b in zip(sent["messages"], messages, strict=True))
    assert turn.lines == []


def test_usage_is_asked_for_with_a_stream_and_only_then(host):
    assert run(Turn(host.Filter()).send(chat()))["stream_options"] == {"include_usage": True}
    kept = run(Turn(host.Filter()).send(chat(), stream_options={"x": 1}))["stream_options"]
    assert kept == {"x": 1, "include_usage": True}
    assert "stream_options" not in run(Turn(host.Filter()).send(chat(), stream=False))


def test_tool_definitions_count(host):
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "description": "word " * 60}} for i in range(5)
    ]
    bare, with_tools = Turn(host.Filter(), max_tokens=1200), Turn(host.Filter(), max_tokens=1200)
    assert len(run(with_tools.send(chat(), tools=tools))["messages"]) < len(
        run(bare.send(chat()))["messages"]
    )
    assert with_tools.metadata["_eunoe"]["sent"]["tokens"] <= 1200


def test_the_workspace_models_prompt_that_the_host_adds_later_counts(host):
    filter_, sink = filter_with_sink(host)
    turn = Turn(filter_, max_tokens=1200)
    turn.metadata["base_system_prompt"] = "rule " * 300 + "\nBe brief."
    run(turn.send(chat()))
    plan = sink.bodies("pipeline.plan")[0]
    assert plan["tokens_fixed"] > 300
    assert plan["tokens_after"] <= 1200


def test_a_tokenizer_is_never_loaded_on_the_event_loop(host, monkeypatch):
    """Loading one takes 0.4 seconds, in which no other user of the worker would be served."""
    needed = host.request_of.__globals__
    real, threads = needed["counter_for"], []

    def watched(model):
        threads.append(threading.current_thread())
        return real(model)

    monkeypatch.setitem(needed, "counter_for", watched)
    turn = Turn(host.Filter())
    turn.metadata["base_system_prompt"] = "You are the workspace model."
    run(turn.send(chat()))
    assert threads
    assert threading.main_thread() not in threads


def test_the_window_comes_from_the_model_list_and_from_the_base_model(host):
    models = {"base": {"id": "base", "openai": {"max_model_len": 1000}}}
    request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(MODELS=models)))
    workspace = {"id": "mine", "info": {"base_model_id": "base"}}
    for model, window in (
        ({"id": "m", "context_length": 1000}, 1000),
        (workspace, 1000),
        ({"id": "m"}, None),
    ):
        filter_, sink = filter_with_sink(host)
        run(Turn(filter_, model=model, request=request).send(chat()))
        plan = sink.bodies("pipeline.plan")[0]
        assert plan.get("context_window") == window
        assert plan.get("limit_source", "max_tokens") == ("window" if window else "max_tokens")
        assert plan["tokens_after"] <= (750 if window else 16_000)


def test_the_valve_wins_over_the_model_list_and_the_replys_room_comes_off(host):
    filter_, sink = filter_with_sink(host)
    run(
        Turn(filter_, model={"id": "m", "context_length": 9000}, context_window=2000).send(
            chat(), max_tokens=1100
        )
    )
    plan = sink.bodies("pipeline.plan")[0]
    assert (plan["context_window"], plan["limit"], plan["reply_reserve"]) == (2000, 900, 1100)
    assert plan["tokens_after"] <= 900


def test_ollamas_num_ctx_is_a_window(host):
    filter_, sink = filter_with_sink(host)
    run(Turn(filter_).send(chat(), options={"num_ctx": 1000, "num_predict": 300}))
    assert sink.bodies("pipeline.plan")[0]["limit"] == 700


def test_a_pin_taken_off_in_inlet_still_holds_in_request(host):
    messages = chat()
    messages[9]["content"] = f"!pin {LARK} " + messages[9]["content"]
    body = run(Turn(host.Filter(), max_tokens=900).send(messages))
    assert any(t.startswith(LARK) for t in contents(body))
    assert not any("!pin" in t for t in contents(body))


def test_relevance_looks_at_the_users_words_and_not_at_the_documents_around_them(host):
    messages = chat()
    messages[9]["content"] = "How many holidays do contractors get? " + messages[9]["content"]
    words = "contractors holidays"
    context = " ".join(m["content"] for m in messages[20:26])
    messages[-1]["content"] = f"Answer from <context>{context}</context>\n{words}"
    for base in (words, None):
        turn = Turn(host.Filter(), max_tokens=1800)
        turn.metadata["base_user_prompt"] = base
        body = run(turn.call("request", {"model": "m", "messages": copy.deepcopy(messages)}))
        assert any(t.startswith("How many holidays") for t in contents(body))


def test_a_model_may_have_a_limit_of_its_own(host):
    filter_, sink = filter_with_sink(host)
    run(Turn(filter_, max_tokens=5000, model_budgets='{"m*": 900, "other": 100}').send(chat()))
    assert sink.bodies("pipeline.plan")[0]["limit"] == 900
    assert sink.bodies("pipeline.start")[0]["max_tokens"] == 900


@pytest.mark.parametrize("field", ["model_budgets", "model_aliases"])
def test_a_map_that_can_not_be_read_is_refused_when_it_is_saved(host, field):
    with pytest.raises(ValueError, match=f"(?s){field}.*Write it like"):
        host.Filter.Valves(**{field: "not a map"})


def test_people_may_lower_their_own_limit_but_not_raise_it(host):
    for own, limit in ((400, 400), (5000, 900), (0, 900)):
        filter_, sink = filter_with_sink(host)
        turn = Turn(filter_, max_tokens=900)
        turn.user["valves"] = filter_.UserValves(max_tokens=own)
        run(turn.send(chat()))
        assert sink.bodies("pipeline.plan")[0]["limit"] == limit


def test_titles_and_tags_are_left_alone(host):
    filter_, sink = filter_with_sink(host)
    turn = Turn(filter_, max_tokens=50)
    turn.metadata["task"] = "title_generation"
    messages = [{"role": "user", "content": "!pin ### Task: make a title " + "x " * 500}]
    body = {"model": "m", "stream": True, "messages": copy.deepcopy(messages)}
    assert run(turn.call("request", run(turn.call("inlet", body)))) == {
        "model": "m",
        "stream": True,
        "messages": messages,
    }
    assert "_eunoe" not in turn.metadata
    assert sink.events == []


def test_api_calls_without_any_id_are_trimmed_too(host):
    turn = Turn(host.Filter(), chat="", max_tokens=900)
    turn.metadata.update(message_id=None, session_id=None)
    assert len(run(turn.send(chat()))["messages"]) < 32


async def loop_of_tools(turn, rounds, result="status ok " * 150):
    """Play a native tool loop: each round is built from the first request's output, as the host does."""
    base = (await turn.send([{"role": "user", "content": "MAIN TASK: audit the logs."}]))["messages"]
    await turn.call("stream", {"choices": [{"delta": {}}]})
    made, sizes = [], []
    for n in range(rounds):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "read_log", "arguments": "{}"}}
        made += [{"role": "assistant", "content": "", "tool_calls": [call]},
                 {"role": "tool", "tool_call_id": f"c{n}", "content": f"LOG {n} {result}"}]  # fmt: skip
        body = {"model": "m", "stream": True, "messages": copy.deepcopy([*base, *made])}
        body = await turn.call("request", body)
        sizes.append(turn.metadata["_eunoe"]["sent"]["tokens"])
        await turn.call("stream", {"choices": [], "usage": usage(sizes[-1], 10)})
    return body, sizes


def usage(prompt, completion, cached=0):
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def test_a_tool_loop_stays_within_the_bound_and_keeps_the_task_and_the_newest_result(host):
    turn = Turn(host.Filter(), max_tokens=1500)
    body, sizes = run(loop_of_tools(turn, 9))
    assert max(sizes) <= 1500
    assert "MAIN TASK: audit the logs." in contents(body)
    assert contents(body)[-1].startswith("LOG 8")
    assert not any(c.startswith("LOG 0") for c in contents(body))
    assert turn.metadata["_eunoe"]["call"] == 10


def test_outlet_sums_the_calls_of_a_loop_and_changes_nothing(host):
    filter_, sink = filter_with_sink(host)
    turn = Turn(filter_)

    async def story():
        await turn.send(chat())
        for n in range(3):
            if n:
                await turn.call("request", {"model": "m", "messages": chat()})
            event = {"choices": [], "usage": usage(1000 + n, 10, cached=500)}
            assert await turn.call("stream", copy.deepcopy(event)) == event
        stored = {
            "model": "m",
            "chat_id": "chat-1",
            "id": "a",
            "messages": [{"role": "user", "content": "!nosum x"}],
        }
        assert await turn.call("outlet", copy.deepcopy(stored)) == stored

    run(story())
    assert [u["prompt_tokens"] for u in sink.bodies("pipeline.usage")] == [1000, 1001, 1002]
    outlet = sink.bodies("pipeline.outlet")[0]
    assert (outlet["calls"], outlet["prompt_tokens"], outlet["billed_prompt_tokens"]) == (3, 1002, 3003)
    assert (outlet["cached_tokens"], outlet["completion_tokens"]) == (1500, 30)
    assert turn.lines == ["All 31 messages sent, 1.0k of 16k tokens, 50 % cached"]


def test_a_plan_that_the_host_did_not_send_is_no_call(host):
    filter_, sink = filter_with_sink(host)
    turn = Turn(filter_)

    async def story():
        await turn.send(chat())
        await turn.call("request", {"model": "m", "messages": chat()})
        await turn.call("stream", {"choices": [], "usage": usage(700, 10)})
        await turn.call("outlet", {"model": "m", "messages": []})

    run(story())
    outlet = sink.bodies("pipeline.outlet")[0]
    assert (outlet["calls"], outlet["billed_prompt_tokens"]) == (1, 700)


def test_an_answer_that_was_not_streamed_has_its_usage_in_the_stored_message(host):
    filter_, sink = filter_with_sink(host)
    turn = Turn(filter_)
    answer = {"role": "assistant", "content": "Yes.", "usage": {**usage(900, 5, 450), "cost": 0.0012}}

    async def story():
        await turn.send(chat(), stream=False)
        await turn.call("outlet", {"model": "m", "messages": [{"role": "user", "content": "x"}, answer]})

    run(story())
    assert sink.bodies("pipeline.outlet")[0]["cost_usd"] == 0.0012
    assert turn.lines == ["All 31 messages sent, 900 of 16k tokens, 50 % cached, $0.0012"]


def test_without_a_report_nothing_is_made_up(host):
    filter_, sink = filter_with_sink(host)
    turn = Turn(filter_)

    async def story():
        await turn.send(chat())
        await turn.call("outlet", {"model": "m", "messages": [{"role": "assistant", "content": "Yes."}]})

    run(story())
    assert sink.bodies("pipeline.usage") == []
    outlet = sink.bodies("pipeline.outlet")[0]
    assert not {"prompt_tokens", "billed_prompt_tokens", "cached_tokens", "cost_usd"} & set(outlet)
    assert "cached" not in turn.lines[0]
    assert "$" not in turn.lines[0]


def finished(turn):
    """Play a whole turn."""

    async def story():
        await turn.send(chat())
        await turn.call("outlet", {"model": "m", "messages": []})

    run(story())
    return turn


def test_a_price_file_gives_the_cost_the_provider_did_not_report(host, tmp_path):
    prices = [
        {"model_id": "base", "input_price_per_1m": 3, "cached_price_per_1m": 0.3, "output_price_per_1m": 15}
    ]
    (tmp_path / "prices.json").write_text(json.dumps(prices))
    models = {"base": {"id": "base"}}
    request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(MODELS=models)))
    filter_, sink = filter_with_sink(host)
    workspace = {"id": "m", "info": {"base_model_id": "base"}}
    turn = Turn(filter_, model=workspace, request=request, pricing_config_path=str(tmp_path / "prices.json"))

    async def story():
        await turn.send(chat())
        await turn.call("stream", {"choices": [], "usage": usage(1_000, 100, cached=400)})
        await turn.call("outlet", {"model": "m", "messages": []})

    run(story())
    outlet = sink.bodies("pipeline.outlet")[0]
    assert outlet["cost_usd"] == pytest.approx((600 * 3 + 400 * 0.3 + 100 * 15) / 1e6)
    assert outlet["cost_source"] == "price file"
    plan = sink.bodies("pipeline.plan")[0]
    assert plan["estimated_cost_usd"] == pytest.approx(plan["tokens_after"] * 3 / 1e6)
    assert turn.lines[0].endswith("40 % cached, $0.0034")


def test_a_price_in_the_model_list_is_used_without_a_file(host):
    filter_, sink = filter_with_sink(host)
    listed = {"id": "m", "openai": {"pricing": {"prompt": "0.000001", "completion": "0"}}}
    run(Turn(filter_, model=listed).send(chat()))
    plan = sink.bodies("pipeline.plan")[0]
    assert plan["estimated_cost_usd"] == pytest.approx(plan["tokens_after"] / 1e6)


def test_a_price_file_with_a_fault_costs_the_price_and_one_line_in_the_log(host, tmp_path, caplog):
    filter_ = host.Filter()
    for _ in range(3):
        turn = Turn(filter_, max_tokens=900, pricing_config_path=str(tmp_path / "none.json"))
        assert len(run(turn.send(chat()))["messages"]) < 32
        assert "failed" not in turn.metadata["_eunoe"]
    (message,) = [record.message for record in caplog.records if record.name == "eunoe"]
    assert message.startswith(f"eunoe: pricing_config_path: {tmp_path}/none.json can't be read")


def test_the_line_can_be_switched_off_by_either_side(host):
    own = Turn(host.Filter(), max_tokens=900)
    own.user["valves"] = own.filter.UserValves(show_status=False)
    assert finished(own).events == []
    assert finished(Turn(host.Filter(), max_tokens=900, show_status=False)).events == []
    assert len(finished(Turn(host.Filter(), max_tokens=900)).events) == 1


def test_only_administrators_get_the_link_to_the_run(host):
    for role in ("admin", "user"):
        turn = finished(Turn(host.Filter(), role=role, observer_public_url="http://observer.example:7456/"))
        items = turn.events[0]["data"].get("items")
        link = f"http://observer.example:7456/runs/{turn.metadata['_eunoe']['run']}"
        assert items == (
            [{"title": "See why, message by message", "link": link}] if role == "admin" else None
        )


def test_a_flag_with_a_bad_value_is_named_in_the_line(host):
    turn = Turn(host.Filter())
    run(turn.send([{"role": "user", "content": "!target=lots Hello"}]))
    assert [line.split(". ")[1:] for line in turn.lines] == [["!target needs a whole number from 1"]]


@pytest.mark.parametrize("stage", ["inlet", "request"])
def test_a_fault_of_ours_leaves_the_request_as_it_was_and_is_reported_without_text(
    host, stage, monkeypatch, caplog, capfd
):
    filter_, sink = filter_with_sink(host)
    secret = "my secret diary"

    def fail(*args, **kwargs):
        raise ValueError(secret)

    async def fail_later(*args, **kwargs):
        raise ValueError(secret)

    if stage == "inlet":
        monkeypatch.setitem(host.Filter.inlet.__globals__, "read_flags", fail)
    else:
        monkeypatch.setattr(host.ContextOrchestrator, "process", fail_later)
    turn = Turn(filter_, max_tokens=900)
    messages = [*chat()[:-1], {"role": "user", "content": secret}]
    body = run(turn.call(stage, {"model": "m", "stream": True, "messages": copy.deepcopy(messages)}))
    assert body == {"model": "m", "stream": True, "messages": messages}
    failed = sink.bodies("pipeline.failed")
    assert [(f["stage"], f["error"]) for f in failed] == [(stage, "ValueError")]
    assert any("fail" in place for place in failed[0]["places"])
    assert [r.levelno for r in caplog.records if r.name == "eunoe"] == [logging.ERROR]
    out = (
        caplog.text
        + "".join(capfd.readouterr())
        + json.dumps([e.model_dump(mode="json") for e in sink.events])
    )
    assert secret not in out
    if stage == "request":
        assert turn.lines == ["Eunoe failed and left this request as it was"]


def test_a_turn_that_began_in_an_older_version_ends_well(host):
    turn = Turn(host.Filter(), max_tokens=900)
    turn.metadata["_eunoe"] = {"run": "r" * 32, "call": 1, "usages": {}}
    body = run(turn.call("request", {"model": "m", "messages": chat()}))
    assert len(body["messages"]) < 32
    assert turn.metadata["_eunoe"]["run"] == "r" * 32


def test_an_odd_body_or_none_at_all_of_what_the_host_gives_does_no_harm(host):
    filter_ = host.Filter()
    for body in (
        {},
        {"messages": None},
        {"messages": "x"},
        {"messages": []},
        {"messages": ["not a message"]},
    ):
        assert run(filter_.inlet(copy.deepcopy(body))) == body
        assert run(filter_.request(copy.deepcopy(body), __metadata__={})) == body
        assert run(filter_.outlet(copy.deepcopy(body), __metadata__={})) == body
    for event in ({}, {"choices": []}, {"usage": None}, {"usage": "x"}):
        assert run(filter_.stream(copy.deepcopy(event), __metadata__={})) == event


def test_turns_of_many_users_at_once_do_not_mix(host):
    filter_, sink = filter_with_sink(host)

    async def one(n):
        turn = Turn(filter_, user=f"user-{n}", chat=f"chat-{n}", max_tokens=900)
        messages = chat()
        messages[-1] = {"role": "user", "content": f"I am user {n}"}
        body = await turn.send(messages)
        await turn.call("stream", {"choices": [], "usage": usage(100 + n, 1)})
        await turn.call("outlet", {"model": "m", "messages": []})
        return body["messages"][-1]["content"], turn.metadata["_eunoe"]["run"]

    async def all_of_them():
        return await asyncio.gather(*(one(n) for n in range(20)))

    results = run(all_of_them())
    for n, (said, run_id) in enumerate(results):
        assert said == f"I am user {n}"
        events = [e for e in sink.events if e.run_id == run_id]
        assert {(e.user, e.chat_id) for e in events} == {(f"user-{n}", f"chat-{n}")}
        assert [e.data["prompt_tokens"] for e in events if e.event == "pipeline.outlet"] == [100 + n]


def test_messages_have_no_keys_of_ours_and_private_data_stays_in_the_metadata(host):
    turn = Turn(host.Filter(), max_tokens=900)
    body = run(turn.send(chat()))
    assert set(body) == {"model", "stream", "stream_options", "messages", "metadata"}
    assert all(set(m) == {"role", "content"} for m in body["messages"])
    json.dumps(turn.metadata)  # the host may write it down


def test_hosts_without_the_request_hook_are_planned_for_in_inlet(host, monkeypatch):
    monkeypatch.setitem(host.Filter.inlet.__globals__, "VERSION", "0.10.5")
    turn = Turn(host.Filter(), max_tokens=900)
    body = run(turn.call("inlet", {"model": "m", "messages": chat()}))
    assert len(body["messages"]) < 32
    monkeypatch.setitem(host.Filter.inlet.__globals__, "VERSION", "0.12.4")
    turn = Turn(host.Filter(), max_tokens=900)
    assert len(run(turn.call("inlet", {"model": "m", "messages": chat()}))["messages"]) == 32


def test_the_administrators_form_shows_labels_choices_and_hides_the_token(host):
    schema = host.Filter.Valves.model_json_schema()
    fields = schema["properties"]
    assert "$defs" not in schema
    assert all(f["title"] and f["description"] for f in fields.values())
    assert fields["max_tokens"]["title"] == "Largest prompt, in tokens"
    assert fields["algorithm"]["enum"] == [
        *("recency_biased", "greedy_by_weight", "dependency_aware", "prefix_cache_optimized")
    ]
    assert fields["observer_token"]["input"] == {"type": "password"}
    assert set(host.Filter.UserValves.model_json_schema()["properties"]) == {"max_tokens", "show_status"}


def test_valves_that_an_older_or_newer_version_stored_still_load(host):
    assert host.Filter.Valves(max_turns=25, no_such_valve="x", max_tokens=5).max_tokens == 5


def test_a_changed_observer_address_gets_a_new_sink_and_none_is_made_without_one(host):
    filter_ = host.Filter()
    none = filter_._sink_for(filter_.Valves())
    first = filter_._sink_for(filter_.Valves(observer_url="http://127.0.0.1:9"))
    same = filter_._sink_for(filter_.Valves(observer_url=" http://127.0.0.1:9 "))
    other = filter_._sink_for(filter_.Valves(observer_url="http://127.0.0.1:9", observer_token="t"))
    assert type(none).__name__ == "NoSink"
    assert first is same
    assert other is not first


def test_a_sink_that_cant_be_made_costs_no_answer(host, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("no sink: What is the code word?")

    monkeypatch.setitem(host.Filter.request.__globals__, "HttpSink", broken)
    turn = Turn(host.Filter(), max_tokens=900, observer_url="http://127.0.0.1:9")
    assert contents(run(turn.send(chat()))) == contents({"messages": chat()})
    assert turn.metadata["_eunoe"]["failed"] == "request"
    assert "request failed, the chat goes on as it was: RuntimeError" in caplog.text
    assert "code word" not in caplog.text
