"""Labels are read from whatever a model makes of them."""

import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eunoe.weighting.labels import LABEL_WEIGHTS, label_of, read_labels

from .strategies import texts

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"labels": ["K", "H", "M", "S", "D"]}', "KHMSD"),
        ('```json\n{"labels": ["K", "H", "M", "S", "D"]}\n```', "KHMSD"),
        ('Here they are: {"labels": ["k", "h", "m", "s", "d"]}. I hope this helps!', "KHMSD"),
        ('{"Labels": ["Keep", "helpful", "MAYBE", "skip", "Drop"]}', "KHMSD"),
        ('["K Keep", "H (helpful)", "**M**", "S: skip it", "D - drop"]', "KHMSD"),
        ('{"labels": "K H M S D"}', "KHMSD"),
        ('{"labels": "KHMSD"}', "KHMSD"),
        ('{"result": {"labels": ["K", "H", "M", "S", "D"]}}', "KHMSD"),
        ('{"1": "K", "2": "H", "3": "M", "4": "S", "5": "D"}', "KHMSD"),
        ('{"labels": {"5": "D", "1": "K", "2": "H", "3": "M", "4": "S"}}', "KHMSD"),
        ('[{"n": 2, "label": "H"}, {"n": 1, "label": "K"}, {"n": 5, "label": "D"}]', "KH--D"),
        ('{"n": 1, "label": "K"}\n{"n": 2, "label": "H"}\n{"n": 5, "label": "D"}', "KH--D"),
        ('{"labels": [{"1": "K"}, {"2": "H"}, {"5": "D"}]}', "KH--D"),
        ('{"labels": ["1: K", "2: H", "5: D"]}', "KH--D"),
        ('{"labels": [[1, "K"], [2, "H"], [5, "D"]]}', "KH--D"),
        ("1: K\n2: H\n3: M\n4: S\n5: D", "KHMSD"),
        ("1. Keep - names the port\n2) helpful\n#5 D", "KH--D"),
        ("| 1 | K |\n| 2 | H |", "KH---"),
        ("I'd say: K H M S D", "KHMSD"),
        ("K, H, M, S, D", "KHMSD"),
        ("K\nH\nM\nS\nD", "KHMSD"),
        ("- keep\n- helpful\n- maybe\n- skip\n- drop", "KHMSD"),
        ("['K', 'H', 'M', 'S', 'D']", "KHMSD"),
        ("KHMSD", "KHMSD"),
        ("Ｋ，Ｈ，Ｍ，Ｓ，Ｄ", "KHMSD"),
        ("１：Ｋ\n２：Ｈ", "KH---"),
        ('{"labels": ["K", "H", "M"', "KHM--"),
        ('{"labels": ["K", "H", null, "X", "D"]}', "KH--D"),
        ('{"labels": ["K", "H", "M", "S", "D", "K", "K"]}', "KHMSD"),
        ('{"labels": ["K"]}', "K----"),
        ('For example {"labels": ["D", "D"]}, so: {"labels": ["K", "H", "M", "S", "D"]}', "KHMSD"),
        ('{"labels": ["D", "D", "D", "D", "D"]} or no: {"labels": ["K", "H", "M", "S", "D"]}', "KHMSD"),
        ('[{"n": 9, "label": "H"}, {"n": 0, "label": "K"}, {"n": -1, "label": "K"}]', "-----"),
        (
            '{"labels": ["K", "H", "M", "S", "D"]}, of these {"labels": ["D", "D", "D", "D", "D", "D"]}',
            "KHMSD",
        ),
        ("As to 3: K H M S D", "KHMSD"),
        ("", "-----"),
        ("I'm sorry, I can't. It's 5 o'clock, isn't it?", "-----"),
        ("Maybe I should skip the messages that don't help.", "-----"),
        ('{"labels": []}', "-----"),
        ('{"labels": [[[[[[[[["K"]]]]]]]]]}', "K----"),
        ('{"labels": [1, 2.5, true, {}, []]}', "-----"),
    ],
)
def test_labels_are_read_from_whatever_a_model_makes_of_them(text, expected):
    assert read_labels(text, 5) == [None if letter == "-" else letter for letter in expected]


def test_a_single_label_may_stand_in_a_sentence():
    assert read_labels("The label is K.", 1) == ["K"]
    assert read_labels("Vitamin D? I would rather not say.", 2) == [None, None]


def json_like():
    leaf = st.one_of(
        st.none(), st.booleans(), st.integers(-3, 50), st.floats(), texts(4), st.sampled_from("KHMSDkhx")
    )
    keys = st.one_of(st.sampled_from(["labels", "n", "label", "1", "2", "#3", "topics"]), st.text(max_size=3))
    return st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(keys, inner, max_size=6),
        max_leaves=25,
    ).map(json.dumps)


def near_replies():
    pieces = st.sampled_from(
        ["K", "keep", "D", "1", "12", ":", ",", " ", "\n", '"', "'", "[", "]", "{", "}", '{"labels": [', "```",
         "I'd", "Drop", "null", "\ud83d", "Ｋ", "”", "#", "<", "\\", "\x00"]
    )  # fmt: skip
    return st.lists(pieces, max_size=40).map("".join)


@unhurried
@given(
    text=st.one_of(st.text(max_size=200), texts(), json_like(), near_replies()),
    count=st.integers(1, 45),
    cut=st.integers(0, 400),
)
def test_reading_gives_one_of_five_or_nothing_for_each_message_and_never_fails(text, count, cut):
    for said in (text, text[:cut]):
        found = read_labels(said, count)
        assert len(found) == count
        assert set(found) <= {*LABEL_WEIGHTS, None}


@unhurried
@given(
    labels=st.lists(st.sampled_from("KHMSD"), min_size=1, max_size=40),
    form=st.sampled_from(["object", "array", "numbers", "objects", "lines", "letters", "lower"]),
    before=st.sampled_from(["", "Sure.\n", "```json\n"]),
)
def test_every_usual_form_is_read_without_loss(labels, form, before):
    numbered = list(enumerate(labels, start=1))
    text = {
        "object": json.dumps({"labels": labels}),
        "array": json.dumps(labels, indent=1),
        "numbers": json.dumps({str(n): label for n, label in reversed(numbered)}),
        "objects": json.dumps([{"n": n, "label": label} for n, label in reversed(numbered)]),
        "lines": "\n".join(f"{n}: {label}" for n, label in numbered),
        "letters": " ".join(labels),
        "lower": json.dumps({"labels": [label.lower() for label in labels]}),
    }[form]
    if form == "letters" and len(labels) < 3:
        before = ""
    assert read_labels(before + text, len(labels)) == labels


@pytest.mark.parametrize(
    "text", ["[" * 16_000, "[1," * 6_000, '{"a":[' * 4_000, "K '" * 8_000, "1 " * 9_000, "K x " * 10**6]
)
def test_a_reply_made_to_be_slow_is_read_at_once(text):
    started = time.perf_counter()
    read_labels(text, 40)
    assert time.perf_counter() - started < 1


def test_the_five_labels_have_their_weights():
    assert dict(LABEL_WEIGHTS) == {"K": 1.0, "H": 0.75, "M": 0.5, "S": 0.25, "D": 0.05}
    assert [label_of(value) for value in ("k", "Helpful.", None, 3, "important", "I'd", "DE")] == [
        "K", "H", None, None, None, None, None,
    ]  # fmt: skip
