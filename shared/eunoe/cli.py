"""The command `python -m eunoe`: what is stored of chats, without the host that stores it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from .assembly import data_file
from .errors import BadSetting
from .settings import settings_from
from .store.places import STORE_FOLDER
from .store.status import ChatStatus, StoreStatus, status_of

_OWN_FOLDER = "eunoe"  # below the data folder of Open WebUI
_CHATS_SHOWN = 20
_UNITS = ("B", "kB", "MB", "GB", "TB")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code: 0, or 2 if there is nothing to say something of."""
    parser = argparse.ArgumentParser(prog="python -m eunoe", description="Looks at what Eunoe keeps.")
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser(
        "status",
        help="say what is stored, cut, compressed and what failed",
        description="Says what is stored of chats, what was cut and compressed, and what failed. No text of a message "
        "is shown.",
    )
    status.add_argument(
        "--folder",
        type=Path,
        help="Eunoe's data folder, or the store in it; by default beside EUNOE_STORE_PATH, else DATA_DIR/eunoe",
    )
    status.add_argument("--json", action="store_true", help="write JSON")
    options = parser.parse_args(arguments)
    try:
        found = status_of(_store_folder(options.folder, os.environ))
    except BadSetting as error:
        return _refuse(f"{error.problem}. Say where with --folder, EUNOE_STORE_PATH or DATA_DIR.")
    except OSError as error:
        return _refuse(f"there is no store at {error.filename} ({error.strerror})")
    sys.stdout.write(status_json(found) if options.json else status_text(found, time.time()))
    return 0


def status_json(status: StoreStatus) -> str:
    """Write a status as JSON."""
    return json.dumps(asdict(status), ensure_ascii=False, indent=2) + "\n"


def status_text(status: StoreStatus, now: float) -> str:
    """Write a status for people."""
    chats = [chat for chat in status.chats if chat.rows]
    compressed, cut = status.messages_with("compressed"), status.total("cuts")
    gone = sum(status.messages_with(fate) for fate in ("dropped", "summarized", "recalled"))
    rows = (
        f"{status.total('rows_in_context'):,} the model sees, {status.total('rows_not_in_context'):,} it does not, "
        f"{status.total('rows_elsewhere'):,} of other branches"
    )
    lines = [
        f"{status.folder}: {_count(len(chats), 'chat')}, {_size(status.bytes)}",
        f"  stored      {_count(status.total('messages'), 'message')} in {_count(status.total('rows'), 'row')}: {rows}",
        f"  cut         {_count(cut, 'time')}; {_count(gone, 'message')} left out now",
        f"  compressed  {_count(compressed, 'message')} now",
        f"  failed      {_count(status.total('failures'), 'time')}",
    ]
    failures = sorted((seen.at, seen.reason) for chat in status.chats for seen in chat.last_failures)
    lines += [f"    {_ago(now - at)}: {reason}" for at, reason in reversed(failures[-5:])]
    if status.unusable:
        lines.append(f"  unusable    {', '.join(status.unusable)}")
    if chats:
        lines += ["", *(_chat_line(chat, now) for chat in chats[:_CHATS_SHOWN])]
    if len(chats) > _CHATS_SHOWN:
        lines.append(f"and {len(chats) - _CHATS_SHOWN:,} more; --json shows all")
    return "\n".join(lines) + "\n"


def _chat_line(chat: ChatStatus, now: float) -> str:
    line = (
        f"{chat.chat or chat.file}: used {_ago(now - chat.last_used)}, {_size(chat.bytes)}, "
        f"{_count(chat.messages, 'message')}, {chat.rows_not_in_context:,} of {_count(chat.rows, 'row')} not seen"
    )
    if (cut := chat.last_cut) is not None:
        at = datetime.fromtimestamp(cut.at, UTC).strftime("%Y-%m-%d %H:%M")
        line += f"; cut {at} UTC from {cut.tokens_before:,} to {cut.tokens_after:,} tokens ({cut.reason})"
    return line


def _store_folder(given: Path | None, environment: Mapping[str, str]) -> Path:
    """Find the folder of the store.

    Raises:
        BadSetting: nobody says where it is, or a setting can't be used.
    """
    if given is not None:
        return given / STORE_FOLDER if (given / STORE_FOLDER).is_dir() else given
    data = environment.get("DATA_DIR", "")
    return data_file(settings_from(environment), Path(data) / _OWN_FOLDER if data else None, STORE_FOLDER)


def _refuse(problem: str) -> int:
    sys.stderr.write(f"eunoe status: {problem}\n")
    return 2


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _size(number: float) -> str:
    unit = 0
    while number >= 1_000 and unit < len(_UNITS) - 1:
        number, unit = number / 1_000, unit + 1
    return f"{number:.1f} {_UNITS[unit]}" if unit else f"{number:.0f} B"


def _ago(seconds: float) -> str:
    for name, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return f"{_count(int(seconds // length), name)} ago"
    return "just now"
