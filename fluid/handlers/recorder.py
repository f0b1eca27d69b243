"""Recorder: the base class of handlers that write or plot the scalars of a training."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from fluid.trainer import BeginEpochEvent, BeginStepEvent, EndEpochEvent, EndStepEvent, EndTrainEvent, MeasuredEvent
from fluid.trainer.evaluation.means import Averaging, TrainingMeans
from fluid.trainer.evaluation.values import Every, Interval, by_name


class Recorder(Averaging):
    """A handler that collects scalars, and passes them to `_write` some steps later, when the device has computed them.

    Args:
      every: the interval at which outputs of the program are recorded, as means since the last record. Values of other
        handlers are recorded when they are reported.
    """

    first_process_only = True
    acts_on_measured = False
    for_members = False

    def __init__(self, every: Interval):
        super().__init__()
        self._every = Every(every, type(self).__name__)
        self._waiting: deque[tuple[int, int, Any]] = deque()  # epoch, steps done, and means or values by name

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Write all pending records."""
        super().begin_epoch(event)
        self._flush()

    def begin_step(self, event: BeginStepEvent) -> None:
        """Write the records of steps for which the loop has already waited."""
        self._flush(self.done - self._dispatcher.in_flight)

    def end_step(self, event: EndStepEvent) -> None:
        """Add the step to the means, and close the record if it is complete."""
        super().end_step(event)
        if self._every.at_step(self.done):
            self._close(event.epoch)

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Close the record if it is complete."""
        if self._every.at_epoch(event):
            self._close(event.epoch)

    def measured(self, event: MeasuredEvent) -> None:
        """Record values that another handler has reported."""
        self._waiting.append((event.epoch, self.done, by_name(event.metrics)))

    def end_train(self, event: EndTrainEvent) -> None:
        """Write all pending records."""
        self._flush()

    def state(self) -> dict[str, Any]:
        """Write all complete records, and return the incomplete means as JSON."""
        self._flush()
        return super().state()

    def _close(self, epoch: int) -> None:
        self._waiting.append((epoch, self.done, self._take()))

    def _flush(self, until: float = float("inf")) -> None:
        """Write the records up to `until` steps done; all records by default."""
        while self._waiting and self._waiting[0][1] <= until:
            epoch, done, values = self._waiting.popleft()
            self._write(epoch, done, values.read() if isinstance(values, TrainingMeans) else values)

    def _write(self, epoch: int, done: int, values: Mapping[str, Any]) -> None:
        raise NotImplementedError
