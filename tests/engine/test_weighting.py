"""How much each message matters for the question, and the terms and formula that say so."""

import asyncio
import time

import pytest
from hypothesis import HealthCheck, given, settings

from eunoe.conversation import Conversation
from eunoe.relevance import bm25, features_of, relevance
from eunoe.terms import Terms, read_terms, stem, term_of
from eunoe.weighting.keyword import FLOOR, KeywordRelevanceStrategy, scores_of
from eunoe.weighting.smart import LEAST, SmartWeightingStrategy, sharpened
from eunoe.weighting.static import StaticWeightStrategy

from .strategies import conversations

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

STRATEGIES = [KeywordRelevanceStrategy(), SmartWeightingStrategy(), StaticWeightStrategy()]


def user(text):
    return {"role": "user", "content": text}


def answer(text):
    return {"role": "assistant", "content": text}


CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "harbor table: depth 12 m"}


def scores(strategy, messages, query=None, context=None):
    """List the scores in the order of the messages."""
    conversation = Conversation.from_openai_messages(messages)
    query = conversation.question.text if query is None else query
    found = asyncio.run(strategy.score(conversation.messages, query, conversation, context))
    assert set(found) == {m.id for m in conversation.messages}
    return [found[m.id] for m in conversation.messages]


# Terms


def words(text):
    return dict(read_terms(text).counts)


@pytest.mark.parametrize(
    "group",
    [
        "move moved moves moving",
        "deploy deploys deployed deploying deployment",
        "harbor harbors harbored",
        "city cities",
        "run runs running",
        "ship shipped shipping ships",
        "class classes",
        "error errors",
        "price prices priced pricing",
        "server servers",
        "display displays displayed",
        "go goes going went gone",
        "child children",
        "teach teaches teaching taught",
        "woman women",
        "try tries trying tried",
        "use uses using used",
    ],
)
def test_forms_of_a_word_are_one_term(group):
    assert len({term_of(word) for word in group.split()}) == 1


@pytest.mark.parametrize(
    "pair",
    [
        "port part",
        "class clash",
        "9464 9465",
        "budget bucket",
        "error terror",
        "node note",
        "rose rise",
        "lives life",
    ],
)
def test_unlike_words_are_unlike_terms(pair):
    a, b = pair.split()
    assert term_of(a) != term_of(b)


def test_short_words_numbers_and_words_with_accents_stay_as_they_are():
    unchanged = ["ai", "bus", "2000s"[:4], "9464", "naïve", "übung", "сервер", "red"]
    assert [stem(word) for word in unchanged] == unchanged


def test_case_signs_and_stop_words_do_not_count():
    assert words("Where did we MOVE the Harbor, please?") == words("move harbor") == {"mov": 1, "harbor": 1}
    assert words("der die das und le la les what is it") == {}
    assert words("") == {}


def test_terms_are_counted():
    assert read_terms("port 9464, port 22, ports") == Terms({"port": 3, "9464": 1, "22": 1}, 5)


def test_scripts_without_spaces_give_pairs_of_characters():
    assert words("数据库迁移") == {"数据": 1, "据库": 1, "库迁": 1, "迁移": 1}
    assert words("港") == {"港": 1}
    assert words("データ移行") == {"デー": 1, "ータ": 1, "タ移": 1, "移行": 1}
    assert words("nginx配置 port") == {"nginx": 1, "配置": 1, "port": 1}


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("Wo ist der Hafen?", "Der Hafen liegt in Oslo."),
        ("数据库什么时候迁移？", "我们决定星期五迁移数据库。"),
        ("データベースの移行はいつ？", "移行は金曜日です。データベースは止まります。"),
        ("Когда перенос сервер?", "Сервер переносим в пятницу."),
        ("أين ميناء اليوم", "تقع ميناء في أوسلو"),
        ("데이터베이스 이전", "금요일에 데이터베이스를 옮긴다"),
        ("ฐานข้อมูลอยู่ที่ไหน", "เราย้ายฐานข้อมูลวันศุกร์"),
    ],
    ids=["German", "Chinese", "Japanese", "Russian", "Arabic", "Korean", "Thai"],
)
def test_a_question_finds_its_text_in_many_languages(question, text):
    assert read_terms(question).counts.keys() & read_terms(text).counts.keys()


def test_of_a_very_long_text_only_the_ends_are_read():
    filler = "filler " * 20_000
    found = words(f"alpha {filler} beta {filler} gamma")
    assert {"alpha", "beta", "gamma"} & found.keys() == {"alpha", "gamma"}
    assert read_terms(filler * 4).length < 4000


def test_terms_are_read_once_for_each_digest():
    first = features_of("a digest of this test alone", "harbor")
    assert features_of("a digest of this test alone", "never read") is first
    assert first.terms == Terms({"harbor": 1}, 1)


# BM25


def bag(text):
    counts = {word: text.split().count(word) for word in text.split()}
    return Terms(counts, len(text.split()))


