"""optax, loaded when something of it is first used: a program that only infers never needs it."""

import importlib
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
