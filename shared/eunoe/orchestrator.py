"""The pipeline: read flags, repair, count, and where the bound asks for it weigh, choose and shorten."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .algorithms.dependency import DependencyAwareAlgorithm
from .algorithms.greedy import GreedyByWeightAlgorithm
from .algorithms.recency import RecencyBiasedAlgorithm
from .anchors import layout_of, place_anchors
from .bonds import turns_of
from .budget import Budget, TokenBudget, read_model_budgets, tokens_for
from .conversation import Conversation, Message
from .draft import Draft
from .events import Capture, EventKind, OutletBody, StartBody, UsageBody, new_event
from .job import Job, Request, prepare
from .plan import Plan
from .ports import (
    Clock,
    ConstraintSet,
    NoSink,
    SelectionAlgorithm,
    SelectionResult,
    Sink,
    SystemClock,
    WeightingStrategy,
)
from .pricing import cost_source, prompt_cost, with_cost
from .report import plan_body
from .selection import fill, finish, keep_all, refuse_duplicates, weigh
from .settings import Settings
from .tokens import counter_for
from .usage import Usage, add_usages
from .weighting.keyword import KeywordRelevanceStrategy
from .weighting.smart import SmartWeightingStrategy
from .weighting.static import StaticWeightStrategy


@dataclass(frozen=True, slots=True)
class OrchestratorResult:
    """What to send, and the plan that says why."""

    conversation: Conversation
    plan: Plan
    run_id: str
    token_count: int
    estimated_cost_usd: float | None = None  # None: no price is known


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a turn really took: `context_tokens` of its last call, the rest summed over all calls."""

    context_tokens: int | None
    billed: Usage  # with the cost by a price where the provider reported none
    calls: int
    cost_source: str | None = None  # None: the cost is not known


