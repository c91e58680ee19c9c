"""How numbers and times look. What is not known has a word of its own and is never shown as zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from . import bars

UNKNOWN = "–"
SHOWN_CHARACTERS = 20_000  # of one message; a pasted log of megabytes would make the page unusable


def count(value: float | None) -> str:
    """Write a whole number with separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def money(value: float | None) -> str:
    """Write dollars, with as many digits as small amounts need."""
    if value is None:
        return "no price"
    if value == 0:
        return "$0"
    sign, value = ("−" if value < 0 else ""), abs(value)
    if value >= 1:
        return f"{sign}${value:,.2f}"
    # Two digits that count: $0.0031, $0.00004.
    digits = next((place for place in range(2, 9) if value >= 10.0 ** (1 - place)), 9)
    return f"{sign}${value:.{digits}f}"


def percent(part: float | None, whole: float | None = 1.0) -> str:
    """Write a share of a whole."""
    return UNKNOWN if part is None or not whole else f"{100 * part / whole:.0f} %"


def difference(real: float | None, expected: float | None) -> str:
    """Write how far off an estimate was, with its sign."""
    if real is None or not expected:
        return ""
    return f"{100 * (real - expected) / expected:+.1f} %".replace("-", "−")


def duration(milliseconds: float | None) -> str:
    """Write a span of time."""
    if milliseconds is None:
        return UNKNOWN
    if milliseconds < 10:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds:.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"


def iso(seconds: float | None) -> str | None:
    """Write a moment for machines."""
    return (
        None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    )


def clock(seconds: float) -> str:
    """Write a moment for people; the page's script turns it into their own time."""
    return f"{datetime.fromtimestamp(seconds, UTC):%d %b %H:%M:%S}"


def shortened(text: str) -> str:
    """Cut what is too long to show and say so."""
    rest = len(text) - SHOWN_CHARACTERS
    return text if rest <= 0 else f"{text[:SHOWN_CHARACTERS]}\n… {rest:,} more characters, see the JSON"


def path_part(text: str) -> str:
    """Quote a name for use as one part of an address."""
    return quote(text, safe="")


def plain(value: Any) -> Any:
    """Turn rows into what goes out as JSON: moments as text."""
    if isinstance(value, Mapping):
        return {
            str(name): iso(each) if name == "at" or str(name).endswith("_at") else plain(each)
            for name, each in value.items()
        }
    return [plain(each) for each in value] if isinstance(value, list) else value


FILTERS: tuple[Callable[..., Any], ...] = (
    *(count, money, percent, difference, duration, iso, clock, shortened, path_part),
    *(bars.kind_of, bars.by_fate, bars.sent_bar, bars.before_bar, bars.weight_bar, bars.weight_scale),
)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({function.__name__: function for function in FILTERS})
    environment.globals["FATES"] = bars.FATES
    return environment


ENVIRONMENT = _environment()


def render(template: str, **context: Any) -> str:
    """Fill a template."""
    return ENVIRONMENT.get_template(template).render(**context)
