"""A progress bar for terminals and notebooks."""

import sys
import time
from typing import Any

from fluid.trainer.events import BeginEpochEvent, BeginTrainEvent, EndEpochEvent, EndStepEvent, EndTrainEvent
from fluid.trainer.handlers import Handler


class ProgressBar(Handler):
    """Shows epoch, steps, speed and the first metric; silent when nobody is watching.

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

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Remember how many epochs there will be."""
        self._epochs, self._total = event.num_epochs, None

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Open a bar for the epoch; its length is known from the second epoch on."""
        if self._show:
            from tqdm.auto import tqdm

            label = f"epoch {event.epoch + 1}/{self._epochs}"
            self._bar = tqdm(total=self._total, desc=label, unit="step", mininterval=self._interval, leave=True)
            self._next = 0.0

    def end_step(self, event: EndStepEvent) -> None:
        """Count the step; now and then show the first metric."""
        if self._bar is None:
            return
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval
            name = event.metrics.names[0] if event.metrics.names else "loss"
            self._bar.set_postfix_str(f"{name} {float(event.metrics[0]):.4g}", refresh=False)
        self._bar.update()

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Close the bar of the epoch."""
        self._total = event.steps if event.completed else self._total
        self._close()

    def end_train(self, event: EndTrainEvent) -> None:
        """Close what an error left open."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def interactive() -> bool:
    """Whether somebody watches: standard error is a terminal, or this is a notebook."""
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
        if shell is not None and type(shell).__name__ == "ZMQInteractiveShell":
            return True
    return sys.stderr is not None and sys.stderr.isatty()
