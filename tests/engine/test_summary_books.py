"""Books of summaries: what they keep and find again, for whom, after how many calls, and what no one may see."""

import asyncio
import json
import logging
import threading
import time

import pytest

from eunoe.cache import InMemoryCache
from eunoe.errors import ModelFailed
from eunoe.ports import ChatReply
from eunoe.summarizers import ConversationSummarizer, SegmentSummarizer, TurnSummarizer
from eunoe.usage import Usage

from .labeling import answer, call, fails, result, user
from .summarizing import (
    FILLING,
    asked_of,
    book,
    building,
    chat_in,
    digests,
    model,
    notes,
    places_in,
    ready,
    tokens,
    turns,
    write,
)

KINDS = [TurnSummarizer, SegmentSummarizer, ConversationSummarizer]
every_kind = pytest.mark.parametrize("kind", KINDS)
ENOUGH = 4_000


def told(summaries):
    return sorted({n for summary in summaries for n in places_in(summary.text)})


# What every book does


@every_kind
def test_what_was_written_is_ready_and_says_what_it_covers(kind):
    chat = model()
    kept = book(kind, chat)
    assert ready(kept, building(16)) == []
    report = write(kept, building(16), room=ENOUGH)
    assert (report.made, report.problem) == (len(ready(kept, building(16))), "")
    assert report.usages == (Usage(100, 10),) * len(chat.asked)
    summaries = ready(kept, building(16))
    assert told(summaries) == [*range(16)]
    assert {s.source for s in summaries} == {"model"}
    assert sum(s.turns for s in summaries) == 16
    assert frozenset().union(*(s.covers for s in summaries)) == digests(building(16))
    assert sum(len(s.covers) for s in summaries) == 32, "no message is told twice"


@every_kind
def test_reading_asks_no_model_and_writing_again_neither(kind):
    chat = model()
    kept = book(kind, chat)
    write(kept, building(16), room=ENOUGH)
    asked = len(chat.asked)
    first = ready(kept, building(16))
    report = write(kept, building(16), room=ENOUGH)
    assert ready(kept, building(16)) == first
    assert (report.made, report.usages, report.problem) == (0, (), "")
    assert len(chat.asked) == asked


@every_kind
def test_a_few_calls_are_enough_for_many_turns(kind):
    chat = model()
    write(book(kind, chat, window=8_192), building(40), room=ENOUGH)
    assert len(chat.asked) <= (5 if kind is TurnSummarizer else 1)


@every_kind
def test_calls_are_bounded_and_the_next_write_carries_on(kind):
    chat = model()
    kept = book(kind, chat, window=2_048, max_calls=2)
    counts = []
    for _ in range(12):
        before = len(chat.asked)
        write(kept, building(64), room=ENOUGH)
        counts.append(len(chat.asked) - before)
    assert counts[0] == 2
    assert max(counts) == 2
    assert counts[-1] == 0, "it comes to an end"
    assert sum(s.turns for s in ready(kept, building(64)) if s.source == "model") == 64


@every_kind
def test_nothing_is_found_in_another_scope(kind):
    cache, chat = InMemoryCache(), model()
    write(book(kind, chat, cache), building(16), "anna", ENOUGH)
    asked = len(chat.asked)
    assert ready(book(kind, chat, cache), building(16), "anna")
    assert ready(book(kind, chat, cache), building(16), "bert") == []
    assert ready(book(kind, chat, cache), building(16), "") == []
    write(book(kind, chat, cache), building(16), "bert", ENOUGH)
    assert len(chat.asked) == 2 * asked


@every_kind
def test_nothing_is_found_that_another_model_or_another_ratio_made(kind):
    cache = InMemoryCache()
    write(book(kind, model(), cache), building(16), room=ENOUGH)
    other = model()
    other.name = lambda: "other"
    assert ready(book(kind, other, cache), building(16)) == []
    assert ready(book(kind, model(), cache, target_ratio=0.5), building(16)) == []


@every_kind
def test_a_summary_of_an_edited_message_is_not_used(kind):
    kept = book(kind, model())
    write(kept, building(16), room=ENOUGH)
    edited = [*building(6), *building(1, first=66), *building(9, first=7)]
    edited[13] = building(7)[13]  # the answer is still the old one
    present = digests(edited)
    assert all(summary.covers <= present for summary in ready(kept, edited))
    assert 6 not in told(summary for summary in ready(kept, edited) if summary.source == "model")
    write(kept, edited, room=ENOUGH)
    assert told(ready(kept, edited)) == [*range(16), 66]
    assert all(summary.covers <= present for summary in ready(kept, edited))


