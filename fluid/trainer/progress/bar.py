"""A progress bar for terminals and notebooks."""

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax

from fluid.core import fitting
from fluid.runtime import Compilation
from fluid.trainer.evaluation.means import Averaging
from fluid.trainer.evaluation.values import by_name, number, spans
from fluid.trainer.events import (
    BeginEpochEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
    MeasuredEvent,
)
from fluid.trainer.progress.status import Status, ending, in_notebook, interactive
from fluid.trainer.progress.ticker import Ticker

if TYPE_CHECKING:
    from fluid.trainer.progress.notebook import Notebook
    from fluid.trainer.progress.terminal import Terminal


@fitting("fluid.ProgressBar")
class ProgressBar(Averaging):
    """Shows how far training is: on a terminal as one bar for each epoch, in a notebook as one table.

    It shows the scalars of the program, over the steps of the epoch so far, what other handlers announce, the speed,
    for how long training will go on, and for how long XLA has been compiling. In a notebook all of that is one output
    of the cell, with what is logged meanwhile, however long training goes on; on a terminal it is written to standard
    error. Put first among the handlers, where `train` puts the one that it adds, it shows each test beside the epoch
    after which it was made.

    Args:
      interval: seconds between two redraws; half a second in a notebook, and 0.2 elsewhere, by default. Values are read
        only then, and only those of steps that are done, so that nothing has to wait.
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

    first_process_only = True
    acts_on_measured = False

    def __init__(self, interval: float | None = None, show: bool | None = None):
        super().__init__()
        self._notebook = in_notebook()
        self._interval = (0.5 if self._notebook else 0.2) if interval is None else interval
        self._show = interactive() if show is None else show
        self._bar: Terminal | Notebook | None = None
        self._listener: Notebook | None = None
        self._status = Status()
        self._announced: dict[str, tuple[int, Any]] = {}  # what is not read yet, and how many steps were done then
        self._read: dict[str, Any] = {}
        self._next = 0.0
        self._ticker = Ticker(self._tick)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """A block around a call of `train`: what is logged inside is shown in the table of a notebook."""
        if not (self._show and self._notebook):
            yield
            return
        from fluid.trainer.progress.notebook import Messages, Notebook

        with Messages() as messages:
            notebook = Notebook(messages.lines)
            self._listener = notebook
            try:
                yield
            finally:
                self._listener = None
                notebook.close()

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Remember how many epochs there will be, and hear of compilations from now on."""
        super().begin_train(event)
        self._announced = {}
        self._read = {}
        self._status = Status(event.num_epochs)
        if self._show:
            self._bar = self._listener or _bar_of(self._notebook)
            self.trainer.session.compilations.watchers.append(self._compile)

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Show the epoch; its length is known from the second one on."""
        super().begin_epoch(event)
        self._announced = {}
        self._read = {}
        if self._bar is not None:
            self._status.epoch = event.epoch
            self._status.step = event.first_step
            self._status.note = ""
            self._status.values = {}
            self._next = 0.0
            self._bar.begin_epoch(self._status)

    def end_step(self, event: EndStepEvent) -> None:
        """Count the step, and redraw when the interval is over."""
        if self._bar is None:
            return
        super().end_step(event)
        self._status.step = event.step + 1
        self._status.counted += 1
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval
            self._status.values = spans({**self._means().running(), **self._known()})
            self._bar.update(self._status)

    def measured(self, event: MeasuredEvent) -> None:
        """Keep what was announced, to be shown with the next redraw."""
        if self._bar is not None:
            self._announced.update({name: (self.done, value) for name, value in by_name(event.metrics).items()})

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Show the values of the whole epoch, what was compiled, and how much of the sequences was padding."""
        self._mean = None
        self._status.total = event.steps if event.completed else self._status.total
        if self._bar is not None and event.steps:
            self._status.step = event.steps
            self._status.note = event.feeding
            self._status.values = spans({**by_name(event.metrics), **self._known(wait=True)})
            self._bar.end_epoch(self._status)

    def end_train(self, event: EndTrainEvent) -> None:
        """Say how training has ended, and close what an error may have left open."""
        self._ticker.stop()
        if self._bar is not None:
            self.trainer.session.compilations.watchers.remove(self._compile)
            if self._mean is not None:  # an epoch that has not come to its end
                self._status.values = spans({**self._mean.running(), **self._read})
            good = event.error is None
            self._bar.end(self._status, ending(event, self._status), good)
            self._bar = None

    def state(self) -> dict[str, Any]:
        """Nothing: the values of the epoch come with its end."""
        return {}

    def restore(self, state: Any) -> None:
        """Take nothing over."""

    def _known(self, wait: bool = False) -> dict[str, Any]:
        """What was announced, as far as it is known to be computed."""
        for name, (done, value) in list(self._announced.items()):
            if wait or not isinstance(value, jax.Array) or self.done - done > self._dispatcher.in_flight:
                self._read[name] = number(value)
                del self._announced[name]
        return self._read

    def _compile(self, compilation: Compilation | None) -> None:
        """Show that XLA compiles, and for how long, until it has ended."""
        if compilation is not None:
            self._ticker.start()
        else:
            self._status.lost += self._ticker.stop()
            self._status.compiling = None

    def _tick(self, seconds: float) -> None:
        self._status.compiling = seconds
        if self._bar is not None:
            self._bar.update(self._status)


def _bar_of(notebook: bool) -> "Terminal | Notebook":
    """What shows the bar in a notebook, or on a terminal; each is loaded on use."""
    if notebook:
        from fluid.trainer.progress.notebook import Notebook

        return Notebook([])
    from fluid.trainer.progress.terminal import Terminal

    return Terminal()
