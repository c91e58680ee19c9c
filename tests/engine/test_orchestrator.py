"""The pipeline as its users see it: what is sent of a chat, and why."""

import asyncio
import copy
import json
import typing

import pytest
from inline_snapshot import snapshot

from eunoe.assembly import orchestrator_for
from eunoe.budget import CompositeBudget, CostBudget, TokenBudget, TokenTargetBudget
from eunoe.conversation import Conversation
from eunoe.events import Capture
from eunoe.job import Request
from eunoe.orchestrator import ContextOrchestrator, Settlement
from eunoe.ports import ConstraintSet, ListSink, NoSink, SelectionResult
from eunoe.settings import Settings
from eunoe.tokens import ESTIMATE, TokenCounter
from eunoe.usage import Usage
from eunoe.weighting.static import StaticWeightStrategy


def count_words(text):
    """Count a token a word; calls and tool definitions, which are JSON, are one."""
    return 1 if text.startswith(("{", "[{")) else len(text.split())


WORDS = TokenCounter("words", count_words)  # a message costs its words and 4, a request 3


@pytest.fixture(autouse=True)
def one_token_a_word(monkeypatch):
    """Count words, so that figures can be checked and no vocabulary matters."""
    monkeypatch.setitem(ContextOrchestrator.process.__globals__, "counter_for", lambda model: WORDS)


def process(messages, budget=0, *, weighting=None, **request):
    orchestrator = ContextOrchestrator(TokenBudget(budget), weighting=weighting)
    return asyncio.run(orchestrator.process(Conversation.from_openai_messages(messages), Request(**request)))


def plan_of(messages, budget=0, **options):
    return process(messages, budget, **options).plan


def fates(plan):
    """List what became of each message, and why."""
    return [f"{d.message.role}: {d.fate}, {d.reason}" for d in plan.decisions]


def sent(plan):
    """List the positions of the messages that are sent."""
    return [d.message.position for d in plan.decisions if d.sent is not None]


def words(number, word="word"):
    return " ".join([word] * number)


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def answer(text, **fields):
    return {"role": "assistant", "content": text, **fields}


def call(*names, content=None):
    calls = [{"id": n, "type": "function", "function": {"name": "look", "arguments": "{}"}} for n in names]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(name, text="ok"):
    return {"role": "tool", "tool_call_id": name, "content": text}


def chat(turns, size=20):
    """Make turns of 2 (size + 4) tokens."""
    return [m for i in range(turns) for m in (user(words(size, f"q{i}")), answer(words(size, f"a{i}")))]


QUESTION = user("And now?")


# The quick start


def test_the_quick_start_runs_as_it_is_written():
    from eunoe import ContextOrchestrator, Conversation, TokenBudget  # noqa: PLC0415  it is the example

    raw_messages = [
        {"role": "user", "content": "What's the weather today?"},
        {"role": "assistant", "content": None, "tool_calls": [{
            "id": "call_abc", "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
        }]},
        {"role": "tool", "tool_call_id": "call_abc", "name": "get_weather", "content": "22°C, partly cloudy"},
        {"role": "user", "content": [
            {"type": "text", "text": "What's in this image?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR...", "detail": "high"}},
        ]},
    ]  # fmt: skip

    async def main():
        orchestrator = ContextOrchestrator(budget=TokenBudget(max_tokens=8000))
        result = await orchestrator.process(Conversation.from_openai_messages(raw_messages))
        return result.conversation.to_openai_messages()

    assert asyncio.run(main()) == raw_messages


def test_a_result_has_what_to_send_its_size_and_why():
    messages = [system("Be brief."), user("Hi there.")]
    outcome = process(messages, 8000, run_id="run-1")
    assert outcome.conversation.to_openai_messages() == messages == outcome.plan.messages
    assert outcome.token_count == 3 + 6 + 6 == outcome.plan.tokens_before
    assert (outcome.run_id, outcome.estimated_cost_usd) == ("run-1", None)
    assert fates(outcome.plan) == ["system: kept, all_fit", "user: kept, all_fit"]
    assert (outcome.plan.algorithm, outcome.plan.weighting, outcome.plan.counter) == (
        "recency_biased",
        "smart",
        "words",
    )


