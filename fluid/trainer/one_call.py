"""`fluid.train`: create a Trainer and train it in one call."""

import inspect
from typing import Any

from fluid import optimizer as optimizers
from fluid.core import Program
from fluid.optimizer.base import OptimizerLike
from fluid.trainer.events import EventHandler
from fluid.trainer.programs import ProgramFunction, ProgramsLike, ReadersLike
from fluid.trainer.trainer import Trainer


def train(
    program_func: ProgramFunction | ProgramsLike,
    reader: ReadersLike = None,
    num_epochs: int = 1,
    optimizer: OptimizerLike | None = None,
    event_handler: EventHandler | None = None,
    **options: Any,
) -> Trainer:
    """Train a program function, or several programs, in one call.

    Args:
      program_func: as for Trainer.
      reader: as for `Trainer.train`.
      num_epochs: as for `Trainer.train`.
      optimizer: as for Trainer; Adam with its defaults if the program does not call `minimize`.
      event_handler: as for `Trainer.train`.
      options: further arguments of `Trainer.train`, such as `handlers` and `test_reader`, and of Trainer.

    Returns:
      The Trainer, to test, save or continue training.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[2])
      ...     return fluid.layers.mean(fluid.layers.fc(x, size=1))
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)
      >>> fluid.train(program, reader, num_epochs=1, optimizer=fluid.optimizer.SGD(0.1)).program.name
      'program'
    """
    call = {name: options.pop(name) for name in inspect.signature(Trainer.train).parameters if name in options}
    given = optimizer is not None or "optimizer_func" in options
    if not given and callable(program_func) and not Program(program_func).minimizes:
        optimizer = optimizers.Adam()
    trainer = Trainer(program_func, optimizer, **options)
    trainer.train(reader, num_epochs, event_handler, **call)
    return trainer
