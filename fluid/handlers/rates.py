"""Handlers for learning rates and norms: ReduceLROnPlateau and GradientMonitor."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from fluid import errors
from fluid.core import fitting, whole_number
from fluid.runtime import step_names
from fluid.trainer import BeginTrainEvent, EndStepEvent, Handler
from fluid.trainer.evaluation.monitor import Monitor
from fluid.trainer.evaluation.values import Every, Interval, value_name

log = logging.getLogger("fluid")


@fitting("fluid.handlers.ReduceLROnPlateau")
class ReduceLROnPlateau(Monitor):
    """A handler that multiplies the learning rate by a factor when a value has stopped improving.

    The rate is set as by `trainer.learning_rate = ...`: nothing is recompiled, checkpoints keep the rate, and the new
    rate replaces a schedule. In a program with several calls of `minimize`, the learning rate of each call is lowered.
    The rates of all programs are lowered, unless `program` names one.

    Args:
      monitor: the name of the value, as for EarlyStopping.
      factor: the number by which the learning rate is multiplied, above 0 and below 1.
      patience: the number of consecutive measurements without improvement after which the rate is lowered.
      mode: as for EarlyStopping.
      min_delta: the least difference to the best value that counts as an improvement.
      cooldown: the number of measurements after a change that do not count, so that the new rate can take effect.
      min_lr: the lower limit of the learning rates that this handler sets.
      program: the name of the program whose rates are lowered; all programs by default.

    Attributes:
      best: the best value so far, or None.

    Raises:
      ArgumentError: an argument is invalid.
      UnknownNameError: nothing measures this value, or the optimizer is a bare optax transformation, which does not
        expose its learning rate; raised when training begins.

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
        self._worse = 0  # consecutive measurements without improvement
        self._resting = 0  # the number of measurements until the cooldown ends

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Raise UnknownNameError if the learning rate of an optimizer cannot be set."""
        super().begin_train(event)
        for program in self._lowered():
            self.trainer.session.learning_rates(program)

    def state(self) -> dict[str, Any]:
        """Return the best value, the number of measurements without improvement, and of the cooldown, for JSON."""
        return {**super().state(), "worse": self._worse, "resting": self._resting}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the best value and the counts of measurements from a checkpoint."""
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
        """Return the names of the programs whose learning rates are lowered."""
        return list(self.trainer.programs) if self._program is None else [self._program]


_GRADIENT = "grad_norm"
_RATE = "learning_rate"


@fitting("fluid.handlers.GradientMonitor")
class GradientMonitor(Handler):
    """A handler that reports the norms of gradients and updates to CSVLogger, TensorBoard, LivePlot and ProgressBar.

    `grad_norm_0` is the L2 norm of all gradients of the first `minimize`, before any clip. `update_ratio_0` is the norm
    of the update divided by the norm of the parameters: much more than 1e-3 means a rather large learning rate, much
    less a small one. precision="float16" adds `loss_scale_0`; an infinite norm then belongs to a skipped update.
    Further calls of `minimize` have the numbers 1, 2 ...

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
        """Return the names of the reported norms and ratios, program by program."""
        programs = self.trainer.programs
        return [value_name(programs, program, name) for program in programs for name in self._names(program)]

    def fetches(self) -> list[str]:
        """Return the names of the norms and ratios to fetch from the training step."""
        return list(dict.fromkeys(name for program in self.trainer.programs for name in self._names(program)))

    def steps_ahead(self) -> float:
        """Return the steps until the next report if another handler uses the reported values; infinity if none does."""
        return self._every.steps_left(self.done) if self._dispatcher.acting else math.inf

    def end_step(self, event: EndStepEvent) -> None:
        """Report the norms and ratios of this step, if a report is due."""
        if self._every.at_step(self.done):
            programs = self.trainer.programs
            names = self._names(event.program)
            values = {value_name(programs, event.program, name): event.fetched[name] for name in names}
            self.announce(event.epoch, event.step, values)

    def _names(self, program: str) -> list[str]:
        """Return the names of the norms and ratios that the training step of a program computes."""
        names = [name for name in step_names(self.trainer.programs[program]) if not name.startswith(_RATE)]
        own = self.trainer.session.engine.function is not None
        return [name for name in names if not (own and name.startswith(_GRADIENT))]
