"""Every Python example of the README and of docs/extending.md runs, by itself, and prints what it says it prints."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.scripted import Answer, ScriptedServer, chat_answer

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/extending.md")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"# → (.*)$", re.MULTILINE)
ANSWER = "In the sea."


def examples():
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            yield pytest.param(block[1], id=f"{page}:{line}")


def provider(body):
    """Answer as OpenAI's API does, whole or as a stream."""
    assert {"model", "messages"} <= body.keys()
    common = {"id": "c", "created": 1, "model": body["model"]}
    if not body.get("stream"):
        return chat_answer(ANSWER, **common, object="chat.completion", choice={"index": 0})
    return Answer(200, _streamed(common), {"Content-Type": "text/event-stream"})


def _streamed(common):
    pieces = [
        {
            **common,
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}],
        }
        for word in ("In ", "the ", "sea.")
    ]
    lines = [f"data: {json.dumps(piece)}\n\n" for piece in pieces]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def run(program, folder, url):
    (folder / "example.py").write_text(program, encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if name in {"PATH", "TIKTOKEN_CACHE_DIR"}}
    return subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=folder,
        env={**inherited, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "k", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("program", list(examples()))
def test_an_example_runs_and_prints_what_it_says(program, tmp_path):
    promised = PRINTED.findall(program)
    assert promised, "an example that prints nothing shows nothing"
    with ScriptedServer(provider) as server:
        done = run(program, tmp_path, server.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == promised
    assert done.stderr == ""


def test_an_example_that_lies_is_noticed(tmp_path):
    done = run("print(1 + 1)  # → 3\nraise SystemExit(4)", tmp_path, "http://127.0.0.1:1/v1")
    assert done.returncode == 4
    assert done.stdout.splitlines() != ["3"]


def test_each_page_has_its_examples():
    found = [param.id for param in examples()]
    assert len([name for name in found if name.startswith("README")]) >= 4
    assert len([name for name in found if name.startswith("docs/extending")]) == 4


@pytest.mark.parametrize("page", PAGES)
def test_no_code_block_escapes(page):
    """Python code in a block of another name would not be run."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"^```(\w+)$", text, re.MULTILINE)
    assert set(named) <= {"python", "sh"}
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(named)
