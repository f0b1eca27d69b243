"""The class ProgressBar, which shows a tqdm bar on a terminal, and a bar with a table of epochs in a notebook."""

import contextlib
import contextvars
import html
import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from fluid.core import fitting
from fluid.runtime import Compilation
from fluid.trainer.evaluation.history import in_notebook
from fluid.trainer.evaluation.means import TrainingMeans, by_name, is_ready, spans
from fluid.trainer.events import (
    BeginEpochEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
    MeasuredEvent,
)
from fluid.trainer.handlers import Handler

# The maximum number of epochs in the table that a notebook shows; older epochs are hidden.
_ROWS = 20
# The style is set in each table cell, because some notebook viewers ignore style sheets.
_CELL = "padding: 0.15em 0.9em 0.15em 0; text-align: right; white-space: nowrap"


@fitting("fluid.ProgressBar")
class ProgressBar(Handler):
    """A handler that shows the progress of training: a bar for each epoch on a terminal, a table in a notebook.

    The bar shows the scalars of the program over the epoch so far, and the values that other handlers report. It also
    shows the speed, the remaining time, and the time of a running compilation. In a notebook, the bar and the log are
    one output of the cell; on a terminal, the bar goes to standard error. Put this handler first in the list, as
    `train` does: then the results of a test appear beside the epoch before the test.

    Args:
      interval: the time between two redraws, in seconds; by default 0.5 in a notebook, and 0.2 elsewhere. Only a redraw
        reads values, and only of finished steps, so that training does not wait.
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

    def __init__(self, interval: float | None = None, show: bool | None = None):
        notebook = in_notebook()
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._interval = (0.5 if notebook else 0.2) if interval is None else interval
        self._show = (notebook or terminal) if show is None else show
        self._table: _Table | None = None  # the output of the notebook cell; None outside of a notebook
        self._bar: Any = None  # the tqdm object of the bar that is shown
        # the means of the program's scalars over the steps of the current epoch; None between epochs
        self._means: TrainingMeans | None = None
        self._announced: dict[str, Any] = {}
        self._ticker: threading.Thread | None = None
        self._compiled = threading.Event()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Return a context manager for a call of `train`: in a notebook, it shows a table and the logged warnings."""
        if not (self._show and in_notebook()):
            yield
            return
        log = logging.getLogger("fluid")
        self._table = table = _Table()
        log.addHandler(table)
        try:
            yield
        finally:
            log.removeHandler(table)
            table.draw()
            self._table = None

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Store the number of epochs, and let the progress bar show the start and end of compilations."""
        self._num_epochs = event.num_epochs
        self._steps_of_epoch: int | None = None
        if self._show:
            self.trainer.session.compilations.watchers.append(self._compile)

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Open a bar for the epoch; in a notebook, open one bar for the whole training.

        The total number of steps is unknown in the first epoch.
        """
        if not self._show:
            return
        self._epoch, self._step = event.epoch, event.first_step
        self._label = f"epoch {event.epoch + 1}/{self._num_epochs}"
        self._means = TrainingMeans(self.trainer)
        self._announced = {}
        self._texts: dict[str, str] = {}
        self._next = 0.0
        if self._bar is None:
            from tqdm.std import tqdm

            place: Any = {"dynamic_ncols": True}
            if self._table is not None:  # at `position=0`, tqdm writes no control codes that move the cursor
                place = {"file": self._table, "position": 0, "ascii": False}
            start = {"total": self._steps_of_epoch, "initial": event.first_step}
            self._bar = tqdm(desc=self._label, unit="step", **start, **place)

    def end_step(self, event: EndStepEvent) -> None:
        """Count the step, and redraw the bar if `interval` seconds have passed since the last redraw."""
        if self._means is None:
            return
        self._means.add(event)
        self._step = event.step + 1
        self._bar.n += 1
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval
            self._texts = self._running(self._means)
            self._draw()

    def measured(self, event: MeasuredEvent) -> None:
        """Store the values that a handler has reported; the next redraw of the progress bar shows the values."""
        self._announced.update(by_name(event.metrics))

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Show the means over the ended epoch, its compilations, padding, and the fraction of time waiting for data."""
        self._means = None
        if self._bar is None:
            return
        self._step = event.steps
        self._texts = _texts({**by_name(event.metrics), **self._announced})
        if event.feeding:
            self._texts[""] = event.feeding
        if event.completed:
            self._steps_of_epoch = event.steps
            epochs_left = 0 if self._table is None else self._num_epochs - event.epoch - 1
            self._bar.total = self._bar.n + epochs_left * event.steps
        self._draw()
        if self._table is None:
            self._bar.close()
            self._bar = None

    def end_train(self, event: EndTrainEvent) -> None:
        """Show the end of training (", stopped" or the class of the exception), and close a bar that is still open."""
        if not self._show:
            return
        self.trainer.session.compilations.watchers.remove(self._compile)
        if self._bar is not None:
            # training has ended within an epoch, so the bar does not yet show the means of this epoch
            if self._means is not None:
                self._texts = self._running(self._means)
            stopped = ", stopped" if event.stopped else ""
            self._draw(stopped if event.error is None else f", {type(event.error).__name__}")
            self._bar.close()
            self._bar = None

    def _running(self, means: TrainingMeans) -> dict[str, str]:
        return _texts({**means.running(), **{n: v for n, v in self._announced.items() if is_ready(v)}})

    def _draw(self, state: str = "") -> None:
        """Redraw the progress bar and the table of epochs; show `state`, such as ", stopped", after the epoch."""
        self._bar.set_description_str(self._label + state, refresh=False)
        if self._table is None:
            self._bar.set_postfix_str(", ".join(f"{n} {v}".strip() for n, v in self._texts.items()), refresh=False)
        elif self._step:
            self._table.rows[self._epoch] = {"epoch": str(self._epoch + 1), "steps": str(self._step), **self._texts}
        self._bar.refresh()

    def _compile(self, compilation: Compilation | None) -> None:
        """Start a thread that shows the time of a running compilation; end the thread if `compilation` is None.

        Sessions call this method when XLA starts and ends a compilation. The speed of training excludes this time.
        """
        if self._ticker is not None:
            self._compiled.set()
            self._ticker.join()
            self._ticker = None
            self._bar.unpause()
        if compilation is not None and self._bar is not None:
            self._compiled.clear()
            # when the bar is unpaused, tqdm excludes the time since `last_print_t` from the speed
            self._bar.last_print_t = time.time()
            # The thread runs with a copy of the context, so that a notebook shows its output in the cell of the
            # training.
            run = contextvars.copy_context().run
            self._ticker = threading.Thread(target=run, args=(self._tick,), name="fluid-progress", daemon=True)
            self._ticker.start()

    def _tick(self) -> None:
        """Show the time of the running compilation once a second, until `_compile` ends this thread."""
        ended = False
        while not ended:
            self._draw(f", compiling {time.time() - self._bar.last_print_t:.0f} s")
            ended = self._compiled.wait(1.0)


class _Table(logging.Handler):
    """A notebook output: the progress line of tqdm, a table with one row for each epoch, and logged warnings.

    Attributes:
      rows: for each epoch from 0, a dict of the texts of its columns.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.rows: dict[int, dict[str, str]] = {}
        self._line = ""
        self._messages: list[str] = []
        self._handle: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        """Store a logged message, which the next `draw` shows.

        The message is not shown at once, because a signal handler may log it while `draw` runs.
        """
        message = record.getMessage()
        if message not in self._messages:
            self._messages.append(message)

    def write(self, text: str) -> None:
        if text.strip():
            self._line = text.strip()
            self.draw()

    def draw(self) -> None:
        """Replace the output of the notebook cell by the line of tqdm, the newest rows and the messages."""
        from IPython.display import display

        shown = list(islice(reversed(self.rows.values()), _ROWS))[::-1]
        names = dict.fromkeys(name for row in shown for name in row)
        rows = [_row("th", names), *(_row("td", (row.get(name, "") for name in names)) for row in shown)]
        left_out = len(self.rows) - len(shown)
        notes = [f"{left_out} earlier epochs are in trainer.history"] if left_out else []
        below = (f"<div>{html.escape(text)}</div>" for text in (*notes, *self._messages))
        page = f"<pre>{html.escape(self._line)}</pre><table>{''.join(rows)}</table>{''.join(below)}"
        lines = [line for line in (self._line, *self._messages) if line]
        data = {"text/html": page, "text/plain": "\n".join(lines)}
        if self._handle is not None:
            self._handle.update(data, raw=True)
        elif lines:
            self._handle = display(data, raw=True, display_id=True)


def _row(tag: str, texts: Iterable[str]) -> str:
    cells = (f"<{tag} style='{_CELL}'>{html.escape(text)}</{tag}>" for text in texts)
    return f"<tr>{''.join(cells)}</tr>"


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as texts with four significant digits, by name.

    For several trainings at once, the texts are the minimum and the maximum of each value.
    """
    return {name: f"{value:.4g}" for name, value in spans(values).items()}
