"""Logger: the base class of handlers that write measured values."""

from collections.abc import Mapping
from typing import Any

from fluid.core import fitting
from fluid.handlers.recorder import Recorder
from fluid.trainer import BeginTrainEvent, EndTrainEvent
from fluid.trainer.evaluation.values import Interval, number


@fitting("fluid.handlers.Logger")
class Logger(Recorder):
    """The base class of all loggers: passes the scalars of a training to `write`, which a subclass defines.

    The scalars are the outputs of the program, as means over the steps since the last write, and every value that
    another handler reports. They are passed some steps later, when the device has computed them. All are written before
    each checkpoint and before training ends, also with an error.

    Args:
      every: the interval at which outputs of the program are written: a number of steps, or "epoch", "2 epochs" ...

    Example:
      >>> import fluid, numpy as np
      >>> class Printer(fluid.handlers.Logger):
      ...     def write(self, epoch, step, values):
      ...         print(f"epoch {epoch}, {step} steps done: {values['loss']:.4f}")
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, bias_attr=False))
      >>> reader = fluid.reader.arrays((np.zeros((8, 2), "float32"),), batch_size=4)
      >>> trainer = fluid.train(program, reader, num_epochs=2, handlers=[Printer("epoch")])
      epoch 0, 2 steps done: 0.0000
      epoch 1, 4 steps done: 0.0000
    """

    def __init__(self, every: Interval = 10):
        super().__init__(every)
        self._opened = False

    def open(self, event: BeginTrainEvent) -> None:
        """Open the output after `self.done` steps; values from an earlier training for later steps are outdated."""

    def write(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one step.

        Args:
          epoch: the index of the epoch, from 0.
          step: the number of training steps done, including the steps before a resume.
          values: the scalars by name.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Store all written values so that they survive a crash of this process; called before each checkpoint."""

    def close(self, error: BaseException | None) -> None:
        """Close the output; called when training ends.

        Args:
          error: the exception that ended the training, or None.
        """

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Call `open`."""
        super().begin_train(event)
        self.open(event)
        self._opened = True

    def end_train(self, event: EndTrainEvent) -> None:
        """Write all pending values, and call `close`."""
        if self._opened:
            self._opened = False
            try:
                super().end_train(event)
            finally:
                self.close(event.error)

    def state(self) -> dict[str, Any]:
        """Return the incomplete means as JSON, after everything else was written and flushed."""
        state = super().state()
        if self._opened:
            self.flush()
        return state

    def _write(self, epoch: int, done: int, values: Mapping[str, Any]) -> None:
        self.write(epoch, done, {name: number(value) for name, value in values.items()})
