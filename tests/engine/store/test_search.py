"""Finding what the model no longer sees."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eunoe.endpoint import OpenAIEmbedder
from eunoe.errors import ModelFailed
from eunoe.store.chats import ChatStore
from eunoe.store.record import record_of, sight_of
from eunoe.store.schema import reading_store
from eunoe.store.search import Asked, found_passages, passage_text
from eunoe.store.tools import ChatTools
from tests.engine.scripted import Answer, ScriptedServer, refusal

from .chatting import KEY, answer, ask, call, planned, result, stored, talk, user


def found(store, query, limit=5, sight=None, key=KEY):
    with reading_store(store.file_of(key)) as connection:
        hits = found_passages(connection, Asked(query), limit, sight)
        return [(bool(hit.in_context), "\n".join(passage_text(connection, hit))) for hit in hits]


def with_facts(*facts):
    """A chat whose facts were said so long ago that nothing of their turns fits."""
    told = [message for fact in facts for message in (user("Note it. " + "And so on. " * 70), answer(fact))]
    return [user("Hello!"), answer("Hello."), *told, *talk(12), user("Well?")]


@pytest.mark.parametrize(
    ("fact", "query"),
    [
        ("The access code of the mill is XK-4711.", "xk-4711"),
        ("The access codes were changed by Ms. Ödegaard.", "who changed the code? ödegaard"),
        ("我们决定把会议改到京都的老茶馆。", "京都"),
        ("我们决定把会议改到京都的老茶馆。", "茶"),
        ("会議は来週の金曜日に変更されました。", "金曜日"),
        ("회의는 부산에서 열립니다.", "부산"),
        ("Встреча перенесена в Казань.", "казань"),
        ("الاجتماع في القاهرة يوم الخميس", "القاهرة"),
        ("การประชุมจัดขึ้นที่เชียงใหม่", "เชียงใหม่"),
        ("Run `ls -la | grep ->` there.", "->"),
        ("It is what it is.", "is what it"),
        ("See src/eunoe/store/search.py:41", "store/search.py"),
    ],
)
def test_a_fact_is_found_by_its_words_in_any_script(tmp_path, fact, query):
    store = stored(tmp_path, with_facts(fact))
    assert found(store, query)[0] == (False, fact)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.one_of(
        st.text(max_size=40),
        st.sampled_from(
            [
                '"',
                "a AND",
                "NEAR(",
                "terms:x",
                "*",
                "^a",
                "-",
                "a OR OR b",
                "('",
                "{terms} : a",
                "\x00",
                "\ud83d",
            ]
        ),
    )
)
def test_no_query_is_an_error(tmp_path, query):
    path = tmp_path / "store"
    store = ChatStore(path) if path.exists() else stored(tmp_path, with_facts("The code is XK-4711."))
    told = ask(store, "context_search", query=query)
    assert "can't be read" not in told
    assert told.startswith(("<stored", "Nothing in this chat", "Say in `query`"))


def test_what_the_model_does_not_see_comes_first(tmp_path):
    chat = with_facts("It is said that the tower is red.")
    store = stored(tmp_path, [user("The tower is red."), *chat[1:]])
    hits = found(store, "tower red", limit=20)
    seen = [is_seen for is_seen, _ in hits]
    assert seen == sorted(seen)
    assert set(seen) == {True, False}
    assert hits[0] == (False, "It is said that the tower is red.")
    assert hits[-1] == (True, "The tower is red.")


def test_another_branch_is_not_found(tmp_path):
    chat = with_facts("The old code was AB-1.")
    store = stored(tmp_path, chat)
    edited = [*chat[:3], answer("The new code is CD-2."), *chat[4:]]
    store.record(KEY, planned(edited), "run", "gpt-4o")
    assert store.wait(KEY)
    assert [text for _, text in found(store, "code")] == ["The new code is CD-2."]


def test_each_of_two_models_side_by_side_searches_its_own_branch(tmp_path):
    chat = with_facts("The old code was AB-1.")
    store = stored(tmp_path, chat)
    one = planned(chat)
    other = planned([*chat[:3], answer("The new code is CD-2."), *chat[4:]])
    store.record(KEY, other, "run", "gpt-4o")
    assert store.wait(KEY)
    for plan, fact in ((one, "The old code was AB-1."), (other, "The new code is CD-2.")):
        assert [text for _, text in found(store, "code", sight=sight_of(record_of(plan)))] == [fact]


def test_the_middle_of_a_long_result_is_found_with_its_lines(tmp_path):
    lines = [f"{number:05d} nothing to see here" for number in range(3000)]
    lines[1700] = "01700 the gearbox temperature reached 91 degrees"
    chat = [
        user("Read the log"),
        call("read_log", "{}"),
        result("\n".join(lines)),
        answer("Read."),
        *talk(6),
        user("?"),
    ]
    store = stored(tmp_path, chat)
    told = ask(store, "context_search", query="gearbox temperature", limit=1)
    assert "01700 the gearbox temperature reached 91 degrees" in told
    assert "tool result of read_log, message 3, not above, lines " in told
    first, last = told.split("lines ")[1].split(" of 3000")[0].split("-")
    assert int(first) <= 1701 <= int(last)


def test_the_same_text_is_found_once_where_it_was_said_last(tmp_path):
    store = stored(tmp_path, with_facts("The code is XK-4711.", "Something else.", "The code is XK-4711."))
    told = ask(store, "context_search", query="code XK-4711", limit=20)
    assert told.count("The code is XK-4711.") == 1
    assert "message 8" in told


def test_what_a_search_quoted_is_not_found_in_its_place(tmp_path):
    chat = with_facts("The code is XK-4711.")
    chat += [
        call("context_search", '{"query": "code XK"}'),
        result("[x] The code is XK-4711."),
        answer("So."),
        user("?"),
    ]
    store = stored(tmp_path, chat)
    assert [text for _, text in found(store, "XK")] == ["The code is XK-4711."]


# What two texts are about decides their vectors, so that texts in other words are near each other.
SUBJECTS = (("dog", "puppy", "hound"), ("code", "password"), ("mill", "bridge", "road", "ferry", "built"))


def subject_vectors(body):
    rows = [
        {"index": i, "embedding": [*(sum(text.lower().count(w) for w in words) for words in SUBJECTS), 0.01]}
        for i, text in enumerate(body["input"])
    ]
    return Answer(body={"data": rows})


def test_with_an_embedder_what_is_said_in_other_words_is_found(tmp_path):
    store = stored(tmp_path, with_facts("Her puppy is called Bello.", "The password is XK-4711."))
    with ScriptedServer(subject_vectors) as server:
        embedder = OpenAIEmbedder(server.url, "", "subjects")
        assert found(store, "hound") == []
        learned = asyncio.run(store.learn(KEY, embedder))
        assert learned > 5
        assert asyncio.run(store.learn(KEY, embedder)) == 0, "vectors are kept"
        tools = ChatTools(store, KEY, embedder=embedder)
        told = asyncio.run(tools.answer("context_search", {"query": "hound", "limit": 1}))
        assert "Her puppy is called Bello." in told
        both = asyncio.run(tools.answer("context_search", {"query": "XK-4711 puppy", "limit": 2}))
        assert "Bello" in both
        assert "XK-4711" in both


def test_an_embedder_that_fails_costs_the_meaning_alone(tmp_path):
    store = stored(tmp_path, with_facts("Her puppy is called Bello."))
    with ScriptedServer(refusal(400)) as server:
        embedder = OpenAIEmbedder(server.url, "", "subjects", attempts=1)
        tools = ChatTools(store, KEY, embedder=embedder)
        assert "Bello" in asyncio.run(tools.answer("context_search", {"query": "puppy"}))
        with pytest.raises(ModelFailed):
            asyncio.run(store.learn(KEY, embedder))
