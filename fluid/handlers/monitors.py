"""Handlers that test while training goes on, and act upon what is measured."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.handlers.nan import spoilt
from fluid.handlers.values import Averaging, Every, Interval, known_values, number, scalar_outputs
from fluid.metrics import MetricBase
from fluid.session.names import rate_names
from fluid.trainer import BeginStepEvent, BeginTrainEvent, EndEpochEvent, EndStepEvent, Handler, MeasuredEvent


class TestEvery(Handler):
    """Tests now and then, and announces the scalars of the result as `test_loss` and so on.

    Args:
      reader: as in `Trainer.test`.
      every: a number of steps, or "epoch", "2 epochs" ...
      metrics: as in `Trainer.test`; those that give more than one number are not announced.
      feed_order: as in `Trainer.test`.
      name: what stands before the names of the values.

    Example:
      >>> import fluid
      >>> handlers = [fluid.handlers.EarlyStopping("test_loss"), fluid.handlers.TestEvery(reader=[])]
    """

    __test__ = False  # pytest takes classes of such a name for tests

    def __init__(
        self,
        reader: Any,
        every: Interval = "epoch",
        metrics: Mapping[str, MetricBase] | None = None,
        feed_order: Sequence[str] | Mapping[str, int] | None = None,
        name: str = "test",
    ):
        self._reader, self._metrics, self._feed_order, self._name = reader, metrics, feed_order, name
        self._every = Every(every, "TestEvery")

    def measures(self) -> list[str]:
        """The scalars of the program, or the metrics, behind the name."""
        names = self._metrics if self._metrics is not None else scalar_outputs(self.trainer.program)
        return [f"{self._name}_{name}" for name in names]

    def end_step(self, event: EndStepEvent) -> None:
        """Test, if it is due."""
        if self._every.at_step(self.done):
            self._test(event.epoch, event.step)

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Test, if it is due."""
        if self._every.at_epoch(event):
            self._test(event.epoch, event.steps - 1)

    def _test(self, epoch: int, step: int) -> None:
        found = self.trainer.test(self._reader, self._feed_order, self._metrics)
        places = scalar_outputs(self.trainer.program)
        if self._metrics is not None:
            places = {name: i for i, name in enumerate(self._metrics) if np.size(found[i]) == 1}
        self.announce(epoch, step, {f"{self._name}_{n}": np.reshape(found[i], ()) for n, i in places.items()})


