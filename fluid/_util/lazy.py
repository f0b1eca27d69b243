"""Lazy: imports on first use, of optax (which inference never needs) and of the names of packages."""

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import lazy_loader


class _Lazy:
    """A stand-in for a module that imports the module on the first access to an attribute."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import optax as optax
else:
    optax = _Lazy("optax")


def load_optax_ahead() -> None:
    """Start to load optax in a thread, before work that leaves Python idle for a while."""
    if "optax" not in sys.modules:
        threading.Thread(target=_load_optax, name="fluid-optax").start()


def _load_optax() -> None:
    with contextlib.suppress(ImportError):  # the first use of optax raises the error again, for the user
        importlib.import_module("optax")


Attached = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def attach(package: str, otherwise: Callable[[str], Any] | None = None, above: Collection[str] = ()) -> Attached:
    """Return `__getattr__`, `__dir__` and `__all__` for a package whose names are loaded on use.

    The package's `__init__.pyi` lists the names and their modules as imports, for this function, type checkers and
    editors.

    Args:
      package: the name of the package, such as `"fluid.layers"`.
      otherwise: called with a name that the stub does not have; raises the error. None raises an AttributeError.
      above: modules that are attributes of the package, but not in `__all__`.

    Returns:
      `__getattr__`, `__dir__` and `__all__`, in this order.

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

    return find, lambda: sorted({*vars(module), *public}), public
