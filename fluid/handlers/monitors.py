"""Handlers that monitor training: early stopping, learning rates, norms of gradients, and additional checkpoints."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import fitting, whole_number
from fluid.runtime import step_names
from fluid.runtime.fetch import rate_names
from fluid.trainer import BeginTrainEvent, EndEpochEvent, EndStepEvent, Handler
from fluid.trainer.evaluation.means import value_name
from fluid.trainer.evaluation.monitor import Monitor
from fluid.trainer.every import Every, Interval


@fitting("fluid.handlers.EarlyStopping")
class EarlyStopping(Monitor):
    """A handler that stops training when a value has stopped improving.

    Args:
      monitor: the name of the value: "test_loss" of TestEvery, or the name of an output of the program,
        such as "loss", which is averaged over each epoch.
      patience: the number of consecutive measurements without improvement after which training stops.
      mode: "min" or "max", the direction of improvement. "auto", the default, derives the direction from the name of
        the value: larger for "test_acc" and "auc", smaller for "loss" and "test_rmse".
      min_delta: the minimum difference to the best value that counts as an improvement.

    In a `fluid.Population`, which trains many members at once, the handler stops each member independently.

    Attributes:
      best: the best value so far; None before the first measurement. For a Population, float64 `[members]`.

    Raises:
      ArgumentError: an argument is invalid, or no direction can be derived from the name.
      UnknownNameError: no output or handler provides this value; raised when training begins.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.zeros((8, 2), "float32"),), batch_size=4)
      >>> stopping = fluid.handlers.EarlyStopping("loss", patience=3, mode="max")
      >>> trainer = fluid.train(program, reader, num_epochs=100, handlers=[stopping])  # its loss cannot grow
      >>> int(trainer.session.scope.step)  # two steps in the best epoch, and in each of three that were no better
      8
    """

    for_members = True

    def __init__(self, monitor: str, patience: int = 3, mode: str = "auto", min_delta: float = 0.0):
        super().__init__(monitor, mode, min_delta)
        self._patience = whole_number("EarlyStopping", "patience", patience)
        self._worse: Any = 0  # number of measurements since the last improvement; int64 `[members]` for a population
        self._restored = False

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Stop immediately if this handler has already stopped the resumed training.

        In a new call of `train` after a stop, count the measurements without improvement from 0.
        """
        super().begin_train(event)
        if self._restored:
            self._stop()
        else:
            self._worse = np.where(self._worse >= self._patience, 0, self._worse)
        self._restored = False

    def _forget(self) -> None:
        super()._forget()
        self._worse = 0

    def state(self) -> dict[str, Any]:
        """Return a dict for JSON with the best value and the number of later measurements without improvement."""
        return {**super().state(), "worse": np.asarray(self._worse).tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the best value, and the number of later measurements without a better value, from a checkpoint."""
        super().restore(state)
        self._worse = np.asarray(state["worse"])
        self._restored = True

    def _judge(self, value: Any) -> None:
        better = self._better(value)
        if np.ndim(better):
            better = better & (self._worse < self._patience)  # a stopped training keeps its best value
            self.best = np.where(better, value, np.nan if self.best is None else self.best)
        elif better:
            self.best = value
        self._worse = np.where(better, 0, self._worse + 1)
        self._stop()

    def _stop(self) -> None:
        """Stop the training, or single trainings of a Population, after `patience` measurements without improvement."""
        stopped = self._worse >= self._patience
        if np.ndim(stopped):
            self.trainer.stop(np.flatnonzero(stopped))
        elif stopped:
            self.trainer.stop()


@fitting("fluid.handlers.CheckpointEvery")
class CheckpointEvery(Handler):
    """A handler that saves additional checkpoints.

    The `checkpoint_config` of the Trainer sets the folder and the number of checkpoints to keep.

    Args:
      every: the interval between checkpoints: a number of steps, or "epoch", "2 epochs" ...

    Raises:
      CheckpointError: the Trainer has no `checkpoint_config`; raised when the first checkpoint is due.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)
      >>> config = fluid.CheckpointConfig("checkpoints", epoch_interval=None, step_interval=None)
      >>> saving = fluid.handlers.CheckpointEvery(every="2 epochs")
      >>> trainer = fluid.train(program, reader, num_epochs=5, handlers=[saving], checkpoint_config=config)
      >>> import os
      >>> sorted(name for name in os.listdir("checkpoints") if name.isdigit())  # the end of training is always saved
      ['10', '4', '8']
    """

    def __init__(self, every: Interval = "epoch"):
        self._every = Every(every, "CheckpointEvery")

    def end_step(self, event: EndStepEvent) -> None:
        """Request a checkpoint, if one is due after this step."""
        if self._every.at_step(self.done):
            self.trainer.save_checkpoint()

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Request a checkpoint, if one is due after this epoch."""
        if self._every.at_epoch(event):
            self.trainer.save_checkpoint()


