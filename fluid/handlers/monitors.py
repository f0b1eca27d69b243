"""Handlers that act upon what is measured: stop, save, ask for a checkpoint; and one that measures learning rates."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

from fluid import errors
from fluid.core import whole_number
from fluid.handlers.values import Averaging, Every, Interval, by_name, known_values, number
from fluid.session.names import rate_names
from fluid.storage import PathLike
from fluid.trainer import BeginStepEvent, BeginTrainEvent, EndEpochEvent, EndStepEvent, Handler, MeasuredEvent
from fluid.trainer.health import Health


class Monitor(Averaging):
    """A handler that follows one scalar: an output of the program, as its mean over each epoch, or an announced value.

    Args:
      monitor: the name of the scalar, such as "loss" or "test_loss".
      mode: "min" or "max": which way is better.
      min_delta: by how much a value must be better than the best to count as better.

    Attributes:
      monitor: the same.
      best: the best value so far, or None.
    """

    def __init__(self, monitor: str, mode: str = "min", min_delta: float = 0.0):
        super().__init__()
        kind = type(self).__name__
        if mode not in ("min", "max"):
            raise errors.ArgumentError(f'{kind}(mode={mode!r}): expected "min" or "max"')
        if not min_delta >= 0:
            raise errors.ArgumentError(f"{kind}(min_delta={min_delta!r}): expected a number from 0 on")
        self.monitor = monitor
        self.best: float | None = None
        self._sign = 1 if mode == "min" else -1
        self._min_delta = min_delta

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Refuse a name that belongs to no value of this training."""
        super().begin_train(event)
        known = known_values(self)
        if self.monitor not in known:
            raise errors.UnknownNameError(
                f"{type(self).__name__} monitors {self.monitor!r}, which nothing here measures. "
                f"{errors.nearest(self.monitor, known)} Results of tests come from "
                f"handlers=[..., fluid.handlers.TestEvery(test_reader)]"
            )

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Judge the mean over the epoch."""
        if self._places and event.completed:
            for value in self._take().read().values():
                self._judge(value)

    def measured(self, event: MeasuredEvent) -> None:
        """Judge what was announced."""
        announced = by_name(event.metrics)
        if self.monitor in announced:
            self._judge(number(announced[self.monitor]))

    def state(self) -> dict[str, Any]:
        """The best value so far, and the mean over the steps of this epoch."""
        return {"best": self.best, "mean": super().state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the best value and the mean of a checkpoint."""
        super().restore(state["mean"])
        self.best = state["best"]

    def _chosen(self, places: dict[str, int]) -> dict[str, int]:
        return {name: place for name, place in places.items() if name == self.monitor}

    def _better(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        return self.best is None or self._sign * (self.best - value) > self._min_delta

    def _judge(self, value: float) -> None:
        """Act upon a new value."""
        raise NotImplementedError


class EarlyStopping(Monitor):
    """Stops training when a value has not become better for a while.

    Args:
      monitor: name of the value: "test_loss" of TestEvery, or "loss", an output of the program, as its mean over each
        epoch.
      patience: how many measurements in a row may be no better than the best before training stops.
      mode: "min" or "max": which way is better.
      min_delta: by how much a value must be better than the best to count as better.

    Attributes:
      best: the best value so far, or None.

    Raises:
      ArgumentError: an argument makes no sense.
      UnknownNameError: nothing measures such a value; raised when training begins.

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

    def __init__(self, monitor: str, patience: int = 3, mode: str = "min", min_delta: float = 0.0):
        super().__init__(monitor, mode, min_delta)
        self._patience = whole_number("EarlyStopping", "patience", patience)
        self._worse = 0  # how many measurements in a row were no better
        self._restored = False

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Stop at once when this continues a training that was stopped; another call of `train` is patient again."""
        super().begin_train(event)
        if self._worse >= self._patience:
            if self._restored:
                self.trainer.stop()
            else:
                self._worse = 0
        self._restored = False

    def state(self) -> dict[str, Any]:
        """The best value, and how many measurements since were no better."""
        return {**super().state(), "worse": self._worse}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        super().restore(state)
        self._worse = state["worse"]
        self._restored = True

    def _judge(self, value: float) -> None:
        if self._better(value):
            self.best = value
            self._worse = 0
            return
        self._worse += 1
        if self._worse >= self._patience:
            self.trainer.stop()


class SaveBest(Monitor):
    """Saves the parameters whenever a value is the best so far, unless they are not finite.

    Args:
      path: as in `Trainer.save_params`.
      monitor: name of the value, as for EarlyStopping. The value of a test was measured with the parameters that are
        saved; the mean of an output over an epoch with those of all its steps.
      mode: "min" or "max": which way is better.

    Attributes:
      best: the best value so far, that of the saved parameters; or None.

    Raises:
      ArgumentError: an argument makes no sense.
      UnknownNameError: nothing measures such a value; raised when training begins.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)
      >>> saving = fluid.handlers.SaveBest("best.params", "test_loss")
      >>> handlers = [saving, fluid.handlers.TestEvery(reader)]
      >>> trainer = fluid.train(program, reader, num_epochs=3, handlers=handlers)
      >>> best = fluid.Trainer(program, fluid.optimizer.Adam(), param_path="best.params")
      >>> float(best.test(reader)[0]) == saving.best
      True
    """

    def __init__(self, path: PathLike, monitor: str, mode: str = "min"):
        super().__init__(monitor, mode)
        self._path = path
        self._health = Health()

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Note which arrays are not finite from the beginning; they do not keep the others from being saved."""
        super().begin_train(event)
        self._health = Health.at_start(self.trainer.session.scope.arrays)

    def _judge(self, value: float) -> None:
        if not self._better(value):
            return
        if complaint := self._health.complaint(self.trainer.session.scope.arrays):
            warnings.warn(
                f"{self.monitor} is the best so far, {value:.6g}, but {complaint}; nothing was saved",
                errors.FluidWarning,
                stacklevel=2,
            )
            return
        self.trainer.save_params(self._path)
        self.best = value


class Checkpoint(Handler):
    """Saves checkpoints besides those of the `checkpoint_config`, which says where and how many are kept.

    Args:
      every: a number of steps, or "epoch", "2 epochs" ...

    Raises:
      CheckpointError: the Trainer has no `checkpoint_config`; raised when the first checkpoint is due.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)
      >>> config = fluid.CheckpointConfig("checkpoints", epoch_interval=None, step_interval=None)
      >>> saving = fluid.handlers.Checkpoint(every="2 epochs")
      >>> trainer = fluid.train(program, reader, num_epochs=5, handlers=[saving], checkpoint_config=config)
      >>> import os
      >>> sorted(name for name in os.listdir("checkpoints") if name.isdigit())  # the end of training is always saved
      ['10', '4', '8']
    """

    def __init__(self, every: Interval = "epoch"):
        self._every = Every(every, "Checkpoint")

    def end_step(self, event: EndStepEvent) -> None:
        """Ask for a checkpoint, if it is due."""
        if self._every.at_step(self.done):
            self.trainer.save_checkpoint()

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Ask for a checkpoint, if it is due."""
        if self._every.at_epoch(event):
            self.trainer.save_checkpoint()


class LearningRateMonitor(Handler):
    """Announces the learning rate of each step: `learning_rate_0`, and one more for each further `minimize`.

    Args:
      every: a number of steps.

    Raises:
      UnknownNameError: the optimizer is a bare optax transformation, which does not tell its learning rate; raised when
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
        self._rates: Any = None

    def measures(self) -> list[str]:
        """One name for each `minimize`."""
        return rate_names(self.trainer.program)

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Find out whether all rates are told; what this raises of one that is not, is raised before the first step."""
        self._rates = self._current()

    def begin_step(self, event: BeginStepEvent) -> None:
        """Compute the rates of this step on the device, if they are due."""
        self._rates = self._current() if self._every.at_step(self.done + 1) else None

    def end_step(self, event: EndStepEvent) -> None:
        """Announce the rates of this step."""
        if self._rates is not None:
            self.announce(event.epoch, event.step, dict(zip(self.measures(), self._rates, strict=True)))

    def _current(self) -> Any:
        return self.trainer.session.rate_arrays(self.trainer.program)
