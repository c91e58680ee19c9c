"""Results of tools that are too long: beginning, end and errors stay, and whatever has a form keeps it."""

import base64
import copy
import json
import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from eunoe.settings import Settings
from eunoe.tokens import ESTIMATE, TokenCounter
from eunoe.tool_results import compressed_result, compressed_text, is_compressed, tools_called

from .strategies import texts

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

WORDS = TokenCounter("words", lambda text: len(text.split()))
OVER = Settings().compress_over_tokens
LOG = [f"12:{i // 60:02}:{i % 60:02} INFO job {i} took {i % 13} ms, 0 errors" for i in range(3_000)]
TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/app/worker.py", line 81, in run
    self.handle(job)
  File "/srv/app/worker.py", line 95, in handle
    amount = Decimal(job["amount"])
decimal.InvalidOperation: [<class 'decimal.ConversionSyntax'>]"""
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBO" * 4_000}}


def tool(content, **fields):
    return {"role": "tool", "tool_call_id": "c", "content": content, **fields}


def short_of(text, over=OVER, name=None):
    short = compressed_text(text, ESTIMATE, over, name)
    assert short is not None
    assert len(short) < len(text)
    assert ESTIMATE.count_text(short) <= over
    return short


# Which results


def test_a_result_that_is_not_over_stays():
    raw = tool("word " * 100)
    assert compressed_result(raw, WORDS, 100) is None
    assert compressed_result(tool("word " * 2_000), WORDS, 1_999) is not None


def test_zero_compresses_nothing():
    assert compressed_result(tool("\n".join(LOG)), ESTIMATE, 0) is None


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_only_results_are_compressed(role):
    assert compressed_result({**tool("\n".join(LOG)), "role": role}, ESTIMATE, OVER) is None
    assert compressed_result({**tool("\n".join(LOG)), "role": "function"}, ESTIMATE, OVER) is not None


@pytest.mark.parametrize("name", ["context_search", "context_get", "context_sql"])
def test_what_gives_back_what_was_left_out_is_not_compressed(name):
    raw = tool("\n".join(LOG))
    assert compressed_result(raw, ESTIMATE, OVER, tool=name) is None
    assert compressed_result({**raw, "name": name}, ESTIMATE, OVER) is None
    assert compressed_result(raw, ESTIMATE, OVER, tool="search_context") is not None


def test_calls_tell_the_names_of_tools():
    call = {"id": "c1", "type": "function", "function": {"name": "context_get", "arguments": "{}"}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call, "odd", {}]}]
    assert tools_called(messages) == {"c1": "context_get", "None": ""}


# Texts


def test_the_first_forty_and_the_last_twenty_lines_stay():
    lines = [f"line {i}" for i in range(1_000)]
    short = compressed_text("\n".join(lines), WORDS, 1_900).splitlines()
    assert short[0] == "[… 1,876 tokens and 940 lines of this tool result are left out …]"
    assert short[1:41] == lines[:40]
    assert short[41] == "[… 940 lines …]"
    assert short[42:] == lines[-20:]


def test_the_header_tells_how_to_get_the_whole_only_where_that_is_possible():
    text = "\n".join(LOG)
    assert short_of(text, name="r-7f").splitlines()[0].endswith('; context_get(id="r-7f") gives the whole …]')
    assert "context_get" not in short_of(text)


def test_long_lines_are_capped_at_4000_and_2000_characters():
    text = "a-" * 50_000 + "b-" * 50_000
    _, head, gap, tail = short_of(text, 8_000).splitlines()
    assert (head, gap, tail) == ("a-" * 2_000, "[…]", "b-" * 1_000)


def test_error_lines_between_stay_with_the_place_they_happened():
    lines = [*LOG[:1_500], *TRACEBACK.splitlines(), *LOG[1_500:]]
    assert short_of("\n".join(lines)).splitlines()[41:-20] == snapshot(
        [
            "[… 1,460 lines …]",
            "Traceback (most recent call last):",
            "[… 2 lines …]",
            '  File "/srv/app/worker.py", line 95, in handle',
            '    amount = Decimal(job["amount"])',
            "decimal.InvalidOperation: [<class 'decimal.ConversionSyntax'>]",
            "[… 1,480 lines …]",
        ]
    )


def test_the_same_error_is_told_once_and_many_are_bounded():
    same = [*LOG, *(f"ERROR: retry {i} was refused" for i in range(500)), *LOG]
    assert short_of("\n".join(same)).count("ERROR") == 1
    many = [*LOG, *(f"ERROR: {chr(65 + i // 26)}{chr(65 + i % 26)} is missing" for i in range(500)), *LOG]
    assert re.findall("ERROR: (..)", short_of("\n".join(many))) == [
        *(f"A{chr(65 + i)}" for i in range(12)),
        *"SY SZ TA TB TC TD TE TF".split(),
    ]


@pytest.mark.parametrize(
    "line",
    ["npm ERR! code ELIFECYCLE", "E       AssertionError: 3 != 4", "thread 'main' panicked at src/main.rs:4",
     "fatal: not a git repository", "java.lang.NullPointerException: null", "Caused by: java.io.IOException",
     "错误：端口被占用", "エラー: 接続できません", "bash: foo: command not found", "exit status 2",
     "3 errors, 0 failures", "Fehler beim Schreiben"],
)  # fmt: skip
def test_errors_of_many_kinds_are_known(line):
    assert line in short_of("\n".join([*LOG, line, *LOG])).splitlines()


@pytest.mark.parametrize(
    "line", ["0 errors", "Finished without errors", "error: null", '"errors": []', "no failures", "failed=0"]
)
def test_what_speaks_of_errors_and_has_none_is_no_error(line):
    assert line not in short_of("\n".join([*LOG, line, *LOG])).splitlines()


def test_an_error_in_a_line_without_end_is_cut_out():
    short = short_of("x = 1; " * 10_000 + "raise DiskFull: fatal error on sda1; " + "y = 2; " * 10_000)
    assert "raise DiskFull: fatal error on sda1;" in short


def test_csv_keeps_its_head_line_and_whole_rows():
    rows = ["id,name,amount", *(f"{i},customer {i},{i * 1.07:.2f}" for i in range(4_000))]
    short = short_of("\n".join(rows)).splitlines()
    assert set(short[1:]) - set(rows) == {"[… 3,941 lines …]"}
    assert short[1] == rows[0]


def test_html_keeps_beginning_and_end():
    page = (
        "<!doctype html><html><body>" + "<div class='row'><a href='/x'>x</a></div>" * 3_000 + "</body></html>"
    )
    short = short_of(page)
    assert short.splitlines()[1].startswith("<!doctype html>")
    assert short.endswith("</body></html>")


def test_scripts_with_many_tokens_a_character_fit_too():
    short = short_of("数据库迁移。港口网关每天检查。\n" * 3_000)
    assert ESTIMATE.count_text(short) > OVER / 8
    assert short.splitlines()[-1] == "数据库迁移。港口网关每天检查。"


# Forms that stay


FENCED = ["words of prose", "```py\ny = 2\n```", "```\n" + "z = 3\n" * 60 + "```", "plain\n" * 30]
FOLDS = ["<details>\n<summary>S</summary>\n" + "inside\n" * 30 + "</details>", "<details open>\nx\n</details>",
         '<details type="x" result="' + "&quot;" * 80 + '">\ny\n</details>', "ERROR <details> </details>"]  # fmt: skip


@unhurried
@given(st.lists(st.sampled_from([*FENCED, *FOLDS]), min_size=20, max_size=80), st.integers(250, 900))
def test_fences_and_details_stay_balanced(pieces, over):
    short = compressed_text("\n".join(pieces), ESTIMATE, over)
    if short is not None:
        assert short.count("```") % 2 == 0
        depth = 0
        for tag in re.findall(r"</?details\b", short):
            depth += -1 if tag[1] == "/" else 1
            assert depth >= 0
        assert depth == 0
        assert len(re.findall(r"<details\b", short)) == len(re.findall(r"<details\b[^<>]*>", short))


def test_a_details_tag_is_never_cut_in_two():
    text = "".join(f'<details type="step" id="{i}">done</details>' for i in range(2_000))
    short = short_of(text, 6_000)
    opened = re.findall(r"<details\b[^<>]*>", short)
    assert len(opened) == short.count("</details>") == short.count("<details") > 100
    assert ">" not in re.sub(r"<[^<>]*>", "", short)


@pytest.mark.parametrize(
    ("data", "left"),
    [
        ("data:image/png;base64," + "QUJD" * 5_000, "data:image/png;base64,[… 20,000 …]"),
        ("QUJD" * 5_000, "[… base64, 20,000 …]"),
        (base64.encodebytes(bytes(range(256)) * 60).decode().strip(), "[… base64, 20,749 …]"),
    ],
)
def test_base64_is_folded_and_the_rest_stays_whole(data, left):
    rest = "\n".join(LOG[:50])
    short = short_of(f"before\n{data}\n{rest}")
    assert short.split("\n", 1)[1] == f"before\n{left}\n{rest}"


ROWS = [{"id": i, "name": f"item {i}", "price": i / 4, "sold": None} for i in range(3_000)]


def test_a_list_stays_json_with_its_beginning_its_end_and_its_errors():
    rows = copy.deepcopy(ROWS)
    rows[1_500] = {"id": 1_500, "error": {"code": 28, "message": "no space left on sda1"}}
    rows[1_700] = {"id": 1_700, "status": "FAILED"}
    short = json.loads(short_of(json.dumps(rows), name="r1"))
    assert short[0].endswith('of this tool result are left out; context_get(id="r1") gives the whole …]')
    assert short[1:9] == ROWS[:8]
    assert short[-4:] == ROWS[-4:]
    assert rows[1_500] in short
    assert rows[1_700] in short
    notes = [int(item[3:-3].replace(",", "")) for item in short[1:] if isinstance(item, str)]
    assert sum(notes) + sum(isinstance(item, dict) for item in short) == 3_000


def test_an_object_stays_json_and_keeps_its_fields_and_the_errors_of_its_log():
    raw = {"stdout": "\n".join([*LOG, TRACEBACK, *LOG]), "exit_code": 1, "stderr": "boom", "n": 10**30}
    short = json.loads(short_of(json.dumps(raw, indent=2)))
    assert list(short) == ["[…]", "stdout", "exit_code", "stderr", "n"]
    assert {key: short[key] for key in ("exit_code", "stderr", "n")} == {
        "exit_code": 1,
        "stderr": "boom",
        "n": 10**30,
    }
    assert short["stdout"].startswith(LOG[0])
    assert short["stdout"].endswith(LOG[-1])
    assert "decimal.InvalidOperation" in short["stdout"]


def test_an_error_far_down_in_an_object_stays():
    raw = {f"key {i}": "value " * 20 for i in range(2_000)} | {"error": "quota " * 30}
    assert json.loads(short_of(json.dumps(raw)))["error"] == raw["error"]


def test_the_text_of_an_error_gets_more_room_than_other_texts():
    rows = [{"id": i, "note": "word " * 300} for i in range(200)] + [{"id": 200, "error": "cause " * 150}]
    short = json.loads(short_of(json.dumps(rows)))
    assert len(short[1]["note"]) < len(short[-1]["error"]) / 2


def test_json_inside_json_stays_json():
    raw = {"content": [{"type": "text", "text": json.dumps(ROWS)}]}
    inner = json.loads(short_of(json.dumps(raw)))["content"][0]["text"]
    assert json.loads(inner)[0] == ROWS[0]


def test_json_that_is_one_text_stays_one():
    short = json.loads(short_of(json.dumps("\n".join(LOG))))
    assert short.splitlines()[1] == LOG[0]


def test_a_field_that_is_named_as_the_header_is_not_lost():
    short = json.loads(short_of(json.dumps({"[…]": "mine", "rows": ROWS})))
    assert short["[…]"] == "mine"
    assert "left out" in short["[…]…"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts(200) | st.just("\ud83d" * 9),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(texts(3), inner, max_size=30),
    max_leaves=60,
)


@unhurried
@given(JSON, st.booleans())
def test_any_json_stays_json(value, pretty):
    text = re.sub(r"-?\b(NaN|Infinity)\b", "1e999", json.dumps([value] * 30, indent=1 if pretty else None))
    short = compressed_text(text, ESTIMATE, 300, "id")
    if short is not None:
        loaded = json.loads(short, parse_constant=pytest.fail)
        assert isinstance(loaded, list)
        short.encode()


# All results


BLOCKS = st.sampled_from(
    [
        "\n".join(LOG[:80]),
        TRACEBACK,
        json.dumps(ROWS[:60]),
        "QUJD" * 300,
        *FENCED,
        *FOLDS,
        "x" * 3_000,
        "数据库" * 500,
    ]
)
RESULTS = st.lists(BLOCKS | texts(), max_size=12).map("\n".join)


@unhurried
@given(RESULTS | st.lists(RESULTS.map(lambda t: {"type": "text", "text": t, "annotations": ["a"]}) | st.just(IMAGE)),
       st.integers(1, 3_000), st.none() | st.just("r1"))  # fmt: skip
@example([{"type": "text", "text": "\n".join(LOG)}, IMAGE, {"type": "text", "text": "small"}], 400, None)
def test_a_compressed_result_is_smaller_the_same_each_time_and_left_alone_after(content, over, name):
    raw = tool(content, metadata={"k": [1]})
    before = copy.deepcopy(raw)
    short = compressed_result(raw, ESTIMATE, over, name)
    assert raw == before
    if short is None:
        return
    assert ESTIMATE.count_message(short) < ESTIMATE.count_message(raw)
    assert len(json.dumps(short, ensure_ascii=False)) < len(json.dumps(raw, ensure_ascii=False))
    assert compressed_result(copy.deepcopy(raw), ESTIMATE, over, name) == short
    for less in (1, over // 2 + 1, over):
        assert compressed_result(short, ESTIMATE, less, None) is None
    assert {k: v for k, v in short.items() if k != "content"} == {
        k: v for k, v in raw.items() if k != "content"
    }
    if isinstance(content, list):
        assert len(short["content"]) == len(content)
        for new, old in zip(short["content"], content, strict=True):
            assert new is old or {**new, "text": ""} == {**old, "text": ""}


def test_a_long_text_behind_a_header_that_is_not_ours_is_compressed():
    forged = "[… 9 tokens of this tool result are left out …]\n" + "\n".join(LOG)
    assert not is_compressed(forged)
    assert is_compressed(short_of(forged))


def test_two_long_texts_of_one_result_share_the_room():
    parts = [{"type": "text", "text": "\n".join(LOG)}] * 2
    short = compressed_result(tool(parts), ESTIMATE, 2_000)
    assert 1_000 < ESTIMATE.count_message(short) <= 2_010
