"""Clients of OpenAI-compatible servers, against a real HTTP server that answers as they do."""

import asyncio
import base64
import datetime
import email.utils
import gc
import struct
import time

import pytest

from eunoe.api import api_root
from eunoe.endpoint import OpenAIChatModel, OpenAIEmbedder, ends_of
from eunoe.errors import ModelFailed
from eunoe.reply import without_reasoning
from eunoe.usage import Usage

from .scripted import DRIP, DROP, Answer, ScriptedServer, chat_answer, embeddings, refusal

KEY = "sk-secret-key"
QUESTION = [{"role": "user", "content": "Where is LARK?"}]
AT_ONCE = {"Retry-After": "0"}


def ask(server, messages=QUESTION, *, max_tokens=50, tools=(), **options):
    model = OpenAIChatModel(server.url, KEY, "gpt", **options)
    return asyncio.run(model.complete(messages, max_tokens=max_tokens, tools=tools))


def failure(server, **options):
    with pytest.raises(ModelFailed) as caught:
        ask(server, **options)
    return caught.value


def embed(server, texts, **options):
    return [list(v) for v in asyncio.run(OpenAIEmbedder(server.url, KEY, "minilm", **options).embed(texts))]


# What is asked


def test_a_chat_model_is_asked_in_the_form_that_all_servers_know():
    tool = {"type": "function", "function": {"name": "look"}}
    with ScriptedServer(chat_answer()) as server:
        ask(server, tools=[tool])
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["Authorization"] == f"Bearer {KEY}"
    assert asked.body == {
        "model": "gpt",
        "messages": QUESTION,
        "max_tokens": 50,
        "tools": [tool],
        "stream": False,
    }


def test_without_a_key_a_model_and_tools_none_are_sent():
    with ScriptedServer(chat_answer()) as server:
        asyncio.run(OpenAIChatModel(server.url).complete(QUESTION, max_tokens=5))
    assert "Authorization" not in server.asked[0].headers
    assert server.asked[0].body == {"messages": QUESTION, "max_tokens": 5, "stream": False}


def test_the_extra_body_wins_over_all_but_streaming():
    extra = {"temperature": 0, "max_tokens": 9, "stream": True}
    with ScriptedServer(chat_answer()) as server:
        ask(server, extra_body=extra)
    assert server.asked[0].body | extra | {"stream": False} == server.asked[0].body


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("http://localhost:11434", "http://localhost:11434/v1"),
        ("http://localhost:11434/", "http://localhost:11434/v1"),
        ("http://localhost:11434/v1", "http://localhost:11434/v1"),
        (" http://localhost:11434/v1/ ", "http://localhost:11434/v1"),
        ("https://openrouter.ai/api/v1/", "https://openrouter.ai/api/v1"),
        ("https://host/v1beta/openai/", "https://host/v1beta/openai"),
        ("https://api.openai.com/v1/chat/completions", "https://api.openai.com/v1"),
        ("https://api.openai.com/v1/embeddings/", "https://api.openai.com/v1"),
    ],
)
def test_an_address_may_be_written_as_people_write_it(given, root):
    assert api_root(given) == root


def test_half_a_character_does_not_stop_a_request():
    with ScriptedServer(chat_answer()) as server:
        ask(server, [{"role": "user", "content": "broken \ud83d emoji"}])
    assert server.asked[0].body["messages"][0]["content"] == "broken ? emoji"


# What is answered


def test_text_end_calls_and_usage_are_read():
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    answer = chat_answer(
        "Here.",
        message={"tool_calls": [call]},
        choice={"finish_reason": "length"},
        usage={"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}},
    )
    with ScriptedServer(answer) as server:
        reply = ask(server)
    assert (reply.text, reply.finish_reason, list(reply.tool_calls)) == ("Here.", "length", [call])
    assert reply.usage == Usage(prompt_tokens=7, completion_tokens=2, cached_tokens=3)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("  Yes. ", "Yes."),
        ([{"type": "text", "text": "Ye"}, {"type": "text", "text": "s."}], "Yes."),
        ([{"type": "thinking", "thinking": [{"text": "hm"}]}, {"type": "text", "text": "Yes."}], "Yes."),
        ([{"type": "reasoning", "text": "hm"}, "Yes."], "Yes."),
        ("<think>hm</think>\n\nYes.", "Yes."),
        ("<think>hm\nhm</think>Yes.<think>hm again</think> No.", "Yes. No."),
        ("<Thinking>hm</Thinking>Yes.", "Yes."),
        ("hm, so\n</think>\n\nYes.", "Yes."),
        ("<think>hm, let me see whether", ""),
        ("Yes.\n<think>hm, let me", "Yes."),
    ],
)  # fmt: skip
def test_reasoning_is_no_text(content, text):
    with ScriptedServer(chat_answer(content, message={"reasoning_content": "hm"})) as server:
        assert ask(server).text == text


