"""What broke the beginning of a prompt, and what that costs."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eunoe.budget import TokenBudget
from eunoe.cache_rules import NO_CACHE, UNKNOWN_CACHE, rules_for
from eunoe.conversation import Conversation
from eunoe.events import BODIES, EventKind
from eunoe.insertion import insertion_of
from eunoe.job import Request
from eunoe.orchestrator import ContextOrchestrator
from eunoe.prefix import PREFIX_SENTENCES, PrefixBreak, PrefixReport, nearest, prefix_report
from eunoe.pricing import Price
from eunoe.prompt import SentPrompt
from eunoe.sent import SentLog
from eunoe.tokens import TokenCounter

from .clocks import SetClock

WORDS = TokenCounter("words", lambda text: len(text.split()))
SYSTEM = {"role": "system", "content": "Today is Monday. " + "rule " * 93}
PRICE = Price(10.0, cached=1.0)


@pytest.fixture(autouse=True)
def one_token_a_word(monkeypatch):
    monkeypatch.setitem(ContextOrchestrator.process.__globals__, "counter_for", lambda model: WORDS)


@pytest.fixture
def clock():
    return SetClock()


@pytest.fixture
def log(clock):
    return SentLog(clock)


def chat(turns):
    """Make messages of 100 tokens, a question last; with 3 for the frame."""
    roles = ["user", "assistant"] * turns + ["user"]
    return [
        SYSTEM,
        *({"role": role, "content": f"{role}{i} " + "word " * 95} for i, role in enumerate(roles)),
    ]


def report_of(log, model, plan, tools=(), **more):
    """Compare a plan's prompt without leaving a trace in the log."""
    chats = dict(log._chats)
    try:
        return log.noted("", model, plan, tools, **more).prefix
    finally:
        log._chats.clear()
        log._chats.update(chats)


def plan_of(messages, tokens=0, tools=()):
    conversation = Conversation.from_openai_messages(messages)
    orchestrator = ContextOrchestrator(TokenBudget(tokens))
    return asyncio.run(orchestrator.process(conversation, Request(tools=tools))).plan


def key_of(plan, position):
    return plan.conversation.messages[position].id


def test_the_first_prompt_of_a_chat_has_none_before_it(log):
    assert report_of(log, "m", plan_of(chat(5))) is None


def test_a_prompt_that_carries_on_the_one_before_breaks_nothing(log):
    log.note("", "m", plan_of(chat(10)))
    assert report_of(log, "m", plan_of(chat(11)), price=PRICE) == PrefixReport(2_203, 2_203, lost_usd=0)
    assert report_of(log, "m", plan_of(chat(8))) == PrefixReport(1_803, 1_803)  # one that went back, too


def test_a_system_message_with_another_date_costs_everything(log):
    log.note("", "m", plan_of(chat(10)))
    messages = chat(11)
    messages[0] = {**SYSTEM, "content": SYSTEM["content"].replace("Monday", "Tuesday")}
    plan = plan_of(messages)
    report = report_of(log, "m", plan, price=PRICE)
    assert report == PrefixReport(
        0, 0, PrefixBreak.SYSTEM, 0, report.message, 2_203, pytest.approx(2_203 * 9 / 1e6)
    )
    assert report.message
    assert report_of(log, "m", plan).lost_usd is None


def test_what_stands_before_a_change_is_not_lost(log):
    log.note("", "m", plan_of(chat(10)))
    messages = chat(11)
    messages[15] = {"role": "user", "content": "edited"}
    report = report_of(log, "m", plan_of(messages))
    assert (report.tokens, report.served_tokens, report.cause) == (1_503, 1_503, PrefixBreak.EDITED)
    assert (report.position, report.lost_tokens) == (15, 700)
    assert report.message == key_of(plan_of(chat(10)), 15)


def test_a_deleted_message_is_a_changed_one(log):
    log.note("", "m", plan_of(chat(10)))
    messages = chat(11)
    del messages[15:17]
    assert report_of(log, "m", plan_of(messages)).cause is PrefixBreak.EDITED


def test_tools_stand_first(log):
    tools = [{"type": "function", "function": {"name": name}} for name in ("one", "two")]
    log.note("", "m", plan_of(chat(10), tools=tools), tools)
    report = report_of(log, "m", plan_of(chat(11), tools=tools[:1]), tools[:1])
    assert (report.tokens, report.cause, report.position) == (0, PrefixBreak.TOOLS, None)
    assert report.lost_tokens > 2_000


