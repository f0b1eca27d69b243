"""The class History, which holds the measurements of a training, and functions that plot them."""

import functools
import io
import math
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluid import errors
from fluid._util.known_names import KnownAttributes
from fluid._util.paths import PathLike, local_path
from fluid.runtime import Results
from fluid.trainer.evaluation.means import TrainingMeans, as_json, by_name, from_json, number, scalars_of, spans
from fluid.trainer.events import BeginEpochEvent, BeginTrainEvent, EndEpochEvent, EndStepEvent, MeasuredEvent
from fluid.trainer.handlers import Handler

Curves = Mapping[str, tuple[Sequence[float], Sequence[Any]]]
"""The type of the curves in a plot: by name, a pair of the horizontal positions of the points and their values.

In a population (several trainings at once), each value is an array `[members]`.
"""

# The vertical axis of a plot is logarithmic if the largest value divided by the smallest is above this number.
_WIDE = 20


def check_matplotlib(who: str) -> Any:
    """Return the class `Figure` of matplotlib, or raise an error if matplotlib is not installed.

    Raises:
      ArgumentError: matplotlib is not installed.
    """
    try:
        # import Figure and not pyplot, which has global state and may open windows
        from matplotlib.figure import Figure
    except ImportError as error:
        raise errors.ArgumentError(
            f"{who} needs the package matplotlib, which is not installed: pip install matplotlib"
        ) from error
    return Figure


