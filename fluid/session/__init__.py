"""Session: programs run over one Scope, as compiled steps."""

from fluid.session.bound import BoundStep, Compilation
from fluid.session.names import check_fetch
from fluid.session.results import Results
from fluid.session.session import Session
from fluid.session.step import Request

__all__ = ["BoundStep", "Compilation", "Request", "Results", "Session", "check_fetch"]
