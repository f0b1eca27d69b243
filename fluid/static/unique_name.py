"""Automatic names, which count on from program to program, unless a guard restarts them."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from fluid import errors

__all__ = ["counters", "generate", "guard", "switch"]

_shared: dict[str, int] = {}
_counters: ContextVar[dict[str, int]] = ContextVar("fluid_static_names", default=_shared)  # noqa: B039


def counters() -> dict[str, int]:
    """Return the next number for each stem, for example "fc"; recorded layers use these counters.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.unique_name.guard():
      ...     fluid.unique_name.counters()
      {}
    """
    return _counters.get()


def generate(key: str) -> str:
    """Return a new name: `KEY_N`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.unique_name.guard():
      ...     fluid.unique_name.generate("fc"), fluid.unique_name.generate("fc")
      ('fc_0', 'fc_1')
    """
    number = counters().get(key, 0)
    counters()[key] = number + 1
    return f"{key}_{number}"


def switch(new: dict[str, int] | None = None) -> dict[str, int]:
    """Restart automatic names, or continue with other counters; return the previous counters.

    Example:
      >>> import fluid.static as fluid
      >>> before = fluid.unique_name.switch()
      >>> fluid.unique_name.generate("fc")
      'fc_0'
      >>> _ = fluid.unique_name.switch(before)
    """
    before = counters()
    _counters.set({} if new is None else new)
    return before


@contextlib.contextmanager
def guard(new_generator: None = None) -> Iterator[None]:
    """Restart automatic names within a `with` block, so that two programs share values of equal names.

    Args:
      new_generator: only None is accepted: names have no prefix.

    Raises:
      ArgumentTypeError: `new_generator` is given.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.unique_name.guard():
      ...     fluid.unique_name.generate("fc")
      'fc_0'
    """
    if new_generator is not None:
        raise errors.ArgumentTypeError(
            f"unique_name.guard({new_generator!r}): names have no prefix, so layers in two such guards would share "
            f'parameters; leave the guard out, or name them: param_attr=fluid.ParamAttr(name="teacher_w")'
        )
    before = switch()
    try:
        yield
    finally:
        switch(before)
