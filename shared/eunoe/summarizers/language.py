"""The language of a text, where it is plain to see: by its script, or by its most frequent small words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

_SAMPLE = 3_000  # characters from each end
_LEAST_LETTERS, _SCRIPT_SHARE = 24, 0.5
_CJK_LETTERS = 3  # Latin letters say as much as one sign of Chinese or Japanese
_LEAST_WORDS = 4
_CERTAIN_SHARE = 0.65  # of all small words found

_WORD = re.compile(r"[^\W\d_]+")
_SMALL_WORDS_OF = {
    "English": "the and is are was to of that it you for with this have not be my your please should what",
    "German": "der die das und ist nicht ein eine ich du wir mit für auf bitte wird sind dem den auch",
    "French": "le les des et est une que pas je vous nous pour avec dans sur ce qui mon veuillez être",
    "Spanish": "el los las y es una que no por con para mi su más pero está quiero cuando usted como",
    "Portuguese": "o os as e é uma que não por com para meu seu mais mas está eu você quando do",
    "Italian": "il gli le e è una che non per con mio suo più ma sono di della nel questo vorrei",
    "Dutch": "de het een en is niet ik je voor met op van dat zijn wordt ook mijn graag naar maar",
}
_SMALL_WORDS = {name: frozenset(words.split()) for name, words in _SMALL_WORDS_OF.items()}
_ALL_SMALL_WORDS = frozenset[str]().union(*_SMALL_WORDS.values())
_BY_SCRIPT = {"HANGUL": "Korean", "GREEK": "Greek", "HEBREW": "Hebrew", "THAI": "Thai"}


def language_of(text: str) -> str:
    """Name the language of a text in English; empty where it is not sure."""
    sample = sample_of(text)
    script, share = main_script(sample)
    if share < _SCRIPT_SHARE:
        return ""
    if script == "CJK":
        kana = sum("\u3040" <= sign <= "\u30ff" for sign in sample)
        return "Japanese" if kana * 10 > len(sample) else "Chinese" if kana * 100 <= len(sample) else ""
    if script != "LATIN":
        return _BY_SCRIPT.get(script, "")
    words = Counter(word for word in _WORD.findall(sample.casefold()) if word in _ALL_SMALL_WORDS)
    found = {name: sum(words[word] for word in small) for name, small in _SMALL_WORDS.items()}
    second, first = sorted(found.values())[-2:]
    sure = first >= max(_LEAST_WORDS, _CERTAIN_SHARE * words.total(), 1.5 * second)
    return max(found, key=lambda name: found[name]) if sure else ""


def main_script(text: str) -> tuple[str, float]:
    """Name the script that most letters are of, and its share; those of Chinese and Japanese are one."""
    scripts = _scripts_of(text)
    if scripts.total() < _LEAST_LETTERS:
        return "", 0.0
    script, letters = scripts.most_common(1)[0]
    return script, letters / scripts.total()


def script_share(text: str, script: str) -> float:
    """Give the share of a text's letters that are of a script; 1 where it has too few to say."""
    scripts = _scripts_of(text)
    return scripts[script] / scripts.total() if scripts.total() >= _LEAST_LETTERS else 1.0


def _scripts_of(text: str) -> Counter[str]:
    scripts = Counter(_script_of(sign) for sign in sample_of(text) if sign.isalpha())
    scripts["CJK"] *= _CJK_LETTERS
    return scripts


def sample_of(text: str) -> str:
    """Give both ends of a long text."""
    return text if len(text) <= 2 * _SAMPLE else f"{text[:_SAMPLE]} {text[-_SAMPLE:]}"


def _script_of(letter: str) -> str:
    if letter.isascii():
        return "LATIN"
    name = unicodedata.name(letter, "").partition(" ")[0]
    return "CJK" if name in {"CJK", "HIRAGANA", "KATAKANA"} else name
