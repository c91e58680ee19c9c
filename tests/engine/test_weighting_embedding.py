"""Weighing by embeddings: what is asked of the model and what is not, and what its vectors make of messages."""

import asyncio
import base64
import logging
import math
import struct

import pytest
from hypothesis import HealthCheck, given, settings

from eunoe.cache.memory import InMemoryCache
from eunoe.conversation import Conversation
from eunoe.errors import BadSetting, ModelFailed
from eunoe.relevance import features_of, relevance
from eunoe.weighting.embedding import EmbeddingSimilarityStrategy, nearness_of
from eunoe.weighting.hybrid import HybridWeightingStrategy
from eunoe.weighting.keyword import FLOOR
from eunoe.weighting.similarity import pieces_of
from eunoe.weighting.smart import LEAST, SHARPNESS, SmartWeightingStrategy
from eunoe.weighting.static import StaticWeightStrategy
from eunoe.weighting.vectors import (
    VectorMemory,
    cosines,
    packed_vector,
    plain_cosines,
    unit_vector,
    unpacked_vector,
)

from .strategies import conversations

BOTH = [EmbeddingSimilarityStrategy, HybridWeightingStrategy]
NOTICE = "The embedding model gave no answer; messages were weighed by their words."
MEANINGS = [
    "ship boat vessel sail",
    "money price invoice pay",
    "cat dog pet animal",
    "rain storm weather sun",
]


def user(text):
    return {"role": "user", "content": text}


def answer(text):
    return {"role": "assistant", "content": text}


CHAT = [
    user("My vessel arrives on Friday."),
    answer("Noted."),
    user("Ada has a cat."),
    answer("Lovely."),
    *[user("Hm, well."), answer("Quite so.")] * 3,
    user("The invoice is late."),
    answer("I see."),
    user("When does the ship come?"),
]
SHIP = 0  # the message about it, in other words


class Meanings:
    """Embeds a text by how often it names each of a few things; keeps what it was asked."""

    def __init__(self, name="meanings", extra=0):
        self.asked, self.calls, self.failures, self.gate = [], 0, [], None
        self._name, self._extra = name, extra

    async def embed(self, texts):
        self.calls += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        self.asked += texts
        return [self._vector(text.lower()) for text in texts]

    def name(self):
        return self._name

    def _vector(self, text):
        named = [sum(text.count(word) for word in group.split()) for group in MEANINGS]
        return [*map(float, named), 1.0, *[0.0] * self._extra]


class Clock:
    def __init__(self):
        self.now = 0.0

    def seconds(self):
        return self.now


def down():
    return ModelFailed("meanings", "it can't be reached (ConnectError)", passing=True)


async def scored(strategy, messages=CHAT, context=None, query=None):
    """List the scores in the order of the messages."""
    conversation = Conversation.from_openai_messages(messages)
    query = conversation.question.text if query is None else query
    found = await strategy.score(conversation.messages, query, conversation, context)
    assert set(found) == {m.id for m in conversation.messages}
    return [found[m.id] for m in conversation.messages]


def scores(strategy, messages=CHAT, context=None, query=None):
    return asyncio.run(scored(strategy, messages, context, query))


