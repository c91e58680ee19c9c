"""What the observer is told of a plan, a call and a turn, and how much text of it."""

import asyncio
import itertools
import json

import pytest
from inline_snapshot import snapshot

from eunoe.budget import TokenBudget, TokenTargetBudget
from eunoe.conversation import Conversation
from eunoe.events import BODIES, Capture, EventKind
from eunoe.job import Request
from eunoe.orchestrator import ContextOrchestrator
from eunoe.plan import SENTENCES, Reason
from eunoe.ports import ListSink
from eunoe.report import PREVIEW, writable
from eunoe.tokens import TokenCounter
from eunoe.usage import Usage


def count_words(text):
    """Count a token a word; calls and tool definitions, which are JSON, are one."""
    return 1 if text.startswith(("{", "[{")) else len(text.split())


WORDS = TokenCounter("words", count_words)
TOOLS = [{"type": "function", "function": {"name": "look"}}]
LOST_HALF = "\ud83d"  # half of an emoji, as a cut stream leaves it


class Ticks:
    """A clock that goes 12.5 ms from one look to the next."""

    def __init__(self):
        self.looks = itertools.count()

    def seconds(self):
        return 100 + 0.0125 * next(self.looks)


@pytest.fixture(autouse=True)
def one_token_a_word(monkeypatch):
    """Count words, so that figures can be checked and no vocabulary matters."""
    monkeypatch.setitem(ContextOrchestrator.process.__globals__, "counter_for", lambda model: WORDS)


def orchestrator_with(sink, budget=0, **options):
    budget = TokenBudget(budget) if isinstance(budget, int) else budget
    return ContextOrchestrator(budget, sink=sink, clock=Ticks(), **options)


def events_of(messages, budget=0, request=None, **options):
    sink = ListSink()
    conversation = Conversation.from_openai_messages(messages)
    request = request or Request(run_id="run-1")
    asyncio.run(orchestrator_with(sink, budget, **options).process(conversation, request))
    return sink.events


def plan_of(messages, budget=0, **options):
    return events_of(messages, budget, **options)[-1].data


def user(text):
    return {"role": "user", "content": text}


def answer(text):
    return {"role": "assistant", "content": text}


CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{}"}}],
}
CHAT = [
    {"role": "system", "content": "Be brief."},
    user("!pin The code word is LARK."),
    answer("Noted."),
    user("Tell me a long story, " * 2),
    answer("and then " * 16),
    user("Look it up."),
    CALL,
    {"role": "tool", "tool_call_id": "c", "content": "ok " * 150},
    answer("Twelve meters deep."),
    user("!keep_tag=a,bad=1 x"),
    answer("Hm."),
    user("!target=90,recent=zero How deep?"),
]


# The plan


