"""Handlers that write what is measured to files."""

import contextlib
import csv
import os
import time
from collections.abc import Mapping
from typing import Any

from fluid import errors
from fluid.handlers.values import Interval, Recorder, known_values, number
from fluid.trainer import BeginTrainEvent, EndTrainEvent, MeasuredEvent


class CSVLogger(Recorder):
    """Writes a table: one row for each epoch, or for each so many steps.

    Its columns are `epoch`, `step` (steps done, those before a resume included), the scalars of the program, as means
    over the steps since the row before, and what other handlers announce: the last of each since the row before.

    A file that is there is continued: rows up to the step at which this training begins are kept, later ones, which
    are trained again, are replaced.

    Args:
      path: of the file.
      every: a number of steps, or "epoch", "2 epochs" ...

    Raises:
      ArgumentError: the file has other columns, or two columns have one name; when training begins.

    Example:
      >>> import fluid
      >>> handlers = [fluid.handlers.CSVLogger("log.csv"), fluid.handlers.TestEvery(reader=[])]
    """

    def __init__(self, path: Any, every: Interval = "epoch"):
        super().__init__(every)
        self._path = os.fspath(path)
        self._columns: list[str] = []
        self._announced: dict[str, Any] = {}
        self._file: Any = None

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Open the file."""
        super().begin_train(event)
        self._columns = ["epoch", "step", *known_values(self)]
        twice = [name for name in self._columns if self._columns.count(name) > 1]
        if twice:
            raise errors.ArgumentError(
                f"CSVLogger would have two columns {twice[0]!r}: names of outputs and of what handlers announce must "
                f'differ, as in TestEvery(reader, name="validation")'
            )
        self._announced = {}
        rows = self._rows_to_keep()
        partial = f"{self._path}.partial"
        with open(partial, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([self._columns, *rows])
        os.replace(partial, self._path)
        self._file = open(self._path, "a", newline="", encoding="utf-8")

    def measured(self, event: MeasuredEvent) -> None:
        """Keep the value for the row of this step, or else for the next one."""
        row = self._waiting[-1][2] if self._waiting and self._waiting[-1][1] == self.done else self._announced
        target = row[1] if isinstance(row, tuple) else row
        target.update(zip(event.metrics.names or (), event.metrics, strict=True))

    def end_train(self, event: EndTrainEvent) -> None:
        """Write what waits, and close the file."""
        if self._file is not None:
            with contextlib.closing(self._file):
                super().end_train(event)
            self._file = None

    def _close(self, epoch: int) -> None:
        super()._close(epoch)
        epoch, done, mean = self._waiting.pop()
        self._waiting.append((epoch, done, (mean, self._announced)))
        self._announced = {}

    def _write(self, epoch: int, done: int, values: Any) -> None:
        mean, announced = values
        found = {name: f"{number(v):.9g}" for name, v in {**mean.read(), **announced}.items()}
        row = {"epoch": epoch, "step": done, **found}
        csv.writer(self._file).writerow([row.get(column, "") for column in self._columns])
        self._file.flush()

    def _rows_to_keep(self) -> list[list[str]]:
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
        return [row for row in whole if int(row[1]) <= self.done]


class TensorBoard(Recorder):
    """Writes scalars for TensorBoard; `tensorboard --logdir LOGDIR` shows them.

    Of the scalars of the program, means over the steps since the last time; of what other handlers announce, each.
    A training that resumes takes the place of what was written behind the step at which it begins.

    Args:
      logdir: directory of the run.
      every: a number of steps, or "epoch", "2 epochs" ...

    Raises:
      ArgumentError: the package tensorboard is not installed.

    Example:
      >>> import fluid
      >>> handlers = [fluid.handlers.TensorBoard("logs/first"), fluid.handlers.LearningRateMonitor(every=10)]
    """

    def __init__(self, logdir: Any, every: Interval = 10):
        super().__init__(every)
        self._logdir = os.fspath(logdir)
        self._writer: Any = None
        _tensorboard()

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Open a new event file."""
        super().begin_train(event)
        make_writer, proto = _tensorboard()
        self._writer = make_writer(self._logdir)
        # Tells readers to forget what an earlier run wrote behind this step.
        start = proto.SessionLog(status=proto.SessionLog.START)
        self._writer.add_event(proto.Event(wall_time=time.time(), step=self.done + 1, session_log=start))

    def end_train(self, event: EndTrainEvent) -> None:
        """Write what waits, and close the file."""
        if self._writer is not None:
            with contextlib.closing(self._writer):
                super().end_train(event)
            self._writer = None

    def state(self) -> dict[str, Any]:
        """See Recorder; what was written is on the disk then."""
        state = super().state()
        if self._writer is not None:
            self._writer.flush()
        return state

    def _write(self, epoch: int, done: int, values: Mapping[str, Any]) -> None:
        _, proto = _tensorboard()
        event = proto.Event(wall_time=time.time(), step=done)
        for name, value in values.items():
            event.summary.value.add(tag=name, simple_value=number(value))
        self._writer.add_event(event)


def _tensorboard() -> tuple[Any, Any]:
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise errors.ArgumentError(
            "fluid.handlers.TensorBoard needs the package tensorboard, which is not installed: pip install tensorboard"
        ) from error
    return EventFileWriter, event_pb2