def test_tools_stay_cached_where_the_system_message_changes(log):
    tools = [
        {"type": "function", "function": {"name": f"tool{i}", "description": "word " * 700}} for i in range(2)
    ]
    messages = chat(10)
    log.note("", "m", plan_of(messages, tools=tools), tools)
    log.note("", "claude-opus-5", plan_of(messages, tools=tools), tools)
    plan = plan_of([{**SYSTEM, "content": "Now it is Tuesday."}, *messages[1:]], tools=tools)
    report = report_of(log, "m", plan, tools)
    assert report.tokens == report.served_tokens == plan.tools_tokens > 1_400
    assert (
        report_of(log, "claude-opus-5", plan, tools).served_tokens == 0
    )  # entries end at marks, and none is there


def test_a_cut_is_named_with_the_message_it_left_out(log):
    first = plan_of(chat(10))
    log.note("", "m", first)
    cut = plan_of(chat(11), tokens=1_500)
    report = report_of(log, "m", cut)
    assert report.cause is PrefixBreak.CUT
    sent = {decision.message.id for decision in cut.kept}
    assert report.message not in sent
    assert report.message == first.kept[report.position].message.id
    assert report.lost_tokens == cut.tokens_after - report.served_tokens < 1_501


def test_a_summary_that_comes_in_between_is_no_message_of_the_chat(log):
    plan = plan_of(chat(10))
    log.note("", "m", plan)
    summed = replace(plan_of(chat(11)), insertion=insertion_of(["They spoke."], 3, WORDS))
    report = report_of(log, "m", summed)
    assert (report.cause, report.position, report.message) == (PrefixBreak.SUMMARY, 3, key_of(plan, 3))
    log.note("", "m", summed)
    more = replace(plan_of(chat(12)), insertion=insertion_of(["They spoke more."], 3, WORDS))
    report = report_of(log, "m", more)
    assert (report.cause, report.position, report.message) == (PrefixBreak.SUMMARY, 3, "")


def test_another_model_has_a_cache_of_its_own(log):
    log.note("", "gpt-5", plan_of(chat(10)))
    report = report_of(log, "gpt-5-mini", plan_of(chat(11)))
    assert (report.served_tokens, report.cause, report.lost_tokens) == (0, PrefixBreak.MODEL, 1_024 + 9 * 128)
    log.note("", "gpt-5-mini", plan_of(chat(11)))
    assert report_of(log, "gpt-5-mini", plan_of(chat(12))).cause is None


def test_a_pause_longer_than_the_cache_lives_is_named_before_what_changed(log, clock):
    log.note("", "gpt-5.6", plan_of(chat(10)))
    clock.now += 1_800
    assert report_of(log, "gpt-5.6", plan_of(chat(11))).cause is None
    clock.now += 1
    messages = chat(11)
    messages[15] = {"role": "user", "content": "edited"}
    report = report_of(log, "gpt-5.6", plan_of(messages))
    assert (report.tokens, report.served_tokens, report.cause) == (1_503, 0, PrefixBreak.EXPIRED)
    assert report.lost_tokens == 2_203


def test_where_nothing_is_cached_nothing_is_lost(log, clock):
    log.note("", "gpt-4", plan_of(chat(10)))
    clock.now += 10**6
    report = report_of(log, "gpt-4", plan_of([{**SYSTEM, "content": "x"}, *chat(11)[1:]]))
    assert (report.cause, report.lost_tokens) == (PrefixBreak.SYSTEM, 0)


