"""Where terms occur: the index that grows with a chat says what looking through all of it says."""

import random
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from eunoe.postings import LEAST_INDEXED, TermIndex, TermIndexes, looked_up, postings_in
from eunoe.terms import Terms, read_terms

WORDS = "harbor boat train ticket pier tide sail rope deck port".split()
WANTED = ["harbor", "boat", "tide", "nowhere"]


def document(words):
    return read_terms(" ".join(words))


def chat(length, seed=0):
    source = random.Random(seed)
    return [document(source.choices(WORDS, k=source.randrange(1, 8))) for _ in range(length)]


def test_an_index_says_where_a_term_occurs_and_how_often():
    index = TermIndex()
    index.follow([document(["boat", "boat"]), document(["pier"]), document(["pier", "boat"])])
    assert index.find(["boat", "tide", "pier"]) == {"boat": ([0, 2], [(0, 2)]), "pier": ([1, 2], [])}
    assert index.entries == 4


documents = st.lists(st.sampled_from(WORDS), max_size=4).map(document)
chats = st.lists(documents, max_size=30)


@settings(deadline=None)
@given(st.lists(chats, max_size=6))
def test_whatever_chat_an_index_followed_before_it_says_what_a_new_one_says(states):
    index = TermIndex()
    for state in states:
        index.follow(state)
        assert index.find(WANTED) == looked_up(state, WANTED)
        assert index.entries == sum(len(d.counts) for d in state)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 90), st.lists(documents, max_size=5), st.integers(0, 40)),
        min_size=1,
        max_size=12,
    )
)
def test_grown_edited_and_branched_chats_are_found_as_if_they_were_new(steps):
    indexes = TermIndexes(most_entries=400)
    state = chat(LEAST_INDEXED)
    for place, new, removed in steps:
        state = [*state[:place], *new, *state[place + removed :]]
        assert indexes.find(state, WANTED) == looked_up(state, WANTED)


def test_chats_that_begin_alike_do_not_mix():
    indexes, beginning = TermIndexes(), chat(20)
    one, other = [*beginning, *chat(80, 1)], [*beginning, *chat(80, 2)]
    for state in (one, other, one[:50], other, one):
        assert indexes.find(state, WANTED) == looked_up(state, WANTED)


def test_what_was_found_does_not_change_when_the_chat_grows():
    indexes, grown = TermIndexes(), chat(LEAST_INDEXED + 40)
    state = grown[:LEAST_INDEXED]
    before = indexes.find(state, WANTED)
    assert indexes.find(grown, WANTED) == looked_up(grown, WANTED)
    assert len(indexes._indexes) == 1
    assert before == looked_up(state, WANTED)


def test_the_indexes_used_last_are_kept_within_a_bound():
    indexes = TermIndexes(most_entries=1_000)
    states = [chat(100, seed) for seed in range(20)]
    for state in states:
        indexes.find(state, WANTED)
        assert 0 < sum(index.entries for index in indexes._indexes.values()) <= 1_000
    known = len(indexes._indexes)
    indexes.find(states[-1], WANTED)
    assert len(indexes._indexes) == known < len(states)


def test_short_and_long_chats_are_answered_alike():
    for length in (0, 1, LEAST_INDEXED - 1, LEAST_INDEXED, LEAST_INDEXED + 1):
        state = chat(length, length)
        assert postings_in(state, WANTED) == looked_up(state, WANTED)


def test_threads_with_chats_that_begin_alike_all_get_the_right_postings():
    indexes, wrong = TermIndexes(most_entries=2_000), []
    states = [[*chat(10), *chat(60 + 5 * n, n)] for n in range(4)]

    def ask(start):
        for i in range(60):
            state = states[(start + i) % len(states)]
            if indexes.find(state, WANTED) != looked_up(state, WANTED):
                wrong.append(start)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_equal_documents_need_not_be_the_same_objects():
    indexes, state = TermIndexes(), chat(LEAST_INDEXED)
    indexes.find(state, WANTED)
    again = [Terms(dict(d.counts), d.length) for d in state]
    assert indexes.find([*state[:8], *again[8:]], WANTED) == looked_up(state, WANTED)
