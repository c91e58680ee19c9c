"""Kinds of things, and what a question wants to be told."""

import pytest

from eunoe.cues import Cue, cues_asked, cues_told
from eunoe.kinds import _kinds, kin_of
from eunoe.relevance import bm25
from eunoe.terms import read_terms, term_of

from .test_relevance import FILLER, scores


def kin(question):
    return kin_of(read_terms(question).counts)


def test_a_kind_stands_for_what_is_of_that_kind():
    assert {term_of(word) for word in "dog cat puppies hamsters".split()} <= kin(
        "How many pets does she have?"
    )
    assert term_of("postgres") in kin("Which database do we use?")
    assert term_of("uncle") in kin("her family")
    assert term_of("uncle") not in kin("her dog")


def test_what_is_of_a_kind_does_not_stand_for_the_kind():
    assert kin("Where is the dog?") == kin("the and of") == kin("") == frozenset()


def test_the_question_is_not_its_own_kin_and_other_names_of_the_kind_are():
    found = kin("Which pets, a dog or a cat?")
    assert not found & {term_of("pet"), term_of("dog"), term_of("cat")}
    assert {term_of("animal"), term_of("rabbit")} <= found


def test_the_table_holds_words_that_texts_can_hold():
    kinds = _kinds()
    assert len(kinds) > 80
    assert not {"", ":"} & set().union(kinds, *kinds.values())
    assert all(len(members) >= 5 for members in kinds.values())


def test_a_message_with_a_thing_of_the_kind_fits_and_one_with_the_word_fits_better():
    dog, pet = "My dog was at it again all night.", "My pet was at it again all night."
    texts = [*FILLER[:5], dog, *FILLER[5:], *FILLER[:5], pet, *FILLER[5:]]
    found = scores(texts, "Does he have a pet?")
    assert found[pet] == 1.0
    assert max(found[text] for text in FILLER[:3]) < 0.15 < found[dog] < 0.6


def test_a_long_question_has_no_kin():
    dog = "My dog was at it again all night."
    long = "Does he have a pet? " + " ".join(f"word{n}" for n in range(60))
    assert scores([dog, *FILLER], long)[dog] == 0.0


def test_the_plain_formula_knows_no_kin():
    assert bm25([read_terms("a dog")], read_terms("a pet")) == [0.0]


def test_a_message_with_all_the_words_beats_one_that_repeats_one_of_them():
    both, one = "harbor depth", "harbor harbor harbor harbor"
    texts = [both, *FILLER, "harbor", *FILLER[:5], "depth", *FILLER[5:], one]
    plain = dict(
        zip(texts, bm25([read_terms(text) for text in texts], read_terms("harbor depth")), strict=True)
    )
    found = scores(texts, "harbor depth")
    assert found[one] / found[both] < 0.9 * plain[one] / plain[both]


@pytest.mark.parametrize(
    ("question", "cues"),
    [
        ("When did we move the harbor?", {Cue.TIME}),
        ("Tell me, when was the last release?", {Cue.TIME}),
        ("How long did the migration take?", {Cue.TIME}),
        ("In which year was that?", {Cue.TIME}),
        ("How many users have we got?", {Cue.NUMBER}),
        ("Which version of the driver?", {Cue.NUMBER}),
        ("How often, and since when?", {Cue.TIME, Cue.NUMBER}),
        ("What do I do when it breaks?", set()),
        ("Where is the harbor?", set()),
        ("", set()),
    ],
)
def test_a_question_asks_for_a_time_or_a_number(question, cues):
    assert cues_asked(question) == cues


@pytest.mark.parametrize(
    ("text", "cues"),
    [
        ("We moved last week.", {Cue.TIME}),
        ("Two weeks ago.", {Cue.TIME, Cue.NUMBER}),
        ("It was 2021.", {Cue.TIME, Cue.NUMBER}),
        ("Port 9464", {Cue.NUMBER}),
        ("a dozen", {Cue.NUMBER}),
        ("I may even be there.", set()),
        ("", set()),
    ],
)
def test_a_text_tells_a_time_or_a_number(text, cues):
    assert cues_told(text, read_terms(text)) == cues


def test_what_tells_a_time_counts_more_if_the_question_asks_for_one():
    dated, undated = "We painted the harbor yesterday.", "We painted the harbor blue again."
    texts = [*FILLER[:5], dated, *FILLER[5:], *FILLER[:5], undated, *FILLER[5:]]
    when = scores(texts, "When did we paint the harbor?")
    where = scores(texts, "Where did we paint the harbor?")
    assert when[undated] < where[undated] == where[dated] == when[dated] == 1.0


def test_the_date_in_a_heading_tells_no_time():
    headed = "[8 May, 2023] We painted the harbor blue."
    dated = "We painted the harbor on 8 June, it was blue."
    texts = [headed, *FILLER, dated]
    when = scores(texts, "When did we paint the harbor?")
    where = scores(texts, "Where did we paint the harbor?")
    assert when[dated] / when[headed] > 1.2 * where[dated] / where[headed]


def test_a_pasted_page_is_asked_by_its_ends():
    page = "word " * 100_000
    assert cues_asked(page + "When was it?") == cues_asked("When was it? " + page) == {Cue.TIME}