def test_a_chat_that_begins_alike_is_not_taken_for_an_edit_once_it_has_prompts_of_its_own(log):
    hello = [SYSTEM, {"role": "user", "content": "Hello"}]
    log.note("", "m", plan_of([*hello, *chat(10)[2:]]))
    assert report_of(log, "m", plan_of(hello)).cause is None
    log.note("", "m", plan_of(hello))
    longer = [*hello, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Other"}]
    assert report_of(log, "m", plan_of(longer)).cause is None


def test_another_person_is_told_nothing(log):
    log.note("me", "m", plan_of(chat(10)))
    assert log.noted("you", "m", plan_of(chat(11))).prefix is None


# The figures alone


def prompt(*messages, at=0.0, **fields):
    """Make a prompt of (key, digest, role) with 1,000 tokens each."""
    keys, digests, roles = zip(*messages, strict=True) if messages else ((), (), ())
    sizes = tuple(1_000 * (i + 1) for i in range(len(messages)))
    ids = tuple(key for key in keys if key)
    return SentPrompt(ids, digests, sizes, at, keys=keys, roles=roles, **fields)


A, B, C = (("a", "1", "user"), ("b", "2", "assistant"), ("c", "3", "user"))
OURS, OURS_NEW = ("", "8", "user"), ("", "9", "user")


@pytest.mark.parametrize(
    ("before", "now", "cause"),
    [
        ((A, B, C), (A, OURS, B, C), PrefixBreak.SUMMARY),
        ((A, OURS, B, C), (A, OURS_NEW, B, C), PrefixBreak.SUMMARY),
        ((A, OURS, B, C), (A, B, C), PrefixBreak.SUMMARY),
        ((A, B, C), (A, OURS, C), PrefixBreak.CUT),
        ((A, B, C), (A, ("b", "shorter", "assistant"), C), PrefixBreak.REWRITTEN),
        ((A, B, C), (A, C, B), PrefixBreak.EDITED),
        ((A, B, C), (A, ("x", "7", "assistant"), C), PrefixBreak.CUT),
    ],
)
def test_what_is_ours_is_told_from_what_is_the_chats(before, now, cause):
    report = prefix_report(prompt(*before), prompt(*now), UNKNOWN_CACHE, present={"a", "b", "c", "x"})
    assert (report.cause, report.position, report.tokens) == (cause, 1, 1_000)


def test_a_new_cut_is_named_where_only_the_note_of_it_changed():
    before, now = prompt(A, OURS, B, C), prompt(A, OURS_NEW, B, C)
    report = prefix_report(before, now, UNKNOWN_CACHE, present={"a", "b", "c"}, new_cut=True)
    assert report.cause is PrefixBreak.CUT


@pytest.mark.parametrize("side", ["before", "now"])
def test_a_quotation_that_came_or_went_is_recall(side):
    before, now = prompt(A, B, C), prompt(("a", "quoted", "user"), B, C)
    if side == "before":
        before, now = now, before
    before = replace(before, quoted=frozenset({"a"}))
    report = prefix_report(before, now, UNKNOWN_CACHE, present={"a", "b", "c"})
    assert (report.cause, report.message) == (PrefixBreak.RECALL, "a")


def test_of_prompts_to_the_same_model_the_likest_is_taken():
    other_model, unlike, likest = prompt(A, B, C, at=9, model="x"), prompt(A, at=2), prompt(A, B, at=1)
    branch = prompt(A, ("x", "7", "assistant"), C, at=3)
    assert nearest([other_model, branch, unlike, likest], prompt(A, B, C, at=10)) is likest
    assert nearest([other_model, branch], prompt(A, B, C, at=10)) is branch
    assert nearest([other_model], prompt(A, B, C, at=10)) is other_model
    assert nearest([], prompt(A)) is None


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b", "c"]),
        st.sampled_from("123"),
        st.sampled_from(["user", "system", "tool"]),
    ),
    max_size=6,
)
PROMPTS = st.builds(
    lambda messages, at, model, tools: prompt(*messages, at=at, model=model, tools=tools),
    MESSAGES, st.floats(0, 10_000), st.sampled_from("mn"), st.sampled_from(["", "t"]),
)  # fmt: skip
RULES = st.sampled_from(
    [UNKNOWN_CACHE, NO_CACHE, *map(rules_for, ("gpt-5", "gpt-5.6", "claude-opus-4-6", "llama3:8b"))]
)


@given(PROMPTS, PROMPTS, RULES, st.sets(st.sampled_from("abc")), st.booleans())
def test_the_figures_of_any_two_prompts_agree(before, now, rules, present, new_cut):
    report = prefix_report(before, now, rules, present=present, new_cut=new_cut, price=PRICE)
    assert 0 <= report.served_tokens <= report.tokens <= min(before.size, now.size)
    assert 0 <= report.lost_tokens <= now.size - report.served_tokens
    assert report.lost_usd == pytest.approx(report.lost_tokens * 9 / 1e6)
    assert report.cause is not None or report.lost_tokens == 0
    assert report.cause is None or PREFIX_SENTENCES[report.cause]
    if report.position is not None:
        assert before.digests[report.position] != now.digests[report.position]


@given(PROMPTS, RULES)
def test_the_same_again_breaks_nothing(before, rules):
    assert prefix_report(before, before, rules).cause is None


# Events


def test_an_event_has_room_for_it_and_old_ones_are_read():
    body = BODIES[EventKind.PLAN]
    old = {"call": 1, "algorithm": "a", "weighting": "w", "counter": "c", "elapsed_ms": 1.0}
    old |= {"tokens_before": 1, "tokens_after": 1, "tokens_fixed": 0}
    assert body(**old).prefix_tokens is None
    assert body(**old).prefix_lost_tokens is None
    new = body(**old, prefix_tokens=0, prefix_break=PrefixBreak.CUT, prefix_message="k", prefix_lost_tokens=7)
    dumped = new.model_dump(mode="json", exclude_none=True)
    assert (dumped["prefix_tokens"], dumped["prefix_break"]) == (0, "new_cut")
