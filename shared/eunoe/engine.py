"""What an orchestrator is made of, under the name by which other packages know such a module."""

from .orchestrator import ContextOrchestrator, OrchestratorResult
from .ports import ConstraintSet, SelectionResult

__all__ = ["ConstraintSet", "ContextOrchestrator", "OrchestratorResult", "SelectionResult"]
