"""Lazy imports: optax (which inference never needs) and the modules of a package are imported on first use."""

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import lazy_loader


class _Lazy:
    """A placeholder for a module, which imports the module on the first access to an attribute."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import optax as optax
else:
    optax = _Lazy("optax")


def load_optax_ahead() -> None:
    """Start to import optax in a separate thread; call this before work during which Python is idle."""
    if "optax" not in sys.modules:
        threading.Thread(target=_load_optax, name="fluid-optax").start()


def _load_optax() -> None:
    # Ignore a missing optax in this thread: its first use in the user's thread raises the error.
    with contextlib.suppress(ImportError):
        importlib.import_module("optax")


Attached = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def attach(package: str, otherwise: Callable[[str], Any] | None = None, above: Collection[str] = ()) -> Attached:
    """Return `__getattr__`, `__dir__` and `__all__` for a package that imports its modules on first use.

    The file `__init__.pyi` of the package lists the names and their modules as imports. This function, type checkers
    and editors read the file.

    Example:
      >>> import fluid
      >>> "ssd_loss" in dir(fluid.layers), fluid.layers.ssd_loss.__module__
      (True, 'fluid.layers.detection.ssd')
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

    return find, lambda: sorted({*public, *(name for name in vars(module) if name.startswith("__"))}), public
