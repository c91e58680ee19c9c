"""Says whether what a model wrote is a summary, and makes it one that loses no telling value.

A reply is refused that is empty or only reasoning, cut off, an error text or a refusal, the request said back,
one thing said over and over, about another matter or in another script or language, mostly made of values
that the source has not, or no smaller than what it replaces. Single lines with values that the source has
not are taken out.
"""

from __future__ import annotations

import re

from ..compress import shorten_text
from ..errors import AnswerRefused
from ..ports import ChatReply
from ..reply import without_reasoning
from ..terms import read_terms
from ..tokens import TokenCounter
from .language import language_of, script_share
from .prompts import SUMMARY_PROMPT, disarmed
from .source import VALUES_MARK, SourceFacts, missing_from, values_line
from .values import folded, strange_values

_VALUES_SHARE, _MOST_OF_VALUES = 2, 240  # of the room where the summary fills it, and in tokens

# Of a summary's terms, so many stand in its source. Measured on the 272 sessions of LoCoMo with their
# summaries: never under 0.5, and with another chat's session 0.2 on average and in one of twenty over 0.32.
_LEAST_SHARED, _LEAST_TERMS = 0.3, 6
# Of a text's runs of six words (signs where there are no spaces), half are said once at least; a list of many
# alike lines, each of another thing, has more than that.
_RUN_LENGTH, _LEAST_RUNS = 6, 40
_WORD_OR_SIGN = re.compile(r"[\u0e00-\u0e7f\u3040-\u9fff]|\w+")
_LEAST_OF_SCRIPT = 0.1  # of a summary's letters; names and code are Latin in every language

_LONG_LINE = 240  # characters; a paragraph is taken sentence by sentence
_SENTENCE = re.compile(r"(?<=[.!?;])(?<!\b\d\.)(?<!\b\d\d\.)\s+(?=\S)|(?<=[。！？；])(?=\S)")
_FRAME_LINE = re.compile(r"^\s*[<‹]/?(?:notes|chat|part|before|summary)\b[^>›]*[>›]\s*$", re.IGNORECASE)
_SPEAKER_LINE = re.compile(r"(?:user|assistant|tool|function|other)(?:, [a-z ]{4,12}){0,4}:")
_FENCE = re.compile(r"\A\s*```[a-z]*\n(.*?)\n?```\s*\Z", re.DOTALL)
# How errors and refusals begin, in the languages that models refuse in.
_FAILURE = re.compile(
    r"\W*(?:\{?\W*(?:error|detail|code|status)\W{1,4}[:=\"{]|error\b|exception:|traceback \(most|"
    r"(?:http\S{0,4} )?(?:[45]\d\d:? )?(?:[a-z]+ (?:server )?error\b|bad gateway|gateway time-?out|too many requests|"
    r"service unavailable|rate limit|request timed out)|<!doctype|"
    r"<html|i(?:['’]| a)?m (?:sorry|unable|not able)|sorry\b|i (?:can['’]?t|cannot|can not|won['’]t|don['’]t have)|"
    r"i do not have|as an? (?:ai|artificial|language|assistant)|unfortunately\b|(?:es )?tut mir leid|als ki\b|"
    r"entschuldigung|leider\b|ich kann (?:das|dies|ihnen|dir|leider|nicht|keine)|je suis désolé|en tant qu|lo siento|"
    r"como (?:ia|modelo|uma?)\b|desculpe|mi dispiace|извините|как ии|对不起|很?抱歉|作为(?:一[个名])?(?:ai|人工|语言)|"
    r"我无法|我不能|申し訳|죄송)",
    re.IGNORECASE,
)
_SHORT_FAILURE = 600  # characters; a longer text that begins so is more than an apology


def was_cut(reply: ChatReply) -> bool:
    """Say whether a reply ended because it had no more room."""
    return reply.finish_reason in {"length", "max_tokens"}


def checked_summary(
    reply: ChatReply, facts: SourceFacts, room: int, counter: TokenCounter, model: str
) -> str:
    """Give the summary that a reply holds, with at most `room` tokens and the telling values it left out.

    Raises:
        AnswerRefused: there is none of use in it.
    """
    text = tidied(reply.text)
    if problem := _problem_of(reply, text, facts):
        raise AnswerRefused(model, problem)
    lines = text.splitlines()
    true = [line for line in lines if not strange_values(line, facts.text, facts.figures)]
    if len(true) * 2 < len(lines):
        raise AnswerRefused(model, "its summary names values that the chat does not have")
    summary = with_values(fitted("\n".join(true), room, counter), facts, room, counter)
    if not summary.strip():
        raise AnswerRefused(model, "its summary has no room")
    if counter.count_text(summary) >= facts.tokens:
        raise AnswerRefused(model, "its summary is no shorter than what it replaces")
    return summary