@every_kind
def test_the_old_branch_is_still_there(kind):
    kept = book(kind, model())
    write(kept, building(16), room=ENOUGH)
    old = ready(kept, building(16))
    branch = [*building(8), *building(8, first=40)]
    write(kept, branch, room=ENOUGH)
    assert told(ready(kept, branch)) == [*range(8), *range(40, 48)]
    assert ready(kept, building(16)) == old


@every_kind
def test_a_failure_is_told_and_not_kept_and_the_next_write_asks_again(kind):
    chat = model(fails)
    kept = book(kind, chat)
    report = write(kept, building(16), room=ENOUGH)
    assert (report.made, len(chat.asked)) == (0, 1), "a model that fails is asked once"
    assert report.problem == "scripted: HTTP 500"
    standing_in = ready(kept, building(16))
    assert {s.source for s in standing_in} == {"extract"}
    assert told(standing_in)
    assert all(summary.covers <= digests(building(16)) for summary in standing_in)
    chat.reply = notes
    report = write(kept, building(16), room=ENOUGH)
    assert (report.made > 0, report.problem) == (True, "")
    assert {s.source for s in ready(kept, building(16))} == {"model"}


@every_kind
@pytest.mark.parametrize(
    "reply",
    ["", "<think>hm", "Error: the server is busy", ChatReply("- the harbor number 0 will", "length"),
     "I'm sorry, I can't do that.", "- cats and dogs and other animals in the zoo of London sleep all day long"],
)  # fmt: skip
def test_what_is_refused_is_billed_and_told_and_an_extract_stands_in(kind, reply):
    chat = model(reply, usage=Usage(500, 20))
    kept = book(kind, chat)
    report = write(kept, building(16), room=ENOUGH)
    assert report.made == 0
    assert report.problem.startswith("scripted: ")
    assert "number" not in report.problem
    assert len(report.usages) == len(chat.asked) > 0
    assert {s.source for s in ready(kept, building(16))} == {"extract"}


@every_kind
def test_an_extract_is_in_the_users_words_and_smaller_than_what_it_stands_for(kind):
    kept = book(kind, model(fails))
    write(kept, building(16), room=ENOUGH)
    said = " ".join(message["content"] for message in building(16))
    for summary in ready(kept, building(16)):
        assert tokens(summary.text) < summary.turns * 50
        lines = summary.text.splitlines()
        assert any(line.startswith("user: Please repair") for line in lines)
        words = [line.partition(": ")[2].partition(" […")[0] for line in lines if not line.startswith("[· ")]
        assert all(text in said for text in words)


@every_kind
def test_exact_values_outlive_every_summary(kind):
    chat = building(16)
    order = "Order PO-7731 costs 4,250.00 EUR and goes to /srv/harbor/plan.md by 14 March 2026."
    chat[10] = user(f"{FILLING} {order} {FILLING * 3}")
    kept = book(kind, model())
    write(kept, chat, room=ENOUGH)
    text = "\n".join(s.text for s in ready(kept, chat))
    for value in ("PO-7731", "4,250.00 EUR", "/srv/harbor/plan.md", "14 March 2026"):
        assert value in text


@every_kind
def test_two_writes_at_once_make_one_call(kind):
    async def both():
        chat = model(seconds=0.05)
        kept = book(kind, chat, window=8_192)
        of = turns(building(8))
        reports = await asyncio.gather(*(kept.write(of, "anna", room_tokens=ENOUGH) for _ in range(4)))
        return chat, reports

    chat, reports = asyncio.run(both())
    assert (len(chat.asked), chat.most_at_once) == (1, 1)
    assert sorted(bool(report.made) for report in reports) == [False, False, False, True]


@every_kind
def test_writes_for_two_people_at_once_do_not_wait_for_each_other(kind):
    async def both():
        chat = model(seconds=0.05)
        kept = book(kind, chat)
        of = turns(building(8))
        await asyncio.gather(*(kept.write(of, who, room_tokens=ENOUGH) for who in ("anna", "bert")))
        return chat.most_at_once

    assert asyncio.run(both()) == 2


