"""Names of Fluid and of other libraries that fluid does not have, and what to write instead."""

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