def draw_curves(curves: Curves, outputs: Sequence[str], along: str) -> bytes:
    """Draw curves, and return the picture as the bytes of a PNG.

    Each output has separate axes, which also show the curves whose names end in the name of the output. For example,
    the axes of `loss` also show `test_loss`.
    """
    groups = _groups(list(curves), list(outputs))
    columns = max(min(len(groups), 3), 1)
    rows = math.ceil(len(groups) / columns)
    figure = check_matplotlib("a plot")(figsize=(4.5 * columns, 3 * max(rows, 1)), dpi=100, layout="constrained")
    for i, (title, names) in enumerate(groups.items()):
        axes = figure.add_subplot(rows, columns, i + 1)
        for name in names:
            places, numbers = curves[name]
            # Short curves have markers, so that a curve of one point is visible.
            marker = "o" if len(places) <= 40 else ""
            lines = axes.plot(places, numbers, label=name, linewidth=1.5, marker=marker, markersize=3)
            # in a population (several trainings at once), all lines have one colour and one legend entry
            for line in lines[1:]:
                line.set(label="_", color=lines[0].get_color())
        axes.set(xlabel=along, title=title, yscale=_scale([float(v) for n in names for v in np.ravel(curves[n][1])]))
        axes.grid(alpha=0.3)
        if len(names) > 1:
            axes.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def in_notebook() -> bool:
    """Return whether this code runs in a notebook, such as JupyterLab, VS Code or Colab."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return getattr(shell, "kernel", None) is not None


def write_picture(picture: bytes, path: PathLike) -> None:
    """Write the bytes of a PNG to a file, so that another program never sees an incomplete file."""
    target = local_path(path)
    partial = f"{target}.partial"
    with open(partial, "wb") as file:
        file.write(picture)
    os.replace(partial, target)


def display_picture(picture: bytes, handle: Any = None) -> Any:
    """Show a PNG in a notebook, and return its display handle; with a `handle`, replace the picture shown before."""
    from IPython.display import Image, display

    image = Image(data=picture, format="png")
    if handle is None:
        return display(image, display_id=True)
    handle.update(image)
    return handle


def _groups(names: list[str], outputs: list[str]) -> dict[str, list[str]]:
    """Return the names of the curves in each plot, by the title of the plot: "test_loss" is in the plot "loss"."""
    groups: dict[str, list[str]] = {output: [output] for output in outputs if output in names}
    for name in (n for n in names if n not in groups):
        fitting = [output for output in outputs if name == output or name.endswith(f"_{output}")]
        groups.setdefault(max(fitting, key=len) if fitting else name, []).append(name)
    return groups


def _scale(values: list[float]) -> str:
    positive = all(v > 0 for v in values if math.isfinite(v))
    finite = [v for v in values if math.isfinite(v)]
    return "log" if finite and positive and max(finite) > _WIDE * min(finite) else "linear"


# The columns of every History, with descriptions for error messages.
OWN_COLUMNS = {"epoch": "the number of the epoch", "step": "the training steps done"}

# A checkpoint stores the history of at most this number of epochs, the newest ones.
_REMEMBERED = 1000


@dataclass
class _EpochEntries:
    """The entries of a History for one epoch, before their values are read from the device.

    Attributes:
      epoch: the index of the epoch, from 0.
      steps: the number of training steps done at the end of the epoch.
      metrics: the metrics of the EndEpochEvent of the epoch.
      announced: the values that handlers have reported, by name.
    """

    epoch: int
    steps: int
    metrics: Results
    announced: dict[str, Any]


class History(Mapping[str, list[Any]], KnownAttributes):
    """The measurements of a training: a column for each value, with one entry for each epoch.

    The columns are `epoch`, from 0; `step`, the number of training steps done; the scalars of the program over the
    steps of the epoch, as in `EndEpochEvent.metrics`; and the values that handlers report, such as `test_loss`. A
    reported value is the last one in the epoch, or NaN without one. With several programs, columns have names like
    `generator/loss`. A stopped epoch has an entry too. In a Population (several trainings at once), each
    value is an array `[members]`.

    A History is a mapping: `history["test_loss"]`, `list(history)`, `dict(history)`.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.zeros((8, 2), "float32"),), batch_size=4)
      >>> history = fluid.Trainer(program, fluid.optimizer.SGD(0.1)).train(reader, 3, test_reader=reader)
      >>> list(history), history["step"]
      (['epoch', 'step', 'loss', 'test_loss'], [2, 4, 6])
    """

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in OWN_COLUMNS}
        self._unread: deque[_EpochEntries] = deque()

    def __getitem__(self, name: str) -> list[Any]:
        self._read()
        if name not in self._columns:
            raise errors.UnknownNameError(f"the history has no column {name!r}. {errors.nearest(name, self._columns)}")
        return list(self._columns[name])

    def __iter__(self) -> Iterator[str]:
        self._read()
        return iter(list(self._columns))

    def __len__(self) -> int:
        self._read()
        return len(self._columns)

    def __repr__(self) -> str:
        self._read()
        epochs = len(self._columns["epoch"])
        last = {name: column[-1] for name, column in self._columns.items() if column and name not in OWN_COLUMNS}
        shown = ", ".join(f"{name} {value:.4g}" for name, value in spans(last).items())
        return f"History({epochs} epoch{'' if epochs == 1 else 's'}{': ' if shown else ''}{shown})"

    def to_pandas(self) -> Any:
        """Return the columns as a pandas DataFrame, indexed by epoch.

        Raises:
          ArgumentError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise errors.ArgumentError(
                "History.to_pandas() needs the package pandas, which is not installed: pip install pandas"
            ) from error
        return pandas.DataFrame(dict(self)).set_index("epoch")

    def plot(self, path: PathLike | None = None) -> None:
        """Plot the columns over the epochs; columns whose names have a common ending share one plot.

        Args:
          path: the PNG file to write. None shows the figure in a notebook, and elsewhere writes `history.png`.

        Raises:
          ArgumentError: matplotlib is not installed.
        """
        check_matplotlib("History.plot()")
        columns = dict(self)
        epochs = [epoch + 1 for epoch in columns["epoch"]]
        names = [name for name in columns if name not in OWN_COLUMNS]
        known = {name: [i for i, value in enumerate(columns[name]) if not np.isnan(value).all()] for name in names}
        curves = {
            name: ([epochs[i] for i in found], [columns[name][i] for i in found])
            for name, found in known.items()
            if found
        }
        outputs = [name for name in names if not any(name.endswith(f"_{other}") for other in names)]
        picture = draw_curves(curves, outputs, "epoch")
        if path is None and in_notebook():
            display_picture(picture)
        else:
            write_picture(picture, "history.png" if path is None else path)

    def _append(self, row: _EpochEntries, in_flight: int) -> None:
        """Add the row of an epoch, and read the values of older epochs from the device, without waiting.

        The values of an epoch are read after at least `in_flight` later steps, because they are then computed.
        """
        self._unread.append(row)
        while self._unread[0].steps <= row.steps - in_flight:
            self._read_first()

    def _announced(self, steps: int, values: Mapping[str, Any]) -> bool:
        """Add the values that a handler reports after `steps` steps to the epoch that ended then; False without one."""
        if not self._unread or self._unread[-1].steps != steps:
            return False
        self._unread[-1].announced.update(values)
        return True

    def _read(self) -> None:
        while self._unread:
            self._read_first()

    def _read_first(self) -> None:
        row = self._unread.popleft()
        before = len(self._columns["epoch"])
        announced = {name: number(value) for name, value in row.announced.items()}
        values = {"epoch": row.epoch, "step": row.steps, **by_name(row.metrics), **announced}
        for name in values:
            self._columns.setdefault(name, [math.nan] * before)
        for name, column in self._columns.items():
            column.append(values.get(name, math.nan))

    def _state(self) -> dict[str, list[Any]]:
        self._read()
        return {name: [as_json(value) for value in column[-_REMEMBERED:]] for name, column in self._columns.items()}

    @classmethod
    def _of(cls, state: Mapping[str, Sequence[Any]]) -> "History":
        history = cls()
        history._columns = {name: [from_json(value) for value in column] for name, column in state.items()}
        return history