class ContextOrchestrator:
    """Decides what the model will see. Holds no state of a chat, so one may serve many at once."""

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        algorithm: SelectionAlgorithm | None = None,
        weighting: WeightingStrategy | None = None,
        constraints: ConstraintSet | None = None,
        model_budgets: Mapping[str, int] | None = None,
        sink: Sink | None = None,
        capture: Capture = Capture.PREVIEW,
        log_level: str = "DEBUG",
        clock: Clock | None = None,
    ) -> None:
        self.budget = budget or TokenBudget()
        self.algorithm = algorithm or RecencyBiasedAlgorithm()
        self.weighting = weighting or SmartWeightingStrategy()
        self.constraints = constraints or ConstraintSet()
        self.model_budgets = model_budgets or {}
        self.sink = sink or NoSink()
        self.capture, self.log_level = capture, log_level
        self.clock = clock or SystemClock()

    @classmethod
    def from_settings(cls, settings: Settings, sink: Sink | None = None) -> ContextOrchestrator:
        """Build one as the settings say."""
        return cls(
            TokenBudget(settings.max_tokens),
            algorithm=_algorithm_of(settings),
            weighting=_weighting_of(settings),
            model_budgets=read_model_budgets(settings.model_budgets),
            sink=sink,
            capture=Capture(settings.observer_content),
            log_level=settings.observer_log_level,
        )

    async def process(self, conversation: Conversation, request: Request | None = None) -> OrchestratorResult:
        """Choose what the model will see, and say why.

        Raises:
            EunoeError: the input is no conversation, or a plan broke one of its rules.
        """
        request = request or Request()
        started = self.clock.seconds()
        job, plan = await asyncio.to_thread(self._begin, conversation, request)
        if plan is None:
            scores = await self._scores(job)
            plan = await asyncio.to_thread(self._plan, job, scores)
        self._report(plan, request, len(conversation.messages), (self.clock.seconds() - started) * 1000)
        return OrchestratorResult(
            Conversation.from_openai_messages(plan.messages),
            plan,
            request.run_id,
            plan.tokens_after,
            prompt_cost(plan.tokens_after, request.price),
        )

    def note_usage(self, request: Request, usage: Usage) -> None:
        """Report what the provider said of one model call."""
        body = UsageBody(
            call=request.call,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cost_usd=usage.cost_usd,
        )
        self._send(EventKind.USAGE, request, body)

    def settle(
        self, request: Request, usages: Sequence[Usage], elapsed_ms: float | None = None
    ) -> Settlement:
        """Close a turn with what the provider reported for each of its model calls."""
        priced = [with_cost(usage, request.price) for usage in usages]
        billed = add_usages(priced)
        context = usages[-1].prompt_tokens if usages else None
        source = None if billed.cost_usd is None else cost_source(usages, request.price)
        body = OutletBody(
            calls=request.call,
            prompt_tokens=context,
            billed_prompt_tokens=billed.prompt_tokens,
            completion_tokens=billed.completion_tokens,
            cached_tokens=billed.cached_tokens,
            cost_usd=billed.cost_usd,
            cost_source=source,
            elapsed_ms=elapsed_ms,
        )
        self._send(EventKind.OUTLET, request, body)
        return Settlement(context, billed, request.call, source)

    async def _scores(self, job: Job) -> Mapping[str, float]:
        question = job.conversation.question
        query = job.request.question or (question.text if question else "")
        overrides = job.directives.turn
        return await self.weighting.score(job.kept, query, job.conversation, overrides)

    def _begin(self, conversation: Conversation, request: Request) -> tuple[Job, Plan | None]:
        """Make the request ready, and plan it at once where nothing has to go."""
        job = prepare(conversation, request, self._budget_for(request.model), counter_for(request.model))
        plan = None if job.must_choose else finish(job, keep_all(job), {}, {}, self._names()).verify()
        return job, plan

    def _plan(self, job: Job, scores: Mapping[str, float]) -> Plan:
        weighted = weigh(job, scores)
        draft = Draft(job.bound.tokens, job.overhead, job.counter)
        layout = layout_of([m for m in weighted if m.is_instruction], turns_of(weighted))
        refuse_duplicates(draft, layout)
        layout = replace(
            layout, instructions=tuple(m for m in layout.instructions if m.id not in draft.refused)
        )
        place_anchors(draft, layout, job.directives)
        choice = self._choose(job, weighted, draft)
        fill(draft, layout, choice)
        return finish(job, draft, scores, choice.recency, self._names()).verify()

    def _budget_for(self, model: str) -> Budget:
        tokens = tokens_for(model, self.model_budgets, self.budget.max_tokens)
        return self.budget if tokens == self.budget.max_tokens else replace(self.budget, max_tokens=tokens)

    def _names(self) -> tuple[str, str]:
        return self.algorithm.name(), self.weighting.name()

    def _choose(self, job: Job, weighted: Sequence[Message], draft: Draft) -> SelectionResult:
        placed = [
            m.counting(draft.places[m.id].tokens) if draft.has(m) else m
            for m in weighted
            if m.id not in draft.refused or m.id in draft.places
        ]
        if job.bound.tokens is None:
            return SelectionResult(frozenset(m.id for m in placed))
        budget = TokenBudget(max(1, job.bound.tokens - job.overhead))
        constraints = replace(self.constraints, keep=frozenset(draft.places), never=frozenset(draft.refused))
        return self.algorithm.select(Conversation(tuple(placed)), budget, constraints, job.counter)

    def _report(self, plan: Plan, request: Request, messages: int, elapsed_ms: float) -> None:
        if isinstance(self.sink, NoSink):
            return
        if request.call == 1:
            start = StartBody(
                messages=messages,
                algorithm=plan.algorithm,
                weighting=plan.weighting,
                max_tokens=self._budget_for(request.model).max_tokens,
                context_window=request.context_window,
                reply_reserve=plan.bound.reply_reserve,
            )
            self._send(EventKind.START, request, start)
        full = self.log_level == "DEBUG"
        body = plan_body(
            plan, call=request.call, elapsed_ms=elapsed_ms, capture=self.capture, with_decisions=full
        ).model_copy(
            update={
                "context_window": request.context_window,
                "estimated_cost_usd": prompt_cost(plan.tokens_after, request.price),
            }
        )
        self._send(EventKind.PLAN, request, body)

    def _send(self, kind: EventKind, request: Request, body: Any) -> None:
        if self.log_level != "WARNING":
            self.sink.send(new_event(kind, request.run_id, body, **request.envelope()))


def _algorithm_of(settings: Settings) -> SelectionAlgorithm:
    if settings.algorithm == "greedy_by_weight":
        return GreedyByWeightAlgorithm()
    recency = RecencyBiasedAlgorithm(settings.recency_factor)
    return recency if settings.algorithm == "recency_biased" else DependencyAwareAlgorithm(recency)


def _weighting_of(settings: Settings) -> WeightingStrategy:
    if settings.weighting == "static":
        return StaticWeightStrategy()
    if settings.weighting == "keyword":
        return KeywordRelevanceStrategy()
    return SmartWeightingStrategy(settings.tool_penalty, settings.pair_coherence)
