"""A chat model that labels as it is told, and chats for it to label."""

import asyncio
import json
import re

from eunoe.conversation import Conversation
from eunoe.errors import ModelFailed
from eunoe.ports import ChatReply
from eunoe.usage import Usage
from eunoe.weighting.llm_analyzer import LLMContextAnalyzer


def user(text):
    return {"role": "user", "content": text}


def answer(text):
    return {"role": "assistant", "content": text}


def call(name, arguments, number="c"):
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": number, "function": function}]}


def result(text, number="c"):
    return {"role": "tool", "tool_call_id": number, "content": text}


CHAT = [
    {"role": "system", "content": "Be brief."},
    user("How deep is the harbor of Oslo?"),
    answer("Twelve meters."),
    user("Tell me a joke."),
    answer("Knock, knock."),
    user("And the harbor of Bergen?"),
]

LINE = re.compile(r"^(\d+) ([^:\n]+): (\".*\")$", re.MULTILINE)


class Scripted:
    """A chat model that answers as `reply` says and keeps what it was asked."""

    def __init__(self, reply, *, seconds=0.0, usage=None):
        self.reply, self.seconds, self.usage = reply, seconds, usage or Usage(100, 10)
        self.asked, self.limits, self.tools, self.now, self.most_at_once = [], [], [], 0, 0
        self.begun = asyncio.Event()

    async def complete(self, messages, *, max_tokens, tools=()):
        self.asked.append(messages)
        self.limits.append(max_tokens)
        self.tools.append(list(tools))
        self.now += 1
        self.begun.set()
        self.most_at_once = max(self.most_at_once, self.now)
        try:
            await asyncio.sleep(self.seconds)
            said = self.reply(messages) if callable(self.reply) else self.reply
            return said if isinstance(said, ChatReply) else ChatReply(said, usage=self.usage)
        finally:
            self.now -= 1

    def name(self):
        return "scripted"


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self):
        self.now = 1000.0

    def seconds(self):
        return self.now


def lines_of(messages):
    """Give the lines of a request for labels: number, who speaks, text."""
    prompt = messages[-1]["content"]
    block = prompt.partition("<messages>\n")[2].partition("\n</messages>")[0]
    return [(int(n), who, json.loads(text)) for n, who, text in LINE.findall(block)]


def by_text(rule, otherwise="M"):
    """Answer with a label for each message, by what its text holds."""

    def reply(messages):
        found = [
            next((label for mark, label in rule.items() if mark in text), otherwise)
            for _, _, text in lines_of(messages)
        ]
        return json.dumps({"labels": found})

    return reply


HARBOR = by_text({"harbor": "K", "Twelve": "H", "joke": "D", "Knock": "D"})


def analyzer(chat, **options):
    return LLMContextAnalyzer(chat=chat, **options)


def score(strategy, messages, context=None, query=None):
    """List the scores in the order of the messages."""
    conversation = Conversation.from_openai_messages(messages)
    query = conversation.question.text if query is None else query
    found = asyncio.run(strategy.score(conversation.messages, query, conversation, context))
    assert set(found) == {m.id for m in conversation.messages}
    return [found[m.id] for m in conversation.messages]


def long_chat(turns, words=60):
    chat = [
        message
        for i in range(turns)
        for message in (user(f"question {i} " + "about harbor " * words), answer(f"answer {i}"))
    ]
    return [*chat, user("Which question was the first?")]


def fails(_messages):
    raise ModelFailed("scripted", "HTTP 500", 500, passing=True)
