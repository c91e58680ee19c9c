"""Exact values in a text: what a summary must neither lose nor invent, such as ids, amounts, dates and paths."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

_LONGEST_READ = 400_000  # characters, about a hundred thousand tokens
_LONGEST_PIECE = 2_000
_LONGEST_ERROR = 100
# Numbers up to a dozen count and order things: "2 options", "step 3". Losing or adding one tells nothing.
_LARGEST_COUNT = 12

_FIGURE = r"\d+(?:[.,'’\u00a0\u202f]\d+)*"
_CURRENCY = r"(?:[$€£¥₹₽₩₺฿￥]|\b(?:USD|EUR|GBP|CHF|JPY|CNY|RMB|INR|AUD|CAD|BTC)\b)"
_UNIT = (
    r"(?:%|‰|°[CF]?|元|円|万|億|亿|(?:[kKMGT]i?B|[kKMG]?(?:bit|bps|Hz|Wh?)|[munpµμkc]?m|[munµμ]?s|k?g|m?[lLA]|k?V|"
    r"km/h|mph|hrs?|h|min|days?|lbs?|oz|ft|px|pt|ppm|rpm|kcal|[kKMx])(?![A-Za-z0-9_]))"
)
_DAY = r"\d{1,2}(?:st|nd|rd|th|\.|er)?"
_MONTH_NAME = (
    r"(?i:jan(?:uar[yi]?|uar|vier)?|ene(?:ro)?|feb(?:ruar[yi]?|ruar|rero)?|fév(?:rier)?|mar(?:ch|s|zo|ço)?|märz?|"
    r"apr(?:il)?|a[bv]r(?:il)?|ma[yi]|mayo|maio|june?|juni|juin|julio?|july?|juli|juil(?:let)?|aug(?:ust)?|août|"
    r"ago(?:sto)?|sep(?:t(?:ember|embre|iembre)?)?|o[ck]t(?:ober|obre|ubre)?|nov(?:ember|embre|iembre)?|"
    r"de[cz](?:ember|embro)?|déc(?:embre)?|dic(?:iembre)?)(?![A-Za-zÀ-ÿ])\.?"
)
_ENDING = (
    r"(?i:py|[jt]sx?|mjs|css|html?|md|txt|rst|json5?|ya?ml|toml|ini|cfg|conf|env|xml|[ct]sv|sql|db|sqlite3?|sh|bat|"
    r"ps1|go|rs|java|kt|swift|c|cc|cpp|h|hpp|cs|php|rb|lua|ipynb|lock|log|pdf|docx?|xlsx?|pptx?|png|jpe?g|gif|svg|"
    r"webp|mp[34]|wav|zip|gz|tar|tgz|whl|jar|exe|dll|so|service|gguf|pem|key|crt)(?![A-Za-z0-9_])"
)
_NAME = r"[^\s/\\\"'`<>|,;:，。；、（）()\[\]{}]"

# What stands first takes its text from those behind it. Edges are ASCII, since Chinese has no spaces.
_VALUE_KINDS: Mapping[str, str] = {
    "url": r"\b[a-z][a-z0-9+]{1,12}://[^\s<>\"'`|，。；、）】]{2,300}(?<![.,:;!?)\]}*])",
    "email": r"(?<![\w.+À-ɏ-])[\w.+À-ɏ-]{1,64}@[\w-]{1,63}(?:\.[\w-]{2,63}){1,4}\b",
    "path": (
        rf"(?<![\w/.<])(?:~|\.{{1,2}})?(?:/{_NAME}{{1,80}}){{2,20}}(?<![.!?])|\b[A-Za-z]:\\{_NAME}{{1,80}}(?:\\{_NAME}{{1,80}})*|"
        rf"(?<![\w/.@])(?:[\w@+.-]{{1,60}}/){{0,12}}[\w@+-][\w.@+-]{{0,60}}\.{_ENDING}"
    ),
    "code": (
        r"`[^`\n]{2,60}`|(?<!\S)--[a-z][a-z0-9-]{1,40}|\b[A-Za-z][A-Za-z0-9]{0,40}(?:_[A-Za-z0-9]{1,40}){1,8}\b(?:\(\))?|"
        r"\b[A-Za-z_][\w.]{1,60}\(\)|\b[a-z]{2,30}(?:[A-Z][a-z0-9]{1,30}){1,6}\b"
    ),
    "date": (
        r"\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ]\d{1,2}:\d{2}(?::\d{2})?)?\b|"
        r"\b\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2})\b|"
        rf"\b{_DAY}\s(?:de\s|of\s)?{_MONTH_NAME}(?:,?\s(?:de\s)?\d{{4}})?\b|"
        rf"\b{_MONTH_NAME}\s\d{{1,2}}(?:st|nd|rd|th)?\b(?:,?\s\d{{4}}\b)?|"
        r"(?:\d{4}\s?年\s?)?\d{1,2}\s?月(?:\s?\d{1,2}\s?[日号])?|\b\d{1,2}:\d{2}(?::\d{2})?(?:\s?[ap]m\b)?"
    ),
    "amount": rf"{_CURRENCY}\s?{_FIGURE}(?:\s?[kKmM]\b)?|\b{_FIGURE}\s?{_CURRENCY}",
    "id": (
        r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|(?<![\w&])#\d{2,12}\b|"
        r"\b(?=[0-9a-f]{0,40}[a-f])(?=[0-9a-f]{0,40}\d)[0-9a-f]{7,64}\b|"
        r"\b[A-Za-z]{1,12}(?:-[A-Za-z0-9]{1,20}){0,5}-[A-Za-z]{0,4}\d[A-Za-z0-9.-]{0,30}\b|"
        r"\b(?=[A-Z]{0,24}\d)(?=\d{0,24}[A-Z])[A-Z0-9]{4,24}\b|\bv\d+(?:\.\d+){1,3}(?:-[\w.]{1,20})?\b|"
        r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?::\d{2,5})?|\b\d+\.\d+\.\d+\b"
    ),
    "number": rf"(?<![\w.]){_FIGURE}(?:\s?{_UNIT})?",
}
_VALUE = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _VALUE_KINDS.items()), re.ASCII)
_REST_OF_ERROR = r"(?:(?!\.\s)[^\n，。；]){4,}"  # to the end of its sentence
_ERROR = re.compile(
    r"(?:\b[A-Za-z_.]{0,60}(?:Error|Exception|Timeout|Refused)|\b(?:error|fatal|panic)|\bE[A-Z]{5,20}\b)[ \t]*[:\[(]"
    rf"{_REST_OF_ERROR}|\b(?:ERROR|FATAL)\b{_REST_OF_ERROR}"
)
_OTHER_DIGIT = re.compile(r"[^\D0-9]")  # Arabic, Persian, Devanagari, full-width
_RUN = re.compile(r"\d+")
_FIGURES = re.compile(_FIGURE)
_NUMERIC = frozenset({"number", "amount", "date"})

_HAN_DIGITS = {"〇": 0, "零": 0, "一": 1, "二": 2, "两": 2, "兩": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7,
               "八": 8, "九": 9}  # fmt: skip
_HAN_POWERS = {"十": 10, "百": 100, "千": 1000, "万": 10_000, "萬": 10_000, "亿": 10**8, "億": 10**8}
_HAN_NUMBER = re.compile(f"[{''.join([*_HAN_DIGITS, *_HAN_POWERS])}]{{2,12}}")


@dataclass(frozen=True, slots=True)
class FoundValue:
    """A value as it stands in a text, what kind it is, how often it occurs and where it occurs last."""

    text: str
    kind: str
    times: int
    start: int


def values_in(text: str) -> dict[str, FoundValue]:
    """Find the exact values of a text, by a key that is the same however they are written.

    Kinds are url, email, path, code, date, amount, id, number and error (a line that tells one). Numbers up
    to twelve without a unit are none.
    """
    text = _ascii_digits(text[:_LONGEST_READ])
    found: dict[str, FoundValue] = {}
    for kind, start, value in _matches(text):
        if kind == "number" and _is_count(value):
            continue
        key = value_key(value, kind)
        times = found[key].times + 1 if key in found else 1
        found[key] = FoundValue(value, kind, times, start)
    return found


def value_key(value: str, kind: str) -> str:
    """Name a value, so that "1,250.00" and "1250" are one."""
    if kind in {"number", "amount"}:
        return _plain_figure(value)
    if kind == "date":
        return "-".join(run.lstrip("0") or "0" for run in _RUN.findall(value)) + _letters_of(value)
    return " ".join(value.strip("`").removesuffix("()").split()).casefold()


def folded(text: str) -> str:
    """Write a text in the form in which values are looked for in it."""
    return " ".join(_ascii_digits(text).casefold().split())


def is_in(value: FoundValue, text: str, figures: Set[str]) -> bool:
    """Say whether a folded text with these figures has a value, however it writes it."""
    if value.kind == "error":
        return value_key(value.text, "error")[:40] in text
    if value.kind in _NUMERIC:
        return value.text.casefold() in text or _is_known(value, figures)
    return value_key(value.text, value.kind) in text


def figures_in(text: str) -> frozenset[str]:
    """Give the figures of a text in all forms in which a summary may write them.

    That is without separators and leading zeros, each run of digits alone, and the leading digits, marked
    with `~`, so that 1.5k is known from 1,500.
    """
    text = _ascii_digits(text[:_LONGEST_READ])
    forms: set[str] = set()
    for match in _FIGURES.finditer(text):
        plain = _plain_figure(match[0])
        forms |= {plain, f"~{_leading(match[0])}"}
        forms.update(run.lstrip("0") or "0" for run in _RUN.findall(match[0]))
    for match in _HAN_NUMBER.finditer(text):
        number = _han_value(match[0])
        forms |= {str(number), f"~{_leading(str(number))}"}
    return frozenset(forms)


def strange_values(text: str, source: str, figures: Set[str]) -> list[FoundValue]:
    """Find the values of a text that a folded source with these figures has nowhere."""
    checked = (value for value in values_in(text).values() if value.kind not in {"code", "error"})
    return [value for value in checked if not is_in(value, source, figures)]


def with_words(value: FoundValue, text: str) -> str:
    """Give a value with the few words before it in its sentence, which tell what it is."""
    if value.kind in {"error", "url", "email", "code"}:
        return value.text
    before = re.split(r"\n|[.!?;,] |[。！？；，、·]", text[max(0, value.start - 40) : value.start])[-1]
    words = before.split(" ") if value.start <= 40 else before.split(" ")[1:] or [""]
    if not before.isascii():
        words = [before[-10:]] if len(words) < 3 else words
    return " ".join(words[-4:]).lstrip(" ,-*#>|\t") + value.text


def _matches(text: str) -> Iterator[tuple[str, int, str]]:
    for start, piece in _pieces(text):
        if (error := _ERROR.search(piece)) is not None:
            yield "error", start + error.start(), error[0][:_LONGEST_ERROR].rstrip()
        for match in _VALUE.finditer(piece):
            yield str(match.lastgroup), start + match.start(), match[0]


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Cut a text into lines, and long ones at spaces: a search holds the interpreter until it ends."""
    start = 0
    while start < len(text):
        end = text.find("\n", start, start + _LONGEST_PIECE)
        if end < 0 and len(text) - start > _LONGEST_PIECE:
            end = text.rfind(" ", start + _LONGEST_PIECE // 2, start + _LONGEST_PIECE)
            end = end if end > 0 else start + _LONGEST_PIECE
        end = len(text) if end < 0 else end + 1
        yield start, text[start:end]
        start = end


def _ascii_digits(text: str) -> str:
    """Write all decimal digits in ASCII; the text keeps its length."""
    return text if text.isascii() else _OTHER_DIGIT.sub(lambda digit: str(int(digit[0])), text)


def _is_count(value: str) -> bool:
    return value.isdigit() and len(value) <= 2 and int(value) <= _LARGEST_COUNT


def _is_known(value: FoundValue, figures: Set[str]) -> bool:
    runs = [run.lstrip("0") or "0" for run in _RUN.findall(value.text)]
    if value.kind == "date":
        return all(run in figures or int(run) <= _LARGEST_COUNT for run in runs)
    leading = _leading(value.text)
    scaled = len(leading) > 1 or not value.text.isdigit()
    return _plain_figure(value.text) in figures or (scaled and f"~{leading}" in figures)


def _plain_figure(value: str) -> str:
    """Give a figure's digits without separators, leading zeros and a fraction of zeros."""
    figure = _FIGURES.search(value)
    digits = re.sub(r"[.,]0{1,2}$", "", figure[0]) if figure else value
    return "".join(_RUN.findall(digits)).lstrip("0") or "0"


def _leading(value: str) -> str:
    """Give a figure's digits without the zeros at both ends."""
    return "".join(_RUN.findall(value)).strip("0")


def _letters_of(value: str) -> str:
    return "".join(re.findall(r"[^\W\d_]+", value)).casefold()[:3]


def _han_value(text: str) -> int:
    """Give the number that Chinese numerals write."""
    total, section, digit = 0, 0, 0
    for sign in text:
        if sign in _HAN_DIGITS:
            digit = digit * 10 + _HAN_DIGITS[sign] if digit else _HAN_DIGITS[sign]
            continue
        power = _HAN_POWERS[sign]
        if power >= 10_000:
            total, section, digit = total + (section + digit or 1) * power, 0, 0
        else:
            section, digit = section + (digit or 1) * power, 0
    return total + section + digit