async def idle():
    """Wait until nothing goes on behind the turns' backs."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


# What meanings make of messages


@pytest.mark.parametrize("kind", BOTH)
def test_a_message_that_says_it_in_other_words_is_found(kind):
    found = scores(kind(embedder=Meanings()))
    assert found[-1] == 1.0
    assert max(found[:-1]) == found[SHIP]
    assert found[SHIP] > 2 * max(found[2:-1])


def test_the_best_has_one_and_what_is_not_near_the_floor():
    found = scores(EmbeddingSimilarityStrategy(embedder=Meanings()))
    assert found[SHIP] == 1.0
    assert found[-4:-1] == pytest.approx([FLOOR, FLOOR, FLOOR], abs=0.01)
    higher = scores(EmbeddingSimilarityStrategy(embedder=Meanings(), floor=0.3))
    assert higher == pytest.approx([0.3 + 0.7 * (score - FLOOR) / (1 - FLOOR) for score in found])


LONG = " ".join(f"word{n}" for n in range(20))  # holds enough to take over all that is lent


def test_a_message_lends_to_those_beside_it():
    after = [user("a boat"), *[answer(f"Hm {n}. {LONG}") for n in range(8)], user("a ship")]
    found = scores(EmbeddingSimilarityStrategy(embedder=Meanings(), floor=0), after)
    assert found[:6] == pytest.approx([1.0, 0.45, 0.26, 0.15, 0.09, 0.0], abs=0.01)
    before = [answer(LONG), user(f"So. {LONG}"), user("a boat"), *[answer("Hm.")] * 8, user("a ship")]
    assert scores(EmbeddingSimilarityStrategy(embedder=Meanings(), floor=0), before)[:3] == pytest.approx(
        [0.19, 0.3, 1.0]
    )


def test_a_short_message_takes_over_little_unless_it_replies_to_a_question():
    chat = [user("a boat"), answer("one two three four"), *[user("Hm.")] * 6, user("a ship")]
    assert scores(EmbeddingSimilarityStrategy(embedder=Meanings(), floor=0), chat)[1] == pytest.approx(
        0.45 * 0.2
    )
    asked = [user("a boat?"), *chat[1:]]
    assert scores(EmbeddingSimilarityStrategy(embedder=Meanings(), floor=0), asked)[1] == pytest.approx(0.45)


def test_models_whose_cosines_lie_elsewhere_weigh_alike():
    messages = Conversation.from_openai_messages(CHAT).messages
    near = {m.id: i / 20 for i, m in enumerate(messages)}
    assert nearness_of(messages, {k: 0.7 + 0.2 * v for k, v in near.items()}) == pytest.approx(
        nearness_of(messages, near)
    )


def test_messages_that_are_all_as_near_weigh_alike():
    same = [user("cat"), answer("cat"), user("a dog")]
    assert scores(EmbeddingSimilarityStrategy(embedder=Meanings()), same) == [FLOOR, FLOOR, 1.0]


def test_a_message_without_text_is_not_embedded_and_has_what_its_neighbors_lend():
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
    chat = [user("a boat?"), call, {"role": "tool", "tool_call_id": "c", "content": "12"}, *CHAT[2:]]
    embedder = Meanings()
    found = scores(EmbeddingSimilarityStrategy(embedder=embedder, floor=0), chat)
    assert found[1] == pytest.approx(0.45, abs=0.01)
    assert "" not in embedder.asked


def test_a_long_message_is_as_near_as_its_nearest_piece():
    padding = "word " * 500
    middle = f"{padding} ship ship ship ship {padding}"
    chat = [user(middle), answer(padding), user("Well."), answer("So."), user("the ship")]
    embedder = Meanings()
    found = scores(EmbeddingSimilarityStrategy(embedder=embedder), chat)
    assert found[0] == 1.0 > found[1]
    assert max(map(len, embedder.asked)) <= 1_500


@pytest.mark.parametrize(
    ("length", "pieces"), [(0, 0), (1, 1), (1_500, 1), (1_501, 2), (3_100, 3), (90_000, 4)]
)
def test_pieces_reach_from_the_beginning_to_the_end(length, pieces):
    text = "".join(chr(0x4E00 + i % 20_000) for i in range(length))
    found = pieces_of(text)
    assert len(found) == pieces
    assert "".join(found)[:1] == text[:1]
    assert "".join(found)[-1:] == text[-1:]
    if length <= 6_000:
        assert set("".join(found)) == set(text)


def test_a_long_question_is_cut_and_a_blank_one_asks_nothing():
    embedder = Meanings()
    long = [*CHAT[:-1], user("ship " * 5_000)]
    scores(EmbeddingSimilarityStrategy(embedder=embedder), long)
    assert max(map(len, embedder.asked)) == 4_000
    calls = embedder.calls
    found = scores(EmbeddingSimilarityStrategy(embedder=embedder), [*CHAT[:-1], user(" ")])
    assert found == scores(SmartWeightingStrategy(), [*CHAT[:-1], user(" ")])
    assert embedder.calls == calls


@pytest.mark.parametrize(
    ("model", "question", "text"),
    [
        ("nomic-embed-text:latest", "search_query: a ship", "search_document: a boat"),
        ("intfloat/multilingual-e5-large", "query: a ship", "passage: a boat"),
        ("text-embedding-3-small", "a ship", "a boat"),
    ],
)
def test_models_that_want_to_know_what_a_text_is_are_told(model, question, text):
    embedder = Meanings(model)
    scores(EmbeddingSimilarityStrategy(embedder=embedder), [user("a boat"), user("a ship")])
    assert embedder.asked == [question, text]


# What is asked of the model


@pytest.mark.parametrize("kind", BOTH)
def test_a_turn_costs_what_is_new_in_it(kind):
    embedder = Meanings()
    strategy = kind(embedder=embedder)
    first = scores(strategy)
    assert sorted(embedder.asked) == sorted({m["content"] for m in CHAT})
    embedder.asked.clear()
    assert scores(strategy) == first
    assert embedder.asked == []
    scores(strategy, [*CHAT, answer("On Friday."), user("And the cat?")])
    assert sorted(embedder.asked) == ["And the cat?", "On Friday."]


def test_vectors_outlive_the_process_in_the_cache():
    cache, embedder = InMemoryCache(), Meanings()
    first = scores(EmbeddingSimilarityStrategy(embedder=Meanings(), cache=cache))
    assert scores(EmbeddingSimilarityStrategy(embedder=embedder, cache=cache)) == first
    assert embedder.calls == 0


@pytest.mark.parametrize("cache", [None, InMemoryCache()])
def test_nothing_is_found_from_another_scope(cache):
    embedder = Meanings()
    strategy = EmbeddingSimilarityStrategy(embedder=embedder, cache=cache)
    for scope in ("ada", "bob"):
        embedder.asked.clear()
        scores(strategy, context={"scope": scope})
        assert len(embedder.asked) == len({m["content"] for m in CHAT})


def test_another_model_has_vectors_of_its_own():
    cache, other = InMemoryCache(), Meanings("other")
    scores(EmbeddingSimilarityStrategy(embedder=Meanings(), cache=cache))
    scores(EmbeddingSimilarityStrategy(embedder=other, cache=cache))
    assert len(other.asked) == len({m["content"] for m in CHAT})


class Recording(InMemoryCache):
    def __init__(self):
        super().__init__()
        self.kept = {}

    async def set(self, key, value, ttl=None):
        self.kept[key] = (value, ttl)
        await super().set(key, value, ttl)


def test_the_cache_gets_packed_vectors_of_length_one_under_names_that_tell_nothing():
    cache = Recording()
    scores(EmbeddingSimilarityStrategy(embedder=Meanings(), cache=cache), context={"scope": "ada"})
    assert len(cache.kept) == len({m["content"] for m in CHAT})
    for key, (value, ttl) in cache.kept.items():
        assert math.hypot(*struct.unpack("<5f", base64.b64decode(value))) == pytest.approx(1)
        assert ttl == 30 * 86_400
        assert not any(word in key.lower() for word in ("ship", "vessel", "ada", "cat"))


@pytest.mark.parametrize("broken", ["", "not base64!", base64.b64encode(b"abc").decode(), "AADAfw=="])
def test_what_the_cache_has_spoiled_is_embedded_again(broken):
    cache = Recording()
    scores(EmbeddingSimilarityStrategy(embedder=Meanings(), cache=cache))
    for key in cache.kept:
        asyncio.run(InMemoryCache.set(cache, key, broken))
    embedder = Meanings()
    found = scores(EmbeddingSimilarityStrategy(embedder=embedder, cache=cache))
    assert found == scores(EmbeddingSimilarityStrategy(embedder=Meanings()))
    assert embedder.calls == 1


@pytest.mark.parametrize("kind", BOTH)
def test_a_long_chat_is_embedded_the_newest_and_the_best_by_words_first_and_the_rest_behind(kind):
    embedder = Meanings()
    strategy = kind(embedder=embedder, most=4)
    chat = [user("the ship sank in 1912"), answer("a boat"), *[user(f"line {i}") for i in range(20)],
            user("which ship")]  # fmt: skip

    async def turns():
        first = await scored(strategy, chat)
        waited = embedder.asked[:4]
        await idle()
        return first, waited, await scored(strategy, chat)

    first, waited, second = asyncio.run(turns())
    assert waited == ["which ship", "line 19", "the ship sank in 1912", "line 18"]
    assert len(embedder.asked) == len(set(embedder.asked)) == len(chat)
    words = scores(SmartWeightingStrategy(), chat)
    if kind is EmbeddingSimilarityStrategy:
        assert first[1] == words[1], "what has no vector yet is weighed by its words"
        assert first[0] == 1.0
    assert second == scores(kind(embedder=Meanings()), chat)
    assert first != second


def test_what_has_no_vector_yet_is_weighed_by_its_words():
    chat = [user("the ship sank"), answer("Oh."), *[user("Hm."), answer("So.")] * 6,
            user("that was a ship of the line, they say"), answer("Yes."), user("a ship that sank")]  # fmt: skip
    hybrid = HybridWeightingStrategy(embedder=Meanings(), most=3, pair_coherence=0)
    words = scores(SmartWeightingStrategy(pair_coherence=0), chat)
    assert LEAST < words[14] < 0.5
    assert scores(hybrid, chat)[14] == pytest.approx(words[14])


def test_texts_that_are_being_embedded_are_not_asked_for_twice():
    embedder = Meanings()
    strategy = EmbeddingSimilarityStrategy(embedder=embedder, most=4)
    chat = [*[user(f"line {i}") for i in range(12)], user("which ship")]

    async def at_once():
        await asyncio.gather(scored(strategy, chat), scored(strategy, chat), scored(strategy, chat))
        await scored(strategy, [*chat, user("another ship")])
        await idle()

    asyncio.run(at_once())
    lines = [text for text in embedder.asked if text.startswith("line")]
    assert sorted(lines) == sorted(set(lines))


# When the model fails


@pytest.mark.parametrize("kind", BOTH)
def test_a_failing_model_leaves_the_words_and_is_told_of_and_logged_once(kind, caplog):
    caplog.set_level(logging.INFO, "eunoe")
    clock, embedder = Clock(), Meanings()
    embedder.failures = [down(), down(), None]
    strategy = kind(embedder=embedder, clock=clock)
    told = []
    for _ in range(2):
        assert scores(strategy, context={"notices": told}) == scores(SmartWeightingStrategy())
        clock.now += 31
    assert told == [NOTICE] * 2
    assert scores(strategy, context={"notices": told}) == scores(kind(embedder=Meanings()))
    assert told == [NOTICE] * 2
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            "Messages are weighed by their words alone: meanings: it can't be reached (ConnectError)",
        ),
        ("INFO", "Messages are compared again by meanings"),
    ]


def test_after_a_failure_the_model_is_left_alone_for_a_while():
    clock, embedder = Clock(), Meanings()
    embedder.failures = [down()]
    strategy = EmbeddingSimilarityStrategy(embedder=embedder, clock=clock, rest=30)
    told = []
    for now in (0, 10, 29):
        clock.now = now
        scores(strategy, context={"notices": told})
    assert (embedder.calls, told) == (1, [NOTICE] * 3)
    clock.now = 30
    scores(strategy, context={"notices": told})
    assert (embedder.calls, told) == (2, [NOTICE] * 3)


def test_a_turn_that_needs_nothing_new_does_not_mind_a_failing_model():
    embedder = Meanings()
    strategy = EmbeddingSimilarityStrategy(embedder=embedder)
    first = scores(strategy)
    embedder.failures = [down()]
    scores(strategy, [*CHAT, user("new")])
    told = []
    assert scores(strategy, context={"notices": told}) == first
    assert told == []


def test_another_fallback_can_be_given():
    embedder = Meanings()
    embedder.failures = [down()]
    strategy = EmbeddingSimilarityStrategy(embedder=embedder, fallback=StaticWeightStrategy())
    assert scores(strategy) == [1.0] * len(CHAT)


@pytest.mark.parametrize("kind", BOTH)
def test_a_slow_model_is_not_waited_for_but_serves_the_next_turn(kind):
    embedder = Meanings()
    strategy = kind(embedder=embedder, patience=0.05)
    told = []

    async def turns():
        embedder.gate = asyncio.Event()
        first = await scored(strategy, context={"notices": told})
        embedder.gate.set()
        await idle()
        return first, await scored(strategy, context={"notices": told})

    first, second = asyncio.run(turns())
    assert first == scores(SmartWeightingStrategy())
    assert second == scores(kind(embedder=Meanings()))
    assert (embedder.calls, told) == (1, [NOTICE])


class Careless(Meanings):
    """Gives vectors that do not fit."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong

    async def embed(self, texts):
        return self.wrong(await super().embed(texts))


