"""Relevance without a model: words, neighbors, stretches, speakers, dates."""

import pytest

from eunoe.conversation import digest_of
from eunoe.relevance import features_of, relevance

FILLER = [f"filler number {word}" for word in "one two three four five six seven eight nine ten".split()]


def scores(texts, question):
    features = [features_of(digest_of({"role": "user", "content": text}), text) for text in texts]
    return dict(zip(texts, relevance(features, question), strict=True))


def test_the_best_has_one_and_what_shares_nothing_has_nothing():
    found = scores(["The harbor is deep.", *FILLER], "How deep is the harbor?")
    assert found["The harbor is deep."] == 1.0
    assert found[FILLER[-1]] < 0.05
    assert set(scores(FILLER, "Nobody said zebra").values()) == {0.0}
    assert scores([], "Anything?") == {}


def test_a_message_lends_to_those_beside_it_and_more_to_those_after():
    texts = [*FILLER[:5], "The harbor is deep.", *FILLER[5:]]
    found = scores(texts, "How deep is the harbor?")
    near = [found[text] for text in (FILLER[5], FILLER[6], FILLER[7], FILLER[8])]
    assert near == sorted(near, reverse=True)
    assert near[0] > found[FILLER[4]] > found[FILLER[3]] > found[FILLER[0]]


def test_a_short_message_takes_little_over_unless_it_replies_to_a_question():
    long = "and so they talked until late, " + " ".join(f"of thing {n}" for n in range(20))
    told, asked = "The harbor is deep.", "How deep is the harbor?"
    found = [
        scores([*FILLER, first, then, *FILLER[:5]], "harbor")[then]
        for first in (told, asked)
        for then in ("So.", "Twelve meters.", long)
    ]
    after_told, after_asked = found[:3], found[3:]
    assert after_told == sorted(after_told)
    assert after_told[0] < 0.1 < 0.3 < after_told[2]
    assert after_asked == [after_asked[0]] * 3
    assert after_asked[2] == pytest.approx(after_told[2], rel=0.1)


def test_a_question_mark_in_the_middle_of_a_long_text_asks_nothing():
    assert features_of("asks 1", "Which? " + "lorem ipsum " * 40).asks is False
    assert features_of("asks 2", "lorem ipsum " * 40 + "Which?").asks is True
    assert features_of("asks 3", "港はどこですか？").asks is True


def test_a_stretch_about_the_question_raises_all_its_messages():
    boats = [
        f"[{day} May, 2023] We talked about boats." if day == 1 else f"And so on, line {day}."
        for day in range(1, 9)
    ]
    trains = ["[9 June, 2023] We talked about trains.", *(f"And so on, row {n}." for n in range(8))]
    found = scores([*boats, *trains], "What was that about boats?")
    assert found["And so on, line 8."] > found["And so on, row 7."]


def test_what_the_named_participant_said_counts_more():
    texts = ["Ada: I like the harbor.", *FILLER[:5], "Bob: I like the harbor.", *FILLER[5:]]
    found = scores(texts, "What does Bob like?")
    assert found["Bob: I like the harbor."] == 1.0
    assert found["Ada: I like the harbor."] < 0.6
    both = scores(texts, "What do Ada and Bob like?")
    assert abs(both["Ada: I like the harbor."] - both["Bob: I like the harbor."]) < 0.4


def test_what_was_written_in_the_named_month_counts_more():
    texts = ["[8 May, 2023] We went out.", *FILLER[:5], "[3 June, 2023] We went out.", *FILLER[5:]]
    june, may = texts[6], texts[0]
    assert scores(texts, "Where did we go in June?")[june] > scores(texts, "Where did we go in June?")[may]
    assert scores(texts, "Where did we go in May 2023?")[may] == 1.0


def test_a_pasted_page_as_a_question_stays_quick_and_finds_its_rare_word():
    page = " ".join(f"word{n}" for n in range(5000)) + " zanzibar"
    found = scores(["To Zanzibar by boat.", *FILLER], page)
    assert found["To Zanzibar by boat."] == 1.0
