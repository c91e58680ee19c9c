"""Runs as log lines: in numbers and codes, on stderr, without a word of anybody's messages."""

import asyncio
import io
import json
import logging
import subprocess
import sys

import pytest
import structlog

from eunoe import Capture, ContextOrchestrator, Conversation, Request, TokenBudget, Usage
from eunoe.errors import BadSetting, PlanBroken
from eunoe.events import EventKind, LostBody, OutletBody, new_event
from eunoe.failure import ProblemLog, report_failure
from eunoe.observability import LogSink, configure_logging
from eunoe.ports import ListSink, NoSink

SECRET = "the harbor code is MAGPIE"
SECRET_TAG = "magpie-tag"


@pytest.fixture(autouse=True)
def _logger_as_it_was():
    logger = logging.getLogger("eunoe")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def lines_of(handler):
    return [json.loads(line) for line in handler.stream.getvalue().splitlines()]


def output():
    return logging.StreamHandler(io.StringIO())


def secret_chat():
    filler = f"{SECRET} and the river turns slowly past the mill. " * 20
    messages = [{"role": "system", "content": f"Be brief. {SECRET}"}]
    for i in range(8):
        messages += [
            {"role": "user", "content": f"!tag={SECRET_TAG} Question {i}. {filler}"},
            {"role": "assistant", "content": f"Answer {i}. {filler}"},
        ]
    messages.append({"role": f"critic of {SECRET}", "content": SECRET})
    call = {"id": "c1", "type": "function", "function": {"name": "magpie_tool", "arguments": "{}"}}
    messages += [
        {"role": "user", "content": f"!keep_tag={SECRET_TAG},target=oops And then? {SECRET}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": SECRET},
    ]
    return messages


def run(sink, **request):
    """A run with its plan, its usage and its end; gives the request."""
    orchestrator = ContextOrchestrator(TokenBudget(900), sink=sink, capture=Capture.FULL)
    about = Request(model="gpt-test", host="middleware", chat_id="chat-1", **request)
    asyncio.run(orchestrator.process(Conversation.from_openai_messages(secret_chat()), about))
    orchestrator.note_usage(about, Usage(800, 40))
    orchestrator.settle(about, [Usage(800, 40)], 1.5)
    return about


def test_a_run_is_logged_in_numbers_and_codes():
    handler = output()
    configure_logging("INFO", handlers=[handler])
    about = run(LogSink())
    start, plan, outlet = lines_of(handler)
    assert [line["event"] for line in (start, plan, outlet)] == [
        "pipeline.start",
        "pipeline.plan",
        "pipeline.outlet",
    ]
    for line in (start, plan, outlet):
        assert line["run_id"] == about.run_id
        assert (line["host"], line["model"], line["chat_id"]) == ("middleware", "gpt-test", "chat-1")
        assert (line["level"], line["logger"]) == ("info", "eunoe.runs")
        assert line["timestamp"].endswith("+00:00")
    assert plan["limit"] == 900
    assert plan["tokens_after"] <= 900 < plan["tokens_before"]
    assert sum(plan["fates"].values()) == len(secret_chat())
    assert plan["flags"] == ["keep_tag"]
    assert "decisions" not in plan
    assert (outlet["prompt_tokens"], outlet["elapsed_ms"]) == (800, 1.5)


def test_at_debug_a_line_says_what_became_of_each_message():
    handler = output()
    configure_logging("DEBUG", handlers=[handler])
    run(LogSink())
    lines = lines_of(handler)
    assert [line["event"] for line in lines if line["level"] == "debug"] == ["pipeline.usage"]
    decisions = lines[1]["decisions"]
    assert len(decisions) == len(secret_chat())
    assert {d["role"] for d in decisions} == {"system", "user", "assistant", "tool", "other"}
    assert {"key", "position", "fate", "reason", "weight", "tokens_before"} <= decisions[0].keys()


@pytest.mark.parametrize("fmt", ["json", "console"])
@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_no_line_holds_a_word_of_a_message_even_where_all_text_is_captured(fmt, level):
    handler, plain = output(), output()
    plain.setFormatter(logging.Formatter("%(message)s"))
    sink = ListSink()
    configure_logging(level, fmt, [handler, plain])
    run(LogSink(sink))
    assert SECRET in json.dumps([e.data for e in sink.events])  # the events themselves do
    written = handler.stream.getvalue() + plain.stream.getvalue()
    assert "pipeline.plan" in written
    assert "magpie" not in written.lower()


def test_a_handler_with_a_formatter_keeps_it():
    handler = output()
    handler.setFormatter(logging.Formatter("mine: %(message)s"))
    configure_logging(handlers=[handler])
    run(LogSink())
    first, plan, _ = handler.stream.getvalue().splitlines()
    assert first.startswith("mine: pipeline.start run_id=")
    assert " limit=900 " in plan


def test_other_lines_of_eunoe_are_written_in_the_same_form():
    handler = output()
    configure_logging(handlers=[handler])
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logging.getLogger("eunoe").exception("eunoe: %s", "an old line")
    (line,) = lines_of(handler)
    assert (line["event"], line["level"]) == ("eunoe: an old line", "error")
    assert line["exception"].startswith("Traceback")


def test_a_second_call_replaces_the_first_and_nothing_is_written_twice():
    old, new = output(), output()
    old.setFormatter(logging.Formatter("%(message)s"))
    configure_logging(handlers=[old])
    for _ in range(2):
        configure_logging("INFO", "json", [new])
    run(LogSink())
    assert old.stream.getvalue() == ""
    assert len(lines_of(new)) == 3


