"""Modules that say what to write instead of a name that they do not have, or of a call."""

import sys
import types
from collections.abc import Callable
from typing import Any

from fluid import errors
from fluid.name_hints.table import HINTS


def getattr_of(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module: it raises the error for names that the module does not have.

    Example:
      >>> import fluid.layers
      >>> getattr_of("fluid.layers")("BatchNorm2d")
      Traceback (most recent call last):
        ...
      fluid.errors.MissingNameError: module 'fluid.layers' has no attribute 'BatchNorm2d'; use layers.batch_norm(x)
    """

    def missing(name: str) -> Any:
        there = vars(sys.modules[module])
        own = (
            n for n, value in there.items() if not n.startswith("_") and getattr(value, "__module__", None) == module
        )
        known = there.get("__all__") or list(own)  # which is not there yet while the module is imported
        advice = HINTS[module].get(name)
        raise errors.missing_name(f"module {module!r}", name, known, f"use {advice}" if advice else "")

    return missing


class _Called(types.ModuleType):
    """A module whose call raises an error with the call that works."""

    def __call__(self, *args: Any, **values: Any) -> Any:
        raise errors.ArgumentTypeError(
            f"{self.__name__} is a module, which is not called; write {self.__dict__['_write']}"
        )


def not_called(module: str, write: str) -> None:
    """Let a call of a module raise an error with the call that works.

    Args:
      module: its name.
      write: the call that works.

    Example:
      >>> import fluid
      >>> fluid.trainer()
      Traceback (most recent call last):
        ...
      fluid.errors.ArgumentTypeError: fluid.trainer is a module, which is not called; write fluid.Trainer(...)
    """
    sys.modules[module].__class__ = _Called
    sys.modules[module].__dict__["_write"] = write