def test_a_plan_tells_of_every_message_and_adds_up():
    data = plan_of(
        CHAT, 200, request=Request(run_id="run-1", tools=TOOLS, unseen_tokens=5), capture=Capture.NONE
    )
    assert data == snapshot(
        {
            "call": 1,
            "algorithm": "recency_biased",
            "weighting": "smart",
            "limit": 90,
            "limit_source": "target",
            "tokens_before": 274,
            "tokens_after": 64,
            "tokens_fixed": 19,
            "tokens_tools": 5,
            "counter": "words",
            "elapsed_ms": 12.5,
            "flags": [
                {"name": "target", "value": 90, "lasting": False, "scope": "turn"},
                {"name": "pin", "value": 1, "lasting": True, "scope": "message"},
            ],
            "notices": ["!recent needs a whole number from 1"],
            "decisions": [
                {
                    "key": "4770b8a8f7f2a043",
                    "position": 0,
                    "role": "system",
                    "fate": "kept",
                    "reason": "instruction",
                    "why": "System and developer messages are always sent.",
                    "weight": 0.001,
                    "parts": {"base": 1.0, "relevance": 0.001, "recency": 1.0},
                    "tokens_before": 6,
                    "tokens_after": 6,
                },
                {
                    "key": "7e6a10a4436f4b93",
                    "position": 1,
                    "role": "user",
                    "fate": "kept",
                    "reason": "pin",
                    "why": "Pinned with !pin.",
                    "weight": 0.0011,
                    "parts": {"base": 1.0, "relevance": 0.001, "recency": 1.1364},
                    "tokens_before": 9,
                    "tokens_after": 9,
                    "pinned": True,
                },
                {
                    "key": "82e5e89b00321838",
                    "position": 2,
                    "role": "assistant",
                    "fate": "kept",
                    "reason": "pair",
                    "why": "Belongs to a message that is kept.",
                    "weight": 0.0013,
                    "parts": {"base": 1.0, "relevance": 0.001, "recency": 1.2727},
                    "tokens_before": 5,
                    "tokens_after": 5,
                },
                {
                    "key": "beeddbaf9b1c6801",
                    "position": 3,
                    "role": "user",
                    "fate": "dropped",
                    "reason": "low_weight",
                    "why": "Other turns weigh more, and the limit is reached.",
                    "weight": 0.0014,
                    "parts": {"base": 1.0, "relevance": 0.001, "recency": 1.4091},
                    "tokens_before": 14,
                    "tokens_after": 0,
                },
                {
                    "key": "a4550ee154fd3221",
                    "position": 4,
                    "role": "assistant",
                    "fate": "dropped",
                    "reason": "low_weight",
                    "why": "Other turns weigh more, and the limit is reached.",
                    "weight": 0.0015,
                    "parts": {"base": 1.0, "relevance": 0.001, "recency": 1.5455},
                    "tokens_before": 36,
                    "tokens_after": 0,
                },
                {
                    "key": "b0c61c15965484a4",
                    "position": 5,
                    "role": "user",
                    "fate": "kept",
                    "reason": "weight",
                    "why": "Its weight earned it a place.",
                    "weight": 0.0017,
                    "parts": {"base": 1.0, "relevance": 0.001, "recency": 1.6818},
                    "tokens_before": 7,
                    "tokens_after": 7,
                },
                {
                    "key": "a517a2dc7fa96649",
                    "position": 6,
                    "role": "assistant",
                    "fate": "dropped",
                    "reason": "steps",
                    "why": "Tool steps of an earlier turn; its question and answer are kept.",
                    "weight": 0.0009,
                    "parts": {"base": 1.0, "relevance": 0.0005, "recency": 1.8182},
                    "tokens_before": 5,
                    "tokens_after": 0,
                    "tool_calls": ["look"],
                },
                {
                    "key": "6fb44ecf6ff23374",
                    "position": 7,
                    "role": "tool",
                    "fate": "dropped",
                    "reason": "steps",
                    "why": "Tool steps of an earlier turn; its question and answer are kept.",
                    "weight": 0.0635,
                    "parts": {"base": 1.0, "relevance": 0.0325, "recency": 1.9545},
                    "tokens_before": 155,
                    "tokens_after": 0,
                },
                {
                    "key": "d5fb64b25d6407b1",
                    "position": 8,
                    "role": "assistant",
                    "fate": "kept",
                    "reason": "weight",
                    "why": "Its weight earned it a place.",
                    "weight": 2.0909,
                    "parts": {"base": 1.0, "relevance": 1.0, "recency": 2.0909},
                    "tokens_before": 7,
                    "tokens_after": 7,
                },
                {
                    "key": "5c2bfb3dc1be14c2",
                    "position": 9,
                    "role": "user",
                    "fate": "kept",
                    "reason": "last_turn",
                    "why": "The turn before the question.",
                    "weight": 0.0097,
                    "parts": {"base": 1.0, "relevance": 0.0044, "recency": 2.2273},
                    "tokens_before": 6,
                    "tokens_after": 6,
                },
                {
                    "key": "654708f8e235a4bd",
                    "position": 10,
                    "role": "assistant",
                    "fate": "kept",
                    "reason": "last_turn",
                    "why": "The turn before the question.",
                    "weight": 0.0083,
                    "parts": {"base": 1.0, "relevance": 0.0035, "recency": 2.3636},
                    "tokens_before": 5,
                    "tokens_after": 5,
                },
                {
                    "key": "c5195b51445f14bf",
                    "position": 11,
                    "role": "user",
                    "fate": "kept",
                    "reason": "question",
                    "why": "The newest question.",
                    "weight": 2.5,
                    "parts": {"base": 1.0, "relevance": 1.0, "recency": 2.5},
                    "tokens_before": 6,
                    "tokens_after": 6,
                },
            ],
        }
    )


def test_the_sums_agree_with_the_decisions():
    data = plan_of(CHAT, 200, request=Request(run_id="run-1", tools=TOOLS, unseen_tokens=5))
    overhead = 3 + data["tokens_tools"] + 5
    assert data["tokens_tools"] == WORDS.count_tools(TOOLS)
    assert data["tokens_before"] == overhead + sum(d["tokens_before"] for d in data["decisions"])
    assert data["tokens_after"] == overhead + sum(d["tokens_after"] for d in data["decisions"])
    assert data["tokens_fixed"] == overhead + data["decisions"][0]["tokens_after"]


