"""The runtime: a Session runs programs over one Scope, as compiled steps that are cached on disk."""

from fluid.runtime.compiled_step import CompiledStep, bind
from fluid.runtime.custom_step import Evaluation, StepFunction, TrainingStep
from fluid.runtime.engine import Compilation, Engine
from fluid.runtime.fetch import check_fetch, step_names
from fluid.runtime.results import Results
from fluid.runtime.session import Session
from fluid.runtime.step import Request

__all__ = [
    "Compilation",
    "CompiledStep",
    "Engine",
    "Evaluation",
    "Request",
    "Results",
    "Session",
    "StepFunction",
    "TrainingStep",
    "bind",
    "check_fetch",
    "step_names",
]
