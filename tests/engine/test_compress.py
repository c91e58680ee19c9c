"""Shortening what is too long to send whole."""

import copy
import json
import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from eunoe.compress import LEAST_TOKENS, fold_base64, lean, shorten_text, shortened
from eunoe.tokens import ESTIMATE, TokenCounter
from eunoe.tool_results import compressed_text

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

WORDS = TokenCounter(
    "words", lambda text: len(text.split())
)  # one token a word, so that figures can be checked
LOG = "\n".join(f"line {i}: ok" for i in range(30))
BASE64 = "QUJD" * 100
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + BASE64, "detail": "low"}}
ROWS = [
    {"id": i, "name": f"item {i}", "note": f"note {i} " * 60, "price": i / 4, "sold": None}
    for i in range(100)
]


def tool(content, **fields):
    return {"role": "tool", "tool_call_id": "c", "content": content, **fields}


def answer(content, **fields):
    return {"role": "assistant", "content": content, **fields}


# Shortening a text


def test_a_text_that_fits_is_left_alone():
    assert shorten_text(LOG, 90, WORDS) is LOG
    assert shorten_text(BASE64, 100_000, ESTIMATE) is BASE64
    assert shorten_text("", 0, WORDS) == ""


def test_the_beginning_and_the_end_stay_with_a_note_of_how_much_is_missing():
    assert shorten_text(LOG, 24, WORDS) == snapshot("""\
line 0: ok
line 1: ok
line 2: ok
line 3: ok
line 4:
[… 70 tokens …]
line 28: ok
line 29: ok\
""")


def test_the_beginning_gets_more_room_than_the_end():
    head, tail = shorten_text(LOG, 60, WORDS).split("[…")
    assert head.startswith("line 0: ok\nline 1: ok\n")
    assert tail.endswith("line 28: ok\nline 29: ok")
    assert len(head) > 1.5 * len(tail) > 50


def test_the_note_counts_what_is_missing():
    short = shorten_text(LOG, 60, WORDS)
    note = next(line for line in short.splitlines() if line.startswith("[…"))
    left = len(short.split()) - len(note.split())
    assert note == f"[… {90 - left} tokens …]"


def test_lines_and_words_are_not_cut_in_two():
    def without_note(text):
        return [part for part in re.split(r"\[….*…\]|\n", text) if part]

    assert set(without_note(shorten_text(LOG, 60, WORDS))) < set(LOG.splitlines())
    for tokens in range(24, 100, 7):
        words = {
            word
            for part in without_note(shorten_text("harbor " * 200, tokens, WORDS))
            for word in part.split()
        }
        assert words == {"harbor"}


def test_a_single_long_word_is_cut_where_it_must_be():
    short = shorten_text("数据库" * 1000, 50, ESTIMATE)
    assert ESTIMATE.count_text(short) <= 50
    assert short.startswith("数据库")
    assert short.endswith("数据库")


LINES = st.lists(
    st.sampled_from(
        ["plain words here", "```py", "```", "x = 1", "数据库迁移", "a" * 90, "", BASE64, "{", '"q"']
    ),
    max_size=60,
)


@unhurried
@given(LINES.map("\n".join), st.integers(LEAST_TOKENS, 400))
def test_any_text_gets_at_most_the_tokens_it_may_have(text, tokens):
    assert ESTIMATE.count_text(shorten_text(text, tokens, ESTIMATE)) <= tokens


CODE = ["words of prose", "x = 1", "```py\ny = 2\n```", "```\n" + "z = 3\n" * 40 + "```"]


@unhurried
@given(st.lists(st.sampled_from(CODE), max_size=40), st.integers(LEAST_TOKENS, 300))
def test_code_fences_stay_balanced(pieces, tokens):
    assert shorten_text("\n".join(pieces), tokens, ESTIMATE).count("```") % 2 == 0


def test_a_fence_that_is_cut_is_closed_before_the_note_and_opened_after_it():
    assert shorten_text(f"Look:\n```\n{LOG}\n```\nDone.", 24, WORDS) == snapshot("""\
Look:
```
line 0: ok
line 1: ok
line 2: ok
```
[… 78 tokens …]
```
line 29: ok
```
Done.\
""")


BLOCK = '<details type="tool_calls" done="true" id="c" result="%s">\n<summary>Done</summary>\n</details>\n'
DETAILS = BLOCK % "&quot;ok&quot;"


@unhurried
@given(
    st.lists(st.sampled_from([DETAILS, "words of prose\n", "more " * 50 + "\n"]), max_size=40),
    st.integers(LEAST_TOKENS, 300),
)
def test_details_blocks_stay_balanced(pieces, tokens):
    short = shorten_text("".join(pieces), tokens, ESTIMATE)
    assert short.count("<details") == short.count("</details>")


def test_details_blocks_give_way_to_the_text_around_them():
    text = f"{DETAILS * 20}The answer is 42.\n"
    assert shorten_text(text, 30, ESTIMATE) == "The answer is 42.\n"