class Monitor(Averaging):
    """What follows one scalar: an output of the program, as its mean over each epoch, or what a handler announces.

    Args:
      monitor: its name, such as "loss" or "test_loss".
      mode: "min" or "max": which way is better.
      min_delta: by how much a value must be better than the best to count as better.

    Attributes:
      best: the best value so far, or None.
    """

    def __init__(self, monitor: str, mode: str = "min", min_delta: float = 0.0):
        super().__init__()
        kind = type(self).__name__
        if mode not in ("min", "max"):
            raise errors.ArgumentError(f'{kind}(mode={mode!r}): expected "min" or "max"')
        if not min_delta >= 0:
            raise errors.ArgumentError(f"{kind}(min_delta={min_delta!r}): expected a number from 0 on")
        self.monitor, self.best = monitor, None
        self._sign, self._min_delta = (1 if mode == "min" else -1), min_delta

    monitor: str
    best: float | None

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Check that there is such a value."""
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
        if self.monitor in (event.metrics.names or ()):
            self._judge(number(event.metrics[self.monitor]))

    def state(self) -> dict[str, Any]:
        """The best value so far, and the mean over the steps of this epoch."""
        return {"best": self.best, "mean": super().state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().restore(state["mean"])
        self.best = state["best"]

    def _chosen(self, places: dict[str, int]) -> dict[str, int]:
        return {name: place for name, place in places.items() if name == self.monitor}

    def _better(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        return self.best is None or self._sign * (self.best - value) > self._min_delta

    def _judge(self, value: float) -> None:
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
      ArgumentError: an argument makes no sense. UnknownNameError: nothing measures such a value; when training begins.

    Example:
      >>> import fluid
      >>> stopping = fluid.handlers.EarlyStopping("test_accuracy", patience=5, mode="max")
    """

    def __init__(self, monitor: str, patience: int = 3, mode: str = "min", min_delta: float = 0.0):
        super().__init__(monitor, mode, min_delta)
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise errors.ArgumentError(
                f"EarlyStopping(patience={patience!r}): expected a number of measurements from 1 on"
            )
        self._patience, self._worse, self._restored = patience, 0, False

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Stop at once if a training goes on that was stopped; one that is begun again has its patience back."""
        super().begin_train(event)
        if self._worse >= self._patience:
            if self._restored:
                self.trainer.stop()
            else:
                self._worse = 0
        self._restored = False

    def state(self) -> dict[str, Any]:
        """The best value, and how many were no better since."""
        return {**super().state(), "worse": self._worse}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().restore(state)
        self._worse, self._restored = state["worse"], True

    def _judge(self, value: float) -> None:
        if self._better(value):
            self.best, self._worse = value, 0
            return
        self._worse += 1
        if self._worse >= self._patience:
            self.trainer.stop()


class SaveBest(Monitor):
    """Saves the parameters whenever a value is the best so far. Parameters that are not finite are never saved.

    Args:
      path: as in `Trainer.save_params`.
      monitor: name of the value, as for EarlyStopping. That of a test belongs to the parameters that were tested;
        the mean of an output over an epoch to those along the way.
      mode: "min" or "max": which way is better.

    Attributes:
      best: the best value so far, that of the saved parameters; or None.

    Raises:
      ArgumentError: an argument makes no sense. UnknownNameError: nothing measures such a value; when training begins.

    Example:
      >>> import fluid
      >>> saving = fluid.handlers.SaveBest("best.params", "test_accuracy", mode="max")
    """

    def __init__(self, path: Any, monitor: str, mode: str = "min"):
        super().__init__(monitor, mode)
        self._path = path
        self._exempt: set[str] = set()

    def begin_train(self, event: BeginTrainEvent) -> None:
        """What the program itself makes infinite, a mask for example, is saved as it is."""
        super().begin_train(event)
        self._exempt = spoilt(self.trainer.session.scope.arrays)

    def _judge(self, value: float) -> None:
        if not self._better(value):
            return
        names = sorted(spoilt(self.trainer.session.scope.arrays) - self._exempt)
        if names:
            warnings.warn(
                f"{self.monitor} is the best so far, {value:.6g}, but {', '.join(names[:5])} "
                f"{'are' if len(names) > 1 else 'is'} not finite; nothing was saved",
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
      CheckpointError: the Trainer has no `checkpoint_config`; when the first one is due.

    Example:
      >>> import fluid
      >>> config = fluid.CheckpointConfig("checkpoints", epoch_interval=None, step_interval=None)
      >>> handlers = [fluid.handlers.Checkpoint(every="5 epochs")]
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
    """Announces the learning rate with which each step was made, as `learning_rate_0`, one for each `minimize`.

    Args:
      every: a number of steps.

    Raises:
      UnknownNameError: the optimizer is a bare optax transformation, which does not say its rate; when training begins.

    Example:
      >>> import fluid
      >>> handlers = [fluid.handlers.CSVLogger("log.csv"), fluid.handlers.LearningRateMonitor()]
    """

    def __init__(self, every: Interval = 1):
        self._every = Every(every, "LearningRateMonitor")
        self._current: Any = None
        self._rates: Any = None

    def measures(self) -> list[str]:
        """One name for each `minimize`."""
        return rate_names(self.trainer.program)

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Find out how the rates are computed."""
        optimizers = [minimize.optimizer for minimize in self.trainer.program.minimizes]
        self._current = jax.jit(lambda slots: [o.current_rate(s) for o, s in zip(optimizers, slots, strict=True)])
        self._current(self._slots())

    def begin_step(self, event: BeginStepEvent) -> None:
        """Compute the rates of this step, on the device."""
        self._rates = self._current(self._slots()) if self._every.at_step(self.done + 1) else None

    def end_step(self, event: EndStepEvent) -> None:
        """Announce them."""
        if self._rates is not None:
            self.announce(event.epoch, event.step, dict(zip(self.measures(), self._rates, strict=True)))

    def _slots(self) -> Any:
        return self.trainer.session.scope.slots[self.trainer.program.name]
