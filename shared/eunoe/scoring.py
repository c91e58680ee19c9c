"""What weighing a conversation gave: relevance, what it is made of, what it took, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .job import Job
from .ports import WeightingStrategy
from .usage import Usage


@dataclass(frozen=True, slots=True)
class Scoring:
    """Relevance by message id.

    `parts` holds the scores of the strategies that a composite is made of, by their names; `usages` are
    those of the model calls that weighing took.
    """

    scores: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    usages: tuple[Usage, ...] = ()

    def parts_of(self, message_id: str) -> dict[str, float]:
        """Give what each strategy says of one message."""
        return {name: scores[message_id] for name, scores in self.parts.items() if message_id in scores}


async def score_job(weighting: WeightingStrategy, job: Job) -> Scoring:
    """Ask a strategy what matters for the question of a job."""
    question = job.conversation.question
    query = job.request.question or (question.text if question else "")
    parts: dict[str, Mapping[str, float]] = {}
    notices: list[str] = []
    usages: list[Usage] = []
    context: dict[str, Any] = {
        **job.directives.turn,
        "scope": job.request.scope,
        "parts": parts,
        "notices": notices,
        "usages": usages,
    }
    scores = await weighting.score(job.kept, query, job.conversation, context)
    return Scoring(scores, parts, tuple(dict.fromkeys(notices)), tuple(usages))