@every_kind
def test_threads_with_loops_of_their_own_may_share_a_book(kind):
    chat = model(seconds=0.1)
    kept = book(kind, chat, window=8_192)
    threads = [threading.Thread(target=write, args=(kept, building(8), "anna", ENOUGH)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(chat.asked) == 1
    assert told(ready(kept, building(8))) == [*range(8)]


@every_kind
def test_a_write_that_is_cancelled_stands_in_nobodys_way(kind):
    async def cancelled():
        chat = model(seconds=30)
        kept = book(kind, chat)
        task = asyncio.create_task(kept.write(turns(building(8)), "anna", room_tokens=ENOUGH))
        await chat.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await kept.ready(turns(building(8)), "anna") == (() if kind is ConversationSummarizer else [])
        chat.seconds = 0
        return await kept.write(turns(building(8)), "anna", room_tokens=ENOUGH)

    assert asyncio.run(cancelled()).made > 0


@every_kind
def test_time_is_bounded_and_what_was_made_by_then_is_kept(kind):
    def slower(messages):
        chat.seconds = 30
        return notes(messages)

    chat = model(slower)
    kept = book(kind, chat, window=2_048, max_seconds=0.6)
    begun = time.monotonic()
    report = write(kept, building(64), room=ENOUGH)
    assert time.monotonic() - begun < 8
    assert len(chat.asked) == 2
    assert report.usages == (Usage(100, 10), Usage())
    assert report.problem == "scripted: it gave no answer in time"
    assert report.made > 0
    assert (
        {s.source for s in ready(kept, building(64))} >= {"model"}
        if kind is not ConversationSummarizer
        else True
    )


@every_kind
def test_a_cache_that_breaks_costs_only_what_it_held(kind, caplog):
    class Broken:
        async def get(self, key):
            raise OSError("harbor")

        async def set(self, key, value, ttl=None):
            raise OSError("harbor")

    kept = book(kind, model(), Broken())
    assert write(kept, building(16), room=ENOUGH).problem == ""
    assert ready(kept, building(16)) == []
    assert "harbor" not in caplog.text
    assert "OSError" in caplog.text


@every_kind
@pytest.mark.parametrize(
    "junk", ["", "{", "[]", "null", '{"text": 5}', '{"text": "", "source": "model"}', '{"model": 5}', "5"]
)
def test_junk_in_a_cache_is_nothing(kind, junk):
    class Junk(InMemoryCache):
        async def get(self, key):
            return junk

    kept = book(kind, model(), Junk())
    assert ready(kept, building(16)) == []
    assert write(kept, building(16), room=ENOUGH).made > 0


class Noting(InMemoryCache):
    """A cache that keeps a list of what it was given."""

    def __init__(self):
        super().__init__()
        self.given = []

    async def set(self, key, value, ttl=None):
        self.given.append((key, value, ttl))
        await super().set(key, value, ttl)


@every_kind
def test_no_key_no_log_and_no_report_holds_a_word_of_the_chat(kind, caplog):
    caplog.set_level(logging.DEBUG)
    cache = Noting()
    kept = book(kind, model(), cache)
    write(kept, building(16), "anna@example.org", ENOUGH)
    failed = write(book(kind, model(fails), cache), building(16, first=50), "anna@example.org", ENOUGH)
    assert cache.given
    for key, _, ttl in cache.given:
        assert key.startswith("eunoe:summary-")
        assert not any(word in key for word in ("harbor", "repair", "anna"))
        assert 3_600 <= ttl <= 7 * 86_400
    assert not any(word in caplog.text + failed.problem for word in ("harbor", "repair", "anna"))


@every_kind
def test_of_nothing_there_is_nothing(kind):
    chat = model()
    kept = book(kind, chat)
    for chat_of in ([], [{"role": "system", "content": "Be brief. " * 200}]):
        assert ready(kept, chat_of) == []
        assert write(kept, chat_of).made == 0
    assert write(kept, building(16), room=0).made == 0
    assert not chat.asked


@every_kind
def test_tools_images_and_empty_messages_are_no_trouble(kind):
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 9_000}"}}
    picture = [{"type": "text", "text": "Look at the harbor number 3."}, image]
    chat = [
        {"role": "assistant", "content": "Welcome to number 1."},
        *building(2),
        {"role": "user", "content": picture},
        call("look", json.dumps({"at": "number 4"})),
        result("number 5 " + "row " * 3_000),
        answer("Done with number 5."),
        {"role": "user", "content": None},
        {"role": "assistant", "content": "", "tool_calls": "nonsense"},
        *building(5, first=6),
    ]
    asked = model()
    kept = book(kind, asked)
    report = write(kept, chat, room=ENOUGH)
    assert report.problem == ""
    assert report.made > 0
    assert all("AAAA" not in asked_of(request) for request in asked.asked)


@every_kind
def test_somebodys_own_summarizer_can_be_used(kind):
    class Own:
        def __init__(self):
            self.calls = 0

        async def summarize(self, messages, *, target_ratio=0.3, context_messages=None):
            self.calls += 1
            return "\n".join(
                f"- number {n} will be repaired" for n in places_in(" ".join(m.text for m in messages))
            )

        def name(self):
            return "own"

    own = Own()
    kept = kind(own, InMemoryCache(), max_calls=3)
    report = write(kept, building(16), room=ENOUGH)
    assert 1 <= own.calls <= 3
    assert report.made == own.calls
    assert report.usages == (Usage(),) * own.calls, "what it took is not known, and not nothing"
    assert 15 in told(ready(kept, building(16)))


# One summary for each turn


def test_turns_keep_their_summaries_wherever_they_stand():
    chat = model()
    kept = book(TurnSummarizer, chat)
    write(kept, building(8), room=ENOUGH)
    others = [*building(3, first=90), *building(8)[4:8], *building(2, first=80)]
    assert told(ready(kept, others)) == [2, 3]
    assert all(summary.covers <= digests(others) for summary in ready(kept, others))


def test_only_turns_that_have_none_are_asked_for():
    chat = model()
    kept = book(TurnSummarizer, chat)
    write(kept, building(8), room=ENOUGH)
    write(kept, building(12), room=ENOUGH)
    assert len(chat.asked) == 2
    assert places_in(chat_in(chat.asked[1])) == [8, 9, 10, 11]


def test_a_short_turn_is_its_own_summary_and_costs_no_call():
    chat = model()
    kept = book(TurnSummarizer, chat)
    short = [user("The gate is green."), answer("Noted.")]
    assert [s.text for s in ready(kept, short)] == ["user: The gate is green.\nassistant: Noted."]
    assert ready(kept, short)[0].source == "extract"
    assert write(kept, short).made == 0
    assert not chat.asked


def test_the_newest_turns_get_the_room():
    chat = model()
    kept = book(TurnSummarizer, chat)
    write(kept, building(30), room=150)
    assert [s.covers for s in ready(kept, building(30))]
    made = told(ready(kept, building(30)))
    assert made == [*range(made[0], 30)]
    assert 2 <= len(made) <= 8


def test_a_turn_that_comes_twice_is_told_once():
    chat = model()
    kept = book(TurnSummarizer, chat)
    twice = [*building(2), *building(2), *building(1, first=5)]
    write(kept, twice, room=ENOUGH)
    assert len(ready(kept, twice)) == 3
    assert chat_in(chat.asked[0]).count("<part") == 3


# One summary for every few turns


def test_segments_have_fixed_borders():
    chat = model()
    kept = book(SegmentSummarizer, chat)
    write(kept, building(16), room=ENOUGH)
    first = ready(kept, building(16))
    assert [s.turns for s in first] == [8, 8]
    for more in range(17, 24):
        assert ready(kept, building(more)) == first
        assert write(kept, building(more), room=ENOUGH).made == 0
    assert write(kept, building(24), room=ENOUGH).made == 1
    assert ready(kept, building(24))[:2] == first
    assert places_in(chat_in(chat.asked[-1])) == [*range(16, 24)]


def test_an_edit_costs_its_own_segment():
    chat = model()
    kept = book(SegmentSummarizer, chat)
    write(kept, building(24), room=ENOUGH)
    edited = building(24)
    edited[20] = user("Please repair the mill number 99. It is the old one beside the river and the road.")
    assert told(ready(kept, edited)) == [*range(8), *range(16, 24)]
    write(kept, edited, room=ENOUGH)
    assert len(chat.asked) == 2
    assert told(ready(kept, edited)) == [*range(24), 99]


def test_segments_may_have_another_size():
    kept = book(SegmentSummarizer, model(), segment_turns=4)
    write(kept, building(10), room=ENOUGH)
    assert [s.turns for s in ready(kept, building(10))] == [4, 4]


# One summary of the conversation


def test_a_summary_is_carried_on_with_what_is_new():
    chat = model()
    kept = book(ConversationSummarizer, chat)
    write(kept, building(10), room=ENOUGH)
    write(kept, building(16), room=ENOUGH)
    assert len(chat.asked) == 2
    second = asked_of(chat.asked[1])
    assert "<notes>\n> - the harbor number 0 will be repaired" in second
    assert places_in(chat_in(chat.asked[1])) == [*range(10, 16)], "what was told before is not read again"
    (summary,) = ready(kept, building(16))
    assert told([summary]) == [*range(16)]
    assert summary.turns == 16


def test_its_cost_grows_with_what_is_new():
    chat = model()
    kept = book(ConversationSummarizer, chat, window=8_192)
    for length in range(8, 80, 8):
        write(kept, building(length), room=400)
    assert len(chat.asked) == 9
    sizes = [tokens(chat_in(request)) for request in chat.asked]
    assert max(sizes) < 1.2 * min(sizes)
    assert all(tokens(asked_of(request)) < 1_300 for request in chat.asked)


def test_a_few_new_words_are_not_worth_a_call():
    chat = model()
    kept = book(ConversationSummarizer, chat)
    write(kept, building(10), room=ENOUGH)
    report = write(kept, building(12), room=ENOUGH)
    assert (report.made, report.problem, len(chat.asked)) == (0, "", 1)
    (summary,) = ready(kept, building(12))
    assert (summary.turns, summary.source) == (12, "extract")
    assert summary.text.startswith("- the harbor number 0 will be repaired")
    assert "user: Please repair the mill number 11" in summary.text
    write(kept, building(15), room=ENOUGH)
    assert places_in(chat_in(chat.asked[1])) == [*range(10, 15)], "what only stood there is read then"
    assert ready(kept, building(15))[0].source == "model"


def test_a_later_turn_does_not_change_what_an_earlier_one_finds():
    kept = book(ConversationSummarizer, model())
    write(kept, building(10), room=ENOUGH)
    first = ready(kept, building(10))
    write(kept, building(20), room=ENOUGH)
    assert ready(kept, building(10)) == first
    assert ready(kept, building(15)) == first, "the longest beginning that is still true"


def test_a_deleted_first_turn_begins_anew():
    chat = model()
    kept = book(ConversationSummarizer, chat)
    write(kept, building(10), room=ENOUGH)
    rest = building(10)[2:]
    assert ready(kept, rest) == []
    write(kept, rest, room=ENOUGH)
    assert told(ready(kept, rest)) == [*range(1, 10)]
    assert "<notes>" not in asked_of(chat.asked[1])


def test_a_summary_keeps_to_its_room_however_long_the_chat():
    kept = book(ConversationSummarizer, model(), window=8_192)
    for length in (20, 60, 100):
        write(kept, building(length), room=200)
        (summary,) = ready(kept, building(length))
        assert tokens(summary.text) <= 200
        assert summary.turns == length


def test_an_extract_keeps_to_its_room_and_its_share():
    for room in (60, 200, 1_000):
        kept = book(ConversationSummarizer, model(fails))
        write(kept, building(20), room=room)
        (summary,) = ready(kept, building(20))
        assert tokens(summary.text) <= min(room, 0.35 * 20 * 60)


def test_chats_that_begin_alike_do_not_push_each_other_out():
    chat = model()
    kept = book(ConversationSummarizer, chat)
    chats = [[*building(1), *building(9, first=20 * i)] for i in range(1, 40)]
    for of in chats:
        write(kept, of, room=ENOUGH)
    assert all(ready(kept, of) for of in chats)


def test_a_turn_larger_than_the_window_is_read_to_its_end():
    steps = [
        message
        for i in range(30)
        for message in (
            call("look", f'{{"at": {i}}}', f"c{i}"),
            result(f"number {i + 20} " + "row " * 300, f"c{i}"),
        )
    ]
    chat = [
        user("Please look at all the places. " * 10),
        *steps,
        answer("The places are in order, number 3."),
    ]
    asked = model()
    kept = book(ConversationSummarizer, asked, window=2_048)
    report = write(kept, chat, room=ENOUGH)
    assert (report.made, report.problem) == (1, "")
    assert 1 < len(asked.asked) <= 6
    assert ready(kept, chat)[0].covers == digests(chat)


def test_a_summary_that_a_larger_window_made_is_shortened_for_a_smaller_one():
    cache, small = InMemoryCache(), model()
    write(book(ConversationSummarizer, model(), cache, window=32_000), building(200), room=ENOUGH)
    assert tokens(ready(book(ConversationSummarizer, small, cache), building(200))[0].text) > 1_000
    report = write(book(ConversationSummarizer, small, cache, window=1_024), building(206), room=ENOUGH)
    assert report.problem == ""
    assert all(
        tokens(str(request)) + most < 1_024 for request, most in zip(small.asked, small.limits, strict=True)
    )


def test_a_failure_is_told_by_what_the_client_found():
    def gone(_messages):
        raise ModelFailed("gpt", "it answered 402, the account has no credit", 402)

    report = write(book(ConversationSummarizer, model(gone)), building(10))
    assert report.problem == "gpt: it answered 402, the account has no credit"


def test_segments_too_long_for_the_room_get_shorter_summaries_rather_than_none():
    kept = book(SegmentSummarizer, model())
    room = int(sum(tokens(message["content"]) for message in building(16)) * 0.3 / 2.5)
    write(kept, building(16), room=room)
    summaries = ready(kept, building(16))
    assert [summary.turns for summary in summaries] == [8, 8]
    assert sum(tokens(summary.text) for summary in summaries) <= room