def test_a_handler_may_change_its_format():
    handler = output()
    configure_logging("INFO", "json", [handler])
    configure_logging("INFO", "console", [handler])
    run(LogSink())
    assert not handler.stream.getvalue().startswith("{")


def test_root_logger_and_structlog_of_the_host_stay_as_they_are():
    root, host = logging.getLogger(), output()
    before = root.handlers[:], root.level, structlog.is_configured()
    root.addHandler(host)
    try:
        configure_logging("DEBUG", handlers=[output()])
        run(LogSink())
        assert host.stream.getvalue() == ""  # each line is written once
    finally:
        root.removeHandler(host)
    assert (root.handlers[:], root.level, structlog.is_configured()) == before


def test_without_configuration_the_hosts_own_logging_gets_the_lines(caplog):
    caplog.set_level("INFO")
    run(LogSink())
    assert [record.getMessage().split()[0] for record in caplog.records] == [
        "pipeline.start",
        "pipeline.plan",
        "pipeline.outlet",
    ]


PROGRAM = """
import asyncio, sys
if {without}:
    sys.modules["structlog"] = None
from eunoe import ContextOrchestrator, Conversation, Request
from eunoe.observability import LogSink, configure_logging
for _ in range(2):
    configure_logging("DEBUG", "{fmt}")
chat = Conversation.from_openai_messages([{{"role": "user", "content": "Bonjour, MAGPIE"}}])
asyncio.run(ContextOrchestrator(sink=LogSink()).process(chat, Request(model="m", run_id="r")))
"""


def program(fmt, *, without):
    code = PROGRAM.format(fmt=fmt, without=without)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""  # stdout is the program's own
    assert "MAGPIE" not in done.stderr
    return done.stderr.splitlines()


def test_lines_are_the_same_with_and_without_structlog():
    def steady(line):
        known = json.loads(line)
        for field in ("timestamp", "elapsed_ms"):
            known.pop(field, None)
        return known

    with_it, without_it = program("json", without=False), program("json", without=True)
    assert [steady(line) for line in with_it] == [steady(line) for line in without_it]
    assert [json.loads(line)["event"] for line in with_it] == ["pipeline.start", "pipeline.plan"]


@pytest.mark.parametrize("without", [False, True])
def test_the_console_format_is_for_people(without):
    start, plan = program("console", without=without)
    assert "pipeline.start" in start
    assert "info" in start
    assert "run_id=r" in plan
    assert not plan.startswith("{")


@pytest.mark.parametrize(("arguments", "setting"), [({"level": "LOUD"}, "level"), ({"fmt": "xml"}, "fmt")])
def test_an_unknown_level_or_format_is_refused_and_nothing_changes(arguments, setting):
    before = logging.getLogger("eunoe").handlers[:]
    with pytest.raises(BadSetting, match=setting):
        configure_logging(**arguments)
    assert logging.getLogger("eunoe").handlers == before


class Broken(logging.Handler):
    def emit(self, record):
        raise OSError("the disk is full")


def test_a_broken_handler_costs_lines_that_are_counted_and_nothing_else():
    configure_logging(handlers=[Broken()])
    following = ListSink()
    sink = LogSink(following)
    run(sink)
    assert sink.lost == 3
    assert len(following.events) == 4


def test_lost_events_and_failures_have_their_level():
    handler = output()
    configure_logging(handlers=[handler])
    sink = LogSink()
    sink.send(new_event(EventKind.LOST, "r", LostBody(events=3, reason="the observer was away too long")))
    sink.send(new_event(EventKind.OUTLET, "r", OutletBody(calls=1, title="MAGPIE")))
    lost, outlet = lines_of(handler)
    assert (lost["level"], lost["events"], lost["reason"]) == ("warning", 3, "the observer was away too long")
    assert outlet.keys() == {"event", "level", "timestamp", "logger", "run_id", "calls"}


def failure(error):
    try:
        raise error  # noqa: TRY301  only then has it a traceback
    except Exception as caught:  # noqa: BLE001
        return caught


def test_a_failure_is_logged_once_and_sent_without_the_text_of_others():
    handler = output()
    configure_logging(handlers=[handler])
    for sink in (LogSink(), NoSink()):
        report_failure(failure(ValueError(SECRET)), "plan", Request(run_id="r", model="m"), sink)
    logged, plain = lines_of(handler)
    assert (logged["event"], logged["level"], logged["error"]) == ("pipeline.failed", "error", "ValueError")
    assert logged["places"][-1].endswith("in failure")
    assert plain["event"].startswith("eunoe: plan failed, the chat goes on as it was: ValueError at ")
    assert SECRET not in handler.stream.getvalue()


def test_a_failure_of_ours_says_what_it_is():
    sink = ListSink()
    report_failure(failure(PlanBroken(["the turn of message 3 is torn"])), "plan", Request(run_id="r"), sink)
    (event,) = sink.events
    assert event.event is EventKind.FAILED
    assert event.data["error"] == "PlanBroken: the turn of message 3 is torn"


def test_a_failure_that_cannot_be_sent_is_only_logged(caplog):
    class Dead:
        def send(self, event):
            raise OSError(SECRET)

    report_failure(failure(ValueError()), "plan", Request(), Dead())
    assert [r.getMessage().split(":")[1] for r in caplog.records][-1] == " the failure could not be reported"
    assert SECRET not in caplog.text


def test_a_lasting_problem_is_said_once_and_again_when_it_comes_back(caplog):
    log = ProblemLog()
    for problem in ("no file", "no file", "no list", "", "no list"):
        log.tell("prices", problem)
    log.tell("summaries", "no file")
    assert [r.getMessage() for r in caplog.records] == [
        "eunoe: no file",
        "eunoe: no list",
        "eunoe: no list",
        "eunoe: no file",
    ]
