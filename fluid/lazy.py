"""What is loaded when it is first used: optax, which a program that only infers never needs, and most of fluid."""

import contextlib
import importlib
import pathlib
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any


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


def attach(package: str, otherwise: Callable[[str], Any] | None = None, above: Iterable[str] = ()) -> Attached:
    """Make the `__getattr__`, `__dir__` and `__all__` of a package whose names are loaded on use.

    The names and where they come from are written down once, as imports in the package's `__init__.pyi`, which
    type checkers and editors read too.

    Args:
      package: its name, `"fluid.layers"`.
      otherwise: is called with names that the stub does not have either; raises or returns their value. None raises
        what Python raises.
      above: packages inside this one that import it, and so are not in its stub.

    Returns:
      The three, in that order.

    Example:
      >>> import fluid
      >>> "ssd_loss" in dir(fluid.layers), fluid.layers.ssd_loss.__module__
      (True, 'fluid.layers.detection.ssd_loss')

    References:
      Scientific Python's SPEC 1 describes such stubs.
    """
    module = sys.modules[package]
    sources, public = _stub(pathlib.Path(str(module.__file__)).with_suffix(".pyi"))
    sources.update(dict.fromkeys(above, package))

    def load(name: str) -> Any:
        if name not in sources:
            if otherwise is None:
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            return otherwise(name)
        source = sources[name]
        value = importlib.import_module(f"{package}.{name}" if source == package else source)
        if source != package:
            value = getattr(value, name)
        setattr(module, name, value)
        return value

    return load, lambda: sorted({*vars(module), *public}), public


def _stub(path: pathlib.Path) -> tuple[dict[str, str], list[str]]:
    """Read which module each name is imported from, and `__all__`, in a stub of nothing but imports.

    `ast` would read it too, and take a millisecond of each import of fluid.
    """
    imports, public = path.read_text(encoding="utf-8").split("\n__all__ = ")
    sources = {}
    for statement in imports.split("\nfrom ")[1:]:
        module, names = statement.split(" import ")
        names = names[1 : names.index(")")] if names.startswith("(") else names.partition("\n")[0]
        sources.update(dict.fromkeys((name.strip() for name in names.split(",") if name.strip()), module))
    return sources, public.split('"')[1::2]
