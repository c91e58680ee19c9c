"""The pipeline: read flags, repair, count, and where the bound asks for it weigh, choose and shorten."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from .algorithms.recency import RecencyBiasedAlgorithm
from .anchors import layout_of, place_anchors
from .bonds import turns_of
from .breath import breathe
from .budget import BoundSource, Budget, TokenBudget, max_cost_of, tokens_for, with_max_tokens
from .conversation import Conversation, Message, traits_in
from .draft import Draft
from .events import (
    Capture,
    EventBody,
    EventKind,
    OutletBody,
    Purpose,
    RunEvent,
    StartBody,
    UsageBody,
    new_event,
)
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
from .pricing import cost_source, prompt_cost, prompt_cost_at_most, tokens_within, with_cost
from .recap import Recap, held_room, insert_summaries, recap_of, summarizable, turns_to_tell
from .report import plan_body
from .scoring import Scoring, score_job
from .selection import fill, finish, keep_all, refuse_duplicates, weigh
from .sent import SentLog
from .summarizers.book import Summary, SummaryBook, SummaryReport
from .tokens import counter_for
from .usage import Usage, add_usages
from .weighting.smart import SmartWeightingStrategy


@dataclass(frozen=True, slots=True)
class OrchestratorResult:
    """What to send, and the plan that says why."""

    conversation: Conversation
    plan: Plan
    run_id: str
    token_count: int
    estimated_cost_usd: float | None = None  # None: no price is known
    recap: Recap | None = None  # what `write_summaries` is to be given once the answer is there
    usages: tuple[Usage, ...] = ()  # of the model calls that weighing took


class _Made(NamedTuple):
    """A plan, how much of it a provider is likely to have in its cache, what to report and what to summarize of it."""

    plan: Plan
    cached: int
    events: list[RunEvent]
    recap: Recap | None


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a turn really took: `context_tokens` of its last call, the rest summed over all calls."""

    context_tokens: int | None
    billed: Usage  # with the cost by a price where the provider reported none
    calls: int
    cost_source: str | None = None  # None: the cost is not known