def test_base64_gives_way_before_any_word_does():
    text = f"The picture:\n{BASE64}\nwas taken in Oslo."
    assert shorten_text(text, 40, ESTIMATE) == "The picture:\n[… base64, 400 …]\nwas taken in Oslo."


def test_base64_is_folded_and_shorter_runs_and_words_are_not():
    assert fold_base64(f"a {BASE64}== b {'QUJD' * 500} c") == "a [… base64, 402 …] b [… base64, 2,000 …] c"
    for text in ("QUJD" * 50, "path/to/some/file " * 40, "-" * 500, "字" * 500):
        assert fold_base64(text) == text


# JSON


def test_json_stays_json_with_its_first_and_last_items():
    short = shorten_text(json.dumps(ROWS), 2000, ESTIMATE)
    value = json.loads(short)
    assert ESTIMATE.count_text(short) <= 2000
    assert value[0] == ROWS[0] | {"note": value[0]["note"]}
    assert value[-1] == ROWS[-1] | {"note": value[-1]["note"]}
    assert [item for item in value if isinstance(item, str)] == snapshot(["[… 92 …]"])


def test_json_says_where_a_text_an_item_or_a_field_is_missing():
    value = {"text": "word " * 30, "items": list(range(100)), **{f"field {i}": i for i in range(40)}}
    assert json.loads(shorten_text(json.dumps(value), 120, ESTIMATE)) == snapshot(
        {
            "text": "word " * 16 + " [… 30 …] " + "word " * 8,
            "items": [0, 1, 2, 3, "[… 95 …]", 99],
            "field 0": 0,
            "field 1": 1,
            "field 2": 2,
            "field 3": 3,
            "field 4": 4,
            "field 5": 5,
            "field 6": 6,
            "field 7": 7,
            "…": 32,
        }
    )


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9999, 9999)
    | st.text("abc {}[]\"'`<", max_size=40)
    | st.just("word " * 80),
    lambda inner: (
        st.lists(inner, max_size=8) | st.dictionaries(st.text("abcd", max_size=6), inner, max_size=8)
    ),
    max_leaves=60,
)


@unhurried
@given(
    st.lists(JSON_VALUES, min_size=3, max_size=30)
    | st.dictionaries(st.text("abcd", max_size=6), JSON_VALUES, max_size=8)
)
def test_json_stays_json_of_the_same_kind_where_there_is_some_room(value):
    short = shorten_text(json.dumps(value), 1500, ESTIMATE)
    assert type(json.loads(short)) is type(value)
    assert ESTIMATE.count_text(short) <= 1500


@pytest.mark.parametrize("tokens", [LEAST_TOKENS, 40, 60, 100])
def test_json_stays_json_however_little_room_there_is(tokens):
    short = shorten_text(json.dumps(ROWS), tokens, ESTIMATE)
    assert isinstance(json.loads(short), list)
    assert ESTIMATE.count_text(short) <= tokens


@pytest.mark.parametrize(
    "text",
    ["[" * 60_000, '{"a":' * 3000 + "1" + "}" * 3000, "[1, 2", "{not json} " * 200, "[link](url) " * 200],
    ids=range(5),
)
def test_what_only_looks_like_json_is_shortened_as_text(text):
    assert ESTIMATE.count_text(shorten_text(text, 60, ESTIMATE)) <= 60


def test_numbers_and_truth_values_are_not_touched():
    value = {"a": 1.5, "b": True, "c": None, "d": -7, "long": "word " * 500}
    short = json.loads(shorten_text(json.dumps(value), 100, ESTIMATE))
    assert {key: short[key] for key in "abcd"} == {"a": 1.5, "b": True, "c": None, "d": -7}


# Old messages, without what no later turn needs


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_old_thinking_goes(field):
    assert lean(answer("Yes.", **{field: "Hm. " * 90})) == answer("Yes.")


def test_signed_thinking_stays_since_providers_check_it():
    message = answer(
        "Yes.", thinking_blocks=[{"type": "thinking", "signature": "s"}], reasoning_details=[{"id": 1}]
    )
    assert lean(message) is message


def test_thinking_in_a_details_block_goes_and_what_follows_stays():
    block = (
        '<details type="reasoning" done="true" duration="3">\n<summary>Thought</summary>\n> Hm.\n</details>\n'
    )
    assert lean(answer(f"{block}Yes.\n{block}Surely.")) == answer("Yes.\nSurely.")
    parts = answer([{"type": "text", "text": f"{block}Yes."}, IMAGE])
    assert lean(parts) == answer([{"type": "text", "text": "Yes."}, IMAGE])
    assert lean(parts)["content"][1] is IMAGE


def test_a_long_result_in_a_details_block_keeps_its_ends_and_whole_entities():
    block = BLOCK + "Yes."
    for shift in range(6):
        text = lean(answer(block % ("a" * shift + "&quot;" * 100 + "z" * shift)))["content"]
        result = text.split('result="')[1].split('"')[0]
        assert text == block % result
        assert result.startswith("a" * shift + "&quot;")
        assert result.endswith("&quot;" + "z" * shift)
        head, tail = result.split(" [… ")[0], result.split(" …] ")[1]
        assert (head + tail).replace("&quot;", "") == "a" * shift + "z" * shift
        missing = int(result.split(" [… ")[1].split(" …] ")[0])
        assert len(head) + missing + len(tail) == 600 + 2 * shift
    short = answer(block % ("&quot;" * 60))
    assert lean(short) is short


