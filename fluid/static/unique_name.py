"""Automatic names of layers and variables, such as `fc_0`; `guard` restarts the numbers at 0."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from fluid import errors

__all__ = ["counters", "generate", "guard", "switch"]


class Counters(dict[str, int]):
    """A dict from the stem of automatic names to the next number; "fc" is the stem of `fc_0`.

    Example:
      >>> Counters("teacher_").prefix
      'teacher_'
    """

    def __init__(self, prefix: str = ""):
        super().__init__()
        self.prefix = prefix


_shared: dict[str, int] = Counters()
_counters: ContextVar[dict[str, int]] = ContextVar("fluid_static_names", default=_shared)  # noqa: B039


def counters() -> dict[str, int]:
    """Return the counters of automatic names: the next number for each stem, for example "fc".

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.unique_name.guard():
      ...     fluid.unique_name.counters()
      {}
    """
    return _counters.get()


def prefix() -> str:
    """Return the prefix of all automatic names; empty outside of `guard("prefix")`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.unique_name.guard("teacher_"):
      ...     fluid.unique_name.prefix()
      'teacher_'
    """
    return getattr(counters(), "prefix", "")


def generate(key: str) -> str:
    """Return a new name `KEY_N`: the key with the next number.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.unique_name.guard():
      ...     fluid.unique_name.generate("fc"), fluid.unique_name.generate("fc")
      ('fc_0', 'fc_1')
    """
    number = counters().get(key, 0)
    counters()[key] = number + 1
    return f"{prefix()}{key}_{number}"


def switch(new: dict[str, int] | None = None) -> dict[str, int]:
    """Restart the numbers of automatic names at 0, or use the counters `new`; return the previous counters.

    Example:
      >>> import fluid.static as fluid
      >>> before = fluid.unique_name.switch()
      >>> fluid.unique_name.generate("fc")
      'fc_0'
      >>> _ = fluid.unique_name.switch(before)
    """
    before = counters()
    _counters.set(Counters() if new is None else new)
    return before


@contextlib.contextmanager
def guard(new_generator: str | None = None) -> Iterator[None]:
    """Restart the numbers of automatic names within a `with` block; two programs then share parameters of equal names.

    Args:
      new_generator: a prefix of all names in the block. As in PaddlePaddle, names of parameters contain the prefix
        twice, because they contain the name of the layer.

    Raises:
      ArgumentTypeError: `new_generator` is not a string.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.unique_name.guard():
      ...     fluid.unique_name.generate("fc")
      'fc_0'
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard("teacher_"):
      ...     y = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, bias_attr=False)
      ...     fluid.default_main_program().all_parameters()
      [Variable(teacher_teacher_fc_0.w_0: float32[2, 1])]
    """
    if not isinstance(new_generator, str | None):
        raise errors.ArgumentTypeError(
            f"unique_name.guard({new_generator!r}): expected a string, the beginning of all names, or nothing: "
            f'with fluid.unique_name.guard("teacher_"):'
        )
    before = switch(Counters(new_generator or ""))
    try:
        yield
    finally:
        switch(before)
