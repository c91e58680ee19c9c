"""Messages of the real `langchain-core`, trimmed in a chain before a chat model."""

import asyncio
import base64
import contextvars
import subprocess
import sys
import time
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from eunoe import ContextOrchestrator, Settings, TokenBudget
from eunoe.cache import InMemoryCache
from eunoe.events import EventKind
from eunoe.ports import ListSink
from eunoe.summarizers import ConversationSummarizer, LLMSummarizer
from eunoe_hosts.langchain_adapter import MessageTrimmer, content_of, raw_of
from tests.engine.scripted import ScriptedServer, chat_answer

FILLER = "lorem ipsum dolor sit amet " * 8
LARK = "The code word is LARK."
SUMMARY = "They spoke of the river, the mill and the bridge."


def chat(turns=15):
    messages = [SystemMessage("Be brief.", id="s")]
    for i in range(turns):
        messages += [
            HumanMessage(f"Question {i}. {FILLER}", id=f"h{i}", name="ada"),
            AIMessage(f"Answer {i}. {FILLER}", id=f"a{i}", response_metadata={"model": "m"}),
        ]
    return [*messages, HumanMessage("And then?", id="last")]


def trimmer(max_tokens=900, sink=None, **options):
    return MessageTrimmer(ContextOrchestrator(TokenBudget(max_tokens), sink=sink), **options)


@pytest.fixture(params=["sync", "async"])
def trim(request):
    """A way to call a trimmer."""
    if request.param == "sync":
        return lambda runnable, given, config=None, **options: runnable.invoke(given, config, **options)
    return lambda runnable, given, config=None, **options: asyncio.run(
        runnable.ainvoke(given, config, **options)
    )


class Listener(BaseChatModel):
    """A chat model that keeps what it was given."""

    heard: list[Any] = []  # noqa: RUF012  pydantic makes a copy for each

    @property
    def _llm_type(self):
        return "listener"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        self.heard.append(messages)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("Yes."))])


def exchange(name="look", id_="c1", result="Found it.", **fields):
    call = AIMessage("", tool_calls=[{"name": name, "args": {"q": "rain"}, "id": id_}], **fields)
    return [call, ToolMessage(result, tool_call_id=id_, artifact={"rows": 3}, id=f"t-{id_}")]


def test_kept_messages_are_the_very_objects_that_came(trim):
    whole, sink = chat(), ListSink()
    sent = trim(trimmer(sink=sink, model="gpt-test"), whole)
    assert 2 < len(sent) < len(whole)
    assert all(any(message is given for given in whole) for message in sent)
    assert (sent[0], sent[-1]) == (whole[0], whole[-1])
    (plan,) = [event for event in sink.events if event.event == EventKind.PLAN]
    assert plan.data["tokens_after"] <= 900
    assert (plan.host, plan.model) == ("langchain", "gpt-test")


def test_a_short_chat_stays_as_it_is(trim):
    whole = chat(1)
    assert [id(message) for message in trim(trimmer(), whole)] == [id(message) for message in whole]


def test_it_stands_before_a_model_in_a_chain(trim):
    model = Listener()
    assert trim(trimmer() | model, chat()).content == "Yes."
    assert 2 < len(model.heard[0]) < len(chat())


def test_it_takes_whatever_a_chat_model_takes(trim):
    one = trimmer()
    assert trim(one, "Hello?") == [HumanMessage("Hello?")]
    assert trim(one, HumanMessage("Hello?")) == [HumanMessage("Hello?")]
    assert trim(one, [("system", "Be brief."), {"role": "user", "content": "Hello?"}]) == [
        SystemMessage("Be brief."),
        HumanMessage("Hello?"),
    ]
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("placeholder", "{history}")])
    model = Listener()
    trim(prompt | one | model, {"history": chat()[1:]})
    assert len(model.heard[0]) < len(chat())
    assert model.heard[0][-1].content == "And then?"


def test_several_chats_and_streams():
    one = trimmer()
    short, long = one.batch([chat(1), chat()])
    assert len(short) == 4
    assert len(short) < len(long) < len(chat())
    assert list(one.stream(chat(1))) == [chat(1)]


def test_tool_calls_stay_with_their_results(trim):
    whole = [*chat(8), *exchange(id="call"), HumanMessage("So?")]
    sent = trim(trimmer(500), whole)
    assert sent[-3:] == whole[-3:]
    assert all(message is given for message, given in zip(sent[-3:], whole[-3:], strict=True))


def test_a_shortened_result_is_a_copy_with_all_else_it_had(trim):
    long = "\n".join(f"row {i}: the river turns past the mill" for i in range(300))
    whole = [HumanMessage("Look."), *exchange(result=long), HumanMessage("So?")]
    sent = trim(trimmer(400), whole)
    result = next(message for message in sent if isinstance(message, ToolMessage))
    before = whole[2]
    assert result is not before
    assert len(result.content) < len(before.content) == len(long)
    assert result.content.startswith("row 0:")
    assert result == before.model_copy(update={"content": result.content})
    assert type(result) is ToolMessage


