"""The middleware around real clients of the `openai` package, which talk to a server on the loopback."""

import asyncio
import gc
import inspect
import json
import logging
import subprocess
import sys
import threading
import time

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionMessage

from eunoe import ContextOrchestrator, Settings, TokenBudget
from eunoe.assembly import PRICES_FILE, data_file
from eunoe.cache import InMemoryCache
from eunoe.errors import BadSetting
from eunoe.events import EventKind
from eunoe.ports import ListSink
from eunoe.summarizers import ConversationSummarizer, LLMSummarizer
from eunoe_hosts.middleware import Middleware
from tests.engine.scripted import Answer, ScriptedServer, refusal

LARK = "The code word is LARK."
SUMMARY = "They spoke of the river, the mill and the bridge."
USAGE = {
    "prompt_tokens": 640,
    "completion_tokens": 7,
    "total_tokens": 647,
    "prompt_tokens_details": {"cached_tokens": 512},
}


def chat(turns=15):
    filler = "lorem ipsum dolor sit amet " * 8
    messages = [{"role": "system", "content": "Be brief."}]
    for i in range(turns):
        messages += [
            {"role": "user", "content": f"Question {i}. {filler}"},
            {"role": "assistant", "content": f"Answer {i}. {filler}"},
        ]
    return [*messages, {"role": "user", "content": "And then?"}]


def completion(**message):
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "Yes.", **message},
    }
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-test",
        "choices": [choice],
        "usage": USAGE,
    }


def pieces(body, words=("Yes", ", ", "indeed.")):
    """A stream as OpenAI sends it: usage comes last, in a piece of its own, and only if asked for."""
    common = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-test"}
    for word in words:
        choice = {"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None}
        yield {**common, "choices": [choice]}
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**common, "choices": [], "usage": USAGE}


def sse(events, *, whole=True):
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    raw = "".join([*lines, "data: [DONE]\n\n"] if whole else lines).encode()
    cut = {} if whole else {"Content-Length": str(len(raw) + 99), "Connection": "close"}
    return Answer(200, raw, {"Content-Type": "text/event-stream", **cut})


def provider(body):
    """Answer as OpenAI does; a request for a summary gets one."""
    if body.get("stream"):
        return sse(pieces(body))
    if not body["messages"][-1]["content"].startswith(("And then", "Question", "Hi")):
        return Answer(body=completion(content=SUMMARY))
    return Answer(body=completion())


class Rerouted(httpx2.HTTPTransport):
    """Takes requests for OpenAI's servers to the loopback."""

    def __init__(self, port):
        super().__init__()
        self.port = port

    def handle_request(self, request):
        request.url = request.url.copy_with(scheme="http", host="127.0.0.1", port=self.port)
        return super().handle_request(request)


class Rig:
    """A server, a client of one kind, and a middleware between them."""

    def __init__(self, kind, server, max_tokens=900, base_url=None, **options):
        self.kind, self.server, self.sink = kind, server, ListSink()
        self.orchestrator = ContextOrchestrator(TokenBudget(max_tokens), sink=self.sink)
        self.middleware = Middleware(self.orchestrator, **options)
        client = openai.OpenAI if kind == "sync" else openai.AsyncOpenAI
        self.client = client(api_key="k", base_url=base_url or server.url, max_retries=0)

    def bodies(self, kind):
        return [event.data for event in self.sink.events if event.event == kind]

    @property
    def asked(self):
        return [request.body for request in self.server.asked]

    def create(self, *args, function=None, **options):
        """Call the wrapped `create`, read a stream to its end, and close the client."""

        async def later():
            async with self.client:
                answer = await self.wrapped(function)(*args, **options)
                return [piece async for piece in answer] if options.get("stream") else answer

        if self.kind == "async":
            return asyncio.run(later())
        with self.client:
            answer = self.wrapped(function)(*args, **options)
            return list(answer) if options.get("stream") else answer

    def wrapped(self, function=None):
        return self.middleware.wrap(function or self.client.chat.completions.create)


@pytest.fixture(params=["sync", "async"])
def kind(request):
    return request.param


