"""SQL from a model nobody has to trust."""

import contextlib
import os
import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eunoe.store.chats import ChatStore
from eunoe.store.places import ChatKey
from eunoe.store.statement import MOST_ROWS, StatementRefused, _like, _replace, _trimmed, run_statement

from .chatting import KEY, answer, call, planned, result, stored, talk, user

LONG = "\n".join(f"line {number}: all is well" for number in range(900))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    chat = [user("Read it"), call("read_log", '{"path": "/var/log/x"}'), result(LONG), answer("Read.")]
    return stored(tmp_path_factory.mktemp("sql"), [*chat, *talk(12), user("Die Straße in КАЗАНЬ?")])


def run(store, statement):
    return run_statement(store.file_of(KEY), statement)


def refusal(store, statement):
    started = time.monotonic()
    with pytest.raises(StatementRefused) as refused:
        run(store, statement)
    assert time.monotonic() - started < 1
    return str(refused.value)


def test_messages_can_be_counted_and_read(store):
    rows = run(store, "SELECT role, kind, count(*) FROM messages GROUP BY role, kind ORDER BY 1, 2")
    assert rows.columns == ("role", "kind", "count(*)")
    assert rows.rows == [
        ("assistant", "text", 13),
        ("assistant", "tool_call", 1),
        ("tool", "tool_result", 1),
        ("user", "text", 14),
    ]
    assert run(store, "SELECT tool, lines, text FROM messages WHERE kind = 'tool_result'").rows == [
        ("read_log", 900, LONG)
    ]
    path = "SELECT json_extract(text, '$.path') FROM messages WHERE kind = 'tool_call'"
    assert run(store, path).rows == [("/var/log/x",)]
    assert run(store, "SELECT count(*), min(messages) > 9, min(tokens_after) <= 600 FROM cuts").rows == [
        (1, 1, 1)
    ]


def test_texts_are_compared_in_any_script(store):
    for pattern in ("%straße%казань_", "%line 899%", "Read__t", "DIE%"):
        assert run(store, f"SELECT count(*) FROM messages WHERE text LIKE '{pattern}'").rows[0][0] == 1
    assert run(store, r"SELECT 'a_b' LIKE 'a\_b' ESCAPE '\', 'axb' LIKE 'a\_b' ESCAPE '\'").rows == [(1, 0)]
    assert run(store, "SELECT count(*) FROM messages WHERE instr(text, 'line 5:')").rows == [(1,)]
    assert run(store, "SELECT replace('abcab', 'ab', 'x'), trim('xxaxx', 'x')").rows == [("xcx", "a")]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO block VALUES (1)",
        "INSERT INTO messages VALUES (1)",
        "UPDATE block SET text = 'x'",
        "UPDATE block SET text = 'x' RETURNING 1",
        "DELETE FROM block",
        "DELETE FROM event",
        "REPLACE INTO about VALUES ('scope', 'x')",
        "DROP TABLE block",
        "DROP VIEW messages",
        "CREATE TABLE x (a)",
        "CREATE TEMP TABLE x (a)",
        "CREATE VIEW x AS SELECT 1",
        "CREATE TRIGGER x AFTER INSERT ON block BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE x USING fts5 (a)",
        "ALTER TABLE block ADD COLUMN x",
        "ATTACH '/tmp/x.sqlite' AS other",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "VACUUM",
        "VACUUM INTO '/tmp/eunoe-stolen.sqlite'",
        "REINDEX",
        "ANALYZE",
        "PRAGMA writable_schema = 1",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA query_only = 0",
        "PRAGMA table_info(block)",
        "SELECT * FROM pragma_table_info('block')",
        "SELECT count(*) FROM pragma_integrity_check",
        "SELECT * FROM pragma_database_list",
        "BEGIN",
        "COMMIT",
        "SAVEPOINT x",
        "SELECT load_extension('/tmp/x.so')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('/tmp/eunoe-written', 'x')",
        "SELECT edit('x')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT fts5(1)",
        "SELECT sqlite_version()",
        "SELECT * FROM sqlite_master",
        "SELECT count(*) FROM sqlite_schema",
        "SELECT * FROM sqlite_temp_master",
        "SELECT * FROM dbstat",
        "SELECT * FROM about",
        "SELECT count(*) FROM about",
        "SELECT * FROM word",
        "SELECT * FROM word_data",
        "SELECT * FROM vector",
        "SELECT * FROM passage",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE block",
        "",
        "   ",
        "-- nothing",
        "SELEC text FROM messages",
        "SELECT \x00 FROM messages",
        "SELECT text FROM messages WHERE text MATCH 'mill'",
        "SELECT text FROM messages WHERE text REGEXP '(a+)+$'",
        "SELECT text GLOB '*a*b*' FROM messages",
        f"SELECT {'1 + ' * 2000} 1",
        f"SELECT '{'x' * 5000}'",
    ],
)
def test_whatever_is_no_reading_is_refused(store, statement):
    before = store.file_of(KEY).read_bytes()
    told = refusal(store, statement)
    assert "messages(id, position" in told or "longer than" in told
    assert store.file_of(KEY).read_bytes() == before
    assert not [name for name in os.listdir("/tmp") if name.startswith(("eunoe-stolen", "eunoe-written"))]


