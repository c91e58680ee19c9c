"""Flags: the grammar, and what each does to what is sent."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eunoe.budget import TokenBudget
from eunoe.conversation import Conversation
from eunoe.flags import FLAGS, Directives, Flag, read_flags, split_flags
from eunoe.job import Request
from eunoe.orchestrator import ContextOrchestrator
from eunoe.plan import Fate, Reason


@pytest.mark.parametrize(
    "text",
    ["!important x", "!= or ==", "!python print(1)", "![img](url)", "!你好", "!", "!!pin x", "! pin x", "!full,bogus x",
     "!pin;full x", "!full, target=3 x", "it's !pin", " !pin x", "!target=5'x y", '!tag="open x', "!pin,", "!-", "!+"],
)  # fmt: skip
def test_other_text_that_begins_with_an_exclamation_mark_stays(text):
    assert split_flags(text) == ((), (), text)


@pytest.mark.parametrize(
    ("text", "flags", "rest"),
    [
        ("!pin hello", [Flag("pin", "", True)], "hello"),
        ("!+pin\nhello", [Flag("pin", "+", True)], "hello"),
        ("!recent=4,target=6000 go", [Flag("recent", "", 4), Flag("target", "", 6000)], "go"),
        ("!+target=50,-context go", [Flag("target", "+", 50), Flag("context", "-")], "go"),
        ('!tag="two words" go', [Flag("tag", "", "two words")], "go"),
        ("!tag='数据' go", [Flag("tag", "", "数据")], "go"),
        ("!FULL go", [Flag("full", "", True)], "go"),
        ("!pin !full go", [Flag("pin", "", True), Flag("full", "", True)], "go"),
        ("!weight=2.5 go", [Flag("weight", "", 2.5)], "go"),
        ("!nosum", [Flag("nosum", "", True)], "!nosum"),
    ],
)
def test_known_flags_are_taken_off(text, flags, rest):
    assert split_flags(text) == (tuple(flags), (), rest)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("!target=many go", "!target needs a whole number from 1"),
        ("!target go", "!target needs a whole number from 1"),
        ("!target=0 go", "!target needs a whole number from 1"),
        ("!context=-3 go", "!context needs a whole number from 1"),
        ("!weight=nan go", "!weight needs a number from 0 to 100"),
        ("!weight=inf go", "!weight needs a number from 0 to 100"),
        ("!tool_penalty=2 go", "!tool_penalty needs a number from 0 to 1"),
        ("!pin=yes go", "!pin takes no value"),
        ("!tag= go", "!tag needs a tag"),
    ],
)
def test_a_bad_value_is_taken_off_and_named(text, complaint):
    assert split_flags(text) == ((), (complaint,), "go")


@given(st.text(max_size=60))
def test_any_text_is_read_without_an_error_and_only_once(text):
    flags, rejected, rest = split_flags("!" + text)
    assert rest
    again = split_flags(rest)
    assert again[2] == rest or rest == "!" + text
    if not flags and not rejected:
        assert rest == "!" + text


def test_every_flag_says_what_it_does():
    assert set(FLAGS) == {
        "full", "target", "context", "compact", "undo", "nosum", "recent", "keep_tag", "tool_penalty", "pair_coherence",
        "pin", "weight", "tag", "only", "help", "exclude",
    }  # fmt: skip
    assert all(spec.effect.endswith(".") for spec in FLAGS.values())


def test_flags_leave_the_text_part_of_a_message_with_an_image():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = {"role": "user", "content": [image, {"type": "text", "text": "!pin What is this?"}]}
    cleaned, directives = read_flags(Conversation.from_openai_messages([message]))
    assert cleaned.messages[0].raw == {
        "role": "user",
        "content": [image, {"type": "text", "text": "What is this?"}],
    }
    assert cleaned.messages[0].raw["content"][0] is image
    assert directives.marks[cleaned.messages[0].digest].pinned


def test_an_image_with_nothing_but_flags_is_sent_without_a_text_part():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = {"role": "user", "content": [{"type": "text", "text": "!pin"}, image]}
    cleaned, _ = read_flags(Conversation.from_openai_messages([message]))
    assert cleaned.messages[0].raw["content"] == [image]


def test_only_user_messages_have_flags():
    messages = [{"role": "system", "content": "!pin x"}, {"role": "assistant", "content": "!full y"}]
    conversation = Conversation.from_openai_messages(messages)
    assert read_flags(conversation) == (conversation, Directives())


def test_directives_survive_the_way_from_hook_to_hook():
    messages = [{"role": "user", "content": "!pin,tag=a,weight=2 x"}, {"role": "user", "content": "!+target=9,bad=1 y"},
                {"role": "user", "content": "!+target=9,recent=zero y"}]  # fmt: skip
    directives = read_flags(Conversation.from_openai_messages(messages))[1]
    assert directives.turn == {"target": 9}
    assert directives.lasting == {"target"}
    assert directives.rejected == ("!recent needs a whole number from 1",)
    assert Directives.from_plain(directives.as_plain()) == directives


def chat(turns=12, words=40):
    filler = "lorem ipsum dolor sit amet " * (words // 5)
    messages = [{"role": "system", "content": "Be brief."}]
    for i in range(turns):
        messages += [
            {"role": "user", "content": f"Question {i}. {filler}"},
            {"role": "assistant", "content": f"Answer {i}. {filler}"},
        ]
    return messages


def plan(messages, budget=900, **request):
    orchestrator = ContextOrchestrator(TokenBudget(budget))
    conversation = Conversation.from_openai_messages(messages)
    return asyncio.run(orchestrator.process(conversation, Request(**request))).plan


def texts(result):
    return [m["content"] for m in result.messages]


def test_pin_keeps_its_message_on_later_turns_and_only_then():
    messages = chat()
    messages[9]["content"] = "!pin The code word is LARK. " + messages[9]["content"]
    pinned = plan([*messages, {"role": "user", "content": "Next?"}])
    assert any(t.startswith("The code word is LARK.") for t in texts(pinned))
    reasons = {d.message.position: d.reason for d in pinned.decisions}
    assert reasons[9] is Reason.PIN
    messages[9]["content"] = messages[9]["content"].removeprefix("!pin ")
    assert not any("LARK" in t for t in texts(plan([*messages, {"role": "user", "content": "Next?"}])))


def test_minus_pin_takes_pins_back():
    messages = chat()
    messages[9]["content"] = "!pin The code word is LARK. " + messages[9]["content"]
    assert not any("LARK" in t for t in texts(plan([*messages, {"role": "user", "content": "!-pin Next?"}])))


def test_target_lowers_the_bound_of_its_turn_alone_and_plus_makes_it_last():
    question = {"role": "user", "content": "!target=400 Next?"}
    once = plan([*chat(), question])
    assert once.tokens_after <= 400
    later = [
        *chat(),
        question,
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "And now?"},
    ]
    assert plan(later).tokens_after > 400
    later[-3] = {"role": "user", "content": "!+target=400 Next?"}
    assert plan(later).tokens_after <= 400
    later[-1] = {"role": "user", "content": "!-target And now?"}
    assert plan(later).tokens_after > 400


def test_target_never_goes_above_the_administrators_bound():
    assert plan([*chat(), {"role": "user", "content": "!target=100000 Next?"}]).tokens_after <= 900


def test_full_lifts_what_users_set_but_not_the_administrators_bound():
    messages = [*chat(), {"role": "user", "content": "!+target=300 Next?"}]
    messages += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "!full Again?"}]
    everything = plan(messages, budget=50_000, user_max_tokens=500)
    assert not everything.is_trimmed
    capped = plan(messages, budget=900)
    assert capped.tokens_after <= 900
    assert "!full: the whole history is over the limit." in capped.notices


def test_context_sends_only_the_last_turns_even_where_all_would_fit():
    result = plan([*chat(), {"role": "user", "content": "!context=3 Next?"}], budget=0)
    assert [t.split(".")[0] for t in texts(result)] == [
        "Be brief",
        "Question 10",
        "Answer 10",
        "Question 11",
        "Answer 11",
        "Next?",
    ]
    dropped = [d for d in result.decisions if d.fate is Fate.DROPPED]
    assert {d.reason for d in dropped} == {Reason.CONTEXT_FLAG}


def test_context_of_one_sends_the_question_alone_and_pins():
    messages = chat()
    messages[9]["content"] = "!pin LARK"
    result = plan([*messages, {"role": "user", "content": "!context=1 Next?"}], budget=0)
    assert [t.split(".")[0] for t in texts(result)] == ["Be brief", "LARK", "Answer 4", "Next?"]


def test_recent_keeps_the_newest_messages_before_heavier_ones():
    messages = chat(turns=12)
    question = {"role": "user", "content": "!recent=7 What about Question 2?"}
    kept = [t.split(".")[0] for t in texts(plan([*messages, question], budget=1200))]
    assert kept[-7:-1] == ["Question 9", "Answer 9", "Question 10", "Answer 10", "Question 11", "Answer 11"]


def test_recent_stays_within_the_bound():
    assert plan([*chat(), {"role": "user", "content": "!recent=500 Next?"}], budget=700).tokens_after <= 700


def test_compact_sends_half_of_what_would_be_sent():
    whole = plan([*chat(), {"role": "user", "content": "Next?"}])
    half = plan([*chat(), {"role": "user", "content": "!compact Next?"}])
    assert 0.4 * whole.tokens_after < half.tokens_after <= 0.5 * whole.tokens_after + 4
    assert half.bound.source == "compact"
    bounded = plan([*chat(), {"role": "user", "content": "!compact Next?"}], budget=700)
    assert 280 < bounded.tokens_after <= 352


def test_compact_cuts_once_in_a_turn_and_full_overrules_it():
    first = plan([*chat(), {"role": "user", "content": "!compact Next?"}])
    again = ContextOrchestrator().process(
        Conversation.from_openai_messages(first.messages), Request(call=2, directives=first.directives)
    )
    assert asyncio.run(again).plan.messages == first.messages
    assert not plan([*chat(), {"role": "user", "content": "!full,compact Next?"}], budget=0).is_trimmed


def test_undo_says_where_there_is_nothing_to_take_back():
    (notice,) = plan([*chat(), {"role": "user", "content": "!undo Next?"}], budget=700).notices
    assert notice.startswith("!undo: there is no cut to take back")


def test_keep_tag_brings_back_the_tagged_message():
    messages = chat()
    messages[9]["content"] = "!+tag=decision We use PostgreSQL."
    assert not any(
        "PostgreSQL" in t for t in texts(plan([*messages, {"role": "user", "content": "Next?"}], budget=600))
    )
    asked = plan([*messages, {"role": "user", "content": "!keep_tag=decision Next?"}], budget=600)
    assert any("PostgreSQL" in t for t in texts(asked))


def test_weight_raises_a_message_over_the_others():
    messages = chat()
    messages[9]["content"] = "!weight=50 " + messages[9]["content"]
    result = plan([*messages, {"role": "user", "content": "Next?"}], budget=1100)
    decision = next(d for d in result.decisions if d.message.position == 9)
    assert (decision.fate, decision.reason, decision.parts["base"]) == (Fate.KEPT, Reason.WEIGHT, 50)


def test_tool_penalty_of_the_turn_reaches_the_weights():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = [{"role": "user", "content": "harbor"}, {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "harbor depth"},
            {"role": "assistant", "content": "Deep."}]  # fmt: skip
    messages = [*tool, *chat()[1:]]
    weights = {}
    for flag in ("!tool_penalty=0.1", "!tool_penalty=1"):
        result = plan([*messages, {"role": "user", "content": f"{flag} harbor depth"}])
        weights[flag] = result.decisions[2].parts["relevance"]
    assert weights["!tool_penalty=0.1"] == pytest.approx(weights["!tool_penalty=1"] / 10)


def test_a_flag_with_a_bad_value_is_named_to_the_user():
    assert plan([{"role": "user", "content": "!target=lots Hi"}]).notices == (
        "!target needs a whole number from 1",
    )


def test_flags_are_taken_off_in_the_same_way_on_every_turn():
    first = [{"role": "user", "content": "!pin The client is Orbit."}]
    second = [*first, {"role": "assistant", "content": "Noted."}, {"role": "user", "content": "!nosum Who?"}]
    assert texts(plan(first)) == ["The client is Orbit."]
    assert texts(plan(second)) == ["The client is Orbit.", "Noted.", "Who?"]


def test_exclude_sends_its_message_once_and_never_again_with_its_answer():
    messages = chat()
    messages[9]["content"] = "!exclude My password is hunter2. " + messages[9]["content"]
    asked = plan(messages[:10], budget=0)
    assert texts(asked)[-1].startswith("My password is hunter2."), "on its own turn it is the question"
    later = plan([*messages, {"role": "user", "content": "Next?"}], budget=0)
    assert not any("hunter2" in text or text.startswith("Answer 4") for text in texts(later))
    reasons = {d.message.position: d.reason for d in later.decisions if d.fate is Fate.DROPPED}
    assert reasons == {9: Reason.EXCLUDED, 10: Reason.EXCLUDED}
    taken_back = plan([*messages, {"role": "user", "content": "!-exclude Next?"}], budget=0)
    assert any("hunter2" in text for text in texts(taken_back))


def test_exclude_wins_over_pin_and_over_being_the_opening_or_the_last_turn():
    for position in (1, 23):
        messages = chat()
        messages[position]["content"] = "!pin,exclude SECRET " + messages[position]["content"]
        result = plan([*messages, {"role": "user", "content": "Next?"}])
        assert not any("SECRET" in text for text in texts(result))
        assert result.messages[1]["role"] == "user"


def test_only_sends_the_question_without_history_and_pins():
    messages = chat()
    messages[9]["content"] = "!pin LARK"
    result = plan([*messages, {"role": "user", "content": "!only Next?"}], budget=0)
    assert texts(result) == ["Be brief.", "Next?"]
    assert {d.reason for d in result.decisions if d.fate is Fate.DROPPED} == {Reason.ONLY}
    assert result.notices == ()
    later = [*messages, {"role": "user", "content": "!only Next?"}, {"role": "assistant", "content": "ok"}]
    assert len(texts(plan([*later, {"role": "user", "content": "And?"}], budget=0))) == 28


def test_full_brings_the_history_back():
    later = [*chat(), {"role": "user", "content": "!+only Next?"}, {"role": "assistant", "content": "ok"}]
    assert len(texts(plan([*later, {"role": "user", "content": "And?"}], budget=0))) == 2
    assert len(texts(plan([*later, {"role": "user", "content": "!full And?"}], budget=0))) == 28


def test_help_lists_the_flags():
    notices = plan([{"role": "user", "content": "!help What is a gateway?"}]).notices
    assert all(f"!{name}" in notices[0] for name in FLAGS)
    assert texts(plan([{"role": "user", "content": "!help What is a gateway?"}])) == ["What is a gateway?"]
