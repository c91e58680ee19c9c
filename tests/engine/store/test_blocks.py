"""Messages cut into blocks."""

from hypothesis import given

from eunoe.store.blocks import LONGEST_BLOCK, StoredBlock, blocks_of, storable
from tests.engine.strategies import parts, texts

from .chatting import call, result, user


def kinds_of(raw, called=None):
    return [(block.kind, block.tool, block.text) for block in blocks_of(raw, called)]


def test_a_text_is_one_block_and_an_empty_message_none():
    assert blocks_of(user("Hello")) == [StoredBlock(0, "text", "", "Hello")]
    assert blocks_of(user("")) == []
    assert blocks_of({"role": "assistant", "content": None}) == []


def test_parts_calls_and_reasoning_have_blocks_of_their_own():
    raw = {
        "role": "assistant",
        "content": [{"type": "text", "text": "Look:"}, {"type": "text", "text": "here"}],
        "reasoning_content": "hm",
        "tool_calls": call("lookup", '{"a": 1}')["tool_calls"],
    }
    assert kinds_of(raw) == [
        ("reasoning", "", "hm"),
        ("text", "", "Look:"),
        ("text", "", "here"),
        ("tool_call", "lookup", '{"a": 1}'),
    ]
    assert [block.is_searched for block in blocks_of(raw)] == [False, True, True, True]


def test_a_result_has_the_name_of_the_tool_that_was_called():
    assert kinds_of(result("42"), {"call_1": "lookup"}) == [("tool_result", "lookup", "42")]
    assert kinds_of({"role": "function", "name": "old", "content": "1"}) == [("tool_result", "old", "1")]
    assert kinds_of({"role": "assistant", "function_call": {"name": "old", "arguments": "{}"}}) == [
        ("tool_call", "old", "{}")
    ]


def test_what_our_own_tools_quoted_is_not_found_again():
    (block,) = blocks_of(result("quoted"), {"call_1": "context_search"})
    assert not block.is_searched


def test_parts_in_the_form_of_anthropic():
    use = {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}}
    given_back = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "line"}]}
    thinking = {"type": "thinking", "thinking": "hm", "signature": "xyz"}
    assert kinds_of({"role": "assistant", "content": [thinking, use]}) == [
        ("reasoning", "", "hm"),
        ("tool_call", "read", '{"path":"a"}'),
    ]
    assert kinds_of({"role": "user", "content": [given_back]}, {"t1": "read"}) == [
        ("tool_result", "read", "line")
    ]


def test_the_data_of_attachments_is_not_stored():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}}
    file = {"type": "file", "file": {"filename": "plan.pdf", "file_data": "B" * 9000}}
    assert kinds_of({"role": "user", "content": [image, file, {"type": "hologram", "payload": [1]}]}) == [
        ("image", "", ""),
        ("file", "", "plan.pdf"),
        ("other", "", ""),
    ]


@given(texts())
def test_every_text_can_be_stored(text):
    kept = storable(text)
    assert kept.encode("utf-8").decode("utf-8") == kept
    assert "\x00" not in kept
    assert len(kept) == len(text)


@given(parts())
def test_any_parts_give_numbered_blocks(content):
    found = blocks_of({"role": "user", "content": content})
    assert [block.number for block in found] == list(range(len(found)))


def test_a_text_without_end_is_cut():
    assert len(storable("x" * (LONGEST_BLOCK + 5))) == LONGEST_BLOCK