@pytest.fixture
def server():
    with ScriptedServer(provider) as server:
        yield server


def eventually(condition):
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_a_call_is_planned_and_settled_with_the_providers_figures(kind, server):
    rig = Rig(kind, server)
    answer = rig.create(messages=chat(), model="gpt-test", temperature=0.5, user="user-7")
    assert type(answer) is openai.types.chat.ChatCompletion
    assert answer.choices[0].message.content == "Yes."
    (body,) = rig.asked
    assert body.keys() == {"messages", "model", "temperature", "user"}
    assert (body["model"], body["temperature"]) == ("gpt-test", 0.5)
    sent, whole = body["messages"], chat()
    assert 2 < len(sent) < len(whole)
    assert all(message in whole for message in sent)
    assert (sent[0], sent[-1]) == (whole[0], whole[-1])
    kinds = [event.event for event in rig.sink.events]
    assert kinds == [EventKind.START, EventKind.PLAN, EventKind.USAGE, EventKind.OUTLET]
    assert {(e.host, e.model, e.user) for e in rig.sink.events} == {("middleware", "gpt-test", "user-7")}
    assert len({e.run_id for e in rig.sink.events}) == 1
    (plan,) = rig.bodies(EventKind.PLAN)
    assert plan["tokens_after"] <= 900 < plan["tokens_before"]
    (usage,) = rig.bodies(EventKind.USAGE)
    assert usage == {"call": 1, "prompt_tokens": 640, "completion_tokens": 7, "cached_tokens": 512}
    (outlet,) = rig.bodies(EventKind.OUTLET)
    assert (outlet["calls"], outlet["prompt_tokens"], outlet["cached_tokens"]) == (1, 640, 512)
    assert outlet["elapsed_ms"] > 0


def test_a_short_chat_is_sent_as_the_very_same_objects(server):
    rig, seen = Rig("sync", server), []
    messages = chat(1)
    rig.create(
        messages=messages,
        model="m",
        function=lambda messages, **_: seen.append(messages) or {"choices": [1], "usage": USAGE},
    )
    assert [id(message) for message in seen[0]] == [id(message) for message in messages]
    assert rig.bodies(EventKind.OUTLET)[0]["prompt_tokens"] == 640  # answers that are plain dictionaries too


def test_tool_definitions_and_schemas_count_and_may_be_read_once(kind, server):
    tool = {
        "type": "function",
        "function": {"name": "look", "parameters": {}, "description": "find " * 150},
    }
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"description": "find " * 150}}}
    plain, loaded = Rig(kind, server), Rig(kind, server)
    plain.create(messages=chat(), model="m")
    loaded.create(
        messages=iter(chat()), model="m", tools=(t for t in [tool]), response_format=schema, max_tokens=50
    )
    first, second = plain.asked[-2:]
    assert second["tools"] == [tool]
    assert second["response_format"] == schema
    assert len(second["messages"]) < len(first["messages"])
    (plan,) = loaded.bodies(EventKind.PLAN)
    assert plan["tokens_after"] <= 900
    assert plan["tokens_fixed"] > 300


def test_options_that_are_not_given_do_no_harm(kind, server):
    rig = Rig(kind, server)
    rig.create(messages=chat(1), model="m", tools=openai.NOT_GIVEN, max_tokens=openai.omit)
    assert rig.asked[0].keys() == {"messages", "model"}
    assert not rig.bodies(EventKind.FAILED)


def test_the_clients_own_answers_may_stand_among_the_messages(kind, server):
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    answer = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": [call]}
    )
    rig = Rig(kind, server)
    messages = [
        *chat()[:-1],
        {"role": "user", "content": "Question: look."},
        answer,
        {"role": "tool", "tool_call_id": "c1", "content": "Hi"},
    ]
    rig.create(messages=messages, model="m")
    assert rig.asked[0]["messages"][-2:] == [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Hi"},
    ]
    assert not rig.bodies(EventKind.FAILED)
    kept = asyncio.run(rig.middleware(messages, model="m"))
    assert any(message is answer for message in kept)


