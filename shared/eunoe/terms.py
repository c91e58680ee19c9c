"""Words to terms: what of a text is compared with a question."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A long log says what it is about at its ends; reading all of it would cost more than it tells.
_READ_FROM_START, _READ_FROM_END = 16_000, 8_000

_TOKEN = re.compile(
    r"[a-z0-9\u00c0-\u024f\u0370-\u0dff\u10a0-\u177f\u1800-\u1fff]+"
    r"|[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af]+"
)
# The same for ASCII alone: lower case, and all else as spaces.
_WORDS = bytes(c if c < 128 and chr(c).isalnum() else 32 for c in bytes(range(256)).lower())
# Thai, Lao, Tibetan, Burmese and Khmer; kana, Han and Hangul.
_WITHOUT_SPACES = re.compile(
    r"[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af]"
)

_STOP = frozenset(
    "a about after again all also am an and any are as at be because been before being both but by can could did do "
    "does doing down during each few for from further had has have having he her here hers him his how i if in into "
    "is it its itself just let like ll me more most my no nor not now of off on once only or other our out over own "
    "please re same she should so some such than that the their them then there these they this those through to too "
    "under until up ve very was we were what when where which while who whom why will with would you your yours "
    "der die das und ist ein eine nicht mit von zu den im für auf le la les des et est un une que dans pour el los "
    "las y es en por con para".split()
)

_STEM_ENDINGS = ("ingly", "edly", "ation", "ities", "ness", "ment", "ings", "ing", "ies", "ied", "ers", "est")
_KEPT_ENDINGS = ("ss", "ay", "ey", "oy", "uy")  # as in class, display, monkey, deploy, buy
_SHORT_ENDINGS = ("ed", "es", "er", "ly", "al", "s", "e", "y")

# English forms that no ending tells of, or whose stem is too short to lose one: they count as the first of their
# group. Left out is what is more often another word: `rose`, `lives`, `bit`, `lay`.
_IRREGULAR = """
begin began begun; bend bent; bite bitten; blow blew blown; break broke broken; bring brought; build built;
buy bought; catch caught; choose chose chosen; come came; dig dug; draw drew drawn; drink drank drunk; drive
drove driven; eat ate eaten; fall fell fallen; feed fed; feel felt; fight fought; find found; fly flies flew
flown; forget forgot forgotten; freeze froze frozen; get got gotten; give gave given; go goes going went
gone; grow grew grown; hang hung; hear heard; hide hid hidden; hold held; keep kept; know knew known; lead
led; leave left; lend lent; lose lost; make made; mean meant; meet met; pay paid; ride rode ridden; rise
risen; run ran; say said; see saw seen; seek sought; sell sold; send sent; shake shook shaken; shoot shot;
show shown; sing sang sung; sit sat; sleep slept; speak spoke spoken; spend spent; stand stood; steal stole
stolen; stick stuck; strike struck; swear swore sworn; swim swam swum; take took taken; teach taught; tear
tore torn; tell told; think thought; throw threw thrown; understand understood; wake woke woken; wear wore
worn; win won; write wrote written; become became; burn burnt; cry cries cried; die dies died dying; dry
dries dried; try tries tried; use used using; dream dreamt; learn learnt; child children; foot feet; half
halves; index indices indexes; knife knives; leaf leaves; man men; matrix matrices; mouse mice; person
people; shelf shelves; tooth teeth; vertex vertices; wife wives; wolf wolves; woman women
"""


@dataclass(frozen=True, slots=True)
class Terms:
    """How often each term occurs in a text, and how many terms it has."""

    counts: Mapping[str, int]
    length: int


def read_terms(text: str) -> Terms:
    """Cut a text into stemmed terms without stop words; scripts without spaces give pairs of characters."""
    if len(text) > _READ_FROM_START + _READ_FROM_END:
        text = f"{text[:_READ_FROM_START]} {text[-_READ_FROM_END:]}"
    if text.isascii():
        return _counted(text.encode().translate(_WORDS).decode().split())
    text = unicodedata.normalize("NFC", text)  # macOS writes accents as signs of their own
    tokens = _TOKEN.findall(text.lower())
    if not _WITHOUT_SPACES.search(text):
        return _counted(tokens)
    counts = Counter(term for token in tokens for term in _terms_in(token))
    counts.pop("", None)
    return Terms(dict(counts), counts.total())


def _counted(words: Sequence[str]) -> Terms:
    """Count words that are written with spaces between them."""
    counts = dict(Counter(map(_TERMS_OF.__getitem__, words)))
    stops = counts.pop("", 0)
    return Terms(counts, len(words) - stops)


def _terms_in(token: str) -> list[str]:
    if token[0] >= "\u0e00" and _WITHOUT_SPACES.match(token):
        return [token[i : i + 2] for i in range(max(1, len(token) - 1))]
    return [_TERMS_OF[token]]


def term_of(token: str) -> str:
    """Give the term a word counts as: its stem, or nothing for a stop word."""
    return "" if token in _STOP else stem(_regular().get(token, token))


@functools.cache
def _regular() -> Mapping[str, str]:
    """Read the table of irregular forms: the plain form of each."""
    groups = [group.split() for group in _IRREGULAR.split(";")]
    return {form: plain for plain, *forms in groups for form in forms}


class _KnownTerms(dict[str, str]):
    """The terms of the words met so far: a chat has few words and says them often."""

    def __missing__(self, word: str) -> str:
        if len(self) >= _MOST_WORDS:
            self.clear()
        term = self[word] = term_of(word)
        return term


_MOST_WORDS = 50_000
_TERMS_OF = _KnownTerms()


def stem(word: str) -> str:
    """Fold the endings of a word, so that `moved`, `moving` and `moves` are one term."""
    if len(word) < 4 or not word.isascii() or word.isdigit():
        return word
    for ending in _STEM_ENDINGS if word.endswith(_STEM_ENDINGS) else ():
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return _undoubled(word[: -len(ending)])
    for ending in _SHORT_ENDINGS if word.endswith(_SHORT_ENDINGS) else ():
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith(_KEPT_ENDINGS):
            return _undoubled(word[: -len(ending)])
    return word


def _undoubled(root: str) -> str:
    return root[:-1] if len(root) > 3 and root[-1] == root[-2] and root[-1] not in "ls" else root