def test_a_tag_that_is_spoken_of_stays():
    text = "Models write `<think>` before and `</think>` behind what they think; a lone <think> too."
    assert without_reasoning(text) == text


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": [{"message": None}]}, [1], "no"])
def test_an_answer_without_a_message_is_a_failure(body):
    with ScriptedServer(Answer(body=body)) as server:
        error = failure(server)
    assert str(error) == "gpt: its answer has no message"
    assert error.passing


# Retries


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_a_passing_refusal_is_tried_again(status):
    with ScriptedServer(refusal(status, headers=AT_ONCE), chat_answer()) as server:
        assert ask(server).text == "Yes."
    assert len(server.asked) == 2
    assert server.asked[0].body == server.asked[1].body


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 422])
def test_any_other_refusal_is_final(status):
    with ScriptedServer(refusal(status, headers=AT_ONCE), chat_answer()) as server:
        error = failure(server)
    assert (error.status, error.passing, len(server.asked)) == (status, False, 1)


def test_a_dropped_connection_is_tried_again_after_a_wait_that_grows():
    with ScriptedServer(DROP, DROP, chat_answer()) as server:
        assert ask(server).text == "Yes."
    first, second, third = [asked.at for asked in server.asked]
    assert 0.2 < second - first < 1.0
    assert 0.45 < third - second < 1.9


def test_after_the_last_try_the_failure_says_that_it_may_pass():
    with ScriptedServer(refusal(503, headers=AT_ONCE)) as server:
        error = failure(server, attempts=4)
    assert (error.status, error.passing, len(server.asked)) == (503, True, 4)


def test_a_server_that_is_not_there_is_a_failure_that_may_pass():
    with ScriptedServer(chat_answer()) as server:
        pass
    error = failure(server, attempts=1)
    assert (str(error), error.status, error.passing) == (
        "gpt: it can't be reached (ConnectError)",
        None,
        True,
    )


def test_an_answer_that_never_ends_is_given_up():
    with ScriptedServer(DRIP) as server:
        started = time.monotonic()
        error = failure(server, timeout=0.3, attempts=1)
    assert time.monotonic() - started < 2
    assert (str(error), error.passing) == ("gpt: no answer within 0.3 s", True)


def test_the_wait_that_a_server_asks_for_is_kept():
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)
    date = email.utils.format_datetime(soon, usegmt=True)
    first = refusal(429, headers={"Retry-After": "1"})
    with ScriptedServer(first, refusal(503, headers={"Retry-After": date}), chat_answer()) as server:
        ask(server)
    assert server.asked[1].at - server.asked[0].at >= 1
    assert server.asked[2].at - server.asked[0].at >= 0.9  # the date may already have come


