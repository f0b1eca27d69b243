"""Objects as text."""

import dataclasses
import types
from typing import Any


def described(value: Any, depth: int = 3) -> str:
    """Return a description of an object and its settings that is equal in every process.

    Args:
      value: a dataclass is shown with the fields that differ from their defaults, and a function with its name and the
        variables of its closure. Numbers and strings are shown by `repr`, and other objects by the name of their type.
      depth: the number of nested levels of functions, lists and tuples to show.

    Example:
      >>> import fluid
      >>> described(fluid.optimizer.Momentum(0.1, momentum=0.8))
      'Momentum(learning_rate=0.1, momentum=0.8)'
      >>> described(fluid.optimizer.SGD(fluid.layers.cosine_decay(0.1, 100, 20)), depth=0)
      'SGD(learning_rate=cosine_decay(...))'
    """
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, types.FunctionType):
        if depth <= 0:
            return f"{value.__qualname__.partition('.<locals>')[0]}(...)"
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        shown = [f"{name}={described(cell.cell_contents, depth - 1)}" for name, cell in cells]
        return f"{value.__qualname__}({', '.join(shown)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = {f.name: (getattr(value, f.name), f.default) for f in dataclasses.fields(value) if f.repr}
        shown = [f"{name}={described(v, depth)}" for name, (v, default) in values.items() if v != default]
        return f"{type(value).__name__}({', '.join(shown)})"
    if isinstance(value, list | tuple):
        return "[...]" if depth <= 0 else f"[{', '.join(described(item, depth - 1) for item in value)}]"
    return getattr(value, "__qualname__", type(value).__name__)