# Streams


@pytest.mark.parametrize("ask_usage", [True, False, None])
def test_a_stream_is_what_the_caller_would_have_got_without_us(kind, server, ask_usage):
    rig = Rig(kind, server, ask_usage=ask_usage)
    got = rig.create(messages=chat(), model="m", stream=True)
    assert [piece.choices[0].delta.content for piece in got] == ["Yes", ", ", "indeed."]
    assert rig.asked[0].get("stream_options") == ({"include_usage": True} if ask_usage else None)
    assert [u["prompt_tokens"] for u in rig.bodies(EventKind.USAGE)] == ([640] if ask_usage else [])
    (outlet,) = rig.bodies(EventKind.OUTLET)
    assert outlet.get("prompt_tokens") == (640 if ask_usage else None)  # unknown is not zero


def test_usage_that_the_caller_asked_for_is_given_and_read(kind, server):
    rig = Rig(kind, server, ask_usage=True)
    got = rig.create(messages=chat(), model="m", stream=True, stream_options={"include_usage": True})
    assert got[-1].choices == []
    assert got[-1].usage.prompt_tokens == 640
    assert rig.bodies(EventKind.OUTLET)[0]["cached_tokens"] == 512


@pytest.mark.parametrize(
    "options",
    [
        {"stream_options": {"include_usage": False}},
        {"extra_body": {"stream_options": {"include_usage": False}}},
        {"stream_options": None},
    ],
)
def test_a_caller_who_wants_no_usage_is_not_overruled(kind, server, options):
    rig = Rig(kind, server, ask_usage=True)
    assert len(rig.create(messages=chat(), model="m", stream=True, **options)) == 3
    assert (rig.asked[0]["stream_options"] or {}).get("include_usage") in {False, None}


def test_other_stream_options_stay(kind, server):
    rig = Rig(kind, server, ask_usage=True)
    rig.create(messages=chat(), model="m", stream=True, stream_options={"include_obfuscation": False})
    assert rig.asked[0]["stream_options"] == {"include_obfuscation": False, "include_usage": True}


@pytest.mark.parametrize(
    ("address", "asks"),
    [
        ("https://api.openai.com/v1", True),
        ("https://eu.api.openai.com/v1", True),
        ("https://api.openai.com.example.org/v1", False),
        ("https://example.org/v1", False),
    ],
)
def test_by_itself_only_openais_own_servers_are_asked_for_usage(server, address, asks):
    port = int(server.url.split(":")[2].split("/")[0])
    rig = Rig("sync", server, base_url=address)
    with httpx2.Client(transport=Rerouted(port)) as http:
        rig.client = rig.client.with_options(http_client=http)
        got = rig.create(messages=chat(), model="m", stream=True)
    assert len(got) == 3
    assert ("stream_options" in rig.asked[0]) is asks
    assert len(rig.bodies(EventKind.USAGE)) == asks


def test_a_wrapped_stream_is_still_the_clients_stream(server):
    rig = Rig("sync", server, ask_usage=True)
    with rig.client, rig.wrapped()(messages=chat(), model="m", stream=True) as stream:
        assert isinstance(stream, openai.Stream)
        assert stream.response.status_code == 200
        assert next(stream).choices[0].delta.content == "Yes"
        assert not rig.bodies(EventKind.OUTLET)
        assert len(list(stream)) == 2
    assert len(rig.bodies(EventKind.OUTLET)) == 1


def test_a_wrapped_async_stream_is_still_the_clients_stream(server):
    rig = Rig("async", server, ask_usage=True)

    async def read():
        create = rig.wrapped()
        async with rig.client, await create(messages=chat(), model="m", stream=True) as stream:
            assert isinstance(stream, openai.AsyncStream)
            assert (await anext(stream)).choices[0].delta.content == "Yes"
            assert len([piece async for piece in stream]) == 2

    asyncio.run(read())
    (outlet,) = rig.bodies(EventKind.OUTLET)
    assert outlet["prompt_tokens"] == 640


