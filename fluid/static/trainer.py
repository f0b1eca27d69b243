"""Trainer and Inferencer that record the layer calls of the user's function once, as PaddlePaddle Fluid does."""

import functools
from typing import Any

import fluid
from fluid import BeginEpochEvent, BeginStepEvent, CheckpointConfig, EndEpochEvent, EndStepEvent
from fluid.core.argument_checks import check_takes_nothing, name_of
from fluid.static import unique_name
from fluid.static.tape.program import Program, program_guard

__all__ = [
    "BeginEpochEvent",
    "BeginStepEvent",
    "CheckpointConfig",
    "EndEpochEvent",
    "EndStepEvent",
    "Inferencer",
    "Trainer",
]


class Trainer(fluid.Trainer):
    """A Trainer that records the user's function, so that the function may contain While blocks and assignments.

    Args:
      program_func: a function that calls layers, and returns the loss, or a list with the loss first; or any other
        value that `fluid.Trainer` accepts.
      args: further arguments of `fluid.Trainer`.
      train_func: another name of `program_func`, which PaddlePaddle Fluid uses.
      settings: further arguments of `fluid.Trainer`.

    Example:
      >>> import fluid.static as fluid
      >>> def train_program():
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     count = fluid.layers.autoincreased_step_counter()
      ...     return [loss, count]
      >>> trainer = fluid.Trainer(train_func=train_program, optimizer_func=lambda: fluid.optimizer.SGD(0.1))
      >>> list(trainer.program.parameters)
      ['fc_0.w_0', 'fc_0.b_0']
    """

    def __init__(self, program_func: Any = None, *args: Any, train_func: Any = None, **settings: Any):
        super().__init__(written_down(program_func), *args, train_func=written_down(train_func), **settings)


class Inferencer(fluid.Inferencer):
    """An Inferencer that records the user's function, so that the function may contain While blocks and assignments.

    Args:
      infer_func: a function that calls layers, and returns the results; or None for an exported model.
      args: further arguments of `fluid.Inferencer`.
      settings: further arguments of `fluid.Inferencer`.

    Example:
      >>> import fluid.static as fluid
      >>> def infer_program():
      ...     y = fluid.layers.fill_constant([1], "float32", 2.0)
      ...     return fluid.layers.assign(fluid.layers.data("x", shape=[1]) * y, output=y)
      >>> fluid.Inferencer(infer_program, params={}).infer({"x": [[3.0]]})[0].tolist()
      [[6.0]]
    """

    def __init__(self, infer_func: Any = None, *args: Any, **settings: Any):
        super().__init__(written_down(infer_func), *args, **settings)


def written_down(function: Any) -> Any:
    """Record the layer calls of a function; return a function that runs the recorded calls.

    Args:
      function: a function that calls layers, and returns variables. A Program, or a value that cannot be called, is
        returned unchanged.
    """
    if not callable(function) or isinstance(function, Program):
        return function
    check_takes_nothing(function)
    program = Program()
    with program_guard(program, Program()), unique_name.guard():
        result = function()
    tape = program.snapshot()

    @functools.wraps(function)
    def run() -> Any:
        return tape.run().read(result)

    run.__name__ = name_of(function)
    return run
