"""Eunoe: keeps what a chat's next answer needs inside a token budget, and says why."""

from .budget import TokenBudget, TokenTargetBudget
from .conversation import Conversation, Message
from .events import Capture
from .job import Request
from .orchestrator import ContextOrchestrator, OrchestratorResult, Settlement
from .plan import Decision, Fate, Plan, Reason
from .ports import ConstraintSet, SelectionResult
from .settings import Settings
from .usage import Usage

__all__ = [
    "Capture",
    "ConstraintSet",
    "ContextOrchestrator",
    "Conversation",
    "Decision",
    "Fate",
    "Message",
    "OrchestratorResult",
    "Plan",
    "Reason",
    "Request",
    "SelectionResult",
    "Settings",
    "Settlement",
    "TokenBudget",
    "TokenTargetBudget",
    "Usage",
]
