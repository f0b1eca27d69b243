"""Handlers that say where the time goes."""

import math
import time
from typing import Any

import jax

from fluid import errors
from fluid.core import fitting
from fluid.paths import PathLike, local_path
from fluid.trainer import BeginEpochEvent, BeginStepEvent, BeginTrainEvent, EndStepEvent, EndTrainEvent, Handler
from fluid.trainer.evaluation.values import Every, Interval


@fitting("fluid.handlers.Timer")
class Timer(Handler):
    """Announces how long steps take, and whether the loop waits for data or for the device.

    Four times are announced, in milliseconds, as means over the steps since the last time: `step_ms`, from the end of
    one step to the end of the next; `data_ms`, for reading and converting a minibatch, which happens while the device
    works; `data_wait_ms`, the part of it for which the device had nothing left to do, so that training waited for data;
    and `device_ms`, for which the loop did nothing but wait for the device. Where `data_wait_ms` is much of `step_ms`,
    the reader is the bottleneck. Whether the device is still at work is looked at after each reading of 20 ms and more,
    and after a few of the others at once. Put this handler first, so that it surrounds all others.

    The first step of each call of `train`, which may compile, is left out.

    Args:
      every: a number of steps.

    Example:
      >>> import fluid
      >>> handlers = [fluid.handlers.Timer(every=100), fluid.handlers.TensorBoard("logs")]
      >>> handlers[0].measures()
      ['step_ms', 'data_ms', 'data_wait_ms', 'device_ms']
    """

    def __init__(self, every: Interval = 50):
        self._every = Every(every, "Timer")
        self._first = True
        self._mark: float | None = None  # when the last step of this epoch ended, once there was one
        self._begin = 0.0
        self._step = 0.0
        self._data = 0.0
        self._before = (0.0, 0.0)
        self._count = 0

    def measures(self) -> list[str]:
        """The names of the four times."""
        return ["step_ms", "data_ms", "data_wait_ms", "device_ms"]

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Forget the times of an earlier training."""
        self._first = True
        self._reset()

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Leave out what comes between epochs, such as tests."""
        self._mark = None

    def steps_ahead(self) -> float:
        """Any number, unless a handler acts on the times."""
        return self._every.steps_left(self.done) if self._dispatcher.acting else math.inf

    def begin_step(self, event: BeginStepEvent) -> None:
        """Count the time that the minibatch took."""
        self._begin = time.perf_counter()
        self._data += event.seconds
        if self._mark is None:  # the first minibatch of an epoch is read before its step
            self._mark = self._begin - event.seconds

    def end_step(self, event: EndStepEvent) -> None:
        """Count the step, and announce the means if they are due."""
        now = time.perf_counter()
        self._step += now - (self._begin if self._mark is None else self._mark)
        self._mark = now
        self._count += 1
        if self._first:
            self._first = False
            self._reset()
        elif self._every.at_step(self.done):
            data_wait, device = self._waited()
            totals = (self._step, self._data, data_wait - self._before[0], device - self._before[1])
            means = [1000 * total / self._count for total in totals]
            self.announce(event.epoch, event.step, dict(zip(self.measures(), means, strict=True)))
            self._reset()

    def _reset(self) -> None:
        self._step = 0.0
        self._data = 0.0
        self._before = self._waited()
        self._count = 0

    def _waited(self) -> tuple[float, float]:
        """For how many seconds this training has waited for data, and for the device."""
        waits = self._dispatcher.waits
        return waits.data, waits.device


@fitting("fluid.handlers.Profiler")
class Profiler(Handler):
    """Writes a profile of some steps, to be looked at with TensorBoard's profile plugin, XProf or Perfetto.

    Args:
      steps: the first step and the one after the last, counted from 0 in each call of `train`. The first steps
        compile, and are best left out.
      logdir: directory for the profile.

    Raises:
      ArgumentError: `steps` are no such pair.

    Example:
      >>> import fluid
      >>> profiler = fluid.handlers.Profiler(steps=(10, 13), logdir="logs")
    """

    def __init__(self, steps: tuple[int, int] = (10, 13), logdir: PathLike = "logs"):
        if len(steps) != 2 or not 0 <= steps[0] < steps[1]:
            raise errors.ArgumentError(
                f"Profiler(steps={steps!r}): expected the first step and the one after the last, as in steps=(10, 13)"
            )
        self._steps = steps
        self._logdir = str(local_path(logdir))
        self._count = 0
        self._running = False
        self._annotation: Any = None

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Count steps from here on."""
        self._count = 0

    def steps_ahead(self) -> float:
        """Up to the first of the steps, and from there up to the last."""
        first, end = self._steps
        return first - self._count if self._count < first else end - self._count if self._count < end else math.inf

    def begin_step(self, event: BeginStepEvent) -> None:
        """Start the profile at the first of the steps, and mark each step in it."""
        if self._count == self._steps[0]:
            jax.profiler.start_trace(self._logdir)
            self._running = True
        if self._running:
            self._annotation = jax.profiler.StepTraceAnnotation("train", step_num=self._count)
            self._annotation.__enter__()

    def end_step(self, event: EndStepEvent) -> None:
        """End the profile after the last of the steps, when the device has done it."""
        self._count += 1
        if self._running and self._count == self._steps[1]:
            jax.block_until_ready(list(event.metrics))
        self._leave_step()
        if self._count == self._steps[1]:
            self._stop()

    def end_train(self, event: EndTrainEvent) -> None:
        """End the profile of a training that was shorter."""
        self._leave_step()
        self._stop()

    def _leave_step(self) -> None:
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
            self._annotation = None

    def _stop(self) -> None:
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