def test_base64_in_an_old_text_is_folded():
    assert lean(tool(f"data: {BASE64}")) == tool("data: [… base64, 400 …]")


def test_there_may_be_nothing_to_take_out():
    for message in (
        answer("Yes."),
        answer(None, tool_calls=[{"id": "c"}]),
        tool(LOG),
        answer([IMAGE]),
        answer("<details>x</details>"),
    ):
        assert lean(message) is message


def test_a_message_that_is_nothing_but_thinking_is_left_alone():
    only = answer("", reasoning_content="Hm.")
    assert lean(only) is only
    block = answer('<details type="reasoning" done="true">Hm.</details>')
    assert lean(block) is block


def test_only_an_assistants_thinking_is_taken_out():
    message = {"role": "user", "content": "Hi.", "thinking": "mine"}
    assert lean(message) is message


# Shortening a message


def test_a_message_that_fits_is_the_same_object():
    message = tool(LOG)
    assert shortened(message, ESTIMATE.count_message(message), ESTIMATE) is message


def test_a_shortened_message_keeps_every_other_field_and_the_original_stays_as_it_was():
    cache = {"type": "ephemeral"}
    message = tool(LOG, name="look", cache_control=cache)
    before = copy.deepcopy(message)
    short = shortened(message, 60, WORDS)
    assert short == {**message, "content": short["content"]}
    assert short["cache_control"] is cache
    assert "[…" in short["content"]
    assert message == before


TEXTS = st.sampled_from([LOG, "short", json.dumps(ROWS[:9]), DETAILS * 9, BASE64])
TEXT_PARTS = TEXTS.map(lambda text: {"type": "text", "text": text})


@unhurried
@given(
    st.sampled_from(["user", "assistant", "tool"]),
    st.lists(TEXT_PARTS | st.just(IMAGE), max_size=4),
    st.integers(0, 1200),
)  # fmt: skip
def test_a_message_gets_at_most_the_tokens_it_may_have_or_is_not_shortened_at_all(role, parts, tokens):
    message = {"role": role, "content": parts}
    short = shortened(message, tokens, ESTIMATE)
    if short is not None:
        assert ESTIMATE.count_message(short) <= tokens
        assert [part for part in short["content"] if part is IMAGE] == [
            part for part in parts if part is IMAGE
        ]


def test_thinking_goes_before_a_word_of_the_answer_does():
    message = answer("The harbor is deep.", reasoning_content="Hm. " * 400)
    assert shortened(message, 30, ESTIMATE) == answer("The harbor is deep.")


def test_a_users_message_is_cut_but_never_robbed_of_its_words():
    block = '<details type="reasoning" done="true">My own words.</details>'
    short = shortened({"role": "user", "content": f"{block}\n{LOG}", "thinking": "mine"}, 100, ESTIMATE)
    assert short["thinking"] == "mine"


def test_two_texts_share_the_room_by_their_size():
    message = tool([{"type": "text", "text": "word " * 300}, {"type": "text", "text": "term " * 100}])
    first, second = (len(part["text"].split()) for part in shortened(message, 104, WORDS)["content"])
    assert 60 <= first <= 75
    assert 15 <= second <= 25


def test_what_can_not_be_shortened_sensibly_is_not():
    many_parts = tool([{"type": "text", "text": "word " * 40}] * 12)
    assert shortened(many_parts, 40, WORDS) is None
    assert shortened(tool(LOG), LEAST_TOKENS, ESTIMATE) is None
    assert shortened(answer([IMAGE, IMAGE]), 100, ESTIMATE) is None
    arguments = json.dumps({"text": "word " * 400})
    assert (
        shortened(
            answer("Let me write.", tool_calls=[{"id": "c", "function": {"arguments": arguments}}]),
            100,
            ESTIMATE,
        )
        is None
    )


HOSTILE = ["<details ", "<details>", '<details type="reasoning" ', '<details type="reasoning">', '<details result="',
           '<details result="' + "x" * 500, "</details>"]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_tags_without_end_take_no_longer_than_other_text(piece):
    text = piece * (400_000 // len(piece))
    started = time.perf_counter()
    lean(answer(text))
    shorten_text(text, 500, ESTIMATE)
    compressed_text(text, ESTIMATE, 500)
    assert time.perf_counter() - started < 10  # half a second here; minutes where it grows with the square


def test_blocks_are_taken_out_with_the_space_behind_them():
    think = '<details type="reasoning" done="true">\n<summary>x</summary>\n</details>'
    other = '<details type="other">stays</details>'
    text = f'{think}\n\none {other} {think} two <details type="reasoning">'
    assert lean(answer(text))["content"] == f'one {other} two <details type="reasoning">'
