"""`memory_usage`: an estimate of the memory that a training step needs."""

import math
from typing import Any

from fluid.place import Mesh
from fluid.static.executor import plain_program

__all__ = ["memory_usage"]

_UNITS = ("B", "KB", "MB", "GB")


def memory_usage(program: Any, batch_size: int) -> tuple[float, float, str]:
    """Return a lower and an upper bound of the memory that a training step of a program needs.

    The function compiles the training step, but creates no arrays; see `fluid.plan`.

    Args:
      program: the program, which minimises a loss.
      batch_size: the number of rows of a minibatch.

    Returns:
      The memory of parameters, optimizer state and minibatch; the memory at the peak, with all intermediate values; and
      the unit of both, for example "MB".

    Raises:
      ArgumentTypeError: the program minimises no loss.

    Example:
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[64]), size=128))
      ...     pairs = fluid.optimizer.Adam(1e-3).minimize(loss)
      >>> lower, upper, unit = fluid.contrib.memory_usage(main, batch_size=32)
      >>> lower <= upper, unit
      (True, 'KB')
    """
    from fluid.parallel.planner import plan  # imported here, not at the top: few programs need it

    found = plain_program(program)
    (step,) = plan(found.snapshot(), None, batch_size, Mesh(data=1), precision=found.precision).candidates
    lower = step.parameters + step.slots + step.feed
    power = min(int(math.log(max(step.peak, 1), 1024)), len(_UNITS) - 1)
    return lower / 1024**power, step.peak / 1024**power, _UNITS[power]