@pytest.mark.parametrize("asked", ["3600", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_a_server_that_asks_for_too_long_a_wait_is_not_tried_again(asked):
    with ScriptedServer(refusal(429, headers={"Retry-After": asked}), chat_answer()) as server:
        error = failure(server)
    assert (error.passing, len(server.asked)) == (True, 1)


def test_an_error_inside_an_answer_counts_as_its_status():
    broken = Answer(body={"error": {"code": 429, "message": "slow down"}}, headers=AT_ONCE)
    with ScriptedServer(broken, chat_answer()) as server:
        assert ask(server).text == "Yes."
    with ScriptedServer(Answer(body={"error": {"code": 404}})) as server:
        assert failure(server).status == 404


def test_an_answer_that_is_no_json_may_pass():
    page = Answer(body=b"<html>Bad gateway</html>", headers=AT_ONCE)
    with ScriptedServer(page) as server:
        error = failure(server, attempts=1)
    assert (str(error), error.passing) == ("gpt: its answer is no JSON", True)


# Fields by another name


def test_a_server_that_wants_another_name_for_max_tokens_gets_it_from_then_on():
    refused = refusal(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    with ScriptedServer(refused, chat_answer()) as server:
        model = OpenAIChatModel(server.url, KEY, "gpt", attempts=1)

        async def twice():
            return [await model.complete(QUESTION, max_tokens=50) for _ in range(2)]

        assert [reply.text for reply in asyncio.run(twice())] == ["Yes.", "Yes."]
    names = [sorted(asked.body.keys() & {"max_tokens", "max_completion_tokens"}) for asked in server.asked]
    assert names == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]


def test_a_server_that_refuses_both_names_is_asked_no_third_time():
    with ScriptedServer(refusal(400, "max_tokens or max_completion_tokens is too large")) as server:
        assert failure(server).status == 400
    assert len(server.asked) == 2


# What errors tell


def test_an_error_tells_the_servers_code_but_not_its_words():
    words = f"Incorrect API key provided: {KEY}. Your message was: Where is LARK?"
    with ScriptedServer(refusal(401, words, code="invalid_api_key", type=KEY)) as server:
        error = failure(server)
    assert str(error) == "gpt: it answered 401, the key was refused (invalid_api_key)"
    everything = repr((error, vars(error), error.__cause__, error.args))
    assert KEY not in everything
    assert "LARK" not in everything


@pytest.mark.parametrize("code", ["Where is LARK?", KEY, "x" * 100, 17, None, ["a"]])
def test_a_code_that_is_none_is_not_told(code):
    with ScriptedServer(refusal(400, code=code)) as server:
        assert str(failure(server)) == "gpt: it answered 400"


@pytest.mark.parametrize(
    ("address", "key", "problem"),
    [
        ("localhost:11434/v1", "", "its address does not begin with http:// or https://"),
        ("", "", "its address does not begin with http:// or https://"),
        ("http://", "", "its address does not begin with http:// or https://"),
        ("http://[::1", "", "its address or the proxy can't be used"),
        ("http://127.0.0.1:9", "ключ", "its key has signs that no key can have"),
        ("http://127.0.0.1:9", "a\nb", "its key has signs that no key can have"),
    ],
)
def test_what_can_never_work_is_said_at_once(address, key, problem):
    with pytest.raises(ModelFailed) as caught:
        asyncio.run(OpenAIChatModel(address, key, "gpt").complete(QUESTION, max_tokens=5))
    assert str(caught.value) == f"gpt: {problem}"
    assert not caught.value.passing


def test_a_key_that_looks_like_a_code_is_not_told_either():
    with ScriptedServer(refusal(401, code="secret")) as server, pytest.raises(ModelFailed) as caught:
        asyncio.run(OpenAIChatModel(server.url, "my_secret_key", "gpt").complete(QUESTION, max_tokens=5))
    assert "secret" not in str(caught.value)


# Connections


def test_calls_of_one_event_loop_share_a_connection_and_each_loop_has_its_own():
    with ScriptedServer(chat_answer()) as server:

        async def twice():
            for _ in range(2):
                await OpenAIChatModel(server.url, KEY, "gpt").complete(QUESTION, max_tokens=5)

        for loops in (1, 2):
            asyncio.run(twice())
            assert len(server.ports) == loops
            gc.collect()  # a connection left open would warn here, and warnings fail the tests


def test_many_calls_at_once_use_one_client():
    with ScriptedServer(chat_answer()) as server:
        model = OpenAIChatModel(server.url, KEY, "gpt")

        async def many():
            return await asyncio.gather(*(model.complete(QUESTION, max_tokens=5) for _ in range(8)))

        assert {reply.text for reply in asyncio.run(many())} == {"Yes."}


def test_a_call_that_is_cancelled_ends_at_once():
    with ScriptedServer(DRIP) as server:

        async def impatient():
            async with asyncio.timeout(0.2):
                await OpenAIChatModel(server.url, KEY, "gpt").complete(QUESTION, max_tokens=5)

        started = time.monotonic()
        with pytest.raises(TimeoutError):
            asyncio.run(impatient())
    assert time.monotonic() - started < 2


# Embeddings


def test_texts_are_embedded_in_batches_and_come_back_in_order():
    texts = ["x" * n for n in range(1, 151)]
    with ScriptedServer(embeddings) as server:
        assert embed(server, texts) == [[float(n), 1.0] for n in range(1, 151)]
    assert sorted(len(asked.body["input"]) for asked in server.asked) == [22, 64, 64]
    body = server.asked[0].body
    assert (body["model"], body["encoding_format"], "dimensions" in body) == ("minilm", "float", False)
    assert server.asked[0].path == "/v1/embeddings"
    assert server.asked[0].headers["Authorization"] == f"Bearer {KEY}"


def test_nothing_is_asked_for_no_texts():
    with ScriptedServer(embeddings) as server:
        assert embed(server, []) == []
    assert server.asked == []


def test_shorter_vectors_can_be_asked_for():
    with ScriptedServer(embeddings) as server:
        embed(server, ["a"], dimensions=2)
    assert server.asked[0].body["dimensions"] == 2


def test_vectors_may_come_as_base64():
    packed = base64.b64encode(struct.pack("<3f", 1, -2, 0.5)).decode()
    with ScriptedServer(Answer(body={"data": [{"index": 0, "embedding": packed}]})) as server:
        assert embed(server, ["a"]) == [[1.0, -2.0, 0.5]]


def test_vectors_without_an_index_are_taken_in_their_order():
    data = [{"embedding": [1, 0]}, {"embedding": [0, 1]}]
    with ScriptedServer(Answer(body={"data": data})) as server:
        assert embed(server, ["a", "b"]) == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        [{"index": 0, "embedding": [1]}],
        [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}],
        [{"index": 0, "embedding": []}, {"index": 1, "embedding": []}],
        [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": ["x"]}],
        [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": "not base64"}],
        [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": None}],
        [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1e400]}],
        [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [float("nan")]}],
        [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1e39]}],
    ],
)
def test_vectors_that_are_of_no_use_are_refused(data):
    with ScriptedServer(Answer(body={"data": data})) as server, pytest.raises(ModelFailed) as caught:
        embed(server, ["a", "b"])
    assert caught.value.model == "minilm"