def test_shortened_arguments_stay_arguments(trim):
    text = "word " * 3000
    parts = [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "c1", "name": "write", "input": {"text": text}},
    ]
    call = AIMessage(
        parts, tool_calls=[{"name": "write", "args": {"text": text}, "id": "c1"}], id="call", name="bot"
    )
    whole = [HumanMessage("Write."), call, ToolMessage("Done.", tool_call_id="c1")]
    sent = trim(trimmer(300), whole)
    assert len(sent) == 3
    short = sent[1]
    assert (type(short), short.id, short.name) == (AIMessage, "call", "bot")
    (left,) = short.tool_calls
    assert (left["id"], left["name"]) == ("c1", "write")
    assert 0 < len(left["args"]["text"]) < 1500
    assert short.content[0] is call.content[0]
    assert short.content[1] == {"type": "tool_use", "id": "c1", "name": "write", "input": left["args"]}
    assert call.tool_calls[0]["args"]["text"] == text


@pytest.mark.parametrize("kind", [AIMessage, AIMessageChunk])
def test_a_call_without_its_result_is_taken_out_wherever_it_stands(trim, kind):
    calls = [{"name": "look", "args": {"q": i}, "id": i} for i in ("c1", "c2")]
    raw = {"tool_calls": [{"id": "c1"}, {"id": "c2"}], "trace": "kept"}
    parts = ["Looking.", *({"type": "tool_use", "id": c["id"], "name": "look", "input": {}} for c in calls)]
    call = kind(parts, tool_calls=calls, additional_kwargs=raw, id="call")
    whole = [HumanMessage("Look."), call, ToolMessage("Found.", tool_call_id="c1"), HumanMessage("So?")]
    sent = trim(trimmer(), whole)
    assert type(sent[1]) is kind
    assert [c["id"] for c in sent[1].tool_calls] == ["c1"]
    assert [part if isinstance(part, str) else part["id"] for part in sent[1].content] == ["Looking.", "c1"]
    assert sent[1].additional_kwargs == {"trace": "kept"}
    assert call.additional_kwargs == raw
    alone = trim(trimmer(), [HumanMessage("Look."), call, HumanMessage("So?")])
    assert (alone[1].tool_calls, alone[1].content) == ([], ["Looking."])


def test_a_call_whose_arguments_are_no_json_keeps_its_result(trim):
    bad = {"name": "look", "args": '{"q": ', "id": "c1", "error": None, "type": "invalid_tool_call"}
    whole = [
        HumanMessage("Look."),
        AIMessage("", invalid_tool_calls=[bad]),
        ToolMessage("No JSON.", tool_call_id="c1"),
    ]
    sent = trim(trimmer(), whole)
    assert [id(message) for message in sent] == [id(message) for message in whole]


def test_images_and_sounds_come_through_and_are_counted(trim):
    data = base64.b64encode(b"x" * 320_000).decode()
    image = {"type": "image", "base64": data, "mime_type": "image/png"}
    sound = {"type": "audio", "base64": data, "mime_type": "audio/wav"}
    words = {"type": "text", "text": "!recent=1 What is this?"}
    whole = [*chat(2), HumanMessage([words, image, sound], id="seen")]
    sink = ListSink()
    sent = trim(trimmer(5000, sink), whole)
    assert sent[-1].content == [{"type": "text", "text": "What is this?"}, image, sound]
    assert all(new is old for new, old in zip(sent[-1].content[1:], whole[-1].content[1:], strict=True))
    assert (sent[-1].id, whole[-1].content[0]) == ("seen", words)
    plan = next(event.data for event in sink.events if event.event == EventKind.PLAN)
    decision = plan["decisions"][-1]
    assert 765 + 200 < decision["tokens_before"] < 765 + 200 + 30


def test_old_reasoning_may_go_and_all_else_stays(trim):
    thought = AIMessage(
        "Answer.", additional_kwargs={"reasoning_content": "hm " * 900, "trace": 1}, id="thought"
    )
    whole = [HumanMessage("Question."), thought, HumanMessage("And then?")]
    sent = trim(trimmer(200), whole)
    assert sent[1] == thought.model_copy(update={"additional_kwargs": {"trace": 1}})
    assert "reasoning_content" in thought.additional_kwargs


