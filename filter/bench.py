"""Measures what the filter adds to a turn: `inlet` and `request` of the one file that Open WebUI loads.

Cold is the first turn a process sees of a chat; warm is the next turn of the same chat. The budget is half
of the chat, so every turn has to choose.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
import types
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().with_name("eunoe_filter.py")
SIZES = (10, 100, 1000)
WORDS = 80
TOKENS_A_MESSAGE = 110  # of 80 such words, about
VOCABULARY = [
    a + b
    for a in ("gar", "lum", "ter", "mon", "sil", "vor", "pan", "kel")
    for b in ("a", "ent", "ing", "ork")
]


def load(number: int) -> types.ModuleType:
    """Load the file as Open WebUI does: executed from text, registered under a name of its own."""
    module = types.ModuleType(f"function_eunoe_{number}")
    sys.modules[module.__name__] = module
    exec(SOURCE.read_text(encoding="utf-8"), module.__dict__)  # noqa: S102  that is how the host loads it
    return module


def chat(messages: int) -> list[dict[str, Any]]:
    """A chat of messages that differ, the last one the user's."""
    source = random.Random(messages)  # noqa: S311  the same chat every time
    return [
        {
            "role": "assistant" if (messages - position) % 2 == 0 else "user",
            "content": " ".join(source.choices(VOCABULARY, k=WORDS)),
        }
        for position in range(messages)
    ]


async def turn(loaded: Any, messages: list[dict[str, Any]]) -> tuple[float, int]:
    """Run one turn; answer its milliseconds and how many messages were sent."""
    metadata: dict[str, Any] = {"chat_id": "bench", "message_id": "bench"}
    body: dict[str, Any] = {
        "model": "bench",
        "stream": True,
        "messages": [dict(message) for message in messages],
    }
    begin = time.perf_counter()
    body = await loaded.inlet(body=body, __metadata__=metadata, __user__={"id": "bench"}, __model__={})
    body = await loaded.request(body=body, __metadata__=metadata, __user__={"id": "bench"}, __model__={})
    return (time.perf_counter() - begin) * 1000, len(body["messages"])


async def measure(size: int, rounds: int) -> tuple[float, float, int]:
    """The median milliseconds of a cold and of a warm turn, and how many messages the warm one sent."""
    cold, warm, sent = [], [], 0
    for number in range(rounds):
        loaded = load(number).Filter()
        loaded.valves = loaded.Valves(max_tokens=size * TOKENS_A_MESSAGE // 2)
        await turn(loaded, chat(2))  # the tokenizer is loaded once in a process, not in a turn
        messages = chat(size + 1 - size % 2)
        cold.append((await turn(loaded, messages))[0])
        taken, sent = await turn(loaded, [*messages, *chat(3)[1:]])
        warm.append(taken)
    return statistics.median(cold), statistics.median(warm), sent


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="each number is the median of so many")
    rounds = parser.parse_args().rounds
    write = sys.stdout.write
    write(f"messages of {WORDS} words    cold ms    warm ms    sent\n")
    for size in SIZES:
        cold, warm, sent = asyncio.run(measure(size, rounds))
        write(f"{size:20}    {cold:7.1f}    {warm:7.1f}    {sent:4}\n")


if __name__ == "__main__":
    main()
