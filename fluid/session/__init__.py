"""Session: programs run over one Scope, as compiled steps."""

from fluid.session.bound import BoundStep, Compilation
from fluid.session.results import Results
from fluid.session.session import Session
from fluid.session.step import Request, check_fetch

__all__ = ["BoundStep", "Compilation", "Request", "Results", "Session", "check_fetch"]