@pytest.mark.parametrize(
    "wrong", [lambda v: v[1:], lambda v: [], lambda v: [[], *v[1:]], lambda v: [[] for _ in v]]
)
def test_vectors_that_do_not_fit_are_a_failure(wrong, caplog):
    told = []
    found = scores(EmbeddingSimilarityStrategy(embedder=Careless(wrong)), context={"notices": told})
    assert (found, told) == (scores(SmartWeightingStrategy()), [NOTICE])
    assert len(caplog.records) == 1


def test_a_model_that_was_exchanged_under_its_name_replaces_its_vectors():
    cache = InMemoryCache()
    scores(EmbeddingSimilarityStrategy(embedder=Meanings(), cache=cache))
    longer = Meanings(extra=3)
    strategy = EmbeddingSimilarityStrategy(embedder=longer, cache=cache)
    chat = [*CHAT, answer("Soon."), user("Which boat?")]

    async def turns():
        await scored(strategy, chat)
        await idle()
        longer.asked.clear()
        return await scored(strategy, chat)

    assert asyncio.run(turns()) == scores(EmbeddingSimilarityStrategy(embedder=Meanings(extra=3)), chat)
    assert longer.asked == []


def test_zeros_are_near_nothing():
    class Zeros(Meanings):
        async def embed(self, texts):
            return [[0.0, 0.0] for _ in texts]

    assert scores(EmbeddingSimilarityStrategy(embedder=Zeros()))[:2] == [FLOOR, FLOOR]


