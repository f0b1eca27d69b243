"""Session: programs run over one Scope, as compiled steps."""

from fluid.session.compiled_step import Compilation, CompiledStep
from fluid.session.names import check_fetch, step_names
from fluid.session.own_step import Evaluation, StepFunction, TrainingStep
from fluid.session.results import Results
from fluid.session.session import Session
from fluid.session.step import Request

__all__ = [
    "Compilation",
    "CompiledStep",
    "Evaluation",
    "Request",
    "Results",
    "Session",
    "StepFunction",
    "TrainingStep",
    "check_fetch",
    "step_names",
]
