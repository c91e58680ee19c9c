"""Finding a stored text by its name: a block's id, a message's, or the place of a message in the chat."""

from __future__ import annotations

import re
import sqlite3

from .answers import Piece
from .passages import lines_of
from .record import Sight
from .search import block_text

_BLOCKS = "SELECT row, message, role, kind, tool, position, in_history FROM block WHERE "
_NAMED = re.compile(r"[0-9a-f]{12}(?:\.\d{1,4})?")
_PLACE = re.compile(r"\d{1,6}")


def text_by_name(connection: sqlite3.Connection, name: str, sight: Sight | None) -> Piece | None:
    """Give all lines of what is named; None if there is nothing of that name in this chat."""
    if _NAMED.fullmatch(name):
        where, wanted = ("id = ?", name) if "." in name else ("id GLOB ?", f"{name}.*")
    elif _PLACE.fullmatch(name):
        where, wanted = "position = ?", name
    else:
        return None
    rows = connection.execute(f"{_BLOCKS}{where} ORDER BY message, number", (wanted,)).fetchall()
    if where.startswith("position"):
        rows = [row for row in rows if (row[1] in sight if sight is not None else row[6])]
    # What a model thought is asked for by the block's own id alone.
    shown = [row for row in rows if row[3] != "reasoning"] or rows
    if not shown:
        return None
    lines = lines_of("\n".join(block_text(connection, row[0]) for row in shown))
    _, _, role, kind, tool, position, _ = shown[0]
    what = role if kind == "text" else kind.replace("_", " ") + (f" of {tool}" if tool else "")
    return Piece(name, f"{what}, message {position}", 1, lines, len(lines))
