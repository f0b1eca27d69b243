"""A progress bar for terminals and notebooks."""

import importlib.util
import sys
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


class ProgressBar(Handler):
    """Shows epoch, steps, speed, the first metric and what other handlers announce; silent when nobody is watching.

    Args:
      interval: seconds between two redraws. Metrics are read only then, so that the bar costs no waiting in between.
      show: True or False to force it; None shows it on a terminal and in a notebook.

    Example:
      >>> import fluid
      >>> bar = fluid.ProgressBar(show=False)
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
        self._epochs, self._total, self._announced = event.num_epochs, None, {}

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Open a bar for the epoch; its length is known from the second epoch on."""
        if self._show:
            label = f"epoch {event.epoch + 1}/{self._epochs}"
            self._bar = _tqdm()(total=self._total, desc=label, unit="step", mininterval=self._interval, leave=True)
            self._next = 0.0

    def end_step(self, event: EndStepEvent) -> None:
        """Count the step; now and then show the first metric."""
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
        """Close the bar of the epoch; say in it how much was compiled and how much of the sequences was padding."""
        self._total = event.steps if event.completed else self._total
        if self._bar is not None and event.steps:
            self._say(self._last, f" ({event.feeding})" if event.feeding else "")
        self._close()

    def end_train(self, event: EndTrainEvent) -> None:
        """Close what an error left open."""
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
    else:  # tqdm.auto would warn of what is missing
        from tqdm.std import tqdm
    return tqdm


def interactive() -> bool:
    """Whether somebody watches: standard error is a terminal, or this is a notebook."""
    return in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def in_notebook() -> bool:
    """Whether this runs in a notebook."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