def test_where_all_fits_there_is_little_to_tell():
    assert plan_of([user("Hi there.")]) == snapshot(
        {
            "call": 1,
            "algorithm": "recency_biased",
            "weighting": "smart",
            "limit_source": "none",
            "tokens_before": 9,
            "tokens_after": 9,
            "tokens_fixed": 3,
            "counter": "words",
            "elapsed_ms": 12.5,
            "decisions": [
                {
                    "key": "40b51039a8a4b2da",
                    "position": 0,
                    "role": "user",
                    "fate": "kept",
                    "reason": "all_fit",
                    "why": "Everything fits.",
                    "weight": 1.0,
                    "parts": {"base": 1.0},
                    "tokens_before": 6,
                    "tokens_after": 6,
                    "preview": "Hi there.",
                }
            ],
        }
    )


def test_a_plan_over_its_bound_says_so():
    data = plan_of([user("word " * 50)], 20)
    assert (data["over_limit"], data["limit"], data["limit_source"]) == (True, 20, "max_tokens")
    assert data["notices"] == ["The question and the instructions alone are over the limit."]


def test_a_plan_names_the_bound_that_held_and_the_room_for_the_reply():
    request = Request(run_id="run-1", context_window=1000, reply_tokens=300)
    data = plan_of([user("Hi.")], 5000, request=request)
    named = ("limit", "limit_source", "context_window", "reply_reserve")
    assert {name: data[name] for name in named} == {
        "limit": 700,
        "limit_source": "window",
        "context_window": 1000,
        "reply_reserve": 300,
    }


def test_every_reason_has_a_sentence():
    assert set(SENTENCES) == set(Reason)
    assert all(sentence.endswith(".") for sentence in SENTENCES.values())
    assert len(set(SENTENCES.values())) == len(SENTENCES)


def test_called_functions_are_named_even_where_a_call_has_no_sensible_form():
    odd = [
        {"id": "c", "function": {"name": LOST_HALF}},
        {"id": "d", "function": None},
        {"id": "e", "function": {"name": "look"}},
    ]
    results = [{"role": "tool", "tool_call_id": i, "content": "ok"} for i in "cde"]
    data = plan_of([user("Go."), {"role": "assistant", "content": "", "tool_calls": odd}, *results])
    assert data["decisions"][1]["tool_calls"] == ["?", "?", "look"]


# Flags


def flags_of(*messages):
    return plan_of(messages).get("flags", [])


def test_flags_in_force_are_told_with_their_values():
    history = [
        user("!+target=900 One."),
        answer("a"),
        user("!pin Two."),
        answer("b"),
        user("!pin Three."),
        answer("c"),
    ]
    assert flags_of(*history, user("!recent=3 Four?")) == [
        {"name": "target", "value": 900, "lasting": True, "scope": "turn"},
        {"name": "recent", "value": 3, "lasting": False, "scope": "turn"},
        {"name": "pin", "value": 2, "lasting": True, "scope": "message"},
    ]
    assert flags_of(user("!target=90 One."), answer("a"), user("!-pin Two.")) == []


# How much text


LONG = "zebra " * 100


def texts(capture):
    call = {**CALL, "content": "zebra call"}
    messages = [
        user(LONG),
        call,
        {"role": "tool", "tool_call_id": "c", "content": "zebra result"},
        user([{"type": "text", "text": "zebra"}]),
    ]
    return [(d.get("preview"), d.get("content")) for d in plan_of(messages, capture=capture)["decisions"]]


def test_full_carries_the_whole_text_and_its_beginning():
    assert texts(Capture.FULL) == [
        (LONG[:200], LONG),
        ("zebra call", "zebra call"),
        ("zebra result", "zebra result"),
        ("zebra", "zebra"),
    ]


def test_preview_carries_the_beginning_alone_and_is_the_default():
    assert texts(Capture.PREVIEW) == [
        (LONG[:200], None),
        ("zebra call", None),
        ("zebra result", None),
        ("zebra", None),
    ]
    assert PREVIEW == 200
    default = plan_of([user(LONG)])["decisions"][0]
    assert (default["preview"], default.get("content")) == (LONG[:200], None)


def test_none_carries_no_text():
    assert texts(Capture.NONE) == [(None, None)] * 4