def test_without_a_budget_everything_is_sent_and_runs_have_names_of_their_own():
    orchestrator = ContextOrchestrator()
    conversation = Conversation.from_openai_messages([*chat(50), QUESTION])
    first, second = (asyncio.run(orchestrator.process(conversation)) for _ in range(2))
    assert first.plan.messages == conversation.to_openai_messages()
    assert first.run_id != second.run_id


def test_an_empty_conversation_is_an_empty_plan():
    outcome = process([], 1)
    assert (outcome.plan.messages, outcome.token_count) == ([], 3)


def test_a_counter_is_chosen_for_the_model(monkeypatch):
    asked = []
    monkeypatch.setitem(
        ContextOrchestrator.process.__globals__, "counter_for", lambda m: asked.append(m) or ESTIMATE
    )
    assert process([QUESTION], model="gpt-4o").plan.counter == ESTIMATE.name
    assert asked == ["gpt-4o"]


# What is sent over the budget


def test_the_oldest_of_many_turns_alike_give_way_but_the_opening_task_and_the_last_turn_stay():
    plan = plan_of([system("Be brief."), *chat(8), QUESTION], 300)
    assert fates(plan) == snapshot(
        [
            "system: kept, instruction",
            "user: kept, opening_task",
            "assistant: kept, pair",
            "user: dropped, low_weight",
            "assistant: dropped, low_weight",
            "user: dropped, low_weight",
            "assistant: dropped, low_weight",
            "user: dropped, low_weight",
            "assistant: dropped, low_weight",
            "user: kept, weight",
            "assistant: kept, weight",
            "user: kept, weight",
            "assistant: kept, weight",
            "user: kept, weight",
            "assistant: kept, weight",
            "user: kept, last_turn",
            "assistant: kept, last_turn",
            "user: kept, question",
        ]
    )
    assert plan.tokens_after <= 300


def test_the_opening_task_is_kept_with_its_answer_whatever_it_weighs():
    messages = [user("Translate everything I write."), answer("I will."), *chat(10), user("q7 q7 q7?")]
    plan = plan_of(messages, 250)
    assert fates(plan)[:2] == ["user: kept, opening_task", "assistant: kept, pair"]


def test_a_long_opening_task_is_shortened_to_its_share():
    messages = [user(words(400, "task")), answer("I will."), *chat(6), QUESTION]
    plan = plan_of(messages, 400)
    assert fates(plan)[:2] == ["user: compressed, opening_task", "assistant: kept, opening_task"]
    opening = plan.decisions[0]
    assert opening.sent["content"].startswith("task task")
    assert "[…" in opening.sent["content"]
    assert 60 < opening.tokens_after < 120


def test_a_greeting_before_the_opening_task_does_not_hide_it():
    messages = [answer("Welcome!"), user("Translate everything."), answer("I will."), *chat(10), QUESTION]
    assert fates(plan_of(messages, 200))[1:3] == ["user: kept, opening_task", "assistant: kept, pair"]


def test_the_last_turn_is_kept_though_an_older_one_fits_the_question_better():
    messages = [
        *chat(1),
        user(words(30, "harbor")),
        answer(words(30, "depth")),
        *chat(2),
        user("harbor depth?"),
    ]
    plan = plan_of(messages, 150)
    assert fates(plan)[-3:] == ["user: kept, last_turn", "assistant: kept, last_turn", "user: kept, question"]


def test_a_last_turn_too_large_loses_its_tool_steps_before_its_question_and_answer():
    turn = [user("Look it up."), call("a"), result("a", words(500)), answer("It is 42.")]
    plan = plan_of([*chat(3), *turn, QUESTION], 120)
    assert fates(plan)[-5:] == snapshot(
        [
            "user: kept, last_turn",
            "assistant: dropped, steps",
            "tool: dropped, steps",
            "assistant: kept, last_turn",
            "user: kept, question",
        ]
    )