@pytest.mark.parametrize("end", ["close", "with", "forget"])
def test_a_stream_left_early_is_settled_once(server, end):
    rig = Rig("sync", server, ask_usage=True)
    with rig.client:
        stream = rig.wrapped()(messages=chat(), model="m", stream=True)
        next(iter(stream))
        response = stream.response
        if end == "close":
            stream.close()
        elif end == "with":
            with stream:
                pass
        assert len(rig.bodies(EventKind.OUTLET)) == (end != "forget")
        del stream
        gc.collect()
        response.close()
    (outlet,) = rig.bodies(EventKind.OUTLET)
    assert "prompt_tokens" not in outlet


def test_an_async_stream_closed_early_is_settled_once(server):
    rig = Rig("async", server, ask_usage=True)

    async def read():
        async with rig.client:
            stream = await rig.wrapped()(messages=chat(), model="m", stream=True)
            await anext(stream)
            await stream.close()
            assert len(rig.bodies(EventKind.OUTLET)) == 1
            del stream

    asyncio.run(read())
    gc.collect()
    assert len(rig.bodies(EventKind.OUTLET)) == 1


# Failures of the provider


def test_the_providers_refusal_reaches_the_caller_and_closes_the_run(kind):
    with ScriptedServer(refusal(429, "Slow down.", {"Retry-After": "1"})) as server:
        rig = Rig(kind, server)
        with pytest.raises(openai.RateLimitError, match=r"Slow down\.") as caught:
            rig.create(messages=chat(), model="m")
    assert caught.value.response.headers["Retry-After"] == "1"
    (outlet,) = rig.bodies(EventKind.OUTLET)
    assert "prompt_tokens" not in outlet
    assert not rig.bodies(EventKind.FAILED)


def test_a_broken_stream_breaks_as_it_does_without_us(kind):
    with ScriptedServer(lambda body: sse(pieces(body), whole=False)) as server:
        rig = Rig(kind, server)
        with pytest.raises(openai.APIConnectionError):
            rig.create(messages=chat(), model="m", stream=True)
    assert len(rig.bodies(EventKind.OUTLET)) == 1
    assert not rig.bodies(EventKind.FAILED)


# Failures of ours


class Broken(ContextOrchestrator):
    """Fails in one of its methods."""

    def __init__(self, method, sink):
        super().__init__(TokenBudget(900), sink=sink)
        self.method = method

    def _fail_in(self, method):
        if self.method == method:
            raise ZeroDivisionError(LARK)

    async def process(self, *args):
        self._fail_in("process")
        return await super().process(*args)

    def note_usage(self, *args):
        self._fail_in("note_usage")
        super().note_usage(*args)

    def settle(self, *args):
        self._fail_in("settle")
        return super().settle(*args)


