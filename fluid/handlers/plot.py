"""Recorder and LivePlot: handlers that write or plot scalars, such as the loss, during training."""

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from fluid._util.paths import PathLike, local_path
from fluid.core import fitting
from fluid.trainer import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
    MeasuredEvent,
)
from fluid.trainer.evaluation.history import check_matplotlib, display_picture, draw_curves, in_notebook, write_picture
from fluid.trainer.evaluation.means import Averaging, TrainingMeans, by_name, number
from fluid.trainer.evaluation.measurements import Measurements
from fluid.trainer.every import Every, Interval


class Recorder(Averaging):
    """A base class of handlers that collect records of scalars, and write or plot the records.

    A record is written some steps later, when the device has computed it, so that training does not wait. The method
    `_write` of a subclass writes one record.

    Args:
      every: the interval of the records: a number of steps, or "epoch". A record has the means of the program's outputs
        over the steps since the last record. Values that other handlers report are recorded immediately.
    """

    first_process_only = True
    for_members = False

    def __init__(self, every: Interval):
        super().__init__()
        self._every = Every(every, type(self).__name__)
        self._measurements = Measurements()  # the completed records of means
        # `_waiting`: records that are not written yet. Each is a tuple of epoch, number of completed steps, and means
        # or values by name.
        self._waiting: deque[tuple[int, int, Any]] = deque()

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Begin to count the records of means; a resumed training may have records from before."""
        super().begin_train(event)
        self._measurements.begin(self.done, known=event.resumed)

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Write all records of scalars that are not yet written."""
        super().begin_epoch(event)
        self._flush()

    def begin_step(self, event: BeginStepEvent) -> None:
        """Write the records of scalars for all steps that the device has completed."""
        self._flush(self.done - self._dispatcher.in_flight)

    def end_step(self, event: EndStepEvent) -> None:
        """Add the outputs of this step to the means; complete the record of means if its interval ends here."""
        super().end_step(event)
        if self._every.at_step(self.done):
            self._close(event.epoch)

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Complete the record of means, if its interval ends with this epoch."""
        if self._every.at_epoch(event):
            self._close(event.epoch)

    def measured(self, event: MeasuredEvent) -> None:
        """Store the values that another handler has reported, as a record to write later."""
        self._waiting.append((event.epoch, self.done, by_name(event.metrics)))

    def end_train(self, event: EndTrainEvent) -> None:
        """Write all records of scalars that are not yet written; warn if the interval never ended."""
        self._flush()
        kind = type(self).__name__
        self._measurements.check(
            event,
            self.done,
            f"{kind} records the mean over {self._every}, which",
            f'a shorter interval records more often, such as {kind}(..., every="epoch")',
        )

    def state(self) -> dict[str, Any]:
        """Return the means of the record of scalars that is not complete yet, as a dict for JSON.

        First write all complete records.
        """
        self._flush()
        return super().state()

    def _close(self, epoch: int) -> None:
        self._measurements.add()
        self._waiting.append((epoch, self.done, self._take()))

    def _flush(self, until: float = float("inf")) -> None:
        while self._waiting and self._waiting[0][1] <= until:
            epoch, done, values = self._waiting.popleft()
            self._write(epoch, done, values.read() if isinstance(values, TrainingMeans) else values)

    def _write(self, epoch: int, done: int, values: Mapping[str, Any]) -> None:
        raise NotImplementedError


@fitting("fluid.handlers.LivePlot")
class LivePlot(Recorder):
    """A handler that plots the scalars of the program, and values that other handlers report, over the training steps.

    Values whose names have the same ending, such as `loss` and `test_loss`, are plotted in one diagram. Each call of
    `train` starts a new figure.

    Args:
      path: the PNG file to write. None shows the figure in a notebook; outside a notebook, it writes `training.png`.
      every: a number of steps, or "epoch"; each point is the mean over these steps.
      interval: the minimum time between two updates of the figure, in seconds. The last update is at the end of
        training.

    Raises:
      ArgumentError: the package matplotlib is not installed.

    Example:
      >>> import fluid
      >>> handlers = [fluid.handlers.LivePlot("curves.png"), fluid.handlers.TestEvery(reader=[])]
    """

    def __init__(self, path: PathLike | None = None, every: Interval = 10, interval: float = 1.0):
        super().__init__(every)
        self._path = None if path is None else str(local_path(path))
        if path is None and not in_notebook():
            self._path = "training.png"
        self._file_of = self._path
        self._interval = interval
        self._curves: dict[str, tuple[list[int], list[float]]] = {}
        self._next = 0.0
        self._new = False
        self._handle: Any = None
        check_matplotlib("fluid.handlers.LivePlot")

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Forget the curves of an earlier training, and start a new, empty figure."""
        super().begin_train(event)
        self._curves = {}
        self._handle = None
        self._new = False
        self._next = time.monotonic()

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Draw the curves of the training, if there are new points and the last drawing is `interval` seconds old."""
        super().begin_epoch(event)
        self._draw_if_due()

    def begin_step(self, event: BeginStepEvent) -> None:
        """Draw the curves, if there are new points and `interval` seconds have passed since the last drawing."""
        super().begin_step(event)
        self._draw_if_due()

    def end_train(self, event: EndTrainEvent) -> None:
        """Add a last point, the mean over the steps since the previous point, and draw all curves."""
        if self._means().read():
            self._close(event.epochs)
        super().end_train(event)
        if self._curves:
            self._draw()

    def _draw_if_due(self) -> None:
        if self._new and time.monotonic() >= self._next:
            self._draw()
            # The interval to the next drawing begins after this drawing, which may be slow.
            self._next = time.monotonic() + self._interval

    def _write(self, epoch: int, done: int, values: Mapping[str, Any]) -> None:
        """Add a point to the curve of each value; its x is `done`, the number of completed steps."""
        self._new = True
        for name, value in values.items():
            steps, numbers = self._curves.setdefault(name, ([], []))
            steps.append(done)
            numbers.append(number(value))

    def _draw(self) -> None:
        picture = draw_curves(self._curves, self._names, "step")
        self._new = False
        if self._path is not None:
            write_picture(picture, self._path)
        elif self._handle is None:
            self._handle = display_picture(picture)
        else:
            display_picture(picture, self._handle)