@pytest.mark.parametrize("kind", BOTH)
def test_without_a_model_there_is_no_such_strategy(kind):
    with pytest.raises(BadSetting):
        kind()
    assert kind("http://localhost:11434/v1", "", "nomic-embed-text").name() in {"embedding", "hybrid"}


# Hybrid


def test_hybrid_adds_up_words_and_meaning():
    strategy = HybridWeightingStrategy(embedder=Meanings(), pair_coherence=0)
    conversation = Conversation.from_openai_messages(CHAT)
    others = conversation.messages[:-1]
    words = relevance([features_of(m.digest, m.text) for m in others], CHAT[-1]["content"])
    meaning = scores(EmbeddingSimilarityStrategy(embedder=Meanings(), floor=0))[:-1]
    fused = [a + 0.7 * b for a, b in zip(words, meaning, strict=True)]
    expected = [LEAST + (1 - LEAST) * (f / max(fused)) ** SHARPNESS for f in fused]
    assert scores(strategy) == pytest.approx([*expected, 1.0])


def test_hybrid_finds_what_only_the_words_find_and_what_only_the_meaning_finds():
    chat = [user("LARK-17 is open."), answer("Yes."), *[user("Hm, well."), answer("So.")] * 4,
            user("The vessel waits."), answer("Fine."), *[user("Hm."), answer("So.")] * 4,
            user("Which ship has LARK-17?")]  # fmt: skip
    found = scores(HybridWeightingStrategy(embedder=Meanings(), pair_coherence=0), chat)
    assert sorted(sorted(range(len(chat)), key=lambda i: -found[i])[:3]) == [0, 10, len(chat) - 1]
    assert found[10] > 3 * found[6]