@pytest.mark.parametrize(
    ("method", "stage"), [("process", "plan"), ("note_usage", "settle"), ("settle", "settle")]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_of_ours_costs_the_plan_and_never_the_answer(kind, server, caplog, method, stage, stream):
    rig = Rig(kind, server, ask_usage=True)
    rig.middleware.orchestrator = Broken(method, rig.sink)
    answer = rig.create(messages=iter(chat()), model="m", stream=stream)
    assert len(answer) == 3 if stream else answer.choices[0].message.content == "Yes."
    assert (rig.asked[0]["messages"] == chat()) is (method == "process")
    (failed,) = rig.bodies(EventKind.FAILED)
    assert (failed["stage"], failed["error"]) == (stage, "ZeroDivisionError")
    assert failed["places"][-1].endswith("in _fail_in")
    assert [r.levelname for r in caplog.records if r.name == "eunoe"] == ["ERROR"]
    assert "LARK" not in caplog.text


def test_messages_that_are_none_are_the_providers_to_judge(kind, server):
    rig = Rig(kind, server)
    rig.server.answers[:] = [refusal(400, "messages must be objects")]
    with pytest.raises(openai.BadRequestError):
        rig.create(messages=["Hi"], model="m")
    assert rig.asked[0]["messages"] == ["Hi"]
    assert rig.bodies(EventKind.FAILED)[0]["error"].startswith("BadMessages")


def test_a_call_without_messages_is_left_alone(kind, server):
    rig = Rig(kind, server)
    with pytest.raises(TypeError, match="messages"):
        rig.create(model="m")
    assert rig.sink.events == []


def test_an_answer_with_absurd_usage_comes_through(kind):
    strange = {**completion(), "usage": {"prompt_tokens": "many", "completion_tokens": -1}}
    with ScriptedServer(Answer(body=strange)) as server:
        rig = Rig(kind, server)
        assert rig.create(messages=chat(1), model="m").choices[0].message.content == "Yes."
    assert not rig.bodies(EventKind.USAGE)
    assert "prompt_tokens" not in rig.bodies(EventKind.OUTLET)[0]


# Ways to call


def test_a_client_can_be_changed_in_place(kind, server):
    rig = Rig(kind, server)
    rig.client.chat.completions.create = rig.wrapped()
    if kind == "async":
        asyncio.run(_create_and_close(rig.client))
    else:
        with rig.client:
            rig.client.chat.completions.create(messages=chat(), model="m")
    assert len(rig.asked[0]["messages"]) < len(chat())
    assert rig.bodies(EventKind.OUTLET)


async def _create_and_close(client):
    async with client:
        await client.chat.completions.create(messages=chat(), model="m")


def test_a_raw_response_comes_back_as_it_is(server):
    rig = Rig("sync", server, ask_usage=None)
    answer = rig.create(
        function=rig.client.chat.completions.with_raw_response.create, messages=chat(), model="m"
    )
    assert answer.http_response.status_code == 200
    assert answer.parse().choices[0].message.content == "Yes."
    assert len(rig.asked[0]["messages"]) < len(chat())


def test_it_decorates_functions_that_take_messages(server):
    rig = Rig("async", server, model="gpt-test")

    @rig.middleware.wrap
    async def ask(messages, mood, **options):
        """Ask."""
        async with rig.client as client:
            return await client.chat.completions.create(model="m", messages=messages, **options)

    assert inspect.iscoroutinefunction(ask)
    assert (ask.__name__, ask.__doc__) == ("ask", "Ask.")
    assert asyncio.run(ask(chat(), "gay", temperature=1)).choices[0].message.content == "Yes."
    assert len(rig.asked[0]["messages"]) < len(chat())
    assert {event.model for event in rig.sink.events} == {"gpt-test"}


def test_arguments_without_names_are_understood(server):
    rig, seen = Rig("sync", server), []

    @rig.middleware.wrap
    def ask(model, messages, user=None):
        seen.append((model, messages, user))
        return "plain text"

    assert ask("gpt-test", chat(), user="u") == "plain text"
    ((model, messages, user),) = seen
    assert (model, user) == ("gpt-test", "u")
    assert len(messages) < len(chat())
    assert {(event.model, event.user) for event in rig.sink.events} == {("gpt-test", "u")}


def test_generators_are_streams_too(server):
    rig = Rig("sync", server)

    @rig.middleware.wrap
    def ask(messages):
        yield from pieces({"stream_options": {"include_usage": True}})

    @rig.middleware.wrap
    async def ask_later(messages):
        for piece in pieces({"stream_options": {"include_usage": True}}):
            yield piece

    async def read():
        return [piece async for piece in ask_later(messages=chat(1))]

    assert len(list(ask(chat(1)))) == len(asyncio.run(read())) == 4
    assert [outlet["prompt_tokens"] for outlet in rig.bodies(EventKind.OUTLET)] == [640, 640]


def test_a_function_without_messages_is_refused_at_once(server):
    with pytest.raises(BadSetting, match="takes no messages"):
        Rig("sync", server).middleware.wrap(lambda prompt: prompt)


def test_it_gives_the_messages_themselves(server):
    rig = Rig("sync", server)
    whole = chat()

    async def both():
        first = await rig.middleware(whole, model="gpt-test", tools=[])
        return first, rig.middleware.trimmed(iter(whole), model_id="gpt-test")  # in a running event loop

    first, second = asyncio.run(both())
    assert first == second == rig.middleware.trimmed(whole, model="gpt-test")
    assert 2 < len(first) < len(whole)
    assert all(any(message is given for given in whole) for message in first)
    assert {event.model for event in rig.sink.events} == {"gpt-test"}


def test_flags_are_taken_out(server):
    rig = Rig("sync", server)
    messages = [*chat()[:-1], {"role": "user", "content": "!recent=1 And then?"}]
    rig.create(messages=messages, model="m")
    assert rig.asked[0]["messages"][-1] == {"role": "user", "content": "And then?"}
    assert messages[-1]["content"] == "!recent=1 And then?"


def test_a_sync_client_works_inside_a_running_event_loop(server):
    rig = Rig("sync", server)

    async def inside():
        return rig.create(messages=chat(), model="m", stream=True)

    assert len(asyncio.run(inside())) == 3
    assert len(rig.asked[0]["messages"]) < len(chat())


def test_an_event_loop_goes_on_while_an_async_call_is_planned(server):
    """Planning waits for a thread, not in the loop."""
    rig, ticks = Rig("async", server), []

    class Slow(ContextOrchestrator):
        async def process(self, *args):
            await asyncio.sleep(0.3)
            return await super().process(*args)

    rig.middleware.orchestrator = Slow(TokenBudget(900))

    async def both():
        async def tick():
            while True:
                ticks.append(1)
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        await _create_with(rig)
        ticking.cancel()

    asyncio.run(both())
    assert len(ticks) > 10


async def _create_with(rig):
    async with rig.client:
        await rig.wrapped()(messages=chat(1), model="m")


def test_threads_may_share_a_wrapped_client(server):
    rig = Rig("sync", server)
    with rig.client:
        create = rig.wrapped()
        threads = [
            threading.Thread(target=create, kwargs={"messages": chat(), "model": "m"}) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(rig.bodies(EventKind.OUTLET)) == 6
    assert len({event.run_id for event in rig.sink.events}) == 6
    assert all(len(body["messages"]) < len(chat()) for body in rig.asked)


# Settings: prices, windows, summaries


def test_costs_come_from_the_price_file(kind, server, tmp_path, caplog):
    prices = tmp_path / "prices.json"
    prices.write_text(
        json.dumps(
            [
                {
                    "model_id": "gpt-test",
                    "input_price_per_1m": 2,
                    "cached_price_per_1m": 1,
                    "output_price_per_1m": 8,
                }
            ]
        )
    )
    settings = Settings(pricing_config_path=str(prices), model_aliases='{"mine": "gpt-test"}')
    rig = Rig(kind, server, settings=settings)
    rig.create(messages=chat(), model="mine")
    (outlet,) = rig.bodies(EventKind.OUTLET)
    assert outlet["cost_usd"] == pytest.approx((128 * 2 + 512 * 1 + 7 * 8) / 1e6)
    assert outlet["cost_source"] == "price file"
    prices.write_text("no list")
    again = Rig(kind, server, settings=settings)
    again.create(messages=chat(), model="mine")
    assert "cost_usd" not in again.bodies(EventKind.OUTLET)[0]
    assert [r.levelname for r in caplog.records if r.name == "eunoe"] == ["WARNING"]


def test_the_window_and_the_replys_room_bound_a_prompt(kind, server):
    rig = Rig(kind, server, max_tokens=0, settings=Settings(context_window=1_000))
    rig.create(messages=chat(), model="m", max_completion_tokens=300)
    (plan,) = rig.bodies(EventKind.PLAN)
    assert (plan["limit"], plan["limit_source"], plan["reply_reserve"]) == (700, "window", 300)


def test_openrouters_prices_need_a_place(server, tmp_path):
    with pytest.raises(BadSetting, match="store_path"):
        Rig("sync", server, settings=Settings(openrouter_pricing=True))
    rate = {"input": 3.0, "cached": None, "cache_write": None, "output": 9.0}
    kept = {"fetched_at": time.time(), "prices": {"m": rate}}
    settings = Settings(openrouter_pricing=True, store_path=str(tmp_path / "eunoe.db"))
    data_file(settings, None, PRICES_FILE).write_text(json.dumps(kept))  # fresh: nothing is fetched
    rig = Rig("sync", server, settings=settings)
    rig.create(messages=chat(), model="m")
    assert rig.bodies(EventKind.OUTLET)[0]["cost_source"] == "OpenRouter"


@pytest.mark.parametrize("direct", [False, True])
def test_summaries_are_written_in_the_background_and_sent_with_the_next_call(kind, server, direct):
    rig = Rig(kind, server)
    book = ConversationSummarizer(LLMSummarizer(server.url, model="helper"), InMemoryCache())
    rig.middleware.orchestrator.summaries = book
    if direct:
        rig.middleware.trimmed(chat(), model="m")
    else:
        rig.create(messages=chat(), model="m")
    eventually(lambda: any(body.get("purpose") == "summary" for body in rig.bodies(EventKind.USAGE)))
    assert any(body["model"] == "helper" for body in rig.asked)
    assert SUMMARY in str(rig.middleware.trimmed(chat(), model="m"))
    assert not rig.bodies(EventKind.FAILED)


def test_a_summary_model_that_fails_is_named_once(server, caplog):
    rig = Rig("sync", server)
    with ScriptedServer(refusal(404)) as helper:
        backend = LLMSummarizer(helper.url, model="helper", attempts=1)
        rig.middleware.orchestrator.summaries = ConversationSummarizer(backend, InMemoryCache())
        for _ in range(3):
            before = len(helper.asked)
            rig.middleware.trimmed(chat(), model="m")
            eventually(lambda before=before: len(helper.asked) > before)
            eventually(lambda: not [t for t in threading.enumerate() if t.name == "eunoe-summaries"])
    (line,) = [record for record in caplog.records if record.name == "eunoe"]
    assert line.levelname == "WARNING"
    assert line.getMessage().startswith("eunoe: helper: it answered 404")
    assert not rig.bodies(EventKind.FAILED)


def test_few_summaries_are_written_at_once(server):
    rig, gate = Rig("sync", server), threading.Event()

    class Waiting(ContextOrchestrator):
        async def write_summaries(self, *args):
            await asyncio.to_thread(gate.wait, 15)
            return await super().write_summaries(*args)

    book = ConversationSummarizer(LLMSummarizer(server.url, model="helper"), InMemoryCache())
    rig.middleware.orchestrator = Waiting(TokenBudget(900), summaries=book)
    try:
        for _ in range(7):
            rig.middleware.trimmed(chat(), model="m")
        assert len([t for t in threading.enumerate() if t.name == "eunoe-summaries"]) == 4
    finally:
        gate.set()
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "eunoe-summaries"])


