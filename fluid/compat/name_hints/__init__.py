"""Hints for error messages: what to write in place of names of other libraries that fluid does not have."""

from fluid.compat.name_hints.arguments import argument_advice
from fluid.compat.name_hints.attributes import KnownAttributes, check_attributes, getattr_of, not_called
from fluid.compat.name_hints.table import HINTS

__all__ = [
    "HINTS",
    "KnownAttributes",
    "argument_advice",
    "check_attributes",
    "getattr_of",
    "not_called",
]
