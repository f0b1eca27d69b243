"""A program function that minimises what it returns first: how a Trainer joins a function and an optimizer."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from fluid.optimizer import as_optimizer
from fluid.optimizer.base import OptimizerLike


def minimizing(function: Callable[[], Any], optimizer: OptimizerLike) -> Callable[[], Any]:
    """A program function that does what the given one does, and then minimises its first output.

    Args:
      function: returns a value, or a list, tuple or dict of values. One that cannot be called, or that returns nothing
        to minimise, is left for Program to complain of.
      optimizer: a fluid optimizer, an optax transformation, or a function that returns one.

    Raises:
      ArgumentTypeError: the optimizer is none of these.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> fluid.Program(minimizing(program, fluid.optimizer.SGD(0.1))).minimizes[0].parameters
      ('fc_0.w_0', 'fc_0.b_0')
    """
    chosen = as_optimizer(optimizer)
    if not callable(function):
        return function

    @functools.wraps(function)
    def program() -> Any:
        outputs = function()
        values = list(outputs.values()) if isinstance(outputs, Mapping) else outputs
        first = values[0] if isinstance(values, list | tuple) and values else values
        if first is not None and not isinstance(first, list | tuple):
            chosen.minimize(first)
        return outputs

    if not hasattr(program, "__name__"):  # a functools.partial has none
        program.__name__ = getattr(getattr(function, "func", None), "__name__", "program")
    return program
