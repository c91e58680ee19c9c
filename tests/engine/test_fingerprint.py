"""Fingerprints of what was said up to a message."""

from __future__ import annotations

from eunoe.conversation import Conversation
from eunoe.fingerprint import START, chain_of

CHAT = [
    {"role": "system", "content": "It is Monday."},
    {"role": "user", "content": "Where is the ferry?"},
    {"role": "assistant", "content": "At the pier."},
    {"role": "user", "content": "When does it leave?"},
]


def chain(raws):
    return chain_of(Conversation.from_openai_messages(raws).messages)


def test_it_grows_at_its_end_only():
    assert chain(CHAT)[:3] == chain(CHAT[:3])


def test_instructions_are_no_part_of_it():
    tuesday = [{"role": "system", "content": "It is Tuesday."}, *CHAT[1:]]
    assert chain(tuesday) == chain(CHAT)
    assert chain(CHAT)[0] == START
    assert chain(CHAT[1:]) == chain(CHAT)[1:]


def test_an_edit_changes_all_that_follows():
    edited = [*CHAT[:2], {"role": "assistant", "content": "In the harbor."}, CHAT[3]]
    old, new = chain(CHAT), chain(edited)
    assert old[1] == new[1]
    assert old[2] != new[2]
    assert old[3] != new[3]


def test_the_same_words_in_another_place_have_another_name():
    twice = [CHAT[1], CHAT[2], CHAT[1], CHAT[2]]
    assert len(set(chain(twice))) == 4