def test_batches_of_different_lengths_are_refused():
    def by_text(body):
        return Answer(body={"data": [{"index": 0, "embedding": [1.0] * len(body["input"][0])}]})

    with ScriptedServer(by_text) as server, pytest.raises(ModelFailed, match="differ in length"):
        embed(server, ["a", "bb"], batch=1)


def test_a_long_text_is_cut_to_its_beginning_and_end_and_an_empty_one_is_a_blank():
    text = "begin " + "x" * 50_000 + " the end"
    with ScriptedServer(embeddings) as server:
        embed(server, [text, ""])
    long, empty = server.asked[0].body["input"]
    assert len(long) == 8_000
    assert long.startswith("begin x")
    assert long.endswith("x the end")
    assert empty == " "


@pytest.mark.parametrize("length", [10, 100, 8_000])
def test_a_cut_text_has_the_length_that_was_asked_for(length):
    assert len(ends_of("x" * 9_000, length)) == length
    assert ends_of("short", 8_000) == "short"


def at_most(texts, length, status=400):
    """A server that refuses more or longer texts."""

    def answer(body):
        fits = len(body["input"]) <= texts and max(map(len, body["input"])) <= length
        return embeddings(body) if fits else refusal(status, headers=AT_ONCE)

    return answer


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_server_that_takes_fewer_texts_gets_fewer_from_then_on(status):
    texts = ["x" * n for n in range(1, 129)]
    with ScriptedServer(at_most(32, 9_000, status)) as server:
        embedder = OpenAIEmbedder(server.url, model="minilm")

        async def twice():
            return [await embedder.embed(texts) for _ in range(2)]

        first, second = asyncio.run(twice())
        assert [v[0] for v in first] == [v[0] for v in second] == list(range(1, 129))
    sizes = [len(asked.body["input"]) for asked in server.asked]
    assert sorted(sizes) == [32] * 8 + [64] * 2


@pytest.mark.parametrize("status", [400, 500])
def test_a_server_that_takes_shorter_texts_gets_shorter_from_then_on(status):
    texts = ["short", "long " * 1_000, "also short"]
    with ScriptedServer(at_most(100, 2_000, status)) as server:
        embedder = OpenAIEmbedder(server.url, model="minilm", attempts=1)

        async def twice():
            return [[v[0] for v in await embedder.embed(texts)] for _ in range(2)]

        assert asyncio.run(twice()) == [[5, 1_500, 10]] * 2
    assert [len(text) for text in server.asked[-1].body["input"]] == [5, 1_500, 10]


def test_a_server_that_takes_nothing_is_not_asked_for_ever():
    with ScriptedServer(refusal(400)) as server, pytest.raises(ModelFailed):
        embed(server, ["word " * 4_000] * 64)
    assert len(server.asked) < 30


def test_a_server_that_knows_no_encoding_format_is_asked_without():
    with ScriptedServer(refusal(422, "Extra inputs: encoding_format"), embeddings) as server:
        assert embed(server, ["abc"]) == [[3.0, 1.0]]
    assert "encoding_format" not in server.asked[1].body


def test_models_have_names_for_the_ledger_and_for_keys():
    assert OpenAIChatModel("http://x", "k", "gpt").name() == "gpt"
    assert OpenAIEmbedder("http://x", "k", "minilm").name() == "minilm"
