"""Handlers that say where the time goes."""

import time
from typing import Any

import jax

from fluid import errors
from fluid.handlers.values import Every, Interval
from fluid.trainer import BeginEpochEvent, BeginStepEvent, BeginTrainEvent, EndStepEvent, EndTrainEvent, Handler


class Timer(Handler):
    """Announces how long steps take, and whether data or the device is waited for.

    In milliseconds, as means over the steps since the last time: `step_ms`, from the end of one step to that of the
    next; `data_ms`, reading and converting a minibatch, which the device's work hides as long as that takes longer;
    and `device_ms`, the time for which the loop had nothing to do but to wait for the device. Where `device_ms` is
    near zero, the reader is the bottleneck. Put it first, so that it is around all other handlers.

    The first step of each call of `train`, which may compile, is left out.

    Args:
      every: a number of steps.

    Example:
      >>> import fluid
      >>> handlers = [fluid.handlers.Timer(every=100), fluid.handlers.TensorBoard("logs")]
    """

    def __init__(self, every: Interval = 50):
        self._every = Every(every, "Timer")
        self._first = True
        self._mark: float | None = None
        self._begin = self._step = self._data = self._device = 0.0
        self._count = 0

    def measures(self) -> list[str]:
        """See the class."""
        return ["step_ms", "data_ms", "device_ms"]

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Forget what was before."""
        self._first = True
        self._reset()

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """What comes between epochs, such as tests, is not counted."""
        self._mark = None

    def begin_step(self, event: BeginStepEvent) -> None:
        """The wait for the device, if there was one, is over."""
        self._begin = time.perf_counter()
        self._data += event.seconds
        if self._mark is None:  # the first minibatch of an epoch is read before its step
            self._mark = self._begin - event.seconds
        else:
            self._device += self._begin - self._mark

    def end_step(self, event: EndStepEvent) -> None:
        """Announce, if it is due."""
        now = time.perf_counter()
        self._step += now - (self._begin if self._mark is None else self._mark)
        self._mark = now
        self._count += 1
        if self._first:
            self._first = False
            self._reset()
        elif self._every.at_step(self.done):
            means = [1000 * total / self._count for total in (self._step, self._data, self._device)]
            self.announce(event.epoch, event.step, dict(zip(self.measures(), means, strict=True)))
            self._reset()

    def _reset(self) -> None:
        self._step = self._data = self._device = 0.0
        self._count = 0


class Profiler(Handler):
    """Writes a profile of some steps, to be looked at with TensorBoard's profile plugin, XProf or Perfetto.

    Args:
      steps: the first step and the one behind the last, counted from 0 in each call of `train`. The first few steps
        compile and are best left out.
      logdir: directory for the profile.

    Raises:
      ArgumentError: there is no step between these.

    Example:
      >>> import fluid
      >>> profiler = fluid.handlers.Profiler(steps=(10, 13), logdir="logs")
    """

    def __init__(self, steps: tuple[int, int] = (10, 13), logdir: Any = "logs"):
        if len(steps) != 2 or not 0 <= steps[0] < steps[1]:
            raise errors.ArgumentError(
                f"Profiler(steps={steps!r}): expected the first step and the one behind the last, as in steps=(10, 13)"
            )
        self._steps, self._logdir = steps, logdir
        self._count = 0
        self._running = False
        self._annotation: Any = None

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Count from here."""
        self._count = 0

    def begin_step(self, event: BeginStepEvent) -> None:
        """Start with the first of these steps; mark each in the profile."""
        if self._count == self._steps[0]:
            jax.profiler.start_trace(str(self._logdir))
            self._running = True
        if self._running:
            self._annotation = jax.profiler.StepTraceAnnotation("train", step_num=self._count)
            self._annotation.__enter__()

    def end_step(self, event: EndStepEvent) -> None:
        """End with the last of these steps, when the device has done it."""
        self._count += 1
        if self._running and self._count == self._steps[1]:
            jax.block_until_ready(list(event.metrics))
        self._leave_step()
        if self._count == self._steps[1]:
            self._stop()

    def end_train(self, event: EndTrainEvent) -> None:
        """End, if training was shorter."""
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