class ContextOrchestrator:
    """Decides what the model will see. One may serve many chats at once.

    `summaries` may be given as `turn_summarizer` too, of whatever kind they are.

    What it remembers of chats is found by content and safe to lose: the prompts it sent last, for what a
    provider has in its cache, and what strategies and summaries keep in their caches.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        algorithm: SelectionAlgorithm | None = None,
        weighting: WeightingStrategy | None = None,
        constraints: ConstraintSet | None = None,
        summaries: SummaryBook | None = None,
        turn_summarizer: SummaryBook | None = None,
        model_budgets: Mapping[str, int] | None = None,
        sink: Sink | None = None,
        capture: Capture = Capture.PREVIEW,
        log_level: str = "DEBUG",
        clock: Clock | None = None,
        sent: SentLog | None = None,
    ) -> None:
        self.budget = budget or TokenBudget()
        self.algorithm = algorithm or RecencyBiasedAlgorithm()
        self.weighting = weighting or SmartWeightingStrategy()
        self.constraints = constraints or ConstraintSet()
        self.summaries = summaries or turn_summarizer
        self.model_budgets = model_budgets or {}
        self.sink = sink or NoSink()
        self.capture, self.log_level = capture, log_level
        self.clock = clock or SystemClock()
        self.sent = sent or SentLog()

    async def process(self, conversation: Conversation, request: Request | None = None) -> OrchestratorResult:
        """Choose what the model will see, and say why.

        Raises:
            EunoeError: the input is no conversation, or a plan broke one of its rules.
        """
        request = request or Request()
        started = self.clock.seconds()
        job, made = await asyncio.to_thread(self._begin, conversation, request, started)
        scoring = Scoring()
        if made is None:
            scoring, summaries = await asyncio.gather(score_job(self.weighting, job), self._ready(job))
            made = await asyncio.to_thread(self._plan, job, scoring, summaries, started)
        plan, cached, events, recap = made
        for event in events:
            self.sink.send(event)
        for usage in scoring.usages:
            self._note_helper(request, usage, Purpose.LABELS)
        return OrchestratorResult(
            Conversation.from_openai_messages(plan.messages),
            plan,
            request.run_id,
            plan.tokens_after,
            prompt_cost(plan.tokens_after, request.price, cached),
            recap,
            scoring.usages,
        )

    async def write_summaries(self, request: Request, recap: Recap) -> SummaryReport:
        """Make the summaries that a turn had no use for yet but the next ones will; after the answer.

        A model that fails is told in the report, never raised.
        """
        if self.summaries is None:
            return SummaryReport()
        turns = await asyncio.to_thread(
            turns_to_tell, recap, all_of_them=getattr(self.summaries, "takes_prefix", False)
        )
        report = await self.summaries.write(turns, request.scope, room_tokens=recap.room_tokens)
        for usage in report.usages:
            self._note_helper(request, usage, Purpose.SUMMARY)
        return report

    def note_usage(self, request: Request, usage: Usage) -> None:
        """Report what the provider said of one model call."""
        self._send(EventKind.USAGE, request, UsageBody(call=request.call, **asdict(usage)))

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

    async def _ready(self, job: Job) -> Sequence[Summary]:
        if self.summaries is None or not (turns := summarizable(job)):
            return ()
        return await self.summaries.ready(turns, job.request.scope)

    def _begin(
        self, conversation: Conversation, request: Request, started: float
    ) -> tuple[Job, _Made | None]:
        """Make the request ready, and plan it at once where nothing has to go."""
        job = prepare(conversation, request, self._budget_for(request.model), counter_for(request.model))
        if job.must_choose:
            return job, None
        plan = finish(job, keep_all(job), Scoring(), {}, self._names()).verify()
        if not self._is_affordable(job, plan):
            return self._within_cost(job), None
        return job, self._made(job, plan, started)

    def _plan(self, job: Job, scoring: Scoring, summaries: Sequence[Summary], started: float) -> _Made:
        """Plan within the bound on tokens, and within that on cost where the plan is dearer than it."""
        plan = self._planned(job, scoring, summaries)
        if not self._is_affordable(job, plan):
            plan = self._planned(self._within_cost(job), scoring, summaries)
        return self._made(job, plan, started)

    def _made(self, job: Job, plan: Plan, started: float) -> _Made:
        """Remember what is sent and write the events; in the thread that planned, since a long plan is a long event."""
        cached = self.sent.note(job.request.scope, job.request.model, plan)
        wants_recap = self.summaries is not None and job.request.call == 1
        recap = recap_of(job, plan) if wants_recap else None
        elapsed_ms = (self.clock.seconds() - started) * 1000
        return _Made(plan, cached, self._events(plan, job.request, elapsed_ms, cached), recap)

    def _planned(self, job: Job, scoring: Scoring, summaries: Sequence[Summary]) -> Plan:
        weighted = weigh(job, scoring.scores)
        breathe()
        draft = Draft(job.bound.tokens, job.overhead, job.counter)
        instructions = [
            message
            for message, known in zip(weighted, traits_in(weighted), strict=True)
            if known.is_instruction
        ]
        layout = layout_of(instructions, turns_of(weighted))
        refuse_duplicates(draft, layout)
        layout = replace(
            layout, instructions=tuple(m for m in layout.instructions if m.id not in draft.refused)
        )
        breathe()
        place_anchors(draft, layout, job.directives)
        held = held_room(job, draft, summaries)
        draft.room -= held
        choice = self._choose(job, weighted, draft, held)
        breathe()
        fill(draft, layout, choice)
        breathe()
        draft.room += held
        if held:
            insert_summaries(draft, weighted, summaries, held, job.counter)
        plan = finish(job, draft, scoring, choice.recency, self._names())
        breathe()
        return plan.verify()

    def _is_affordable(self, job: Job, plan: Plan) -> bool:
        """Say whether a prompt costs no more than the budget allows; also where no price is known."""
        request, most = job.request, max_cost_of(self.budget)
        if not most or request.price is None:
            return True
        cached = self.sent.cached_tokens(request.scope, request.model, plan)
        return prompt_cost_at_most(plan.tokens_after, cached, request.price) <= most

    def _within_cost(self, job: Job) -> Job:
        """Bound a job by what the budget pays for if nothing is cached: a choice afresh rewrites the prompt."""
        price = job.request.price
        tokens = tokens_within(max_cost_of(self.budget), price) if price else None
        return job if tokens is None else job.within(max(1, tokens), BoundSource.COST)

    def _budget_for(self, model: str) -> Budget:
        tokens = tokens_for(model, self.model_budgets, self.budget.max_tokens)
        return self.budget if tokens == self.budget.max_tokens else with_max_tokens(self.budget, tokens)

    def _names(self) -> tuple[str, str]:
        return self.algorithm.name(), self.weighting.name()

    def _choose(self, job: Job, weighted: Sequence[Message], draft: Draft, held: int) -> SelectionResult:
        places, refused = draft.places, draft.refused
        placed = [
            m.counting(places[m.id].tokens) if m.id in places else m
            for m in weighted
            if m.id not in refused or m.id in places
        ]
        if job.bound.tokens is None:
            return SelectionResult(frozenset(m.id for m in placed))
        request = job.request
        budget = TokenBudget(max(1, job.bound.tokens - job.overhead - held))
        constraints = replace(
            self.constraints,
            keep=frozenset(draft.places),
            never=frozenset(draft.refused),
            sent=self.sent.sent_before(request.scope, request.model, job.conversation),
            afresh="undo" in job.directives.turn,
        )
        return self.algorithm.select(Conversation(tuple(placed)), budget, constraints, job.counter)

    def _events(self, plan: Plan, request: Request, elapsed_ms: float, cached: int) -> list[RunEvent]:
        """Write down what to report of a plan."""
        if isinstance(self.sink, NoSink) or self.log_level == "WARNING":
            return []
        events = []
        if request.call == 1:
            start = StartBody(
                messages=len(plan.decisions),
                algorithm=plan.algorithm,
                weighting=plan.weighting,
                max_tokens=self._budget_for(request.model).max_tokens,
                context_window=request.context_window,
                reply_reserve=plan.bound.reply_reserve,
            )
            events.append(new_event(EventKind.START, request.run_id, start, **request.envelope()))
        full = self.log_level == "DEBUG"
        body = plan_body(
            plan, call=request.call, elapsed_ms=elapsed_ms, capture=self.capture, with_decisions=full
        ).model_copy(
            update={
                "context_window": request.context_window,
                "tokens_cached": cached,
                "estimated_cost_usd": prompt_cost(plan.tokens_after, request.price, cached),
            }
        )
        return [*events, new_event(EventKind.PLAN, request.run_id, body, **request.envelope())]

    def _note_helper(self, request: Request, usage: Usage, purpose: Purpose) -> None:
        """Report a call of a model that helped; what it took is no part of the answer's usage."""
        priced = with_cost(usage, request.helper_price)
        body = UsageBody(call=request.call, purpose=purpose, **asdict(priced))
        self._send(EventKind.USAGE, request, body)

    def _send(self, kind: EventKind, request: Request, body: EventBody) -> None:
        if self.log_level != "WARNING":
            self.sink.send(new_event(kind, request.run_id, body, **request.envelope()))
