"""Messages in and out, loss-free."""

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from eunoe.conversation import (
    Conversation,
    calls_of,
    digest_of,
    function_of,
    is_blank,
    text_of,
    with_text,
)
from eunoe.errors import BadMessages

from .strategies import conversations

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
ODD_FIELDS = {"name": "Ada", "cache_control": {"type": "ephemeral"}, "x-unknown": [1, {"deep": None}]}


def read(*messages):
    return Conversation.from_openai_messages(messages)


@unhurried
@given(conversations())
def test_what_goes_in_comes_out_as_the_same_unchanged_objects(messages):
    before = copy.deepcopy(messages)
    out = Conversation.from_openai_messages(messages).to_openai_messages()
    assert all(a is b for a, b in zip(out, messages, strict=True))
    assert messages == before


def test_fields_nobody_knows_are_kept():
    message = {"role": "user", "content": "Hi.", **ODD_FIELDS}
    assert read(message).to_openai_messages() == [{"role": "user", "content": "Hi.", **ODD_FIELDS}]


def test_any_iterable_of_messages_is_read():
    assert Conversation.from_openai_messages({"role": "user", "content": str(i)} for i in range(3)) == read(
        *({"role": "user", "content": str(i)} for i in range(3))
    )
    assert read().messages == ()


@pytest.mark.parametrize(("item", "name"), [("text", "str"), (None, "NoneType"), (["role"], "list")])
def test_an_item_that_is_no_object_is_named_by_its_place_and_not_quoted(item, name):
    with pytest.raises(BadMessages) as caught:
        read({"role": "user", "content": "secret"}, item)
    assert str(caught.value) == f"messages[1] is {name}, not an object with a role"
    assert (caught.value.position, caught.value.found) == (1, name)


def test_messages_count_from_zero_and_have_unlike_ids_even_if_they_are_alike():
    same = {"role": "user", "content": "again"}
    messages = read(same, {"role": "user", "content": "other"}, same, same).messages
    assert [m.position for m in messages] == [0, 1, 2, 3]
    first, other, second, third = messages
    assert first.digest == second.digest == third.digest != other.digest
    assert [first.id, second.id, third.id] == [first.digest, f"{first.digest}-2", f"{first.digest}-3"]


def test_a_digest_is_the_same_in_every_process():
    assert digest_of({"role": "user", "content": "Hi."}) == snapshot("8c4b388fdaa76f85")
    assert digest_of({"role": "user", "content": "Hi.", "name": "Ada"}) == snapshot("7276fd9cbe5e5513")


def test_a_digest_does_not_hang_on_the_order_of_the_fields():
    assert digest_of({"content": "Hi.", "role": "user"}) == digest_of({"role": "user", "content": "Hi."})
    turned = {"tool_calls": [CALL], "content": None, "role": "assistant"}
    assert digest_of(turned) == digest_of({"role": "assistant", "content": None, "tool_calls": [CALL]})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"role": "user", "content": "a"}, {"role": "user", "content": "b"}),
        ({"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}),
        ({"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a", "name": "Ada"}),
        ({"role": "user", "content": ""}, {"role": "user", "content": None}),
        ({"role": "user", "content": "\ud83d"}, {"role": "user", "content": "?"}),
        ({"content": "a"}, {"role": None, "content": "a"}),
        ({"content": "a", "name": "Ada"}, {"content": "a", "name": "Bob"}),
        ({"content": "a", "name": "Ada"}, {"role": "None", "content": "a"}),
    ],
)
def test_messages_that_differ_in_any_field_have_unlike_digests(a, b):
    assert digest_of(a) != digest_of(b)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, IMAGE, {"type": "input_text", "text": "b"}], "a\nb"),
        (["a", {"type": "text", "text": ""}, {"type": "text", "text": None}, 7, "b"], "a\nb"),
        ({"type": "text", "text": "a"}, "a"),
        ({"type": "hologram"}, ""),
        (42, "42"),
    ],
)
def test_text_is_found_in_every_shape_of_content(content, text):
    assert text_of(content) == text
    assert read({"role": "user", "content": content}).messages[0].text == text


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"content": None},
        {"content": " \n\t"},
        {"content": []},
        {"content": [{"type": "text", "text": " "}, {"type": "text"}, ""]},
        {"content": {"type": "text", "text": ""}},
        {"content": "", "tool_calls": [], "refusal": None},
    ],
)
def test_a_message_without_anything_in_it_is_blank(message):
    assert is_blank({"role": "assistant", **message})


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x"},
        {"content": [IMAGE]},
        {"content": ["x"]},
        {"content": 0},
        {"content": "", "tool_calls": [CALL]},
        {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"content": None, "refusal": "No."},
        {"content": None, "audio": {"id": "a"}},
        {"content": "", "reasoning_content": "Hm."},
        {"content": "", "reasoning_details": [{"type": "reasoning.encrypted"}]},
        {"content": "", "thinking_blocks": [{"type": "thinking"}]},
        {"content": "", "images": ["AAAA"]},
        {"content": "", "files": [{"id": "f"}]},
    ],
)
def test_a_message_with_anything_in_it_is_not_blank(message):
    assert not is_blank({"role": "assistant", **message})


