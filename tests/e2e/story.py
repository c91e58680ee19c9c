"""Texts for long chats: plain English, each passage different, as many words as a test wants."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

PLACES = ("mill", "bridge", "harbor", "orchard", "station", "library", "market", "garden", "tower", "school")
THINGS = ("roof", "door", "clock", "stair", "wall", "lamp", "floor", "window", "bench", "gate")
DEEDS = (
    "was painted",
    "was repaired",
    "was measured",
    "needs stone",
    "needs a lock",
    "stands open",
    "was moved",
)


def passage(number: int, words: int) -> str:
    """The passage of this number: about `words` words, unlike those of other numbers."""
    sentences: list[str] = []
    for step in itertools.count():
        place, thing = PLACES[(number + step) % 10], THINGS[(number * 3 + step * 7) % 10]
        sentences.append(
            f"The {thing} of the {place} {DEEDS[(number + step * 2) % 7]} in year {number * 10 + step}."
        )
        if len(" ".join(sentences).split()) >= words:
            return " ".join(sentences)
    raise AssertionError


def turns(count: int, words: int, mark: str) -> list[tuple[str, str]]:
    """Finished turns: a question with the mark and an answer, `words` words each."""
    return [
        (
            f"{mark} question {number}: {passage(number, words)}",
            f"Answer {number}: {passage(number + 500, words)}",
        )
        for number in range(count)
    ]


def messages(of: Iterable[tuple[str, str]], question: str) -> list[dict[str, str]]:
    """The turns and a new question, as a program sends them to the API."""
    said = [
        {"role": role, "content": text}
        for turn in of
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    return [*said, {"role": "user", "content": question}]


def assert_valid(sent: Sequence[dict[str, Any]]) -> None:
    """Check what every provider asks of a list of messages."""
    roles = [message["role"] for message in sent]
    assert roles[-1] in {"user", "tool"}, roles
    first = next(role for role in roles if role != "system")
    assert first == "user", roles
    called: list[str] = []
    for message in sent:
        if message["role"] == "tool":
            assert message["tool_call_id"] in called, f"a result without its call: {roles}"
            called.remove(message["tool_call_id"])
            continue
        assert not called, f"a call without its result: {roles}"
        called = [call["id"] for call in message.get("tool_calls") or []]
        assert message.get("content") or called, f"an empty {message['role']} message: {roles}"
    assert not called, f"a call without its result: {roles}"
