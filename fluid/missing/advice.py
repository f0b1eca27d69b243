"""The `__getattr__` of modules whose users look for names of Fluid and of other libraries."""

import sys
import types
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
      >>> import fluid.io
      >>> instead_of("fluid.io", {"PyReader": "a reader"})("PyReader")
      Traceback (most recent call last):
        ...
      fluid.errors.MissingNameError: module 'fluid.io' has no attribute 'PyReader'; use a reader
    """

    def missing(name: str) -> Any:
        there = vars(sys.modules[module])
        own = (
            n for n, value in there.items() if not n.startswith("_") and getattr(value, "__module__", None) == module
        )
        known = there.get("__all__") or list(own)  # which is not there yet while the module is imported
        raise errors.missing_name(f"module {module!r}", name, known, instead)

    missing.__dict__["instead"] = instead
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