def test_the_question_is_the_newest_user_message():
    conversation = read(
        {"role": "user", "content": "old"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "new"},
        {"role": "assistant", "content": "unfinished"},
    )
    assert conversation.question.position == 2
    assert read({"role": "system", "content": "s"}).question is None


def test_a_message_knows_what_it_is():
    messages = read(
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "t"},
        {"role": "assistant", "content": None, "function_call": {"name": "f"}},
        {"role": "function", "name": "f", "content": "r"},
        {"role": "assistant", "content": "a", "tool_calls": []},
        {"role": None, "content": "n"},
        {"content": "nothing"},
    ).messages
    facts = [(m.role, m.is_instruction, m.calls_tools, m.is_result, m.is_answer) for m in messages]
    assert facts == [
        ("system", True, False, False, False),
        ("developer", True, False, False, False),
        ("user", False, False, False, False),
        ("assistant", False, True, False, False),
        ("tool", False, False, True, False),
        ("assistant", False, True, False, False),
        ("function", False, False, True, False),
        ("assistant", False, False, False, True),
        ("", False, False, False, False),
        ("", False, False, False, False),
    ]


def test_a_weight_a_count_or_new_content_changes_nothing_else():
    raw = {"role": "user", "content": "Hi."}
    message = read(raw).messages[0]
    other = message.counting(7).weighing(2.5).with_raw({"role": "user", "content": "Ho."})
    assert (other.token_count, other.weight, other.position, other.id) == (7, 2.5, 0, message.id)
    assert other.digest == digest_of({"role": "user", "content": "Ho."})
    assert (message.token_count, message.weight, message.raw) == (0, 1.0, raw)
    marked = type(message)(raw, 3, "d", "d-2", 5, 4.0, 4.0, pinned=True, tags=frozenset({"a"}))
    again = marked.counting(6).weighing(8.0)
    assert again == type(message)(raw, 3, "d", "d-2", 6, 4.0, 8.0, pinned=True, tags=frozenset({"a"}))


def test_text_is_changed_in_every_text_part_and_nowhere_else():
    raw = {"role": "user", "content": [{"type": "text", "text": "a", "x": 1}, IMAGE, "b"], **ODD_FIELDS}
    before = copy.deepcopy(raw)
    new = with_text(raw, str.upper)
    assert new == {
        "role": "user",
        "content": [{"type": "text", "text": "A", "x": 1}, IMAGE, "B"],
        **ODD_FIELDS,
    }
    assert new["content"][1] is IMAGE
    assert raw == before
    assert with_text({"role": "user", "content": "a"}, str.upper) == {"role": "user", "content": "A"}
    assert with_text({"role": "user", "content": {"text": "a"}}, str.upper)["content"] == {"text": "A"}


def test_text_parts_that_end_up_empty_are_left_out():
    raw = {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE, {"type": "text", "text": "b"}]}
    assert with_text(raw, lambda text: text.replace("a", ""))["content"] == [
        IMAGE,
        {"type": "text", "text": "b"},
    ]
    assert with_text({"role": "user", "content": {"text": "a"}}, lambda _: "") == {
        "role": "user",
        "content": "",
    }


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
JSON_VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@unhurried
@given(JSON_VALUES)
def test_calls_without_a_sensible_form_are_no_calls(value):
    calls = calls_of({"role": "assistant", "tool_calls": value})
    assert calls == (value if isinstance(value, list) else ())
    assert all(isinstance(function_of(call), dict) for call in [*calls, value])


def test_the_function_of_a_call_is_found():
    assert function_of(CALL) == {"name": "look", "arguments": "{}"}
    assert calls_of({"role": "assistant", "tool_calls": [CALL]}) == [CALL]