def test_a_chosen_turn_is_the_one_that_fits_the_question():
    messages = [
        *chat(1),
        user("How deep is the harbor?"),
        answer(words(20, "fathoms")),
        *chat(12),
        user("harbor depth?"),
    ]
    plan = plan_of(messages, 260)
    assert fates(plan)[2:4] == ["user: kept, weight", "assistant: kept, weight"]
    assert plan.decisions[2].parts == {
        "base": 1.0,
        "relevance": 1.0,
        "recency": pytest.approx(1 + 1.5 * 2 / 28, abs=0.15),
    }
    assert plan.decisions[12].reason == "low_weight"


def test_with_static_weights_the_newest_turns_are_chosen():
    plan = plan_of([*chat(10), user("q2?")], 250, weighting=StaticWeightStrategy())
    positions = sent(plan)
    assert positions[:2] == [0, 1]
    assert positions[2:] == list(range(positions[2], 21))


def test_the_question_is_sent_whole_though_it_is_over_the_budget_alone():
    messages = [system(words(30)), *chat(3), user(words(500))]
    plan = plan_of(messages, 100)
    assert plan.messages == [messages[0], messages[-1]]
    assert plan.over_limit
    assert plan.notices == ("The question and the instructions alone are over the limit.",)


def test_the_input_is_not_changed_and_what_is_kept_is_the_same_object():
    messages = [system("Be brief."), *chat(8), QUESTION]
    before = copy.deepcopy(messages)
    plan = plan_of(messages, 200)
    assert messages == before
    assert all(d.sent is messages[d.message.position] for d in plan.decisions if d.fate == "kept")


def test_tool_definitions_and_text_the_host_adds_take_their_room():
    tools = [{"type": "function", "function": {"name": "look"}}] * 5
    bare = plan_of([*chat(8), QUESTION], 300)
    laden = plan_of([*chat(8), QUESTION], 300, tools=tools, unseen_tokens=30)
    assert laden.overhead_tokens == 3 + WORDS.count_tools(tools) + 30
    assert laden.tokens_after <= 300
    assert len(sent(laden)) < len(sent(bare))


# System messages


def test_system_and_developer_messages_are_kept_wherever_they_stand():
    messages = [
        system("First."),
        *chat(4),
        {"role": "developer", "content": "Middle."},
        *chat(4),
        system("Last."),
        QUESTION,
    ]
    plan = plan_of(messages, 60)
    assert {
        d.message.position: f"{d.fate}, {d.reason}" for d in plan.decisions if d.message.is_instruction
    } == {
        0: "kept, instruction",
        9: "kept, instruction",
        18: "kept, instruction",
    }
    assert [m["content"] for m in plan.messages if m["role"] != "user"][:3] == ["First.", "Middle.", "Last."]


def test_over_the_budget_the_same_instruction_is_sent_once():
    rule = words(30, "rule")
    plan = plan_of(
        [system(rule), *chat(2), system(rule), system("Another."), *chat(2), system(rule), QUESTION], 130
    )
    instructions = [f"{d.fate}, {d.reason}" for d in plan.decisions if d.message.is_instruction]
    assert instructions == [
        "kept, instruction",
        "dropped, duplicate",
        "kept, instruction",
        "dropped, duplicate",
    ]


def test_within_the_budget_nothing_is_touched_not_even_a_second_instruction():
    messages = [system("Be brief."), system("Be brief."), QUESTION]
    assert plan_of(messages, 500).messages == messages


# Tool loops


def loop(steps, size=10, last=None):
    exchanges = [m for i in range(steps) for m in (call(f"c{i}"), result(f"c{i}", words(size, f"r{i}")))]
    if last is not None:
        exchanges[-1] = result(f"c{steps - 1}", last)
    return [user("Find the fault."), *exchanges]


