"""Bars: which piece is how long. Lengths are percentages for SVG, since no style may carry them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FATES = ("kept", "recalled", "compressed", "summarized", "dropped")


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a bar."""

    kind: str
    title: str
    start: str
    length: str


@dataclass(frozen=True, slots=True)
class Bar:
    """Pieces side by side, with a mark at the limit."""

    title: str
    pieces: list[Piece]
    tick: str | None = None


def scale_of(run: Mapping[str, Any], *, whole: bool) -> int:
    """Return the tokens that fill the width: the budget, or everything there is if that shall be seen too."""
    tokens = [run["token_limit"] or 0, run["tokens_after"] or 0]
    if whole or not run["token_limit"]:
        tokens.append(run["tokens_before"] or 0)
    return max(*tokens, 1)


def sent_bar(run: Mapping[str, Any], *, whole: bool = False) -> Bar:
    """Draw what the last call was sent."""
    return _token_bar(run, "tokens_after", "sent", scale_of(run, whole=whole))


def before_bar(run: Mapping[str, Any]) -> Bar:
    """Draw what there was to send."""
    return _token_bar(run, "tokens_before", "before", scale_of(run, whole=True))


def _token_bar(run: Mapping[str, Any], column: str, word: str, scale: int) -> Bar:
    if run[column] is None:
        return Bar("No plan reported", [])
    amounts = [("fixed", "system and tools", run["tokens_fixed"] or 0)]
    amounts += [(kind_of(fate), fate, tokens[column]) for fate, tokens in by_fate(run["fates"])]
    if column == "tokens_after":
        amounts.append(("summarized", "summaries", run["tokens_inserted"] or 0))
    # Notes and what each message costs in itself belong to no single message.
    rest = run[column] - sum(tokens for _, _, tokens in amounts)
    amounts.append(("rest", "notes and overhead", rest))
    amounts = [each for each in amounts if each[2] > 0]
    scale = max(scale, sum(tokens for _, _, tokens in amounts))
    pieces, start = [], 0
    for kind, label, tokens in amounts:
        pieces.append(
            Piece(kind, f"{label}: {tokens:,} tokens", _percent(start, scale), _percent(tokens, scale))
        )
        start += tokens
    limit = run["token_limit"]
    told = ", ".join(piece.title for piece in pieces)
    return Bar(
        f"{word}: {run[column]:,} tokens"
        + (f" of {limit:,}" if limit else "")
        + (f" ({told})" if told else ""),
        pieces,
        _percent(limit, scale) if limit else None,
    )


def by_fate(fates: Mapping[str, Mapping[str, int]]) -> list[tuple[str, Mapping[str, int]]]:
    """Order the fates as the bars show them."""
    order = {fate: index for index, fate in enumerate(FATES)}
    return sorted(fates.items(), key=lambda each: order.get(each[0], len(FATES)))


def kind_of(fate: str) -> str:
    """Return the class a fate is drawn with; one of a newer filter gets the neutral one."""
    return fate if fate in FATES else "rest"


def weight_scale(decisions: Iterable[Mapping[str, Any]]) -> float:
    """Return the weight that fills the width: 1, or the greatest if there is a greater one."""
    return max([1.0, *(float(each["weight"]) for each in decisions)])


def figure(value: float) -> str:
    """Write a factor: two decimals, or two digits of what is smaller than they show."""
    return f"{value:.2f}" if value >= 0.095 or value == 0 else f"{value:.2g}"


def weight_bar(decision: Mapping[str, Any], scale: float) -> Bar:
    """Draw a weight as long as it is, divided in proportion to its factors."""
    parts = decision["parts"]
    length = max(decision["weight"], 0.0) / scale
    total = sum(abs(value) for value in parts.values())
    named = " × ".join(f"{name} {figure(value)}" for name, value in parts.items())
    title = f"{named} = {figure(decision['weight'])}" if named else f"weight {figure(decision['weight'])}"
    if scores := decision["scores"]:
        title += f" (relevance of {', '.join(f'{name} {figure(value)}' for name, value in scores.items())})"
    if not total:
        return Bar(title, [Piece("p0", title, "0%", _percent(length, 1))])
    pieces, start = [], 0.0
    for index, (name, value) in enumerate(parts.items()):
        share = length * abs(value) / total
        pieces.append(
            Piece(f"p{index % 4}", f"{name} {figure(value)}", _percent(start, 1), _percent(share, 1))
        )
        start += share
    return Bar(title, pieces)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f}%"
