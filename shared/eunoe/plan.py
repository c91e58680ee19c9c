"""What will be sent, and what became of each message: the plan and the rules it must keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from itertools import repeat
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from .bonds import repair, turns_holding
from .budget import Bound
from .conversation import Conversation, Message, RawMessage
from .errors import PlanBroken
from .flags import Directives
from .insertion import Insertion


class Fate(StrEnum):
    """What became of a message."""

    KEPT = "kept"
    COMPRESSED = "compressed"  # still there, shortened, with a note saying so
    SUMMARIZED = "summarized"  # its content lives on in a summary
    RECALLED = "recalled"  # dropped, but quoted for this question
    DROPPED = "dropped"


class Reason(StrEnum):
    """Why a message has its fate; a code to group by."""

    ALL_FIT = "all_fit"
    INSTRUCTION = "instruction"
    QUESTION = "question"
    UNFINISHED = "unfinished"
    PIN = "pin"
    TAG = "tag"
    OPENING_TASK = "opening_task"
    NEWEST_STEP = "newest_step"
    TOOL_LOOP = "tool_loop"
    LAST_TURN = "last_turn"
    RECENT = "recent"
    WEIGHT = "weight"
    PAIR = "pair"
    OLD_THINKING = "old_thinking"
    SUMMARY = "summary"
    IN_SUMMARY = "in_summary"
    LOW_WEIGHT = "low_weight"
    NO_ROOM = "no_room"
    STEPS = "steps"
    OLDER_STEP = "older_step"
    CONTEXT_FLAG = "context_flag"
    EXCLUDED = "excluded"
    ONLY = "only"
    DUPLICATE = "duplicate"
    ORPHAN_RESULT = "orphan_result"
    UNANSWERED_CALL = "unanswered_call"
    EMPTY_MESSAGE = "empty_message"


SENTENCES: Mapping[Reason, str] = {
    Reason.ALL_FIT: "Everything fits.",
    Reason.INSTRUCTION: "System and developer messages are always sent.",
    Reason.QUESTION: "The newest question.",
    Reason.UNFINISHED: "The reply that is being continued.",
    Reason.PIN: "Pinned with !pin.",
    Reason.TAG: "Asked for with !keep_tag.",
    Reason.OPENING_TASK: "The task the chat began with.",
    Reason.NEWEST_STEP: "The newest tool call with its results.",
    Reason.TOOL_LOOP: "A tool call of the present turn.",
    Reason.LAST_TURN: "The turn before the question.",
    Reason.RECENT: "Asked for with !recent.",
    Reason.WEIGHT: "Its weight earned it a place.",
    Reason.PAIR: "Belongs to a message that is kept.",
    Reason.OLD_THINKING: "Kept without old reasoning and raw data.",
    Reason.SUMMARY: "The summary of earlier turns.",
    Reason.IN_SUMMARY: "A summary stands for it.",
    Reason.LOW_WEIGHT: "Other turns weigh more, and the limit is reached.",
    Reason.NO_ROOM: "Too large for the room that was left.",
    Reason.STEPS: "Tool steps of an earlier turn; its question and answer are kept.",
    Reason.OLDER_STEP: "An older tool step of the present turn.",
    Reason.CONTEXT_FLAG: "Older than the turns asked for with !context.",
    Reason.EXCLUDED: "Taken out with !exclude, or the answer to such a message.",
    Reason.ONLY: "Left out by !only.",
    Reason.DUPLICATE: "The same instruction stands before it.",
    Reason.ORPHAN_RESULT: "A tool result without its call, which providers refuse.",
    Reason.UNANSWERED_CALL: "A tool call without its result, which providers refuse.",
    Reason.EMPTY_MESSAGE: "An empty reply, which providers refuse.",
}

# What is sent even where the bound is lower. All else yields to the bound.
UNYIELDING = frozenset({Reason.INSTRUCTION, Reason.QUESTION, Reason.UNFINISHED})


# Fates of messages of which nothing is sent.
GONE = frozenset({Fate.SUMMARIZED, Fate.DROPPED})


NO_SCORES: Mapping[str, float] = MappingProxyType({})


class Decision(NamedTuple):
    """What became of one message, and why.

    `weight` is the product of `parts`; `scores` has what each of several strategies says. `sent` is
    what the model sees, None if it was dropped. A named tuple for the reason that `Message` is one.
    """

    message: Message
    fate: Fate
    reason: Reason
    tokens_before: int
    tokens_after: int
    sent: RawMessage | None
    weight: float = 1.0
    parts: Mapping[str, float] = NO_SCORES
    scores: Mapping[str, float] = NO_SCORES


# Makes a decision of a tuple of all its fields, at the speed of C.
decision_of: Callable[[Iterable[Any]], Decision] = partial(tuple.__new__, Decision)


@dataclass(frozen=True)  # without slots, so that sums are made once
class Plan:
    """What one model call is sent, and why.

    Token figures are of the whole prompt: `overhead_tokens` (tool definitions, text the host adds, the
    frame of the request) and all messages. `conversation` is the input after flags were taken out;
    `insertion` is what we add to it.
    """

    conversation: Conversation
    decisions: tuple[Decision, ...]
    bound: Bound
    overhead_tokens: int
    tools_tokens: int
    counter: str
    algorithm: str
    weighting: str
    directives: Directives = field(default_factory=Directives)
    notices: tuple[str, ...] = ()
    insertion: Insertion | None = None

    @property
    def messages(self) -> list[RawMessage]:
        """Give the messages to send, in order."""
        return [raw for raw, _ in self._sent]

    @property
    def sent_tokens(self) -> list[int]:
        """Give the tokens of each message to send."""
        return [tokens for _, tokens in self._sent]

    @property
    def inserted_tokens(self) -> int:
        """Add up the tokens of what we add."""
        return sum(self.insertion.tokens) if self.insertion else 0

    @cached_property
    def kept(self) -> tuple[Decision, ...]:
        """Give the decisions on messages of which something is sent."""
        return tuple([decision for decision in self.decisions if decision.sent is not None])

    @cached_property
    def _sent(self) -> tuple[tuple[RawMessage, int], ...]:
        found = [(d.message.position, d.sent, d.tokens_after) for d in self.kept]
        if self.insertion is not None:
            added = zip(
                repeat(self.insertion.position), self.insertion.messages, self.insertion.tokens, strict=False
            )
            found = sorted([*added, *found], key=itemgetter(0))  # stable: what is added stands before
        return tuple([(raw, tokens) for _, raw, tokens in found if raw is not None])

    @cached_property
    def tokens_before(self) -> int:
        """Add up the prompt as it came."""
        return self.overhead_tokens + sum([decision.tokens_before for decision in self.decisions])

    @cached_property
    def tokens_after(self) -> int:
        """Add up the prompt as it is sent."""
        sent = sum([decision.tokens_after for decision in self.decisions])
        return self.overhead_tokens + sent + self.inserted_tokens

    @property
    def instruction_tokens(self) -> int:
        """Add up what is sent of system and developer messages."""
        return sum(d.tokens_after for d in self.kept if d.message.is_instruction)

    @property
    def over_limit(self) -> bool:
        """Say whether what must be sent is over the bound."""
        return self.bound.tokens is not None and self.tokens_after > self.bound.tokens

    @property
    def is_trimmed(self) -> bool:
        """Say whether anything is sent otherwise than it came."""
        return any(decision.fate is not Fate.KEPT for decision in self.decisions)

    def count(self, fate: Fate) -> int:
        """Count the messages with a fate."""
        return sum(decision.fate is fate for decision in self.decisions)

    def verify(self) -> Plan:
        """Give the plan itself if it keeps all its rules.

        Raises:
            PlanBroken: it breaks at least one; a fault of ours.
        """
        if violations := [*_accounting(self), *_keeping(self), *_validity(self), *_bonds(self)]:
            raise PlanBroken(violations)
        return self


def _accounting(plan: Plan) -> list[str]:
    decided = [decision.message for decision in plan.decisions]
    if [m.position for m in decided] != [m.position for m in plan.conversation.messages]:
        return ["not every message has exactly one decision, in order"]
    gone = [decision for decision in plan.decisions if decision.sent is None]
    wrong = [d.message for d in gone if d.tokens_after or d.fate not in GONE]
    wrong += [d.message for d in plan.kept if d.fate in GONE]
    changed = [d.message for d in plan.kept if d.fate is Fate.KEPT and d.sent is not d.message.raw]
    return [
        *(f"message {message.position}: fate, tokens and what is sent disagree" for message in wrong),
        *(f"message {message.position} is kept but changed" for message in changed),
    ]


def _keeping(plan: Plan) -> list[str]:
    broken = []
    question, over_limit = plan.conversation.question, plan.over_limit
    if (Fate.SUMMARIZED in {d.fate for d in plan.decisions}) != (plan.insertion is not None):
        broken.append("a message is said to be in a summary that is not sent, or the other way round")
    if over_limit and plan.insertion is not None:
        broken.append("over the bound with a summary")
    both = zip(plan.decisions, plan.conversation.traits, strict=False)
    needed = [decision for decision, known in both if known.is_instruction]
    broken += [
        f"instruction {decision.message.position} is not kept"
        for decision in needed
        if decision.fate is not Fate.KEPT and decision.reason is not Reason.DUPLICATE
    ]
    named = (d for d in reversed(plan.decisions) if question is not None and d.message.id == question.id)
    asked = next(named, None)
    if asked is not None and asked.fate is not Fate.KEPT:
        broken.append(f"the question, message {asked.message.position}, is not kept")
    broken += [
        f"over the bound with message {decision.message.position} ({decision.reason})"
        for decision in (plan.kept if over_limit else ())
        if decision.reason not in UNYIELDING
    ]
    return broken


def _validity(plan: Plan) -> list[str]:
    sent = [m for m in Conversation.from_openai_messages(plan.messages).messages if not m.is_instruction]
    first = next((m for m in plan.conversation.messages if not m.is_instruction), None)
    _, faults = repair(sent)
    broken = [f"a provider would refuse what is sent: {fault.reason}" for fault in faults]
    if sent and first is not None and first.role == "user" and sent[0].role != "user":
        broken.append("the first message is not the user's")
    return broken


def _bonds(plan: Plan) -> list[str]:
    """Check that no question of an earlier turn stands without its answer, nor an answer without its question."""
    sent = {decision.message.id for decision in plan.kept}
    whole, _ = repair(plan.conversation.messages)
    # A turn of which nothing is sent is not torn.
    places = [place for place, message in enumerate(whole) if message.id in sent]
    return [
        f"the turn of message {opener.position} is torn"
        for _, opener, answer in turns_holding(whole, places)
        if opener and answer and (opener.id in sent) != (answer.id in sent)
    ]
