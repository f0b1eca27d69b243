"""The initializers of `fluid.initializer`, and functions of PaddlePaddle that choose the device of initial values."""

import contextlib
from collections.abc import Iterator
from typing import Any

from fluid import initializer

__all__ = ["force_init_on_cpu", "init_on_cpu"]
__all__ += [n for n, v in vars(initializer).items() if isinstance(v, type) and v.__module__ == initializer.__name__]


@contextlib.contextmanager
def init_on_cpu() -> Iterator[None]:
    """Do nothing: XLA decides on which device initial values are computed.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.initializer.init_on_cpu():
      ...     fluid.initializer.force_init_on_cpu()
      False
    """
    yield


def force_init_on_cpu() -> bool:
    """Return False, because `init_on_cpu` has no effect.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.initializer.force_init_on_cpu()
      False
    """
    return False


def __getattr__(name: str) -> Any:
    return getattr(initializer, name)