@pytest.mark.parametrize(
    "statement",
    [
        "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT count(*) FROM t",
        "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT x FROM t WHERE x < 0",
        "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT x FROM t ORDER BY -x",
        "WITH RECURSIVE t(x) AS (SELECT 1 UNION SELECT random() FROM t) SELECT max(x) FROM t",
        "WITH RECURSIVE t(x) AS (SELECT 'ab' UNION ALL SELECT x || x FROM t) SELECT length(x) FROM t",
        "WITH RECURSIVE t(x) AS (SELECT 'a' UNION ALL SELECT substr(x||x,1,999999) FROM t) SELECT x FROM t ORDER BY 1",
        "SELECT count(*) FROM messages a, messages b, messages c, messages d, messages e, messages f, messages g",
        "SELECT a.text FROM messages a, messages b, messages c, messages d, messages e ORDER BY a.text || e.text",
        "SELECT group_concat(a.text) FROM messages a, messages b, messages c, messages d, messages e",
        "SELECT randomblob(1000000000)",
        "SELECT hex(zeroblob(1000000000))",
        "SELECT printf('%.*c', 2000000000, 'x')",
        "SELECT replace(replace(replace(text, 'l', text), 'l', text), 'l', text) FROM messages",
        "SELECT text LIKE text || text FROM messages",
    ],
)
def test_what_has_no_end_is_stopped_within_a_second(store, statement):
    assert refusal(store, statement)


@pytest.mark.parametrize(
    ("comparison", "value"),
    [
        ("instr(x || x, x || 'b')", 0),
        ("length(replace(x || x, x || 'b', '')) - 2 * length(x)", 0),
        ("length(trim(replace(x, 'a', 'b'), x || 'b'))", 0),
        ("substr(x, 1, 65536) LIKE '%a%a%a%a%a%a%a%a%a%a%a%a%a%a%a%a%b'", 0),
        (f"substr(x, 1, 65536) LIKE '%{'a_' * 45}b%'", 0),
    ],
)
def test_slow_comparisons_take_no_longer_than_their_text(store, comparison, value):
    """SQLite's own functions would take half a minute for some of these, and nothing can stop them."""
    doubled = "WITH RECURSIVE t(x, n) AS (SELECT 'a', 1 UNION ALL SELECT x || x, n + 1 FROM t WHERE n < 20) "
    started = time.monotonic()
    assert run(store, f"{doubled} SELECT max({comparison}) FROM t").rows == [(value,)]
    assert time.monotonic() - started < 1


def test_rows_are_bounded(store):
    rows = run(store, "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT x FROM t")
    assert (len(rows.rows), rows.rows[-1], rows.is_cut) == (MOST_ROWS, (MOST_ROWS,), True)


def test_a_statement_sees_its_own_chat_and_branch_alone(tmp_path):
    store = stored(tmp_path, [*talk(12), user("Mine")])
    other = ChatStore(store.folder)
    other.record(ChatKey("bob", "chat-1"), planned([*talk(12), user("Theirs")]))
    other.record(KEY, planned([*talk(12), user("Mine, edited")]))
    assert other.wait()
    last = "SELECT text FROM messages WHERE position = 25"
    assert run(store, last).rows == [("Mine, edited",)]
    assert run_statement(store.file_of(ChatKey("bob", "chat-1")), last).rows == [("Theirs",)]


def plain_like(pattern, text):
    """LIKE by the book, in a time that nobody should wait for."""
    signs = (".*" if sign == "%" else "." if sign == "_" else re.escape(sign) for sign in pattern.lower())
    return int(re.fullmatch("".join(signs), text.lower(), re.DOTALL) is not None)


@given(st.text("ab%_", max_size=6), st.text("abc\n", max_size=8))
def test_like_is_like(pattern, text):
    assert _like(pattern, text) == plain_like(pattern, text)


@given(st.text("abc"), st.text("ab", max_size=2), st.text("xy", max_size=2))
def test_replacing_is_replacing(text, old, new):
    assert _replace(text, old, new) == (text.replace(old, new) if old else text)


@given(st.text("ab", max_size=6), st.text("ab", max_size=3))
def test_trimming_is_trimming(text, signs):
    kept = text.strip(signs) if signs else text  # Python trims spaces where no sign is given
    assert _trimmed("lr", text, signs) == kept
    assert _trimmed("l", text, signs) == (text.lstrip(signs) if signs else text)
    assert _trimmed("r", text, signs) == (text.rstrip(signs) if signs else text)


def test_functions_of_nothing_give_nothing():
    assert _like(None, "a") is None
    assert _like("a", None) is None
    assert _replace("a", None, "b") is None
    assert _trimmed("lr", None, "x") is None
    assert _like("%5%", 1505) == 1


def test_many_random_statements_change_nothing_and_end(store):
    """Words of SQL in any order: none of them is an error of ours."""
    chance = random.Random(7)
    words = "SELECT FROM WHERE messages cuts block text , ( ) * = 'a' 1 AND OR LIKE JOIN ON UNION ALL WITH t AS".split()
    before = store.file_of(KEY).read_bytes()
    for _ in range(400):
        statement = "SELECT " + " ".join(chance.choices(words, k=chance.randint(1, 12)))
        with contextlib.suppress(StatementRefused):
            run(store, statement)
    assert store.file_of(KEY).read_bytes() == before