TOOLS = [
    user("a boat"),
    {"role": "assistant", "content": "Let me see.", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "a vessel"},
    answer("Twelve."),
    user("Hm."),
    answer("So."),
    user("which ship"),
]


def test_hybrid_treats_answers_and_tools_as_smart_does():
    own = scores(HybridWeightingStrategy(embedder=Meanings(), tool_penalty=1, pair_coherence=0), TOOLS)
    expected = [
        own[0],
        max(own[1], 0.9 * own[0]) * 0.2,
        max(own[2], 0.9 * own[0]) * 0.2,
        max(own[3], 0.9 * own[0]),
        own[4],
        max(own[5], 0.9 * own[4]),
        1.0,
    ]
    factors = {"tool_penalty": 0.2, "pair_coherence": 0.9}
    assert scores(HybridWeightingStrategy(embedder=Meanings(), **factors), TOOLS) == pytest.approx(expected)
    assert scores(HybridWeightingStrategy(embedder=Meanings()), TOOLS, context=factors) == pytest.approx(
        expected
    )


@pytest.mark.parametrize("factors", [{}, {"tool_penalty": 0.2, "pair_coherence": 0.9}])
def test_hybrid_without_its_model_is_smart(factors):
    embedder = Meanings()
    embedder.failures = [down()]
    assert scores(HybridWeightingStrategy(embedder=embedder, **factors), TOOLS) == scores(
        SmartWeightingStrategy(**factors), TOOLS
    )


