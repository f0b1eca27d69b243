"""Imports on first use: of optax, which a program that only infers never needs, and of the names of packages."""

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import lazy_loader


class _Lazy:
    """Stands for a module and imports it at the first look at one of its names."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import optax as optax
else:
    optax = _Lazy("optax")


def load_optax_ahead() -> None:
    """Begin to load optax in a thread: for who needs it soon, and before that works outside of Python for a while."""
    if "optax" not in sys.modules:
        threading.Thread(target=_load_optax, name="fluid-optax").start()


def _load_optax() -> None:
    with contextlib.suppress(ImportError):  # who needs it meets the same error, and raises it where it belongs
        importlib.import_module("optax")


Attached = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def attach(package: str, otherwise: Callable[[str], Any] | None = None, above: Collection[str] = ()) -> Attached:
    """Make the `__getattr__`, `__dir__` and `__all__` of a package whose names are loaded on use.

    The names and their modules are written down once, as imports in the package's `__init__.pyi`, which type checkers
    and editors read too.

    Args:
      package: its name, `"fluid.layers"`.
      otherwise: called with a name that the stub does not have; raises the error. None raises an AttributeError.
      above: packages inside this one that import this one, so that the stub cannot import them.

    Returns:
      The three, in that order.

    Example:
      >>> import fluid
      >>> "ssd_loss" in dir(fluid.layers), fluid.layers.ssd_loss.__module__
      (True, 'fluid.layers.detection.ssd_loss')
    """
    module = sys.modules[package]
    load, _, public = lazy_loader.attach_stub(package, str(module.__file__))

    def find(name: str) -> Any:
        if name in above:
            return importlib.import_module(f"{package}.{name}")
        if name in public:
            return load(name)
        if otherwise is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return otherwise(name)

    return find, lambda: sorted({*vars(module), *public}), public
