"""The `__getattr__` of modules whose users look for names of Fluid and of other libraries."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from fluid import errors


def instead_of(module: str, instead: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`, which is called for names that it does not have.

    It says what takes their place.

    Args:
      module: its name.
      instead: what to use, by name.

    Example:
      >>> instead_of("fluid.io", {"PyReader": "a reader"})("PyReader")
      Traceback (most recent call last):
        ...
      fluid.errors.MissingNameError: module 'fluid.io' has no attribute 'PyReader'; use a reader
    """

    def missing(name: str) -> Any:
        known = vars(sys.modules[module]).get("__all__", ())  # not there yet while it is imported
        raise errors.missing_name(f"module {module!r}", name, known, instead)

    missing.__dict__["instead"] = instead
    return missing
