"""Writes the reference pages from the code: docs/valves.md, docs/events.md and the tables in README.md."""

from __future__ import annotations

import argparse
import sys
import typing
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from eunoe.events import BODIES, DecisionBody, EventKind, RunEvent
from eunoe.flags import FLAGS, FlagSpec, Scope
from eunoe.settings import Settings, environment_name
from eunoe_hosts.open_webui import Filter

ROOT = Path(__file__).resolve().parents[1]
GENERATED = "<!-- Written by `make reference` from the code. Change the code, not this text. -->"


def valves_page() -> str:
    """Write the page about valves."""
    return "\n".join(
        [
            "# Valves",
            "",
            GENERATED,
            "",
            "The administrator sets these in Open WebUI under *Admin Panel → Functions → Eunoe → Valves*. Other hosts",
            "read the same settings from the environment variables in the last column.",
            "",
            valves_table(with_environment=True),
            "",
            "## What people may set for themselves",
            "",
            "In a chat under *Controls → Valves → Eunoe*.",
            "",
            table(
                ("Valve", "Default", "What it does"),
                [_row(n, f) for n, f in Filter.UserValves.model_fields.items()],
            ),
            "",
        ]
    )


def events_page() -> str:
    """Write the page about events."""
    parts = [
        "# Events",
        "",
        GENERATED,
        "",
        'What the filter sends to `POST {observer_url}/v1/events`, as `{"events": [...]}` with the header',
        "`Authorization: Bearer {observer_token}`. Every event is this envelope; `data` is the body of its kind.",
        "A field that is absent or null is not known. Numbers that are not known are never 0.",
        "",
        _fields(RunEvent),
    ]
    for kind in EventKind:
        body = BODIES[kind]
        parts += ["", f"## `{kind}`", "", _summary(body), "", _fields(body)]
        if kind is EventKind.PLAN:
            parts += ["", "Each of `decisions`:", "", _fields(DecisionBody)]
    return "\n".join([*parts, ""])


def valves_table(*, with_environment: bool = False) -> str:
    """Write the table of valves."""
    head = ["Valve", "Default", "What it does"]
    rows = []
    for name, field in Settings.model_fields.items():
        row = _row(name, field)
        rows.append([*row, f"`{environment_name(name)}`"] if with_environment else row)
    return table([*head, "Environment"] if with_environment else head, rows)


def flags_table() -> str:
    """Write the table of flags."""
    rows = [[_example(spec), spec.effect, _lasts(spec)] for spec in FLAGS.values()]
    return table(("Flag", "What it does", "For how long"), rows)


def table(head: typing.Sequence[str], rows: typing.Iterable[typing.Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def with_block(text: str, name: str, block: str) -> str:
    """Put a generated block between its marks in a hand-written page."""
    begin, end = f"<!-- {name}: written by `make reference` -->", f"<!-- end of {name} -->"
    if begin not in text or end not in text:
        raise SystemExit(f"README.md lacks the marks {begin} and {end}")
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n\n{block}\n\n{end}{rest.split(end, 1)[1]}"


def pages(root: Path) -> dict[Path, str]:
    """Give every page with its text."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    readme = with_block(with_block(readme, "valves", valves_table()), "flags", flags_table())
    return {
        root / "docs" / "valves.md": valves_page(),
        root / "docs" / "events.md": events_page(),
        root / "README.md": readme,
    }


def _example(spec: FlagSpec) -> str:
    if not spec.wants:
        return f"`!{spec.name}`"
    value = "label" if "tag" in spec.wants else "4" if "whole" in spec.wants else "0.5"
    return f"`!{spec.name}={value}`"


def _lasts(spec: FlagSpec) -> str:
    if spec.scope is Scope.MESSAGE:
        return f"As long as the message is there; `!-{spec.name}` later takes it back"
    return f"This turn; `!+{spec.name}` until `!-{spec.name}`"


def _row(name: str, field: FieldInfo) -> list[str]:
    default = f"`{field.default}`" if field.default != "" else "empty"
    return [f"`{name}`", default, f"**{field.title}.** {field.description}"]


def _fields(model: type[BaseModel]) -> str:
    rows = [
        [f"`{name}`", f"`{_type(field)}`", field.description or ""]
        for name, field in model.model_fields.items()
    ]
    return table(("Field", "Type", "Meaning"), rows)


def _type(field: FieldInfo) -> str:
    text = (
        str(field.annotation)
        if typing.get_origin(field.annotation)
        else getattr(field.annotation, "__name__", "")
    )
    return (text or str(field.annotation)).replace("eunoe.events.", "").replace("typing.", "")


def _summary(model: type[BaseModel]) -> str:
    sentence = (model.__doc__ or "").split(":", 1)[1].strip()
    return sentence[0].upper() + sentence[1:]


def main() -> int:
    """Write the pages, or with --check say which are stale."""
    parser = argparse.ArgumentParser(description="Write the reference pages from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale")
    options = parser.parse_args()
    stale = [p for p, text in pages(ROOT).items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    for path in stale:
        sys.stdout.write(
            f"{path.relative_to(ROOT)} {'is stale: run make reference' if options.check else 'written'}\n"
        )
        if not options.check:
            path.write_text(pages(ROOT)[path], encoding="utf-8")
    return int(bool(stale) and options.check)


if __name__ == "__main__":
    sys.exit(main())
