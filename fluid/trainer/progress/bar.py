"""A progress bar for terminals and notebooks."""

import importlib.util
import time
from typing import Any

from fluid.session import Results
from fluid.trainer.events import (
    BeginEpochEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
    MeasuredEvent,
)
from fluid.trainer.handlers import Handler
from fluid.trainer.progress.place import in_notebook, interactive


class ProgressBar(Handler):
    """Shows epoch, steps, speed, the first metric and what other handlers announce, on a terminal or in a notebook.

    Args:
      interval: seconds between two redraws. Metrics are read only then, so that the steps in between need not wait.
      show: True shows the bar, False does not, None shows it on a terminal and in a notebook only.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)
      >>> bar = fluid.ProgressBar(show=False)
      >>> fluid.train(program, reader, handlers=[bar]).session.scope.step.item()
      2
    """

    def __init__(self, interval: float = 0.2, show: bool | None = None):
        self._interval = interval
        self._show = interactive() if show is None else show
        self._epochs = 0
        self._bar: Any = None
        self._total: int | None = None
        self._next = 0.0
        self._announced: dict[str, Any] = {}
        self._last = Results([])

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Remember how many epochs there will be."""
        self._epochs = event.num_epochs
        self._total = None
        self._announced = {}

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Open a bar for the epoch; its length is known from the second epoch on."""
        if self._show:
            label = f"epoch {event.epoch + 1}/{self._epochs}"
            self._bar = _tqdm()(total=self._total, desc=label, unit="step", mininterval=self._interval, leave=True)
            self._next = 0.0

    def end_step(self, event: EndStepEvent) -> None:
        """Count the step, and redraw when the interval is over."""
        if self._bar is None:
            return
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval
            self._say(event.metrics)
        self._bar.update()
        self._last = event.metrics

    def measured(self, event: MeasuredEvent) -> None:
        """Keep what was announced, to be shown with the next redraw."""
        self._announced.update(zip(event.metrics.names or (), event.metrics, strict=True))

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Close the bar of the epoch, with what was compiled and how much of the sequences was padding."""
        self._total = event.steps if event.completed else self._total
        if self._bar is not None and event.steps:
            self._say(self._last, f" ({event.feeding})" if event.feeding else "")
        self._close()

    def end_train(self, event: EndTrainEvent) -> None:
        """Close the bar, which an error may have left open."""
        self._close()

    def _say(self, metrics: Results, more: str = "") -> None:
        first = metrics.names[0] if metrics.names else "loss"
        shown = {first: metrics[0], **self._announced}
        self._bar.set_postfix_str(", ".join(f"{n} {float(v):.4g}" for n, v in shown.items()) + more, refresh=False)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _tqdm() -> Any:
    if in_notebook() and importlib.util.find_spec("ipywidgets"):
        from tqdm.notebook import tqdm
    else:  # tqdm.auto would warn that ipywidgets is missing
        from tqdm.std import tqdm
    return tqdm
