"""Models that write notes as they are told, and chats for them to write about."""

import asyncio
import re

from eunoe.bonds import turns_of
from eunoe.cache import InMemoryCache
from eunoe.conversation import Conversation
from eunoe.summarizers import LLMSummarizer
from eunoe.tokens import counter_for

from .labeling import Scripted, answer, user

COUNTER = counter_for("scripted")
PART = re.compile(r"<part (\d+)>.*?\n(.*?)\n</part \1>", re.DOTALL)
PLACES = ["harbor", "mill", "bridge", "orchard", "station", "library", "market", "garden", "tower", "school"]
FILLING = (
    "The walls are old and the roof lets the rain in, so somebody has to look at it again before winter."
)


def messages_of(chat):
    return Conversation.from_openai_messages(chat).messages


def turns(chat):
    return turns_of(messages_of(chat))


def tokens(text):
    return COUNTER.count_text(text)


def place(i):
    return f"{PLACES[i % 10]} number {i}"


def building(turns, first=0, words=FILLING):
    """Make turns of about 60 tokens, each about a place of its own."""
    return [
        message
        for i in range(first, first + turns)
        for message in (
            user(f"Please repair the {place(i)}. {words}"),
            answer(f"The {place(i)} will be repaired. {words}"),
        )
    ]


def asked_of(messages):
    """Give what the model is asked, without its instructions."""
    return messages[-1]["content"]


def chat_in(messages):
    """Give the quotations that a request shows."""
    return asked_of(messages).partition("<chat>\n")[2].partition("\n</chat>")[0]


def places_in(text):
    return sorted({int(n) for n in re.findall(r"number (\d+)", text)})


def noted(text):
    """Note the places of a text, one line for each."""
    lines = [f"- the {place(i)} will be repaired" for i in places_in(text)]
    return "\n".join(lines) or "- what is old will be repaired"


def notes(messages):
    """Answer a request with notes of all that is in it, by parts where it has parts."""
    if parts := PART.findall(chat_in(messages)):
        return "\n\n".join(f"## {number}\n{noted(text)}" for number, text in parts)
    return noted(asked_of(messages))


def model(reply=notes, **options):
    return Scripted(reply, **options)


def book(kind, chat, cache=None, *, window=4_096, **options):
    """Make a book that asks a chat model."""
    return kind(LLMSummarizer(chat=chat, window_tokens=window), cache or InMemoryCache(), **options)


def write(kept, of, scope="anna", room=600):
    """Have a book write about the turns of a chat."""
    return asyncio.run(kept.write(turns(of), scope, room_tokens=room))


def ready(kept, of, scope="anna"):
    return list(asyncio.run(kept.ready(turns(of), scope)))


def digests(chat):
    return frozenset(message.digest for message in messages_of(chat))