def test_a_long_tool_loop_sheds_its_oldest_steps_and_leaves_no_gap():
    plan = plan_of([*chat(2), *loop(8)], 130)
    assert fates(plan) == snapshot(
        [
            "user: kept, opening_task",
            "assistant: kept, pair",
            "user: dropped, low_weight",
            "assistant: dropped, low_weight",
            "user: kept, question",
            "assistant: dropped, older_step",
            "tool: dropped, older_step",
            "assistant: dropped, older_step",
            "tool: dropped, older_step",
            "assistant: dropped, older_step",
            "tool: dropped, older_step",
            "assistant: dropped, older_step",
            "tool: dropped, older_step",
            "assistant: dropped, older_step",
            "tool: dropped, older_step",
            "assistant: kept, tool_loop",
            "tool: kept, tool_loop",
            "assistant: kept, tool_loop",
            "tool: kept, tool_loop",
            "assistant: kept, newest_step",
            "tool: kept, newest_step",
        ]
    )
    assert sent(plan) == [0, 1, 4, *range(15, 21)]


def test_an_older_step_that_would_fit_does_not_stay_without_the_ones_after_it():
    messages = [*loop(1, size=2), call("big"), result("big", words(500)), *loop(2, size=2)[1:]]
    plan = plan_of(messages, 130)
    assert sent(plan) == [0, 5, 6, 7, 8]


def test_the_loop_sheds_more_as_it_grows_and_never_exceeds_the_budget():
    for steps in range(1, 15):
        plan = plan_of([*chat(2), *loop(steps)], 130)
        assert plan.tokens_after <= 130
        kept = [i for i in sent(plan) if i > 4]
        assert kept == list(range(5 + 2 * steps - len(kept), 5 + 2 * steps))
        assert len(kept) >= min(2 * steps, 6)


def test_earlier_turns_give_way_to_the_present_tool_loop():
    plan = plan_of([*chat(6), *loop(5)], 200)
    assert set(range(13, 23)) <= set(sent(plan))


def test_the_newest_exchange_is_shortened_where_it_is_too_large():
    plan = plan_of(loop(3, last=words(1000, "log")), 200)
    assert fates(plan)[-2:] == ["assistant: kept, newest_step", "tool: compressed, newest_step"]
    newest = plan.messages[-1]
    assert newest["tool_call_id"] == "c2"
    assert newest["content"].startswith("log log")
    assert "tokens …]" in newest["content"]
    assert plan.tokens_after <= 200


def test_parallel_results_share_the_room_that_is_left():
    messages = [
        user("Go."),
        call("a", "b", "c"),
        result("a", words(400, "x")),
        result("b", "short"),
        result("c", words(400, "y")),
    ]
    plan = plan_of(messages, 220)
    assert fates(plan)[1:] == [
        "assistant: kept, newest_step",
        "tool: compressed, newest_step",
        "tool: kept, newest_step",
        "tool: compressed, newest_step",
    ]
    first, _, third = (d.tokens_after for d in plan.decisions[2:])
    assert abs(first - third) < 10
    assert 150 < plan.tokens_after <= 220


def test_a_newest_exchange_for_which_there_is_no_room_at_all_goes_whole():
    plan = plan_of(loop(1, last=words(1000)), 20)
    assert fates(plan) == ["user: kept, question", "assistant: dropped, no_room", "tool: dropped, no_room"]


# An unfinished reply


def test_a_reply_that_is_being_continued_is_kept_whole():
    unfinished = answer(words(60, "half"))
    plan = plan_of([*chat(4), QUESTION, unfinished], 100)
    assert fates(plan)[-2:] == ["user: kept, question", "assistant: kept, unfinished"]
    assert plan.messages[-1] is unfinished
    assert plan.tokens_after <= 100


def test_it_is_kept_even_over_the_budget():
    plan = plan_of([*chat(4), QUESTION, answer(words(60))], 20)
    assert sent(plan) == [8, 9]
    assert plan.over_limit


