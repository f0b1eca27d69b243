"""What is loaded when it is first used: optax, which a program that only infers never needs, and rooms of fluid."""

import importlib
from typing import TYPE_CHECKING, Any

# Rooms that `import fluid` does not load.
ROOMS = ("online", "static")
# Names of `fluid` itself that come from such rooms.
NAMES = {"OnlineTrainer": "online", "RemoteTrainer": "remote"}


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


def room(name: str) -> Any:
    """A room of fluid that is loaded on use."""
    return importlib.import_module(f"fluid.{name}")
