"""LivePlot: a handler that plots measured values during training."""

import time
from collections.abc import Mapping
from typing import Any

from fluid.core import fitting
from fluid.handlers.recorder import Recorder
from fluid.paths import PathLike, local_path
from fluid.trainer import BeginEpochEvent, BeginStepEvent, BeginTrainEvent, EndTrainEvent
from fluid.trainer.evaluation.plotting import check_matplotlib, display_picture, draw_curves, in_notebook, write_picture
from fluid.trainer.evaluation.values import Interval, number


@fitting("fluid.handlers.LivePlot")
class LivePlot(Recorder):
    """A handler that plots the scalars of the program, and the values of other handlers, over the steps of training.

    Values whose names share an ending, such as `loss` and `test_loss`, share one set of axes. Each call of `train`
    begins a new figure.

    Args:
      path: the PNG file to write. None shows the figure in a notebook, and elsewhere writes `training.png`.
      every: a number of steps, or "epoch"; the mean over these steps is one point.
      interval: the least time between two drawings, in seconds. The last drawing follows the end of training.

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
        """Start a new figure without curves."""
        super().begin_train(event)
        self._curves = {}
        self._handle = None
        self._new = False
        self._next = time.monotonic()

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Draw, if there are new points and `interval` has passed."""
        super().begin_epoch(event)
        self._draw_if_due()

    def begin_step(self, event: BeginStepEvent) -> None:
        """Draw, if there are new points and `interval` has passed."""
        super().begin_step(event)
        self._draw_if_due()

    def end_train(self, event: EndTrainEvent) -> None:
        """Draw all points; the mean over the remaining steps is one more point."""
        if self._means().read():
            self._close(event.epochs)
        super().end_train(event)
        if self._curves:
            self._draw()

    def _draw_if_due(self) -> None:
        if self._new and time.monotonic() >= self._next:
            self._draw()
            self._next = time.monotonic() + self._interval  # counted from the end of the drawing, which may be slow

    def _write(self, epoch: int, done: int, values: Mapping[str, Any]) -> None:
        """Add a point to each curve."""
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