def test_bm25_follows_its_formula():
    # k1 0.9, b 0.4; two documents of 3 and 1 words, mean 2. ln(1 + 1.5 / 1.5) = 0.6931 is "x"'s rarity.
    found = bm25([bag("x x y"), bag("z")], bag("x"))
    assert found == [pytest.approx(0.693147 * 2 * 1.9 / (2 + 0.9 * (0.6 + 0.4 * 1.5)), rel=1e-5), 0.0]
    # "y" is in two of three: ln(1 + 1.5 / 2.5); all have one word each.
    found = bm25([bag("y"), bag("y"), bag("z")], bag("y"))
    assert found == [pytest.approx(0.470004), pytest.approx(0.470004), 0.0]


def test_bm25_adds_up_over_the_questions_terms():
    documents = [bag("x y"), bag("x z"), bag("y z"), bag("w w")]
    both, x, y = (bm25(documents, bag(q)) for q in ("x y", "x", "y"))
    assert both == pytest.approx([a + b for a, b in zip(x, y, strict=True)])


def test_bm25_prefers_rare_words_and_short_texts_and_has_enough_of_a_word_at_last():
    rare, common, *_ = bm25([bag("rare"), bag("common"), bag("common"), bag("common")], bag("rare common"))
    assert rare > common > 0
    short, long, _ = bm25([bag("x a"), bag("x a a a a a a a"), bag("b")], bag("x"))
    assert short > long > 0
    one, two, nine, _ = bm25(
        [bag("x" + " a" * 9), bag("x x" + " a" * 8), bag("x " * 9 + "a"), bag("b " * 10)], bag("x")
    )
    assert one < two < nine < 2 * one


def test_a_word_that_all_texts_have_still_counts_a_little():
    assert all(score > 0 for score in bm25([bag("x"), bag("x y")], bag("x")))


def test_bm25_of_nothing_is_nothing():
    assert bm25([], bag("x")) == []
    assert bm25([bag(""), bag("")], bag("x")) == [0.0, 0.0]
    assert bm25([bag("x")], bag("")) == [0.0]


# Keyword


CHAT = [
    {"role": "system", "content": "Be brief."},
    user("How deep is the harbor of Oslo?"),
    answer("Twelve meters."),
    user("Tell me a joke."),
    answer("Knock, knock."),
    user("harbor depth in Oslo again?"),
]


def test_the_best_message_has_one_and_what_shares_no_word_has_the_floor():
    assert scores(KeywordRelevanceStrategy(), CHAT) == [FLOOR, 1.0, FLOOR, FLOOR, FLOOR, 1.0]
    assert scores(KeywordRelevanceStrategy(floor=0.2), CHAT)[2:5] == [0.2, 0.2, 0.2]
    assert FLOOR == 0.05


def test_scores_lie_between_in_the_order_of_what_they_share():
    messages = [
        user("harbor depth"),
        user("harbor views and more of the town"),
        user("a joke"),
        user("harbor depth?"),
    ]
    best, some, none, question = scores(KeywordRelevanceStrategy(), messages)
    assert (best, none, question) == (1.0, FLOOR, 1.0)
    assert FLOOR < some < 1


def test_a_message_is_scored_against_the_query_and_not_against_the_newest_message():
    found = scores(KeywordRelevanceStrategy(), CHAT, query="Which joke was it?")
    assert found == [FLOOR, FLOOR, FLOOR, 1.0, FLOOR, 1.0]


def test_the_question_does_not_lower_the_others_by_being_a_document_itself():
    found = scores(KeywordRelevanceStrategy(), [user("harbor"), answer("Hm."), user("harbor " * 50)])
    assert found == [1.0, FLOOR, 1.0]


def test_without_a_word_to_go_by_all_are_at_the_floor():
    assert scores(KeywordRelevanceStrategy(), CHAT, query="")[:-1] == [FLOOR] * 5
    assert scores(KeywordRelevanceStrategy(), CHAT, query="the and of")[:-1] == [FLOOR] * 5
    assert scores(KeywordRelevanceStrategy(), [answer("Hi.")], query="harbor") == [FLOOR]
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    assert scores(KeywordRelevanceStrategy(), [user("harbor"), answer("a"), user(image)]) == [
        FLOOR,
        FLOOR,
        1.0,
    ]


# Smart


def smart(messages, expected_of, **options):
    """Give the scores, and what `expected_of` makes of each message's own relevance."""
    conversation = Conversation.from_openai_messages(messages)
    question = conversation.question
    own = scores_of(conversation.messages, question, LEAST, sharpened(question.text))
    by_letter = dict(zip("abcdefgh", (own[m.id] for m in conversation.messages), strict=False))
    return scores(SmartWeightingStrategy(**options), messages), expected_of(by_letter)


TOOLS = [
    {"role": "system", "content": "Talk of harbor depth only."},  # a
    user("How deep is the harbor?"),  # b
    CALL,  # c
    RESULT,  # d
    answer("Twelve meters."),  # e
    user("Thanks!"),  # f
    answer("Welcome."),  # g
    user("harbor depth table"),  # h
]


