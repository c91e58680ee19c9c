"""Measures what the filter adds to a turn: `inlet` and `request` of the one file that Open WebUI loads.

Cold is the first turn a process sees of a chat; warm is the next turn of the same chat. The budget is half
of the chat, so every turn has to choose.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import environments
from processes import Server, free_port, stop

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


def with_embeddings(program: Path, options: Sequence[str]) -> int:
    """Run a program that measures a filter, weighing `hybrid` with a real model; answers its exit status."""
    python = environments.embedding() / "bin" / "python"
    port = free_port()
    command = [str(python), str(SOURCE.with_name("embedder.py")), "--port", str(port)]
    with tempfile.TemporaryDirectory() as folder:
        server = Server.start("The embedding model", command, Path(folder) / "embedder.log", os.environ)
        try:
            server.wait(f"http://127.0.0.1:{port}/health", 60)
            valves = {"weighting": "hybrid", "embedding_api_base": f"http://127.0.0.1:{port}/v1"}
            settings = [part for name, value in valves.items() for part in ("--set", f"{name}={value}")]
            given = [sys.executable, str(program), str(SOURCE), *settings, *options]
            return subprocess.run(given, check=False).returncode  # noqa: S603  the program the user names
        finally:
            stop([server])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="each number is the median of so many")
    parser.add_argument(
        "--embeddings",
        type=Path,
        metavar="PROGRAM",
        help="run this Python program instead, given the filter's file and --set VALVE=VALUE for a real "
        "embedding model; what else stands here is passed on to it",
    )
    choices, others = parser.parse_known_args()
    if choices.embeddings:
        raise SystemExit(with_embeddings(choices.embeddings, others))
    if others:
        parser.error(f"not known: {' '.join(others)}")
    rounds = choices.rounds
    write = sys.stdout.write
    write(f"messages of {WORDS} words    cold ms    warm ms    sent\n")
    for size in SIZES:
        cold, warm, sent = asyncio.run(measure(size, rounds))
        write(f"{size:20}    {cold:7.1f}    {warm:7.1f}    {sent:4}\n")


if __name__ == "__main__":
    main()