Checkpoint = CheckpointEvery  # `Checkpoint` is the old name of the class, which users' programs may still use


@fitting("fluid.handlers.LearningRateMonitor")
class LearningRateMonitor(Handler):
    """A handler that reports learning rates: `learning_rate_0`, `learning_rate_1` ..., one for each call of `minimize`.

    With several programs, a step reports the rates of its program, with names such as `generator/learning_rate_0`.

    Args:
      every: the number of steps between two reports, 1 by default.

    Raises:
      UnknownNameError: the optimizer is an optax transformation, which does not expose its learning rate; raised when
        training begins.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)
      >>> handlers = [fluid.handlers.CSVLogger("log.csv"), fluid.handlers.LearningRateMonitor()]
      >>> adam = fluid.optimizer.Adam(lambda updates_done: 0.5 ** updates_done)
      >>> trainer = fluid.train(program, reader, optimizer=adam, num_epochs=2, handlers=handlers)
      >>> import pathlib
      >>> [row.split(",")[-1] for row in pathlib.Path("log.csv").read_text().split()]  # the last rate of each epoch
      ['learning_rate_0', '0.5', '0.125']
    """

    def __init__(self, every: Interval = 1):
        self._every = Every(every, "LearningRateMonitor")

    def measures(self) -> list[str]:
        """Return the names of the reported learning rates: one for each call of `minimize` in each program."""
        return [name for program in self.trainer.programs for name in self._names(program)]

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Read all learning rates, so that an optimizer that hides its rate causes an error before the first step."""
        for program in self.trainer.programs.values():
            self.trainer.session.engine.current_rates(program)

    def fetches(self) -> list[str]:
        """Return the names of the learning rates to fetch from the training step."""
        programs = self.trainer.programs.values()
        return list(dict.fromkeys(name for program in programs for name in rate_names(program)))

    def end_step(self, event: EndStepEvent) -> None:
        """Report the learning rates of this step, if a report is due."""
        if self._every.at_step(self.done):
            rates = [event.fetched[name] for name in rate_names(self.trainer.programs[event.program])]
            self.announce(event.epoch, event.step, dict(zip(self._names(event.program), rates, strict=True)))

    def _names(self, program: str) -> list[str]:
        programs = self.trainer.programs
        return [value_name(programs, program, name) for name in rate_names(programs[program])]


log = logging.getLogger("fluid")


@fitting("fluid.handlers.ReduceLROnPlateau")
class ReduceLROnPlateau(Monitor):
    """A handler that multiplies the learning rate by a factor when a value has stopped improving.

    The handler sets the rate like `trainer.learning_rate = ...`: without a new compilation, stored in checkpoints, and
    instead of a schedule. It lowers the rate of each `minimize` call, in all programs or only in `program`.

    Args:
      monitor: the name of the value, as for EarlyStopping.
      factor: the factor of the learning rate, above 0 and below 1.
      patience: the number of consecutive measurements without improvement after which the rate is lowered.
      mode: the direction of improvement, as for EarlyStopping.
      min_delta: the minimum difference to the best value that counts as an improvement.
      cooldown: the number of measurements to ignore after a change of the rate, so that the new rate can take effect.
      min_lr: the lower limit of the learning rates that this handler sets.
      program: the name of the program whose rates are lowered; all programs by default.

    Attributes:
      best: the best value so far; None before the first measurement.

    Raises:
      ArgumentError: an argument is invalid.
      UnknownNameError: no output or handler provides this value, or the optimizer is an optax transformation, which
        does not expose its learning rate; raised when training begins.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.zeros((8, 2), "float32"),), batch_size=4)
      >>> reducing = fluid.handlers.ReduceLROnPlateau("loss", factor=0.5, patience=2, mode="max")
      >>> trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.5))
      >>> history = trainer.train(reader, num_epochs=5, handlers=[reducing])  # the loss never grows
      >>> trainer.learning_rate  # lowered after the third and the fifth epoch
      0.125
    """

    def __init__(
        self,
        monitor: str,
        factor: float = 0.1,
        patience: int = 10,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
        program: str | None = None,
    ):
        super().__init__(monitor, mode, min_delta)
        if not 0 < factor < 1:
            raise errors.ArgumentError(f"ReduceLROnPlateau(factor={factor!r}): expected a number between 0 and 1")
        if not min_lr >= 0:
            raise errors.ArgumentError(f"ReduceLROnPlateau(min_lr={min_lr!r}): expected a number from 0 on")
        self._factor = factor
        self._patience = whole_number("ReduceLROnPlateau", "patience", patience)
        self._cooldown = whole_number("ReduceLROnPlateau", "cooldown", cooldown, least=0)
        self._min_lr = min_lr
        self._program = program
        self._worse = 0  # the number of consecutive measurements without improvement
        # the number of measurements until the end of the cooldown, in which the learning rate is not lowered
        self._resting = 0

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Raise UnknownNameError if an optimizer does not expose its learning rate."""
        super().begin_train(event)
        for program in self._lowered():
            self.trainer.session.learning_rates(program)

    def state(self) -> dict[str, Any]:
        """Return the state of the handler, as a dict for JSON.

        The dict holds the best value, the number of measurements without a better value, and the remaining measurements
        of the cooldown.
        """
        return {**super().state(), "worse": self._worse, "resting": self._resting}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the best value, the measurements without improvement and the cooldown from a checkpoint."""
        super().restore(state)
        self._worse = state["worse"]
        self._resting = state["resting"]

    def _forget(self) -> None:
        super()._forget()
        self._worse = 0
        self._resting = 0

    def _judge(self, value: float) -> None:
        resting = self._resting > 0
        if self._better(value):
            self.best = value
            self._worse = 0
        elif not resting:
            self._worse += 1
        if resting:
            self._resting -= 1
        if self._worse >= self._patience:
            self._reduce()
            self._worse = 0
            self._resting = self._cooldown

    def _reduce(self) -> None:
        session = self.trainer.session
        every: list[float] = []
        for program in self._lowered():
            before = session.learning_rates(program)
            after = [rate if rate <= self._min_lr else max(rate * self._factor, self._min_lr) for rate in before]
            session.set_learning_rates(after, program)
            every += after
        shown = ", ".join(f"{rate:.3g}" for rate in every)
        log.info("%s has not become better than %s: the learning rate is %s now", self.monitor, self.best, shown)

    def _lowered(self) -> list[str]:
        return list(self.trainer.programs) if self._program is None else [self._program]


_GRADIENT = "grad_norm"
_RATE = "learning_rate"


@fitting("fluid.handlers.GradientMonitor")
class GradientMonitor(Handler):
    """A handler that reports the norms of gradients and updates to CSVLogger, TensorBoard, LivePlot and ProgressBar.

    `grad_norm_0` is the L2 norm of all gradients of the first `minimize` call, before clipping. `update_ratio_0` is the
    norm of the update divided by the norm of the parameters. About 1e-3 is usual: a much larger ratio means a rather
    large learning rate, a much smaller ratio a small one. With precision="float16", the handler also reports the loss
    scale, `loss_scale_0`; the norm of a skipped update is infinite. The names for further `minimize` calls end with
    `_1`, `_2` ...

    The training step computes these values from its gradients. A Trainer with a custom `step=` reports no gradient
    norm, because a custom step may compute several gradients.

    Args:
      every: the number of steps between two reports, 1 by default.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.zeros((8, 2), "float32"),), batch_size=4)
      >>> handlers = [fluid.handlers.CSVLogger("log.csv"), fluid.handlers.GradientMonitor()]
      >>> trainer = fluid.train(program, reader, num_epochs=2, handlers=handlers)
      >>> import pathlib
      >>> [row.split(",")[3] for row in pathlib.Path("log.csv").read_text().split()]
      ['grad_norm_0', '1', '1']
    """

    def __init__(self, every: Interval = 1):
        self._every = Every(every, "GradientMonitor")

    def measures(self) -> list[str]:
        """Return the names of the gradient norms and update ratios that this handler reports, program by program."""
        programs = self.trainer.programs
        return [value_name(programs, program, name) for program in programs for name in self._names(program)]

    def fetches(self) -> list[str]:
        """Return the names of the gradient norms and update ratios to fetch from the training steps."""
        return list(dict.fromkeys(name for program in self.trainer.programs for name in self._names(program)))

    def end_step(self, event: EndStepEvent) -> None:
        """Report the norms and ratios of this step, if a report is due."""
        if self._every.at_step(self.done):
            programs = self.trainer.programs
            names = self._names(event.program)
            values = {value_name(programs, event.program, name): event.fetched[name] for name in names}
            self.announce(event.epoch, event.step, values)

    def _names(self, program: str) -> list[str]:
        names = [name for name in step_names(self.trainer.programs[program]) if not name.startswith(_RATE)]
        own = self.trainer.session.engine.function is not None
        return [name for name in names if not (own and name.startswith(_GRADIENT))]