def test_the_tool_steps_before_it_are_the_present_turns_own():
    plan = plan_of([*chat(4), *loop(4, size=30), answer("Half of")], 150)
    assert fates(plan)[8:] == snapshot(
        [
            "user: kept, question",
            "assistant: dropped, older_step",
            "tool: dropped, older_step",
            "assistant: kept, tool_loop",
            "tool: kept, tool_loop",
            "assistant: kept, tool_loop",
            "tool: kept, tool_loop",
            "assistant: kept, newest_step",
            "tool: kept, newest_step",
            "assistant: kept, unfinished",
        ]
    )


@pytest.mark.parametrize("budget", [0, 1, 10, 500])
def test_an_unfinished_reply_whose_call_was_never_answered_is_repaired_within_any_budget(budget):
    plan = plan_of([user("Go."), call("a", content="Let me look.")], budget)
    assert plan.messages == [user("Go."), answer("Let me look.")]
    assert plan.over_limit is (budget in {1, 10})


# Repairs


def test_what_providers_refuse_is_not_sent_and_the_plan_says_why():
    messages = [
        result("lost"),
        user("Go."),
        call("a", content="Let me look."),
        call("b", "c"),
        result("c"),
        answer(""),
        answer("Done.", name="bot", cache_control={"type": "ephemeral"}),
        QUESTION,
    ]
    plan = plan_of(messages)
    assert fates(plan) == snapshot(
        [
            "tool: dropped, orphan_result",
            "user: kept, all_fit",
            "assistant: compressed, unanswered_call",
            "assistant: compressed, unanswered_call",
            "tool: kept, all_fit",
            "assistant: dropped, empty_message",
            "assistant: kept, all_fit",
            "user: kept, all_fit",
        ]
    )
    assert plan.messages == [
        user("Go."),
        answer("Let me look."),
        call("c"),
        result("c"),
        messages[6],
        QUESTION,
    ]
    assert plan.messages[4] is messages[6]
    assert plan.is_trimmed
    assert (
        plan.tokens_before - plan.tokens_after
        == sum(d.tokens_before - d.tokens_after for d in plan.decisions)
        > 0
    )


def test_repairs_are_told_over_the_budget_as_well():
    plan = plan_of([result("lost"), *chat(6), call("a"), QUESTION], 150)
    assert (fates(plan)[0], fates(plan)[-2]) == (
        "tool: dropped, orphan_result",
        "assistant: dropped, unanswered_call",
    )


# The bound


def test_the_replys_room_comes_off_the_window():
    plan = plan_of([*chat(8), QUESTION], 5000, context_window=300, reply_tokens=100)
    assert (plan.bound.tokens, str(plan.bound.source), plan.bound.reply_reserve) == (200, "window", 100)
    assert 100 < plan.tokens_after <= 200
    reserved = plan_of([*chat(8), QUESTION], 0, context_window=300, reply_reserve=50)
    assert (reserved.bound.tokens, reserved.bound.reply_reserve) == (250, 50)
    assert 200 < reserved.tokens_after <= 250


def test_a_users_own_maximum_holds_below_the_administrators():
    plan = plan_of([*chat(8), QUESTION], 5000, user_max_tokens=200)
    assert (plan.bound.tokens, str(plan.bound.source)) == (200, "user")
    assert plan.tokens_after <= 200
    assert plan_of([*chat(8), QUESTION], 150, user_max_tokens=200).bound.tokens == 150


def test_a_target_budget_is_aimed_at():
    orchestrator = ContextOrchestrator(TokenTargetBudget(200, overshoot=10))
    plan = asyncio.run(orchestrator.process(Conversation.from_openai_messages([*chat(8), QUESTION]))).plan
    assert (plan.bound.tokens, str(plan.bound.source)) == (210, "target")
    assert 100 < plan.tokens_after <= 210


# Weighing


class Asked:
    """Weighs all alike and remembers what it was asked."""

    def __init__(self):
        self.calls = []

    async def score(self, messages, query, conversation, context=None):
        self.calls.append((len(messages), query, dict(context)))
        return {}

    def name(self):
        return "asked"