def test_with_none_no_word_of_a_user_is_in_any_event():
    arguments = '{"animal": "zebra"}'
    call = {
        "role": "assistant",
        "content": "zebra",
        "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": arguments}}],
    }
    result = {"role": "tool", "tool_call_id": "c", "content": "zebra " * 300}
    flagged, question = user("!tag=zebra,pin zebra"), user("!keep_tag=zebra,target=zebra zebra " * 9)
    turns = [flagged, answer("zebra"), user("zebra?"), call, result, answer("zebra"), question]
    messages = [{"role": "system", "content": "zebra"}, *turns]
    for budget in (0, 120, 5):
        request = Request(run_id="run-1", question="zebra?")
        sink = ListSink()
        orchestrator = orchestrator_with(sink, budget, capture=Capture.NONE)
        asyncio.run(orchestrator.process(Conversation.from_openai_messages(messages), request))
        orchestrator.settle(request, [Usage()])
        told = "\n".join(event.model_dump_json() for event in sink.events)
        assert "look" in told
        assert "zebra" not in told


def test_pictures_are_never_told():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo"}}
    told = json.dumps(plan_of([user([image, {"type": "text", "text": "What is it?"}])], capture=Capture.FULL))
    assert "What is it?" in told
    assert "iVBORw0KGgo" not in told


def test_what_can_not_be_written_becomes_a_question_mark():
    assert writable(f"a{LOST_HALF}b") == "a?b"
    assert writable("naïve 数据 😀") == "naïve 数据 😀"


@pytest.mark.parametrize(
    "messages",
    [
        [user(f"cut {LOST_HALF}")],
        [{"role": LOST_HALF, "content": "x"}, user("Hi.")],
        [{"role": "assistant", "tool_calls": [{"id": LOST_HALF, "function": {"name": LOST_HALF}}]},
         {"role": "tool", "tool_call_id": LOST_HALF, "content": LOST_HALF}, user("Hi.")],
        [user(f"!tag={LOST_HALF},weight=2 x"), answer("y"), user(f"!keep_tag={LOST_HALF} Hi.")],
        [user(f"!+keep_tag={LOST_HALF} x"), answer("y"), user("Hi.")],
    ],
    ids=["text", "role", "call", "tag", "lasting tag"],
)  # fmt: skip
def test_every_event_can_be_written_whatever_a_message_holds(messages):
    for capture in Capture:
        for event in events_of(messages, 1, capture=capture):
            assert json.loads(event.model_dump_json())["run_id"] == "run-1"


# Log levels


def kinds(log_level):
    sink = ListSink()
    orchestrator = orchestrator_with(sink, 200, log_level=log_level)
    request = Request(run_id="run-1")
    asyncio.run(orchestrator.process(Conversation.from_openai_messages(CHAT), request))
    orchestrator.note_usage(request, Usage(90, 5))
    orchestrator.settle(request, [Usage(90, 5)])
    return {event.event: event.data for event in sink.events}


ALL_KINDS = [EventKind.START, EventKind.PLAN, EventKind.USAGE, EventKind.OUTLET]


def test_debug_tells_everything_and_is_the_default():
    told = kinds("DEBUG")
    assert list(told) == ALL_KINDS
    assert len(told[EventKind.PLAN]["decisions"]) == len(CHAT)
    sink = ListSink()
    asyncio.run(
        orchestrator_with(sink, 200).process(Conversation.from_openai_messages(CHAT), Request(run_id="run-1"))
    )
    assert sink.events[-1].data == told[EventKind.PLAN]


def test_info_tells_the_same_numbers_without_the_messages():
    debug, info = kinds("DEBUG"), kinds("INFO")
    assert list(info) == ALL_KINDS
    assert info[EventKind.PLAN] == {k: v for k, v in debug[EventKind.PLAN].items() if k != "decisions"}
    assert "LARK" not in json.dumps([*info.values()])


def test_warning_tells_of_no_turn_that_went_well():
    assert kinds("WARNING") == {}


# A turn: start, plans, usages, outlet


