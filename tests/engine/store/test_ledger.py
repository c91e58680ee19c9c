"""What is written of each model call."""

import sqlite3
import threading
from contextlib import closing

from eunoe.plan import Fate
from eunoe.store.chats import ChatStore
from eunoe.store.ledger import LONG_TEXT, unpacked

from .chatting import KEY, answer, call, planned, result, stored, talk, user


def rows_of(store, sql, key=KEY):
    with closing(sqlite3.connect(store.file_of(key))) as connection:
        return connection.execute(sql).fetchall()


def record(store, messages, budget=600, key=KEY):
    store.record(key, planned(messages, budget), "run", "gpt-4o")
    assert store.wait(key, 30)


def test_nothing_is_stored_before_something_is_left_out(tmp_path):
    store = ChatStore(tmp_path)
    record(store, talk(2), budget=100_000)
    assert not store.file_of(KEY).exists()
    record(store, talk(12))
    assert rows_of(store, "SELECT count(*) FROM block") == [(24,)]


def test_a_store_from_the_start_holds_what_the_model_still_sees(tmp_path):
    store = ChatStore(tmp_path)
    store.record(KEY, planned(talk(2), 100_000), from_start=True)
    assert store.wait(KEY)
    assert rows_of(store, "SELECT in_context, fate, count(*) FROM block GROUP BY 1, 2") == [(1, "kept", 4)]


def test_history_that_is_sent_again_is_stored_once(tmp_path):
    chat = [*talk(12), user("And now?")]
    store = stored(tmp_path, chat)
    before = rows_of(store, "SELECT message, number, time FROM block")
    record(store, chat)
    record(store, [*chat, answer("So it is."), user("Really?")])
    after = rows_of(store, "SELECT message, number, time FROM block")
    assert after[: len(before)] == before
    assert len(after) == len(before) + 2


def test_instructions_are_not_stored_and_do_not_matter(tmp_path):
    chat = [*talk(12), user("And now?")]
    store = stored(tmp_path, [{"role": "system", "content": "Monday"}, *chat])
    record(store, [{"role": "system", "content": "Tuesday"}, *chat])
    assert rows_of(store, "SELECT count(*) FROM block") == [(len(chat),)]
    assert rows_of(store, "SELECT count(*) FROM block WHERE text LIKE '%day%'") == [(0,)]


def test_each_row_says_what_the_model_sees_now(tmp_path):
    chat = [*talk(12), user("And now?")]
    store = stored(tmp_path, chat, budget=100_000)
    assert not store.file_of(KEY).exists()
    record(store, chat)
    plan = planned(chat)
    seen = {d.message.text for d in plan.decisions if d.fate is Fate.KEPT}
    told = dict(rows_of(store, "SELECT text, in_context FROM block"))
    assert told == {m["content"]: int(m["content"] in seen) for m in chat}
    assert 0 < sum(told.values()) < len(chat)
    record(store, chat, budget=100_000)  # the user has raised the limit
    assert rows_of(store, "SELECT DISTINCT in_context, fate FROM block") == [(1, "kept")]


def test_other_branches_are_kept_but_marked(tmp_path):
    chat = talk(12)
    store = stored(tmp_path, [*chat, user("Left or right?"), answer("Left."), user("Why?")])
    record(store, [*chat, user("Left or right?"), answer("Right."), user("Why?")])
    told = rows_of(
        store, "SELECT text, in_history FROM block WHERE text IN ('Left.', 'Right.', 'Why?') ORDER BY row"
    )
    assert told == [("Left.", 0), ("Why?", 0), ("Right.", 1), ("Why?", 1)]


def test_a_cut_is_an_event_with_its_figures_once(tmp_path):
    chat = [*talk(12), user("And now?")]
    store = stored(tmp_path, chat)
    record(store, chat)
    plan = planned(chat)
    gone = sum(d.fate is not Fate.KEPT for d in plan.decisions)
    events = "SELECT kind, run, messages, tokens_before, tokens_after FROM event"
    assert rows_of(store, events) == [("trim", "run-1", gone, plan.tokens_before, plan.tokens_after)]


def test_a_long_text_is_kept_once_however_often_it_was_read(tmp_path):
    text = "\n".join(f"line {number} of the log" for number in range(800))
    chat = talk(3)
    for number in (1, 2):
        chat += [
            user(f"Read it, {number}"),
            call("read", "{}", number),
            result(text, number),
            answer("Read."),
        ]
    store = stored(tmp_path, [*chat, user("And?")])
    assert len(text) > LONG_TEXT
    assert rows_of(store, "SELECT count(*), total(text = '') FROM block WHERE kind = 'tool_result'") == [
        (2, 2.0)
    ]
    ((characters, data),) = rows_of(store, "SELECT characters, data FROM blob")
    assert (characters, unpacked(data)) == (len(text), text)


def test_two_workers_may_write_at_once(tmp_path):
    chats = [[*talk(20), user(f"Branch {number}?")] for number in range(6)]
    stores = [ChatStore(tmp_path) for _ in chats]
    plans = [planned(chat) for chat in chats]

    def write(store, plan):
        store.record(KEY, plan, "run", "gpt-4o")
        assert store.wait(KEY, 30)

    threads = [threading.Thread(target=write, args=pair) for pair in zip(stores, plans, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.lost for store in stores] == [0] * len(stores)
    assert rows_of(stores[0], "SELECT count(*) FROM block") == [(40 + len(chats),)]
    assert rows_of(stores[0], "SELECT count(*), count(DISTINCT block) FROM passage") == [(46, 46)]
    assert rows_of(stores[0], "SELECT count(*) FROM word") == [(46,)]


def test_special_texts_are_stored(tmp_path):
    odd = ["\ud83d half", "end\x00mark", "<|endoftext|>", "'; DROP TABLE block; --"]
    store = stored(tmp_path, [*map(user, odd), *talk(12), user("And now?")])
    assert store.lost == 0
    kept = [text for (text,) in rows_of(store, "SELECT text FROM block ORDER BY position LIMIT 4")]
    assert kept == ["? half", "end\ufffdmark", *odd[2:]]


def test_only_the_owner_may_read_the_file(tmp_path):
    store = stored(tmp_path, [*talk(12), user("And now?")])
    assert store.file_of(KEY).stat().st_mode & 0o777 == 0o600
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert all("chat-1" not in path.name and "ada" not in path.name for path in store.folder.iterdir())