class Broken:
    """Fails at every question."""

    async def score(self, messages, query, conversation, context=None):
        raise RuntimeError("no embedder")

    def name(self):
        return "broken"


def test_a_strategy_is_asked_with_the_question_without_flags_and_the_turns_overrides():
    asked = Asked()
    plan = plan_of([*chat(8), user("!tool_penalty=0.25 What now?")], 200, weighting=asked)
    [(messages, question, context)] = asked.calls
    assert (messages, question) == (17, "What now?")
    assert context == {"tool_penalty": 0.25, "scope": "", "parts": {}, "notices": [], "usages": []}
    assert plan.weighting == "asked"
    assert all(
        d.weight == pytest.approx(d.parts["base"] * d.parts.get("recency", 1.0)) for d in plan.decisions
    )


def test_a_strategy_is_not_asked_where_everything_fits():
    plan = plan_of([*chat(2), QUESTION], 5000, weighting=Broken())
    assert not plan.is_trimmed


def test_a_failing_strategy_is_the_hosts_business():
    with pytest.raises(RuntimeError, match=r"^no embedder$"):
        plan_of([*chat(8), QUESTION], 200, weighting=Broken())


def test_the_users_own_words_are_weighed_where_the_question_holds_more():
    harbor = [user("How deep is the harbor?"), answer(words(20, "fathoms"))]
    budget = [user("What does the budget say?"), answer(words(20, "money"))]
    stuffed = user("Context: budget budget budget money. Question: harbor?")
    messages = [*chat(1), *harbor, *chat(6), *budget, *chat(8), stuffed]

    def kept(plan):
        return {2, 3} <= set(sent(plan)), {16, 17} <= set(sent(plan))

    assert kept(plan_of(messages, 200, question="harbor?")) == (True, False)
    assert kept(plan_of(messages, 200, question="budget money?")) == (False, True)
    assert plan_of(messages, 200, question="harbor?").messages[-1] is stuffed


class Sees:
    """Chooses nothing but what must stay, and remembers what it was given."""

    def __init__(self):
        self.calls = []

    def select(self, conversation, budget, constraints, token_counter):
        self.calls.append((budget, constraints, token_counter))
        return SelectionResult(constraints.keep)

    def name(self):
        return "sees"


def seen_by(sees, **options):
    orchestrator = ContextOrchestrator(TokenBudget(200), algorithm=sees, **options)
    return asyncio.run(orchestrator.process(Conversation.from_openai_messages([*chat(8), QUESTION]))).plan


def test_an_algorithm_is_told_what_is_placed_and_what_room_there_is_for_all():
    sees = Sees()
    plan = seen_by(sees, constraints=ConstraintSet(keep=frozenset({"replaced by what is placed"})))
    [(budget, constraints, counter)] = sees.calls
    placed = frozenset(plan.decisions[i].message.id for i in (0, 1, 14, 15, 16))
    assert (budget, constraints, counter) == (TokenBudget(197), ConstraintSet(keep=placed), WORDS)
    assert plan.algorithm == "sees"


def test_what_an_algorithm_leaves_out_stays_out():
    assert sent(seen_by(Sees())) == [0, 1, 14, 15, 16]


def thoughtful_turn():
    """Plan a turn that fits only without its thinking."""
    turn = [user("How deep is the harbor?"), answer(words(20, "a"), reasoning_content=words(200, "hm"))]
    return plan_of([*chat(1), *turn, *chat(1), user("harbor deep?")], 200)


def test_a_turn_that_fits_only_without_its_thinking_is_sent_without_it():
    plan = thoughtful_turn()
    assert fates(plan)[3] == "assistant: compressed, old_thinking"
    assert (plan.decisions[2].fate, plan.decisions[3].sent) == ("kept", answer(words(20, "a")))


def test_no_message_that_is_sent_as_it_came_is_called_robbed_of_its_thinking():
    for plan in (thoughtful_turn(), seen_by(Sees())):
        assert [
            d.message.position for d in plan.decisions if d.reason == "old_thinking" and d.fate == "kept"
        ] == []


