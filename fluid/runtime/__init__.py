"""The runtime: a Session runs programs as compiled steps, a Scope holds their arrays, a disk cache keeps the code."""

from fluid.runtime.compiled_step import CompiledStep, bind
from fluid.runtime.custom_step import Evaluation, StepFunction, TrainingStep
from fluid.runtime.engine import Compilation, Engine
from fluid.runtime.fetch import check_fetch, step_names
from fluid.runtime.request import Request
from fluid.runtime.results import Results
from fluid.runtime.session import Session

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