def test_a_turn_is_told_from_start_to_end():
    sink = ListSink()
    orchestrator = orchestrator_with(sink, 5000)
    named = {"model": "qwen3", "host": "open-webui", "chat_id": "chat", "message_id": "m", "user": "u"}
    window = {"context_window": 8192, "reply_reserve": 512}
    requests = [Request(run_id="run-1", call=n, **named, **window) for n in (1, 2)]
    usages = [Usage(21, 7, 0, 21, 0.25), Usage(40, 3, 21, 19, 0.5)]
    for request, usage in zip(requests, usages, strict=True):
        asyncio.run(orchestrator.process(Conversation.from_openai_messages([user("Hi.")]), request))
        orchestrator.note_usage(request, usage)
    orchestrator.settle(requests[-1], usages, 31.25)
    plan = plan_of([user("Hi.")], 5000, request=requests[0])
    assert [(event.event, event.data) for event in sink.events] == [
        (
            EventKind.START,
            snapshot(
                {
                    "messages": 1,
                    "algorithm": "recency_biased",
                    "weighting": "smart",
                    "max_tokens": 5000,
                    "context_window": 8192,
                    "reply_reserve": 512,
                }
            ),
        ),
        (EventKind.PLAN, plan),
        (
            EventKind.USAGE,
            snapshot(
                {
                    "call": 1,
                    "prompt_tokens": 21,
                    "completion_tokens": 7,
                    "cached_tokens": 0,
                    "cache_write_tokens": 21,
                    "cost_usd": 0.25,
                }
            ),
        ),
        (EventKind.PLAN, {**plan, "call": 2}),
        (
            EventKind.USAGE,
            snapshot(
                {
                    "call": 2,
                    "prompt_tokens": 40,
                    "completion_tokens": 3,
                    "cached_tokens": 21,
                    "cache_write_tokens": 19,
                    "cost_usd": 0.5,
                }
            ),
        ),
        (
            EventKind.OUTLET,
            snapshot(
                {
                    "calls": 2,
                    "prompt_tokens": 40,
                    "billed_prompt_tokens": 61,
                    "completion_tokens": 10,
                    "cached_tokens": 21,
                    "cost_usd": 0.75,
                    "cost_source": "provider",
                    "elapsed_ms": 31.25,
                }
            ),
        ),
    ]
    envelopes = [
        (e.run_id, e.model, e.host, e.chat_id, e.message_id, e.user, e.schema_version) for e in sink.events
    ]
    assert envelopes == [("run-1", "qwen3", "open-webui", "chat", "m", "u", 1)] * 6
    assert len({event.event_id for event in sink.events}) == 6
    assert all(event.at.utcoffset() is not None for event in sink.events)
    assert [event.at for event in sink.events] == sorted(event.at for event in sink.events)


def test_a_start_counts_what_came_in():
    start = events_of(CHAT, 200)[0]
    assert (start.event, start.data["messages"], start.data["max_tokens"]) == (
        EventKind.START,
        len(CHAT),
        200,
    )
    aimed = events_of([user("Hi.")], TokenTargetBudget(900, max_tokens=3000))[0].data
    assert aimed["max_tokens"] == 3000


def test_a_usage_nobody_knows_is_left_out_and_not_zero():
    sink = ListSink()
    orchestrator_with(sink).note_usage(Request(run_id="run-1", call=3), Usage(completion_tokens=0))
    assert sink.events[0].data == {"call": 3, "completion_tokens": 0}


def test_a_turn_without_usage_is_closed_without_figures():
    sink = ListSink()
    orchestrator = orchestrator_with(sink)
    orchestrator.settle(Request(run_id="run-1"), [])
    orchestrator.settle(Request(run_id="run-1", call=2), [Usage(), Usage(7, 2, 5)])
    assert [event.data for event in sink.events] == [{"calls": 1}, {"calls": 2, "prompt_tokens": 7}]


def test_bodies_are_what_their_schema_says():
    sink = ListSink()
    orchestrator = orchestrator_with(sink, 200)
    request = Request(run_id="run-1")
    asyncio.run(orchestrator.process(Conversation.from_openai_messages(CHAT), request))
    orchestrator.note_usage(request, Usage(90, 5))
    orchestrator.settle(request, [Usage(90, 5)])
    for event in sink.events:
        body = BODIES[event.event].model_validate(event.data)
        assert set(event.data) <= set(type(body).model_fields)


@pytest.mark.parametrize(
    "odd",
    [
        {"chat_id": "c" * 201}, {"message_id": "m" * 201}, {"user": "u" * 201}, {"model": "m" * 301},
        {"chat_id": LOST_HALF}, {"model": LOST_HALF}, {"chat_id": ""}, {"user": ""},
    ],
    ids=lambda odd: f"{next(iter(odd))} of {len(next(iter(odd.values())))}",
)  # fmt: skip
def test_no_name_a_client_thinks_up_makes_the_request_fail(odd):
    kinds = [event.event for event in events_of([user("Hi.")], request=Request(run_id="run-1", **odd))]
    assert kinds == [EventKind.START, EventKind.PLAN]
