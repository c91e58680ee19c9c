"""A summary without a model: the user's own sentences that matter most, word for word, and exact values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..compress import lean, shorten_text
from ..conversation import Message, text_of
from ..endpoint import ends_of
from ..tokens import TokenCounter
from .prompts import disarmed
from .source import telling_values, values_line
from .values import figures_in, folded, is_in, values_in

_MOST_OF_MESSAGE = 4_000  # characters of a message; the rest is pasted
_LONGEST_SENTENCE = 60  # tokens
_SHORTEST = 12  # characters; "yes, please" says nothing by itself
_WORDS_VALUES_SHARE = 3  # of the room, before sentences fill what is left

_FENCED = re.compile(r"```.*?(?:```|\Z)|<details\b.*?(?:</details>|\Z)", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?…])(?<!\b\d\.)(?<!\b\d\d\.)\s+|(?<=[。！？])|\n+")
_LIST_MARK = re.compile(r"^[\s>*#•-]+(?=\S)")
# A light hint that a sentence is a rule, a goal, a decision or a correction.
_WEIGHTY = re.compile(
    r"\b(?:remember|always|never|must|don['’]?t|do not|only|prefer|from now on|instead|no longer|actually|correction|"
    r"changed?|decid\w+|goal|want|need|deadline|immer|nie|niemals|muss|müssen|nicht|kein\w*|merke?|ab jetzt|statt|"
    r"stattdessen|geändert|entschieden|ziel|möchte|brauche|toujours|jamais|faut|dois|plutôt|veux|siempre|nunca|debe\w*|"
    r"quiero|sempre|deve\w*|quero)\b|记住|总是|永远|不要|必须|一定|以后|改成|改为|决定|目标|需要|覚えて|必ず|絶対|常に",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence of a message, where it stands and how much it matters."""

    place: int
    line: str
    worth: float


def extract_of(messages: Sequence[Message], tokens: int, counter: TokenCounter, before: str = "") -> str:
    """Give at most `tokens` of what messages say, word for word, the user's sentences first.

    `before` is a summary that stands in front of it: what it says is not said again. Empty if there is
    nothing to say or no room.
    """
    longest = min(_LONGEST_SENTENCE, tokens * 2 // 3)
    sentences = sorted(_sentences(messages, longest, counter), key=lambda s: -s.worth)
    chosen = _fill(sentences, {}, tokens - tokens // _WORDS_VALUES_SHARE, counter, before)
    text = "\n".join([before, *chosen.values()])
    folded_text, figures = folded(text), figures_in(text)
    missing = [v for v in telling_values("", messages) if not is_in(v.value, folded_text, figures)]
    left = tokens - sum(counter.count_text(line) + 1 for line in chosen.values())
    values = values_line(missing, left - 1, counter)
    chosen = _fill(sentences, chosen, tokens - counter.count_text(values) - 1, counter, before)
    return "\n".join([*(chosen[place] for place in sorted(chosen)), *([values] if values else [])])


def _fill(
    sentences: Sequence[_Sentence], chosen: Mapping[int, str], room: int, counter: TokenCounter, before: str
) -> dict[int, str]:
    """Choose sentences by worth while there is room, besides those that are chosen."""
    filled = dict(chosen)
    room -= sum(counter.count_text(line) + 1 for line in filled.values())
    known = folded("\n".join([before, *filled.values()]))
    for sentence in sentences:
        key = folded(sentence.line.partition(": ")[2])
        cost = counter.count_text(sentence.line) + 1 if sentence.place not in filled else room + 1
        if sentence.worth > 0 and cost <= room and key not in known:
            filled[sentence.place] = sentence.line
            known += f"\n{key}"
            room -= cost
    return filled


def _sentences(messages: Sequence[Message], longest: int, counter: TokenCounter) -> Iterator[_Sentence]:
    opened = False
    for age, message in enumerate(messages):
        if message.role not in {"user", "assistant"}:
            continue
        by_user = message.role == "user"
        newness = age / max(1, len(messages))
        for n, text in enumerate(_cut_words(message)):
            worth = newness + (3.0 if by_user else 0.0) - min(n, 4) * (0.1 if by_user else 0.5)
            worth += 2.5 if _WEIGHTY.search(text) else 0.0
            worth += min(2, len(values_in(text))) * 0.4
            worth -= 1.5 if text.endswith(("?", "？")) else 0.0
            worth -= 2.0 if len(text) < (_SHORTEST if by_user else 2 * _SHORTEST) and text.isascii() else 0.0
            if by_user and not opened:
                worth, opened = worth + 3.0, True  # the task the chat began with
            yield _Sentence(age * 1_000 + min(n, 999), _line(message.role, text, longest, counter), worth)


def _cut_words(message: Message) -> list[str]:
    text = text_of(lean(message.raw).get("content"))
    text = disarmed(ends_of(_FENCED.sub("\n", text), _MOST_OF_MESSAGE))
    pieces = (_LIST_MARK.sub("", piece).strip() for piece in _SENTENCE_END.split(text))
    return [piece for piece in pieces if any(sign.isalnum() for sign in piece)]


def _line(role: str, text: str, longest: int, counter: TokenCounter) -> str:
    short = " ".join(shorten_text(text, longest, counter).split())
    return f"{role}: {short}"
