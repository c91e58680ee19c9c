"""With a real model server: whatever a small base model writes, a summary or an extract stands for the turns."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import environments
from eunoe.bonds import Turn, turns_of
from eunoe.cache import InMemoryCache
from eunoe.conversation import Conversation
from eunoe.endpoint import OpenAIChatModel
from eunoe.ports import ChatReply
from eunoe.summarizers import (
    ConversationSummarizer,
    LLMSummarizer,
    SegmentSummarizer,
    Summary,
    SummaryReport,
    TurnSummarizer,
)
from eunoe.tokens import counter_for
from processes import Server, free_port, stop

from .story import passage

pytestmark = pytest.mark.e2e

MODEL, WINDOW, REPLY = "gemma3-270m", 2048, 48
SECONDS = 300.0  # on two busy cores a token can take more than a second
ROOM, CALLS = 400, 2
VALUES = ("PO-7731", "4,250.00 EUR", "/srv/mill/plan.md", "ines.roth@example.org")
TOLD = "Order PO-7731 is over 4,250.00 EUR. Its plan is /srv/mill/plan.md, and questions go to ines.roth@example.org."


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a llama.cpp server with a small model."""
    port = free_port()
    python = environments.llama() / "bin" / "python"
    script = Path(environments.__file__).with_name("llama.py")
    command = [str(python), str(script), "--port", str(port), "--context", str(WINDOW), "--reply", str(REPLY)]
    log = tmp_path_factory.mktemp("llama") / "llama.log"
    server = Server.start("The local model", command, log, os.environ)
    try:
        server.wait(f"http://127.0.0.1:{port}/health", 120)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        stop([server])


class Watched:
    """The real model, whose answers are kept."""

    def __init__(self, address: str) -> None:
        # A base model goes on for ever; so much is enough to see what becomes of it.
        self.model = OpenAIChatModel(
            address, "", MODEL, extra_body={"max_tokens": REPLY}, timeout=SECONDS, attempts=1
        )
        self.replies: list[ChatReply] = []

    async def complete(
        self, messages: Sequence[dict[str, Any]], *, max_tokens: int, tools: Sequence[Any] = ()
    ) -> ChatReply:
        """Ask the real model."""
        self.replies.append(await self.model.complete(messages, max_tokens=max_tokens, tools=tools))
        return self.replies[-1]

    def name(self) -> str:
        """Give the model's name."""
        return self.model.name()


def some_turns(count: int) -> tuple[Turn, ...]:
    """Turns about mills and bridges, in one of which the user gives exact values."""
    messages = [
        {
            "role": role,
            "content": f"{TOLD} " * (role == "user" and number == 1) + passage(number + offset, 25),
        }
        for number in range(count)
        for role, offset in (("user", 0), ("assistant", 500))
    ]
    return turns_of(Conversation.from_openai_messages(messages).messages)


def write_and_read(
    kind: Any, chat: Any, count: int
) -> tuple[SummaryReport, Sequence[Summary], tuple[Turn, ...]]:
    """Have a book write about some turns and read what is there then."""

    async def both() -> tuple[SummaryReport, Sequence[Summary], tuple[Turn, ...]]:
        of = some_turns(count)
        summarizer = LLMSummarizer(chat=chat, window_tokens=WINDOW)
        book = kind(summarizer, InMemoryCache(), max_calls=CALLS, max_seconds=SECONDS)
        assert not await book.ready(of, "anna")
        report = await book.write(of, "anna", room_tokens=ROOM)
        return report, await book.ready(of, "anna"), of

    return asyncio.run(both())


@pytest.mark.parametrize(
    ("kind", "count"), [(TurnSummarizer, 2), (SegmentSummarizer, 8), (ConversationSummarizer, 8)]
)
def test_whatever_a_real_model_writes_turns_have_a_summary_or_an_extract(
    llama: str, kind: Any, count: int
) -> None:
    chat = Watched(llama)
    report, summaries, of = write_and_read(kind, chat, count)
    assert 1 <= len(chat.replies) <= CALLS
    assert list(report.usages) == [reply.usage for reply in chat.replies]
    for usage in report.usages:
        assert usage.prompt_tokens is not None
        assert 0 < usage.prompt_tokens < WINDOW, "by the model's own tokenizer"
    assert report.made == sum(summary.source == "model" for summary in summaries)
    assert bool(report.problem) == any(summary.source == "extract" for summary in summaries)

    assert sum(summary.turns for summary in summaries) == count
    present = {message.digest for turn in of for message in turn.messages}
    assert set().union(*(summary.covers for summary in summaries)) == present
    count_text = counter_for(MODEL).count_text
    said = sum(count_text(message.text) for turn in of for message in turn.messages)
    text = "\n".join(summary.text for summary in summaries)
    assert 0 < count_text(text) < said
    assert all(value in text for value in VALUES), text


def test_what_this_model_says_of_a_finished_reply_is_checked(llama: str) -> None:
    """With its end taken for a wanted one, what the model writes goes through all other checks."""

    class Finished(Watched):
        async def complete(self, *args: Any, **options: Any) -> ChatReply:
            reply = await super().complete(*args, **options)
            return ChatReply(reply.text, "stop", usage=reply.usage)

    report, (summary,), _ = write_and_read(ConversationSummarizer, Finished(llama), 8)
    assert len(report.usages) == 1
    assert (summary.source == "model") == (report.made == 1) == (not report.problem)
    assert all(value in summary.text for value in VALUES), summary.text


def test_where_no_model_server_is_an_extract_stands_in() -> None:
    chat = OpenAIChatModel(f"http://127.0.0.1:{free_port()}/v1", "", MODEL, attempts=1)
    report, (summary,), _ = write_and_read(ConversationSummarizer, chat, 8)
    assert (report.made, report.usages) == (0, ())
    assert report.problem.startswith(f"{MODEL}: it can't be reached")
    assert summary.source == "extract"
    assert all(value in summary.text for value in VALUES), summary.text