PROGRAM = """
import asyncio, atexit, logging, sys, time
import openai
from eunoe import ContextOrchestrator, TokenBudget
from eunoe.cache import InMemoryCache
from eunoe.summarizers import ConversationSummarizer, LLMSummarizer
from eunoe_hosts.middleware import Middleware

url = sys.argv[1]
book = ConversationSummarizer(LLMSummarizer(url, model="helper"), InMemoryCache())
middleware = Middleware(ContextOrchestrator(TokenBudget(900), summaries=book))
client = openai.OpenAI(api_key="k", base_url=url)
create = middleware.wrap(client.chat.completions.create)
chat = [{"role": "user" if i % 2 == 0 else "assistant", "content": f"Question {i} " + "word " * 60} for i in range(41)]
atexit.register(lambda: print(create(messages=chat, model="m").choices[0].message.content))
stream = create(messages=chat, model="m", stream=True)
print(next(stream).choices[0].delta.content)
"""


def test_a_program_may_end_at_any_time(server):
    """With a stream half read and a summary half written, and with a call as its last breath."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, server.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["Yes", "Yes."]
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_the_log_is_silent_where_all_is_well(kind, server, caplog):
    caplog.set_level(logging.DEBUG, logger="eunoe")
    Rig(kind, server).create(messages=chat(), model="m")
    assert [r for r in caplog.records if r.name.startswith("eunoe")] == []
