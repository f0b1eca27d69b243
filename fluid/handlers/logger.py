"""Logger: the base of handlers that write what is measured somewhere."""

from collections.abc import Mapping
from typing import Any

from fluid.core import fitting
from fluid.handlers.recorder import Recorder
from fluid.trainer import BeginTrainEvent, EndTrainEvent
from fluid.trainer.evaluation.values import Interval, number


@fitting("fluid.handlers.Logger")
class Logger(Recorder):
    """Hands the scalars of a training to `write`, which a subclass has: the base of all loggers here.

    These are the scalars of the program, as means over the steps since the last time, and every value that another
    handler announces. They are handed over some steps late, when reading them takes no waiting; all of them before a
    checkpoint is written and before training ends, however it ends.

    Args:
      every: how often the outputs of the program are written: a number of steps, or "epoch", "2 epochs" ...

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
        """Begin to write: `self.done` steps are done, and what an earlier training wrote of later ones is outdated."""

    def write(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write some values.

        Args:
          epoch: from 0.
          step: how many training steps were done, those before a resume included.
          values: by name.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Bring what was written to where a crash of this process leaves it; called before a checkpoint is written."""

    def close(self, error: BaseException | None) -> None:
        """End.

        Args:
          error: the exception that ended the training, or None.
        """

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Begin to write."""
        super().begin_train(event)
        self.open(event)
        self._opened = True

    def end_train(self, event: EndTrainEvent) -> None:
        """Write everything that was gathered, and end."""
        if self._opened:
            self._opened = False
            try:
                super().end_train(event)
            finally:
                self.close(event.error)

    def state(self) -> dict[str, Any]:
        """The means that are not complete yet; everything else is written when this returns."""
        state = super().state()
        if self._opened:
            self.flush()
        return state

    def _write(self, epoch: int, done: int, values: Mapping[str, Any]) -> None:
        self.write(epoch, done, {name: number(value) for name, value in values.items()})
