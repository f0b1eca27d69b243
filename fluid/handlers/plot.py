"""A plot that grows while training goes on."""

import io
import math
import os
import time
from collections.abc import Mapping
from typing import Any

from fluid import errors
from fluid.handlers.values import Interval, Recorder, number
from fluid.storage import PathLike
from fluid.trainer import BeginEpochEvent, BeginStepEvent, BeginTrainEvent, EndTrainEvent
from fluid.trainer.progress import in_notebook

# A curve that spans more than this is drawn on a logarithmic axis.
_WIDE = 20


class LivePlot(Recorder):
    """Draws the scalars of the program and what other handlers announce over the steps, in one figure that grows.

    Values that end in the same name, such as `loss` and `test_loss`, share one set of axes. Each call of `train` begins
    a new figure.

    Args:
      path: of the PNG file to write. None shows the figure in a notebook, and elsewhere writes `training.png`.
      every: a number of steps, or "epoch"; the mean over these steps is one point.
      interval: at least so many seconds lie between two drawings; the last one is made when training ends.

    Raises:
      ArgumentError: the package matplotlib is not installed.

    Example:
      >>> import fluid
      >>> handlers = [fluid.handlers.LivePlot("curves.png"), fluid.handlers.TestEvery(reader=[])]
    """

    def __init__(self, path: PathLike | None = None, every: Interval = 10, interval: float = 1.0):
        super().__init__(every)
        self._path = None if path is None else os.fspath(path)
        if path is None and not in_notebook():
            self._path = "training.png"
        self._interval = interval
        self._curves: dict[str, tuple[list[int], list[float]]] = {}
        self._next = 0.0
        self._new = False
        self._handle: Any = None
        _figure()

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Start with no curves."""
        super().begin_train(event)
        self._curves = {}
        self._handle = None
        self._new = False
        self._next = time.monotonic()

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Draw, if there is something new and the last drawing is old enough."""
        super().begin_epoch(event)
        self._draw_if_due()

    def begin_step(self, event: BeginStepEvent) -> None:
        """Draw, if there is something new and the last drawing is old enough."""
        super().begin_step(event)
        self._draw_if_due()

    def end_train(self, event: EndTrainEvent) -> None:
        """Draw everything, with the steps since the last point as a point of their own."""
        if self._mean.read():
            self._close(event.epochs)
        super().end_train(event)
        if self._curves:
            self._draw()

    def _draw_if_due(self) -> None:
        if self._new and time.monotonic() >= self._next:
            self._draw()
            self._next = time.monotonic() + self._interval  # from the end of the drawing, which takes a while

    def _write(self, epoch: int, done: int, values: Mapping[str, Any]) -> None:
        """Add a point to each curve."""
        self._new = True
        for name, value in values.items():
            steps, numbers = self._curves.setdefault(name, ([], []))
            steps.append(done)
            numbers.append(number(value))

    def _draw(self) -> None:
        picture = self._render()
        self._new = False
        if self._path is not None:
            partial = f"{self._path}.partial"
            with open(partial, "wb") as file:
                file.write(picture)
            os.replace(partial, self._path)
            return
        from IPython.display import Image, display

        image = Image(data=picture, format="png")
        if self._handle is None:
            self._handle = display(image, display_id=True)
        else:
            self._handle.update(image)

    def _render(self) -> bytes:
        groups = _groups(list(self._curves), list(self._places))
        columns = min(len(groups), 3)
        rows = math.ceil(len(groups) / columns)
        figure = _figure()(figsize=(4.5 * columns, 3 * rows), dpi=100, layout="constrained")
        for i, (title, names) in enumerate(groups.items()):
            axes = figure.add_subplot(rows, columns, i + 1)
            for name in names:
                steps, numbers = self._curves[name]
                # Few points are marked, so that a curve of one point can be seen.
                marker = "o" if len(steps) <= 40 else ""
                axes.plot(steps, numbers, label=name, linewidth=1.5, marker=marker, markersize=3)
            axes.set(xlabel="step", title=title, yscale=_scale([v for n in names for v in self._curves[n][1]]))
            axes.grid(alpha=0.3)
            if len(names) > 1:
                axes.legend(frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        return buffer.getvalue()


def _groups(names: list[str], outputs: list[str]) -> dict[str, list[str]]:
    """The names of curves by title of their axes: what ends in the name of an output is drawn beside it."""
    groups: dict[str, list[str]] = {output: [output] for output in outputs if output in names}
    for name in (n for n in names if n not in groups):
        fitting = [output for output in outputs if name == output or name.endswith(f"_{output}")]
        groups.setdefault(max(fitting, key=len) if fitting else name, []).append(name)
    return groups


def _scale(values: list[float]) -> str:
    """Which axis suits the values: "log" where they are positive and span much, else "linear"."""
    positive = all(v > 0 for v in values if math.isfinite(v))
    finite = [v for v in values if math.isfinite(v)]
    return "log" if finite and positive and max(finite) > _WIDE * min(finite) else "linear"


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure  # without pyplot there is no global state, and no window
    except ImportError as error:
        raise errors.ArgumentError(
            "fluid.handlers.LivePlot needs the package matplotlib, which is not installed: pip install matplotlib"
        ) from error
    return Figure
