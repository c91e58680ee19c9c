"""Chats whose plans leave something out, and what is stored of them."""

import asyncio

from eunoe.budget import TokenBudget
from eunoe.conversation import Conversation
from eunoe.orchestrator import ContextOrchestrator
from eunoe.store.chats import ChatStore
from eunoe.store.places import ChatKey
from eunoe.store.tools import ChatTools

KEY = ChatKey("ada", "chat-1")
TOPICS = "the mill; the bridge; the old road; the ferry; the market; the tower; the harbor; the school".split(
    "; "
)


def user(text):
    return {"role": "user", "content": text}


def answer(text):
    return {"role": "assistant", "content": text}


def call(name, arguments, number=1):
    function = {"name": name, "arguments": arguments}
    calls = [{"id": f"call_{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(text, number=1):
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def talk(turns=12, *, secret="", padding=40):
    """A chat of many turns; the second answer holds the secret."""
    messages = []
    for number in range(turns):
        topic = TOPICS[number % len(TOPICS)]
        messages.append(user(f"Tell me about {topic}, part {number}."))
        told = f"About {topic}, {number}: " + "it was built long ago. " * padding
        messages.append(answer(f"{told} {secret}" if number == 1 else told))
    return messages


def planned(messages, budget=600):
    """The plan that an orchestrator makes of a chat."""
    orchestrator = ContextOrchestrator(TokenBudget(budget))
    return asyncio.run(orchestrator.process(Conversation.from_openai_messages(messages))).plan


def stored(folder, messages, budget=600, key=KEY, **options):
    """A store that holds a chat."""
    store = ChatStore(folder / "store", **options)
    store.record(key, planned(messages, budget), "run-1", "gpt-4o")
    assert store.wait(key, 30)
    return store


def ask(store, name, key=KEY, **arguments):
    """What a tool answers."""
    return asyncio.run(ChatTools(store, key).answer(name, arguments))