# Many at once


def test_one_orchestrator_serves_many_chats_at_once_as_it_serves_them_alone():
    orchestrator = ContextOrchestrator(TokenBudget(200))
    chats = [Conversation.from_openai_messages([*chat(6 + i % 5), user(f"q{i % 5}?")]) for i in range(30)]

    async def together():
        return await asyncio.gather(*(orchestrator.process(c) for c in chats))

    alone = [asyncio.run(orchestrator.process(c)).plan.messages for c in chats[:5]]
    assert [r.plan.messages for r in asyncio.run(together())] == alone * 6


# Settling


def test_a_settled_turn_knows_its_context_and_its_bill():
    usages = [Usage(100, 10, 0, 100, 0.25), Usage(140, 20, 100, 40, 0.125)]
    settled = ContextOrchestrator().settle(Request(call=2), usages)
    assert settled == Settlement(140, Usage(240, 30, 100, 140, 0.375), 2, "provider")


def test_what_one_call_did_not_report_is_unknown_for_the_turn():
    settled = ContextOrchestrator().settle(Request(call=3), [Usage(100, 10), Usage(), Usage(140, 20)])
    assert settled == Settlement(140, Usage(), 3)
    assert ContextOrchestrator().settle(Request(), []) == Settlement(None, Usage(), 1)


# From settings


def test_settings_build_an_orchestrator():
    sink = ListSink()
    settings = Settings(max_tokens=200, observer_content="none", observer_log_level="INFO")
    orchestrator = orchestrator_for(settings, sink)
    assert orchestrator.budget == CompositeBudget(TokenBudget(200), CostBudget())
    assert (orchestrator.sink, orchestrator.capture, orchestrator.log_level) == (sink, Capture.NONE, "INFO")
    assert isinstance(orchestrator_for(settings).sink, NoSink)
    asyncio.run(orchestrator.process(Conversation.from_openai_messages([*chat(8), QUESTION])))
    assert [event.data.get("limit") for event in sink.events] == [None, 200]
    assert "decisions" not in sink.events[1].data


@pytest.mark.parametrize("algorithm", typing.get_args(Settings.model_fields["algorithm"].annotation))
@pytest.mark.parametrize("weighting", ["smart", "keyword", "static"])
def test_every_choice_of_the_settings_is_what_it_is_called(algorithm, weighting):
    orchestrator = orchestrator_for(Settings(max_tokens=200, algorithm=algorithm, weighting=weighting))
    plan = asyncio.run(orchestrator.process(Conversation.from_openai_messages([*chat(8), QUESTION]))).plan
    assert (plan.algorithm, plan.weighting) == (algorithm, weighting)
    assert 100 < plan.tokens_after <= 200


def parts_with(**settings):
    messages = [
        *chat(2),
        user("Look at the harbor."),
        call("a"),
        result("a", "harbor"),
        answer("Hm."),
        *chat(6),
        user("harbor?"),
    ]
    orchestrator = orchestrator_for(Settings(max_tokens=200, **settings))
    plan = asyncio.run(orchestrator.process(Conversation.from_openai_messages(messages))).plan
    return [plan.decisions[i].parts for i in (4, 6, 7)], plan.decisions[-1].parts["recency"]


@pytest.mark.parametrize("algorithm", ["recency_biased", "dependency_aware"])
def test_the_factors_of_the_settings_are_used(algorithm):
    (asked, tool, answered), newest = parts_with(
        algorithm=algorithm, recency_factor=3, tool_penalty=0.1, pair_coherence=0.5
    )
    assert newest == pytest.approx(4)
    assert tool["relevance"] == pytest.approx(0.1)
    assert answered["relevance"] == pytest.approx(0.5 * asked["relevance"])


def test_a_plan_can_be_told_as_json():
    plan = plan_of([*chat(8), QUESTION], 200)
    assert json.loads(json.dumps([[d.message.id, d.fate, d.reason, dict(d.parts)] for d in plan.decisions]))
