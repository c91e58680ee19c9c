"""Cuts messages into windows that a labeling model can take, the newest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..conversation import Message
from ..tokens import TokenCounter
from .label_prompt import LABEL_PROMPT

MOST_PER_WINDOW = 40  # models lose count in longer lists
LEAST_SHOWN, MOST_SHOWN = 60, 120  # tokens of a message's text
TOKENS_PER_LABEL = 8  # of the reply: a letter, its quotation marks, and a word more if the model adds one
_LABEL_LINE_OVERHEAD = 16  # number, role, names of tools

_CERTAIN_WINDOW_SHARE = 0.9  # of the window; the labeling model may count otherwise than we do
_LABEL_SPARE_SHARE, _MOST_LABEL_SPARE = 8, 2_048  # of the window, for models that think before they reply
_LABEL_QUESTION_SHARE, _MOST_LABEL_QUESTION = 4, 2_000
_LABEL_BEFORE_SHARE = 16


@dataclass(frozen=True, slots=True)
class LabelRoom:
    """How a labeling model's context window is shared out, in tokens."""

    question: int  # the most of the question
    before: int  # the most of what was said just before it
    spare: int  # of the reply, besides the labels
    usable: int  # for instructions, question and lines

    def for_lines(self, fixed: int) -> int:
        """Say how many tokens of lines fit where `fixed` are taken."""
        return max(1, self.usable - fixed)

    @staticmethod
    def shown(lines: int) -> int:
        """Say how much of each message is shown where `lines` tokens are left for all."""
        return max(LEAST_SHOWN, min(MOST_SHOWN, lines // MOST_PER_WINDOW - _LABEL_LINE_OVERHEAD))


@dataclass(frozen=True, slots=True)
class LabelWindow:
    """Messages that are labeled in one call, in their order, each as it is shown."""

    messages: tuple[Message, ...]
    lines: tuple[str, ...]


def label_room(window_tokens: int) -> LabelRoom:
    """Share a context window out between prompt and reply."""
    spare = min(_MOST_LABEL_SPARE, window_tokens // _LABEL_SPARE_SHARE)
    return LabelRoom(
        question=min(_MOST_LABEL_QUESTION, window_tokens // _LABEL_QUESTION_SHARE),
        before=min(MOST_SHOWN, window_tokens // _LABEL_BEFORE_SHARE),
        spare=spare,
        usable=int(window_tokens * _CERTAIN_WINDOW_SHARE) - spare,
    )


def fixed_tokens(question: str, before: str, counter: TokenCounter) -> int:
    """Count what every request holds besides its lines."""
    return 60 + sum(counter.count_text(text) for text in (LABEL_PROMPT, question, before))


def windows_of(
    messages: Sequence[Message], line_of: Callable[[Message], str], tokens: int, counter: TokenCounter
) -> Iterator[LabelWindow]:
    """Give windows from the newest to the oldest, with at most `tokens` of lines and labels in each.

    A turn stays whole where it fits, since an answer says little without its question.
    """
    taken: list[tuple[Message, str]] = []
    used = 0
    for turn in _turns_backwards(messages):
        shown = [(message, line_of(message)) for message in turn]
        sizes = [counter.count_text(line) + 3 + TOKENS_PER_LABEL for _, line in shown]
        if taken and _is_window_full(used + sum(sizes), len(taken) + len(shown), tokens):
            yield _window_of(taken)
            taken, used = [], 0
        for pair, size in zip(reversed(shown), reversed(sizes), strict=True):
            if taken and _is_window_full(used + size, len(taken) + 1, tokens):
                yield _window_of(taken)
                taken, used = [], 0
            taken.append(pair)
            used += size
    if taken:
        yield _window_of(taken)


def _is_window_full(tokens: int, messages: int, most_tokens: int) -> bool:
    return tokens > most_tokens or messages > MOST_PER_WINDOW


def _turns_backwards(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Give the messages turn by turn, the newest turn first; a turn begins with a user's message."""
    turn: list[Message] = []
    for message in reversed(messages):
        turn.append(message)
        if message.role == "user":
            yield turn[::-1]
            turn = []
    if turn:
        yield turn[::-1]


def _window_of(taken: Sequence[tuple[Message, str]]) -> LabelWindow:
    return LabelWindow(tuple(message for message, _ in taken[::-1]), tuple(line for _, line in taken[::-1]))