def tidied(text: str) -> str:
    """Take out of a reply what is no summary: reasoning, our own frame, a code fence around all, lines said twice."""
    text = without_reasoning(text)
    if fence := _FENCE.match(text):
        text = fence[1]
    lines = [line.rstrip() for line in disarmed(text).splitlines()]
    kept: dict[str, str] = {}
    for line in lines:
        if line.strip() and not _FRAME_LINE.match(line):
            for short in _SENTENCE.split(line) if len(line) > _LONG_LINE else [line]:
                kept.setdefault(short.strip().casefold(), short.removeprefix("> "))
    lines = list(kept.values())
    if len(lines) > 1 and lines[0].endswith((":", "：")) and len(lines[0].split()) > 2:
        lines = lines[1:]  # "Here are the notes:"
    return "\n".join(lines).strip()


def with_values(text: str, facts: SourceFacts, room: int, counter: TokenCounter) -> str:
    """Put the telling values that a summary lacks on a last line, as far as they find room."""
    lines = text.splitlines()
    summary = "\n".join(line for line in lines if not line.startswith(VALUES_MARK))
    free = room - counter.count_text(summary) - 1
    most = min(_MOST_OF_VALUES, max(free, room // _VALUES_SHARE))
    line = values_line(missing_from(summary, facts), most, counter)
    if not line:
        return summary
    return f"{fitted(summary, room - counter.count_text(line) - 1, counter)}\n{line}".strip()


def fitted(text: str, room: int, counter: TokenCounter) -> str:
    """Shorten a summary to `room` tokens by whole lines out of its middle.

    Goals and rules stand at its beginning, the newest state at its end.
    """
    lines = text.splitlines()
    sizes = [counter.count_text(line) + 1 for line in lines]
    head, tail, total = len(lines), len(lines), sum(sizes)
    while head and total > room:
        head -= 1
        total -= sizes[head]
    if head == len(lines):
        return text
    kept = sum(sizes[:head])
    while head > 1 and kept > room * 2 // 3:
        head -= 1
        kept -= sizes[head]
    while tail > head + 1 and kept + sizes[tail - 1] <= room:
        tail -= 1
        kept += sizes[tail]
    return "\n".join([*lines[:head], *lines[tail:]]) or shorten_text(text, room, counter)


def _problem_of(reply: ChatReply, text: str, facts: SourceFacts) -> str:
    """Say why a reply, whose text was tidied, is no summary of a source; empty if it may be one."""
    if not any(sign.isalnum() for sign in text):
        return "there is no summary in its answer"
    if was_cut(reply):
        return "its summary was cut off"
    if _is_failure(text, facts):
        return "it answered with an error or a refusal in place of a summary"
    if _is_echo(text, facts) or _is_transcript(reply.text, facts) or _is_repeating(reply.text):
        return "it said its request back, or the same over and over"
    if not _is_of(text, facts):
        return "its summary is in another language or about something else"
    return ""


def _is_failure(text: str, facts: SourceFacts) -> bool:
    """Say whether a text begins like an error or a refusal that the source does not have."""
    if len(text) > _SHORT_FAILURE or not _FAILURE.match(text):
        return False
    first = folded(text.splitlines()[0]).lstrip("-*•#> ")
    return first[:40] not in facts.text


def _is_echo(text: str, facts: SourceFacts) -> bool:
    """Say whether half of the lines are those of the instructions."""
    prompt = folded(SUMMARY_PROMPT)
    lines = [folded(line).lstrip("-*•#> ") for line in text.splitlines()]
    lines = [line for line in lines if len(line) > 12]
    echoed = [line for line in lines if line in prompt and line not in facts.text]
    return len(echoed) * 2 > len(lines)


def _is_transcript(text: str, facts: SourceFacts) -> bool:
    """Say whether half of the lines are the quotations that the model was shown, with their marks."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = [
        line
        for line in lines
        if _SPEAKER_LINE.fullmatch(line) or (line.startswith("> ") and folded(line[2:]) in facts.text)
    ]
    return len(shown) > 1 and len(shown) * 2 > len(lines)


def _is_repeating(text: str) -> bool:
    words = _WORD_OR_SIGN.findall(text)
    runs = [tuple(words[at : at + _RUN_LENGTH]) for at in range(len(words) - _RUN_LENGTH + 1)]
    return len(runs) >= _LEAST_RUNS and len(set(runs)) * 2 < len(runs)


def _is_of(text: str, facts: SourceFacts) -> bool:
    """Say whether a text has its words from the source, and is written in its script."""
    terms = read_terms(text).counts.keys()
    shared = sum(term in facts.terms for term in terms)
    if len(terms) >= _LEAST_TERMS and shared < _LEAST_SHARED * len(terms):
        return False
    return _is_in_language_of(text, facts)


def _is_in_language_of(text: str, facts: SourceFacts) -> bool:
    """Say whether a text may be in the language and the script of its source."""
    language = language_of(text)
    if language and facts.languages and language not in facts.languages:
        return False
    shares = [script_share(text, script) for script in facts.scripts]
    return not shares or max(shares) >= _LEAST_OF_SCRIPT