def test_answers_take_over_their_questions_weight_and_tools_are_lowered():
    found, expected = smart(
        TOOLS,
        lambda k: [
            k["a"],
            k["b"],
            max(k["c"], 0.8 * k["b"]) * 0.5,
            max(k["d"], 0.8 * k["b"]) * 0.5,
            max(k["e"], 0.8 * k["b"]),
            k["f"],
            max(k["g"], 0.8 * k["f"]),
            1.0,
        ],
    )
    assert found == pytest.approx(expected)


def test_what_stands_beside_a_match_counts_without_a_word_of_the_question():
    messages = [
        user("How deep is the harbor?"),
        answer("Twelve."),
        *[user("Hm."), answer("Well.")] * 4,
        user("harbor?"),
    ]
    found = scores(SmartWeightingStrategy(pair_coherence=0), messages)
    assert found[0] == 1.0 > found[1] > found[2] > found[8] == LEAST


def test_relevance_is_sharpened_so_that_the_newest_needs_three_quarters_of_the_best_to_outweigh_it():
    messages = [
        user("How deep is the harbor?"),
        *[user("Hm."), user("Well.")] * 6,
        user("harbor depth"),
        user("harbor?"),
    ]
    conversation = Conversation.from_openai_messages(messages)
    features = [features_of(m.digest, m.text) for m in conversation.messages[:-1]]
    plain = relevance(features, "harbor?")
    found = scores(SmartWeightingStrategy(pair_coherence=0), messages)
    assert found[:-1] == pytest.approx([0.001 + 0.999 * score**3 for score in plain])
    assert 0.7**3 * 2.5 < 1 < 0.75**3 * 2.5  # 2.5 is what recency lends the newest


def test_an_answer_keeps_its_own_weight_if_that_is_more():
    messages = [user("Tell me."), answer("harbor"), user("harbor?")]
    before, found, question = scores(SmartWeightingStrategy(), messages)
    assert before < found == question == 1.0


def test_an_answer_takes_nothing_over_from_an_earlier_turn_and_an_instruction_nothing_at_all():
    rule = {"role": "system", "content": "Be brief."}
    far = [user("Hm."), answer("Well.")] * 3
    messages = [user("harbor"), rule, answer("Yes."), *far, user("harbor?")]
    found = scores(SmartWeightingStrategy(), messages)
    assert found[2] == 0.8 > found[1]
    assert found[-2] == LEAST


def test_the_factors_are_options():
    found, expected = smart(
        TOOLS,
        lambda k: [
            k["a"],
            k["b"],
            max(k["c"], 0.5 * k["b"]) * 0.1,
            max(k["d"], 0.5 * k["b"]) * 0.1,
            max(k["e"], 0.5 * k["b"]),
            k["f"],
            max(k["g"], 0.5 * k["f"]),
            1.0,
        ],
        tool_penalty=0.1,
        pair_coherence=0.5,
    )
    assert found == pytest.approx(expected)
    assert min(scores(SmartWeightingStrategy(floor=0.3, tool_penalty=1), TOOLS)) >= 0.3


def test_a_turn_may_override_the_factors():
    overridden = scores(
        SmartWeightingStrategy(), TOOLS, context={"tool_penalty": 0.1, "pair_coherence": 0.5, "recent": 3}
    )
    assert overridden == scores(SmartWeightingStrategy(0.1, 0.5), TOOLS)
    nothing = scores(SmartWeightingStrategy(), TOOLS, context={"tool_penalty": 0, "pair_coherence": 0})
    assert nothing[2:4] == [0, 0]


def test_an_old_style_call_is_a_tool_message_too():
    old = [user("harbor"), {"role": "assistant", "content": None, "function_call": {"name": "f"}},
           {"role": "function", "name": "f", "content": "x"}, user("harbor?")]  # fmt: skip
    assert scores(SmartWeightingStrategy(), old) == pytest.approx([1.0, 0.4, 0.4, 1.0])


# All of them


def test_static_weights_all_alike():
    assert scores(StaticWeightStrategy(), TOOLS) == [1.0] * 8


def test_strategies_have_names_for_the_ledger():
    assert [strategy.name() for strategy in STRATEGIES] == ["keyword", "smart", "static"]


@unhurried
@given(conversations(max_turns=4))
def test_every_message_gets_a_score_from_zero_to_one_and_always_the_same(messages):
    conversation = Conversation.from_openai_messages(messages)
    query = conversation.question.text if conversation.question else "harbor"
    for strategy in STRATEGIES:
        found = asyncio.run(strategy.score(conversation.messages, query, conversation))
        assert set(found) == {m.id for m in conversation.messages}
        assert all(0 <= score <= 1.000001 for score in found.values())
        assert found == asyncio.run(strategy.score(conversation.messages, query, conversation))


def test_a_long_chat_is_weighed_in_a_blink():
    messages = [
        user(f"Question {i} about harbor {i % 50}. " + "lorem ipsum dolor " * 40) for i in range(1000)
    ]
    started = time.process_time()
    scores(SmartWeightingStrategy(), messages)
    assert time.process_time() - started < 3


def test_accents_written_as_signs_of_their_own_are_the_same_letters():
    assert read_terms("cafe\u0301").counts == read_terms("caf\u00e9").counts
