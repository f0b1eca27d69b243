"""Timer and Profiler: handlers that measure the duration of training steps."""

import time
from typing import Any

import jax

from fluid import errors
from fluid._util.paths import PathLike, local_path
from fluid.core import fitting
from fluid.trainer import BeginEpochEvent, BeginStepEvent, BeginTrainEvent, EndStepEvent, EndTrainEvent, Handler
from fluid.trainer.every import Every, Interval


@fitting("fluid.handlers.Timer")
class Timer(Handler):
    """A handler that reports the duration of steps, and the time that the loop waits for data or for the device.

    It reports four durations, in milliseconds, as means over the steps since the last report:

    - `step_ms`: the time from the end of one step to the end of the next step.
    - `data_ms`: the time to read and convert a minibatch, while the device works.
    - `data_wait_ms`: the part of `data_ms` in which the device was idle, because training waited for data.
    - `device_ms`: the time in which the loop only waited for the device.

    If `data_wait_ms` is a large part of `step_ms`, the reader is the bottleneck. After each 20 ms or more of reading,
    in one or several reads, the training loop checks if the device is idle. Put this handler first in the list, so that
    its durations include all other handlers. The first step of each call of `train`, which may compile, does not count.

    Args:
      every: the number of steps between two reports, 50 by default.

    Example:
      >>> import fluid
      >>> handlers = [fluid.handlers.Timer(every=100), fluid.handlers.TensorBoard("logs")]
      >>> handlers[0].measures()
      ['step_ms', 'data_ms', 'data_wait_ms', 'device_ms']
    """

    def __init__(self, every: Interval = 50):
        self._every = Every(every, "Timer")
        self._first = True
        self._mark: float | None = None  # the time when the last step ended; None before the first step of an epoch
        self._begin = 0.0
        self._step = 0.0
        self._data = 0.0
        self._before = (0.0, 0.0)
        self._count = 0

    def measures(self) -> list[str]:
        """Return the names of the four durations that this Timer reports."""
        return ["step_ms", "data_ms", "data_wait_ms", "device_ms"]

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Discard the durations that were measured in an earlier training."""
        self._first = True
        self._reset()

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Exclude the time between two epochs, for example for tests, from the duration of a step."""
        self._mark = None

    def begin_step(self, event: BeginStepEvent) -> None:
        """Add the time that this step needed to read and convert its minibatch, for the report of durations."""
        self._begin = time.perf_counter()
        self._data += event.seconds
        # The first minibatch of an epoch is read before the first step begins: add the reading time to this step.
        if self._mark is None:
            self._mark = self._begin - event.seconds

    def end_step(self, event: EndStepEvent) -> None:
        """Add the duration of this step, and report the mean durations if a report is due."""
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
        waits = self._dispatcher.waits
        return waits.data, waits.device


@fitting("fluid.handlers.Profiler")
class Profiler(Handler):
    """A handler that writes a profile of some steps, for TensorBoard's profile plugin, XProf or Perfetto.

    Args:
      steps: the index of the first profiled step, and the index after the last one, from 0 in each call of `train`.
        Exclude the first steps of a training, which compile.
      logdir: the directory for the profile.

    Raises:
      ArgumentError: `steps` is not a pair of increasing indices from 0 on.

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
        """Set the number of steps to 0: the Profiler counts the steps of each call of `train` separately."""
        self._count = 0

    def begin_step(self, event: BeginStepEvent) -> None:
        """Start the profile before the first profiled step, and annotate each step in the profile."""
        if self._count == self._steps[0]:
            jax.profiler.start_trace(self._logdir)
            self._running = True
        if self._running:
            self._annotation = jax.profiler.StepTraceAnnotation("train", step_num=self._count)
            self._annotation.__enter__()

    def end_step(self, event: EndStepEvent) -> None:
        """End the profile after the last profiled step, when the device has completed this step."""
        self._count += 1
        if self._running and self._count == self._steps[1]:
            jax.block_until_ready(list(event.metrics))
        self._leave_step()
        if self._count == self._steps[1]:
            self._stop()

    def end_train(self, event: EndTrainEvent) -> None:
        """End the profile if training ends before the last profiled step."""
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