def test_roles_and_parts_have_their_openai_form():
    calls = [{"name": "look", "args": {"q": "é"}, "id": "c1"}]
    block = {"type": "tool_call", "id": "c1", "name": "look", "args": {"q": "é"}}
    told = [
        SystemMessage("S", additional_kwargs={"__openai_role__": "developer"}),
        ChatMessage("C", role="critic"),
        FunctionMessage("F", name="old"),
        AIMessage([{"type": "text", "text": "T"}, block], tool_calls=calls),
        AIMessage("", additional_kwargs={"function_call": {"name": "old", "arguments": "{}"}}),
    ]
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q": "é"}'}}
    assert [raw_of(message) for message in told] == [
        {"role": "developer", "content": "S"},
        {"role": "critic", "content": "C"},
        {"role": "function", "content": "F", "name": "old"},
        {"role": "assistant", "content": [{"type": "text", "text": "T"}], "tool_calls": [call]},
        {"role": "assistant", "content": "", "function_call": {"name": "old", "arguments": "{}"}},
    ]
    video = {"type": "video", "base64": "AAAA", "mime_type": "video/mp4"}
    assert content_of(HumanMessage([video])) == [{"type": "file", "data": "AAAA"}]


def test_tools_take_their_part_of_the_budget(trim):
    @tool
    def look(question: str) -> str:
        """Find what is asked for."""
        return question

    look.description = "find " * 200
    plain, sink = trim(trimmer(), chat()), ListSink()
    bound = trimmer(sink=sink, tools=[look])
    assert len(trim(bound, chat())) < len(plain)
    assert len(trim(trimmer().bind(tools=[look]), chat())) == len(trim(bound, chat()))
    assert sink.events[1].data["tokens_tools"] > 200


def test_chats_and_users_are_told_apart_by_the_config(trim):
    sink = ListSink()
    config = {"configurable": {"thread_id": "t-1", "user_id": "u-1"}}
    chain = trimmer(sink=sink) | Listener()
    trim(chain, chat(1), config)
    assert {(event.chat_id, event.user) for event in sink.events} == {("t-1", "u-1")}


def test_the_window_bounds_a_prompt(trim):
    sink = ListSink()
    trim(trimmer(0, sink, settings=Settings(context_window=1000, reply_reserve=200)), chat())
    assert (sink.events[1].data["limit"], sink.events[1].data["limit_source"]) == (800, "window")


def test_a_failure_of_ours_costs_the_trimming_and_never_the_answer(trim, caplog):
    class Broken(ContextOrchestrator):
        async def process(self, *args):
            raise ZeroDivisionError(LARK)

    sink, model, whole = ListSink(), Listener(), chat()
    assert trim(MessageTrimmer(Broken(sink=sink)) | model, whole).content == "Yes."
    assert [id(message) for message in model.heard[0]] == [id(message) for message in whole]
    (failed,) = sink.events
    assert (failed.event, failed.data["stage"], failed.data["error"]) == (
        EventKind.FAILED,
        "plan",
        "ZeroDivisionError",
    )
    assert [record.levelname for record in caplog.records if record.name == "eunoe"] == ["ERROR"]
    assert "LARK" not in caplog.text


def test_it_works_inside_a_running_event_loop():
    async def inside():
        return trimmer().invoke(chat()), await trimmer().ainvoke(chat())

    first, second = asyncio.run(inside())
    assert first == second
    assert len(first) < len(chat())


def test_context_variables_reach_what_is_plugged_in():
    who = contextvars.ContextVar("who", default="nobody")
    seen = []

    class Asking(ContextOrchestrator):
        async def process(self, *args):
            seen.append(who.get())
            return await super().process(*args)

    who.set("ada")
    MessageTrimmer(Asking()).invoke("Hello?")
    assert seen == ["ada"]


def test_callbacks_see_it_as_a_step_of_the_chain(trim):
    class Watcher(BaseCallbackHandler):
        names: list[str] = []  # noqa: RUF012

        def on_chain_start(self, serialized, inputs, **kwargs):
            self.names.append(kwargs.get("name"))

    watcher = Watcher()
    chain = RunnableLambda(lambda given: given) | trimmer(name="trim") | Listener()
    trim(chain, chat(1), {"callbacks": [watcher]})
    assert "trim" in watcher.names


def test_a_summary_of_dropped_turns_is_sent_with_the_next_call(trim):
    with ScriptedServer(chat_answer(SUMMARY)) as server:
        book = ConversationSummarizer(LLMSummarizer(server.url, model="helper"), InMemoryCache())
        one = MessageTrimmer(ContextOrchestrator(TokenBudget(900), summaries=book))
        trim(one, chat())
        deadline = time.monotonic() + 15
        while SUMMARY not in str(sent := trim(one, chat())):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    told = next(i for i, message in enumerate(sent) if SUMMARY in str(message.content))
    assert [type(message) for message in sent[told : told + 2]] == [HumanMessage, AIMessage]


def test_without_langchain_it_says_what_to_install():
    program = "import sys; sys.modules['langchain_core'] = None\nimport eunoe_hosts.langchain_adapter"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        'ImportError: The LangChain adapter needs langchain-core: pip install "eunoe[langchain]"'
    )


def test_other_hosts_need_no_langchain():
    program = "import sys; import eunoe, eunoe_hosts.middleware\nprint([m for m in sys.modules if 'langchain' in m])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