# Vectors


def test_a_packed_vector_comes_back_as_it_was():
    vector = unit_vector([3.0, -4.0])
    assert list(vector) == pytest.approx([0.6, -0.8])
    assert unpacked_vector(packed_vector(vector)) == vector
    assert base64.b64decode(packed_vector(vector)) == struct.pack("<2f", *vector)


def test_cosines_are_the_same_without_numpy():
    vectors = [unit_vector([math.sin(i * j) for j in range(1, 50)]) for i in range(1, 30)]
    assert cosines(vectors[0], vectors) == plain_cosines(vectors[0], vectors)
    assert cosines(vectors[0], vectors)[0] == 1.0
    assert cosines(vectors[0], []) == []


def test_the_memory_of_vectors_is_bounded_and_forgets_what_was_not_used():
    memory = VectorMemory(most_bytes=3 * 8)
    for key in "abc":
        memory.put(key, unit_vector([1.0, 0.0]))
    memory.put("c", unit_vector([0.0, 1.0]))
    memory.get("a")
    memory.put("d", unit_vector([1.0, 0.0]))
    assert [key for key in "abcd" if memory.get(key)] == ["a", "c", "d"]


# All conversations


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(conversations(max_turns=4))
def test_every_message_gets_a_score_from_zero_to_one_and_always_the_same(messages):
    conversation = Conversation.from_openai_messages(messages)
    query = conversation.question.text if conversation.question else "harbor"
    for kind in BOTH:
        strategy = kind(embedder=Meanings())
        first = asyncio.run(strategy.score(conversation.messages, query, conversation))
        assert set(first) == {m.id for m in conversation.messages}
        assert all(0 <= score <= 1.000001 for score in first.values())
        assert first == asyncio.run(strategy.score(conversation.messages, query, conversation))
