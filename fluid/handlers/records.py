"""Handlers that write what is measured to files."""

import csv
import itertools
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from fluid import errors
from fluid.core import fitting
from fluid.formatting import counted
from fluid.handlers.logger import Logger
from fluid.paths import PathLike, local_path
from fluid.trainer import BeginTrainEvent, MeasuredEvent
from fluid.trainer.evaluation.values import Interval, by_name, known_values

log = logging.getLogger("fluid")


@fitting("fluid.handlers.CSVLogger")
class CSVLogger(Logger):
    """Writes a table with a row for each epoch, or for every so many steps.

    The columns are `epoch`, `step` (steps done, those before a resume included), the scalars of the program, as means
    over the steps since the row before, and what other handlers announce: the last value since the row before.

    A file that exists is continued. A training that resumes keeps the rows up to the step at which it begins, and
    replaces later ones, whose steps are trained again. A training that begins at step 0 moves the file of another
    training to `log.1.csv`, and logs that as a warning.

    Args:
      path: of the file; its folder is created if it does not exist.
      every: a number of steps, or "epoch", "2 epochs" ...

    Raises:
      ArgumentError: the file has other columns, or two columns have one name; when training begins.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)
      >>> handlers = [fluid.handlers.CSVLogger("log.csv"), fluid.handlers.TestEvery(reader)]
      >>> trainer = fluid.train(program, reader, num_epochs=2, handlers=handlers)
      >>> import pathlib
      >>> [row.split(",")[:2] for row in pathlib.Path("log.csv").read_text().split()]
      [['epoch', 'step'], ['0', '2'], ['1', '4']]
    """

    def __init__(self, path: PathLike, every: Interval = "epoch"):
        super().__init__(every)
        self._path = self._file_of = str(local_path(path))
        self._columns: list[str] = []
        self._announced: dict[str, Any] = {}
        self._file: Any = None

    def open(self, event: BeginTrainEvent) -> None:
        """Open the file."""
        self._columns = ["epoch", "step", *known_values(self)]
        twice = [name for name in self._columns if self._columns.count(name) > 1]
        if twice:
            raise errors.ArgumentError(
                f"CSVLogger would have two columns {twice[0]!r}: names of outputs and of what handlers announce must "
                f'differ, as in TestEvery(reader, name="validation")'
            )
        self._announced = {}
        os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
        rows = self._rows_to_keep()
        partial = f"{self._path}.partial"
        with open(partial, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([self._columns, *rows])
        os.replace(partial, self._path)
        self._file = open(self._path, "a", newline="", encoding="utf-8")

    def write(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write a row, which is in the file when this returns."""
        row = {"epoch": epoch, "step": step, **{name: f"{value:.9g}" for name, value in values.items()}}
        csv.writer(self._file).writerow([row.get(column, "") for column in self._columns])
        self._file.flush()

    def close(self, error: BaseException | None) -> None:
        """Close the file."""
        self._file.close()

    def measured(self, event: MeasuredEvent) -> None:
        """Add the values to the row of this step, if that is closed but not written yet, or else to the next row."""
        announced = self._announced
        if self._waiting and self._waiting[-1][1] == self.done:
            _, announced = self._waiting[-1][2]
        announced.update(by_name(event.metrics))

    def _close(self, epoch: int) -> None:
        super()._close(epoch)
        epoch, done, mean = self._waiting.pop()
        self._waiting.append((epoch, done, (mean, self._announced)))
        self._announced = {}

    def _write(self, epoch: int, done: int, values: Any) -> None:
        mean, announced = values
        super()._write(epoch, done, {**mean.read(), **announced})

    def _rows_to_keep(self) -> list[list[str]]:
        """The rows of an earlier training up to the step at which this one begins."""
        try:
            with open(self._path, newline="", encoding="utf-8") as file:
                header, *rows = list(csv.reader(file)) or [self._columns]
        except FileNotFoundError:
            return []
        if header != self._columns:
            raise errors.ArgumentError(
                f"{self._path} has the columns {header}, and this training would write {self._columns}; "
                f'move the file, or write to another one: CSVLogger("other.csv")'
            )
        whole = [row for row in rows if len(row) == len(header) and row[1].isdigit()]
        kept = [row for row in whole if int(row[1]) <= self.done]
        if whole and not self.done and self._resumed is None:  # these rows may belong to another training
            self._move_aside(len(whole))
            return []
        return kept

    def _move_aside(self, count: int) -> None:
        """Rename the file of another training to the first free name."""
        stem, ending = os.path.splitext(self._path)
        free = next(name for i in itertools.count(1) if not os.path.exists(name := f"{stem}.{i}{ending}"))
        os.rename(self._path, free)
        log.warning(
            "%s held %s of another training and is %s now; to choose a file for each: CSVLogger('second.csv')",
            self._path,
            counted(count, "row"),
            free,
        )


@fitting("fluid.handlers.TensorBoard")
class TensorBoard(Logger):
    """Writes scalars for TensorBoard; `tensorboard --logdir LOGDIR` shows them.

    These are the scalars of the program, as means over the steps since the last time, and every value that another
    handler announces. A training that resumes replaces what was written after the step at which it begins.

    Args:
      logdir: directory of the run.
      every: a number of steps, or "epoch", "2 epochs" ...

    Raises:
      ArgumentError: the package tensorboard is not installed.

    Example:
      >>> import fluid
      >>> handlers = [fluid.handlers.TensorBoard("logs/first"), fluid.handlers.LearningRateMonitor(every=10)]
    """

    def __init__(self, logdir: PathLike, every: Interval = 10):
        super().__init__(every)
        self._logdir = os.fspath(logdir)
        self._writer: Any = None
        _tensorboard()

    def open(self, event: BeginTrainEvent) -> None:
        """Open a new event file."""
        make_writer, proto = _tensorboard()
        self._writer = make_writer(self._logdir)
        # Tells TensorBoard to forget what an earlier run wrote after this step.
        start = proto.SessionLog(status=proto.SessionLog.START)
        self._writer.add_event(proto.Event(wall_time=time.time(), step=self.done + 1, session_log=start))

    def write(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Add an event."""
        _, proto = _tensorboard()
        event = proto.Event(wall_time=time.time(), step=step)
        for name, value in values.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._writer.add_event(event)

    def flush(self) -> None:
        """Write the events to the file."""
        self._writer.flush()

    def close(self, error: BaseException | None) -> None:
        """Close the file."""
        self._writer.close()


def _tensorboard() -> tuple[Any, Any]:
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise errors.ArgumentError(
            "fluid.handlers.TensorBoard needs the package tensorboard, which is not installed: pip install tensorboard"
        ) from error
    return EventFileWriter, event_pb2
