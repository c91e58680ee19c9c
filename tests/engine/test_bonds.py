"""What lives and dies together."""

from inline_snapshot import snapshot

from eunoe.bonds import repair, turns_of
from eunoe.conversation import Conversation


def read(messages):
    return Conversation.from_openai_messages(messages).messages


def call(*ids, content=None):
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": i, "function": {"name": "f", "arguments": "{}"}} for i in ids],
    }


def result(name):
    return {"role": "tool", "tool_call_id": name, "content": f"result of {name}"}


USER = {"role": "user", "content": "Go."}


def repaired(*messages):
    kept, repairs = repair(read([USER, *messages]))
    return [m.raw for m in kept[1:]], [(r.message.position, r.reason) for r in repairs]


def test_a_whole_exchange_is_left_alone():
    messages = [call("a", "b"), result("b"), result("a")]
    assert repaired(*messages) == (messages, [])


def test_a_result_without_its_call_is_not_sent():
    assert repaired(result("a")) == ([], [(1, "orphan_result")])


def test_a_call_without_its_result_is_not_sent_but_its_text_is():
    assert repaired(call("a", content="Let me look.")) == (
        [{"role": "assistant", "content": "Let me look."}],
        [(1, "unanswered_call")],
    )
    assert repaired(call("a")) == ([], [(1, "unanswered_call")])


def test_of_parallel_calls_the_answered_ones_stay():
    kept, repairs = repaired(call("a", "b", "c"), result("a"), result("c"))
    assert [c["id"] for c in kept[0]["tool_calls"]] == ["a", "c"]
    assert kept[1:] == [result("a"), result("c")]
    assert repairs == [(1, "unanswered_call")]


def test_two_calls_with_one_id_become_one():
    kept, repairs = repaired(call("a", "a"), result("a"), result("a"))
    assert [c["id"] for c in kept[0]["tool_calls"]] == ["a"]
    assert kept[1:] == [result("a")]
    assert repairs == [(1, "unanswered_call"), (3, "orphan_result")]


def test_an_id_may_come_again_in_a_later_exchange():
    messages = [call("a"), result("a"), call("a"), result("a")]
    assert repaired(*messages) == (messages, [])


def test_a_result_that_a_user_message_separates_from_its_call_counts_as_missing():
    kept, repairs = repaired(call("a"), USER, result("a"))
    assert kept == [USER]
    assert repairs == [(1, "unanswered_call"), (3, "orphan_result")]


def test_empty_replies_are_not_sent():
    empty = [{"role": "assistant", "content": c} for c in ("", None, [], [{"type": "text", "text": " "}])]
    assert repaired(*empty) == ([], [(i, "empty_message") for i in range(1, 5)])
    thinking = {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    assert repaired(thinking) == ([thinking], [])


def test_turns_begin_with_user_messages():
    messages = [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": "Welcome."},
        USER,
        call("a"),
        result("a"),
        {"role": "assistant", "content": "Done."},
        USER,
    ]
    turns = turns_of(read(messages))
    assert [[m.position for m in t.messages] for t in turns] == snapshot([[1], [2, 3, 4, 5], [6]])
    assert [[len(b.messages) for b in t.blocks] for t in turns] == snapshot([[1], [1, 2, 1], [1]])
    assert turns[1].opener.position == 2
    assert turns[1].answer.position == 5
    assert [b.messages[0].position for b in turns[1].steps] == [3]
    assert turns[0].opener is None
