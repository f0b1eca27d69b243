"""Recorder: what handlers that write or draw the scalars of a training have in common."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from fluid.trainer import BeginEpochEvent, BeginStepEvent, EndEpochEvent, EndStepEvent, EndTrainEvent, MeasuredEvent
from fluid.trainer.evaluation.means import Averaging, TrainingMeans
from fluid.trainer.evaluation.values import Every, Interval, by_name


class Recorder(Averaging):
    """A handler that gathers scalars, and hands them to `_write` some steps later, when reading them takes no waiting.

    Args:
      every: how often the outputs of the program are recorded: their means since the last time. What other handlers
        announce is recorded as it comes.
    """

    first_process_only = True
    acts_on_measured = False
    for_members = False

    def __init__(self, every: Interval):
        super().__init__()
        self._every = Every(every, type(self).__name__)
        self._waiting: deque[tuple[int, int, Any]] = deque()  # epoch, steps done, and means or values by name

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Write everything that was gathered."""
        super().begin_epoch(event)
        self._flush()

    def begin_step(self, event: BeginStepEvent) -> None:
        """Write the records of steps that the loop itself has waited for."""
        self._flush(self.done - self._dispatcher.in_flight)

    def end_step(self, event: EndStepEvent) -> None:
        """Add the step to the means, and close the record if it is due."""
        super().end_step(event)
        if self._every.at_step(self.done):
            self._close(event.epoch)

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Close the record if it is due."""
        if self._every.at_epoch(event):
            self._close(event.epoch)

    def measured(self, event: MeasuredEvent) -> None:
        """Gather what another handler announced."""
        self._waiting.append((event.epoch, self.done, by_name(event.metrics)))

    def end_train(self, event: EndTrainEvent) -> None:
        """Write everything that was gathered."""
        self._flush()

    def state(self) -> dict[str, Any]:
        """The means that are not complete yet; complete records, which are not part of it, are written before."""
        self._flush()
        return super().state()

    def _close(self, epoch: int) -> None:
        self._waiting.append((epoch, self.done, self._take()))

    def _flush(self, until: float = float("inf")) -> None:
        """Write the records of at most so many steps done."""
        while self._waiting and self._waiting[0][1] <= until:
            epoch, done, values = self._waiting.popleft()
            self._write(epoch, done, values.read() if isinstance(values, TrainingMeans) else values)

    def _write(self, epoch: int, done: int, values: Mapping[str, Any]) -> None:
        raise NotImplementedError
