"""The names of `fluid.inspection` and the modules that define them; `__init__.py` loads each at its first use."""

from .drawing import draw
from .summary_table import summary

__all__ = ["draw", "summary"]
