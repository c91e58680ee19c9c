"""Relevance by a model that puts each message into one of five classes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..cache.keys import cache_key
from ..cache.memory import InMemoryCache
from ..conversation import Conversation, Message, RawMessage
from ..endpoint import OpenAIChatModel
from ..errors import AnswerRefused, BadSetting, ModelFailed
from ..ports import CacheBackend, ChatModel, ChatReply, Clock, SystemClock, WeightingStrategy
from ..tokens import counter_for
from ..usage import Usage
from .label_prompt import PROMPT_VERSION, label_request, question_frame
from .label_task import LEFT_UNLABELED, LabelTask, label_task, read_known, write_known
from .label_windows import TOKENS_PER_LABEL, LabelWindow, label_room
from .labels import LABEL_WEIGHTS, read_labels
from .smart import SmartWeightingStrategy
from .topic_dialog import MOST_TOPIC_ROUNDS, choose_topics
from .topics import MOST_TOPICS, topic_clusters

logger = logging.getLogger("eunoe")

LEAST_LABEL_WINDOW = 1_024  # less than this has no room for instructions, a question and a few messages

_UNOPENED_LABEL = "S"  # the label of a topic that the model left closed without a word
_OVERVIEW_TOKENS = 60  # of each topic
# After a turn that waited in vain, the next ones do not: a tool loop would wait again in each round.
_LABEL_PAUSE_SECONDS = 60.0

_NONE_LABELED = "The model that labels messages gave no usable answer; they were weighed without it."
_SOME_LABELED = "The model that labels messages labeled only some; the others were weighed without it."


@dataclass(slots=True)
class _LabelRun:
    """What one weighing has asked its model and learned from it."""

    calls_left: int
    usages: list[Usage]
    labels: dict[str, str] = field(default_factory=dict)  # by name
    failure: ModelFailed | AnswerRefused | None = None
    answered: bool = False


class LLMContextAnalyzer:
    """Scores messages by labels that a model gives them for the question at hand.

    K keep 1.00, H helpful 0.75, M maybe 0.50, S skip 0.25, D drop 0.05. What has no label keeps its score
    from `fallback`, which needs no model. Labels are kept in `cache` for `ttl` seconds by question, message
    and scope. One weighing takes at most `max_calls` calls, `max_parallel` at once, and `max_seconds`.

    With `use_entry_logic`, a chat that does not fit one call is first shown as a list of topics, and only
    those that the model opens are labeled message by message, besides the newest messages.

    `context` may hold `scope`, whose chat it is; `usages`, a list to which each call's `Usage` is added, an
    empty one for a call that was given up; and `notices`, a list that gets a sentence if the model fails.
    """

    def __init__(
        self,
        api_base: str = "",
        api_key: str = "",
        model: str = "",
        *,
        chat: ChatModel | None = None,
        cache: CacheBackend | None = None,
        use_entry_logic: bool = False,
        window_tokens: int = 8_192,
        ttl: int = 1_800,
        max_calls: int = 8,
        max_seconds: float = 20.0,
        max_parallel: int = 4,
        fallback: WeightingStrategy | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Take a chat model, or make one of an OpenAI-compatible address.

        Raises:
            BadSetting: there is neither, or a bound is too small.
        """
        if chat is None and not api_base:
            raise BadSetting("api_base", "there is no model to ask", "Give an address, or `chat`.")
        _require_label_bound("window_tokens", window_tokens, LEAST_LABEL_WINDOW)
        _require_label_bound("max_calls", max_calls, 1)
        _require_label_bound("max_parallel", max_parallel, 1)
        self._chat: ChatModel = chat or OpenAIChatModel(api_base, api_key, model)
        self._cache: CacheBackend = cache or InMemoryCache()
        self._use_entry_logic, self._room, self._ttl = use_entry_logic, label_room(window_tokens), ttl
        self._max_calls, self._max_seconds, self._max_parallel = max_calls, max_seconds, max_parallel
        self._fallback: WeightingStrategy = fallback or SmartWeightingStrategy()
        self._clock: Clock = clock or SystemClock()
        self._paused_until: float | None = None
        self._is_failing = False

    async def score(
        self,
        messages: Sequence[Message],
        query: str,
        conversation: Conversation,
        context: Mapping[str, Any] | None = None,
    ) -> Mapping[str, float]:
        """Give each message the weight of its label, or its score from the fallback; 1 to the question.

        Never raises because of the model.
        """
        context = context or {}
        scores = dict(await self._fallback.score(messages, query, conversation, context))
        if query.strip():
            for name, label in (await self._labels(messages, query, conversation, context)).items():
                scores[name] = LABEL_WEIGHTS[label]
        question = conversation.question
        if question is not None and any(message.id == question.id for message in messages):
            scores[question.id] = 1.0
        return scores

    def name(self) -> str:
        """Name the strategy."""
        return "llm_analyzer"

    async def _labels(
        self,
        messages: Sequence[Message],
        query: str,
        conversation: Conversation,
        context: Mapping[str, Any],
    ) -> dict[str, str]:
        """Give labels by message id: those in the cache, and those the model gives to the rest."""
        task = await asyncio.to_thread(self._task, messages, query, conversation)
        scope = str(context.get("scope") or "")
        key = cache_key("labels", scope, PROMPT_VERSION, self._chat.name(), task.asked_digest)
        known = await asyncio.to_thread(read_known, await self._cache.get(key))
        missing = await asyncio.to_thread(task.missing, known)
        if missing and (new := await self._new_labels(task, missing, context)):
            known |= new
            await self._cache.set(key, await asyncio.to_thread(write_known, known), self._ttl)
        return await asyncio.to_thread(task.labels_by_id, known)

    def _task(self, messages: Sequence[Message], query: str, conversation: Conversation) -> LabelTask:
        return label_task(messages, query, conversation, self._room, counter_for(self._chat.name()))

    async def _new_labels(
        self, task: LabelTask, missing: Sequence[Message], context: Mapping[str, Any]
    ) -> dict[str, str]:
        """Ask the model, within the time there is, and say so if it fails."""
        usages, notices = context.get("usages"), context.get("notices")
        run = _LabelRun(self._max_calls, usages if isinstance(usages, list) else [])
        if self._paused_until is None or self._clock.seconds() >= self._paused_until:
            await self._ask_within_time(task, missing, run)
            self._note_state(run)
        if isinstance(notices, list) and (run.failure or not run.labels):
            notices.append(_SOME_LABELED if run.labels else _NONE_LABELED)
        return run.labels

    async def _ask_within_time(self, task: LabelTask, missing: Sequence[Message], run: _LabelRun) -> None:
        self._paused_until = None
        try:
            async with asyncio.timeout(self._max_seconds):
                await self._label_all(task, missing, run)
        except TimeoutError:
            problem = f"no answer within {self._max_seconds:g} s"
            run.failure = ModelFailed(self._chat.name(), problem, passing=True)
            if not run.answered:
                self._paused_until = self._clock.seconds() + _LABEL_PAUSE_SECONDS

    def _note_state(self, run: _LabelRun) -> None:
        """Write one line when labeling stops working, and one when it works again."""
        if run.failure and not self._is_failing:
            logger.warning("Messages are weighed without labels: %s", run.failure)
        elif self._is_failing and not run.failure:
            logger.info("Messages are labeled again by %s", self._chat.name())
        self._is_failing = run.failure is not None

    async def _label_all(self, task: LabelTask, missing: Sequence[Message], run: _LabelRun) -> None:
        windows = await asyncio.to_thread(task.windows, missing, run.calls_left + 1)
        if self._use_entry_logic and len(windows) > 1 and run.calls_left > 1:
            missing = await self._opened(task, missing, windows[0], run)
            windows = await asyncio.to_thread(task.windows, missing, run.calls_left)
        gate = asyncio.Semaphore(self._max_parallel)
        windows = windows[: run.calls_left]
        async with asyncio.TaskGroup() as group:
            for window in windows:
                group.create_task(self._label(task, window, run, gate))
        if run.labels and not run.failure:
            asked = {message.id for window in windows for message in window.messages}
            run.labels |= {task.names[m.id]: LEFT_UNLABELED for m in missing if m.id not in asked}

    async def _label(
        self, task: LabelTask, window: LabelWindow, run: _LabelRun, gate: asyncio.Semaphore
    ) -> None:
        """Label one window; a failure is noted, and where there is no answer the windows behind it are left."""
        async with gate:
            if isinstance(run.failure, ModelFailed):
                return
            try:
                labels = await self._answered(task, window, run)
            except ModelFailed as error:
                run.failure = error
                return
            except AnswerRefused as error:
                run.failure = run.failure or error
                return
        run.labels |= {
            task.names[message.id]: label or LEFT_UNLABELED
            for message, label in zip(window.messages, labels, strict=True)
        }

    async def _answered(self, task: LabelTask, window: LabelWindow, run: _LabelRun) -> list[str | None]:
        """Ask for the labels of a window.

        Raises:
            ModelFailed: there is no answer.
            AnswerRefused: it has no labels.
        """
        count = len(window.messages)
        request = label_request(task.question, task.before, window.lines)
        reply = await self._ask(run, request, self._room.spare + TOKENS_PER_LABEL * count)
        labels = await asyncio.to_thread(read_labels, reply.text, count)
        if not any(labels):
            raise AnswerRefused(self._chat.name(), "no labels")
        return labels

    async def _opened(
        self, task: LabelTask, missing: Sequence[Message], newest: LabelWindow, run: _LabelRun
    ) -> Sequence[Message]:
        """Let the model choose topics; give the messages that are labeled one by one, and label the others.

        Without a usable choice all are labeled one by one, as far as calls go.
        """
        certain = {message.id for message in newest.messages}
        older = [message for message in missing if message.id not in certain]
        room = await asyncio.to_thread(task.tokens_of_lines) // 2
        most = max(2, min(MOST_TOPICS, room // _OVERVIEW_TOKENS))
        clusters = await asyncio.to_thread(topic_clusters, older, most)

        async def ask(
            request: list[RawMessage], max_tokens: int, tools: Sequence[Mapping[str, Any]]
        ) -> ChatReply:
            return await self._ask(run, request, max_tokens, tools)

        try:
            choice = await choose_topics(
                clusters,
                question_frame(task.question, task.before),
                ask,
                task.counter,
                room=room,
                spare=self._room.spare,
                rounds=min(MOST_TOPIC_ROUNDS, run.calls_left - 1),
            )
        except ModelFailed as error:
            run.failure = error
            return missing
        if not choice.understood:
            return missing
        for cluster in clusters:
            if cluster.number in choice.opened:
                certain |= {message.id for message in cluster.messages}
            else:
                label = choice.labels.get(cluster.number, _UNOPENED_LABEL)
                run.labels |= {task.names[message.id]: label for message in cluster.messages}
        return [message for message in missing if message.id in certain]

    async def _ask(
        self,
        run: _LabelRun,
        request: list[RawMessage],
        max_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> ChatReply:
        """Make one call and note what it took."""
        run.calls_left -= 1
        try:
            reply = await self._chat.complete(request, max_tokens=max_tokens, tools=tools)
            run.usages.append(reply.usage)
            run.answered = True
            return replace(reply, text=reply.text or "", tool_calls=reply.tool_calls or ())
        except asyncio.CancelledError:
            run.usages.append(Usage())  # it may be billed all the same, and nobody can say how much
            raise
        except ModelFailed:
            raise
        except Exception as error:  # a model is somebody else's code, and a turn must outlive it
            raise ModelFailed(self._chat.name(), type(error).__name__) from error


def _require_label_bound(field_name: str, value: int, least: int) -> None:
    if value < least:
        raise BadSetting(field_name, f"{value} is too small", f"Give at least {least}.")