class HistoryKeeper(Handler):
    """A handler that collects the History of a training; a resumed training continues the History.

    Attributes:
      history: the History of the last training.
    """

    def __init__(self) -> None:
        self.history = History()
        self._means: TrainingMeans | None = None
        self._announced: dict[str, Any] = {}
        self._restored: Mapping[str, Any] | None = None

    def epoch_metrics(self) -> Results:
        """Return the scalars of the program over this epoch so far, as Results that read the device on first access."""
        means = self._means or TrainingMeans(self.trainer)
        return Results(_Late(means), means.names)

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Begin a new history, a table of epochs, unless an interrupted training continues; check the column names.

        Raises:
          ArgumentError: two columns would have one name.
        """
        self._check_names()
        restored = self._restored
        self._restored = None
        if restored is not None:
            self.history = History._of(restored["history"])
            self._announced = {name: from_json(value) for name, value in restored["announced"].items()}
            self._means = TrainingMeans(self.trainer)
            self._means.restore(restored["means"])
        elif not event.resumed:
            self.history = History()
            self._announced = {}
            self._means = None

    def _check_names(self) -> None:
        outputs = [name for names in scalars_of(self.trainer.programs).values() for name in names]
        announced = self._dispatcher.measures()
        for name in (*outputs, *announced):
            if name in OWN_COLUMNS:
                whose = "the program returns" if name in outputs else "a handler announces"
                raise errors.ArgumentError(
                    f"{whose} a value named {name!r}, which would overwrite a column that every history has, "
                    f"{OWN_COLUMNS[name]}; give it another name, as in return {{'loss': loss, 'my_{name}': value}}"
                )
        if both := [name for name in announced if name in outputs]:
            raise errors.ArgumentError(
                f"the program returns a value named {both[0]!r}, and a handler announces another one by that name, so "
                f"that the history would keep one of them; give the output another name, or the handler: "
                f"fluid.handlers.TestEvery(reader, name='validation')"
            )

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Begin the means of the program's scalars over this epoch, unless an interrupted epoch continues."""
        if event.first_step == 0 or self._means is None:
            self._means = TrainingMeans(self.trainer)

    def end_step(self, event: EndStepEvent) -> None:
        """Add the program outputs of one training step to the means over the epoch."""
        assert self._means is not None
        self._means.add(event)

    def measured(self, event: MeasuredEvent) -> None:
        """Add values that another handler reports to the row of the current epoch in the history.

        If the epoch has just ended, its row exists already. Otherwise, the values wait for the end of the epoch.
        """
        values = by_name(event.metrics)
        if not self.history._announced(self.done, values):
            self._announced.update(values)

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Add the means and the reported values of the ended epoch to the history."""
        row = _EpochEntries(event.epoch, self.done, event.metrics, self._announced)
        self.history._append(row, self._dispatcher.in_flight)
        self._announced = {}

    def state(self) -> dict[str, Any]:
        """Return the history so far, the means of this epoch, and the values reported in this epoch, as JSON."""
        means = self._means or TrainingMeans(self.trainer)
        announced = {name: as_json(number(value)) for name, value in self._announced.items()}
        return {"history": self.history._state(), "announced": announced, "means": means.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Store the history from a checkpoint until `begin_train` restores it."""
        self._restored = state


class _Late(Sequence[Any]):
    """A lazy sequence of the means of program outputs; the first access reads all of them from the device."""

    def __init__(self, means: TrainingMeans):
        self._means = means

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._means.names)

    @functools.cached_property
    def _values(self) -> list[float]:
        found = self._means.read()
        return [found.get(name, math.nan) for name in self._means.names]
