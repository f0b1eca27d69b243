"""Loggers: Logger, the base class of all loggers, and the loggers CSVLogger and TensorBoard."""

import csv
import itertools
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from fluid import errors
from fluid._util.paths import PathLike, local_path
from fluid._util.text import counted
from fluid.core import fitting
from fluid.handlers.plot import Recorder
from fluid.trainer import BeginTrainEvent, EndTrainEvent, MeasuredEvent
from fluid.trainer.evaluation.values import Interval, by_name, known_values, number


@fitting("fluid.handlers.Logger")
class Logger(Recorder):
    """The base class of all loggers: passes the scalars of a training to `write`, which a subclass defines.

    The scalars are the outputs of the program, as means over the steps since the last write, and every value that
    another handler reports. The scalars are passed some steps later, when the device has computed them. All of them are
    written before each checkpoint, and before training ends, also if it ends with an error.

    Args:
      every: the interval at which outputs of the program are written: a number of steps, or "epoch", "2 epochs" ...

    Example:
      >>> import fluid, numpy as np
      >>> class Printer(fluid.handlers.Logger):
      ...     def write(self, epoch, step, values):
      ...         print(f"epoch {epoch}, {step} steps done: {values['loss']:.4f}")
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, bias_attr=False))
      >>> reader = fluid.reader.arrays((np.zeros((8, 2), "float32"),), batch_size=4)
      >>> trainer = fluid.train(program, reader, num_epochs=2, handlers=[Printer("epoch")])
      epoch 0, 2 steps done: 0.0000
      epoch 1, 4 steps done: 0.0000
    """

    def __init__(self, every: Interval = 10):
        super().__init__(every)
        self._opened = False

    def open(self, event: BeginTrainEvent) -> None:
        """Open the output, for a training that continues after `self.done` steps.

        Values that an earlier training wrote for later steps are outdated, and should be replaced.
        """

    def write(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one step.

        Args:
          epoch: the index of the epoch, from 0.
          step: the number of training steps done, including the steps before a resume.
          values: the scalars by name.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Store all written values so that they survive a crash of this process; called before each checkpoint."""

    def close(self, error: BaseException | None) -> None:
        """Close the output; called when training ends.

        Args:
          error: the exception that ended the training, or None.
        """

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Call `open`, which a subclass may define."""
        super().begin_train(event)
        self.open(event)
        self._opened = True

    def end_train(self, event: EndTrainEvent) -> None:
        """Write all values that are not written yet, and call `close`."""
        if self._opened:
            self._opened = False
            try:
                super().end_train(event)
            finally:
                self.close(event.error)

    def state(self) -> dict[str, Any]:
        """Write and flush all complete means, and return the state of the incomplete means, for JSON."""
        state = super().state()
        if self._opened:
            self.flush()
        return state

    def _write(self, epoch: int, done: int, values: Mapping[str, Any]) -> None:
        self.write(epoch, done, {name: number(value) for name, value in values.items()})


log = logging.getLogger("fluid")


@fitting("fluid.handlers.CSVLogger")
class CSVLogger(Logger):
    """A logger that writes a CSV table with a row for each epoch, or for a number of steps.

    The columns are `epoch`, `step` (steps done, including the steps before a resume), the scalars of the program, and
    the values of other handlers. The scalars are means over the steps since the last row. Of a value of another
    handler, a row holds the latest since the last row.

    An existing file is continued. A resumed training keeps the rows up to its first step, and replaces the later rows,
    whose steps are trained again. A training that begins at step 0 moves the file of another training to `log.1.csv`,
    and logs a warning.

    Args:
      path: the path of the file; its folder is created if necessary.
      every: the interval of the rows: a number of steps, or "epoch", "2 epochs" ...

    Raises:
      ArgumentError: the file has other columns, or two columns have one name; raised when training begins.

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
        """Open the file, and keep the rows of an earlier training up to the first step of this one."""
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
        """Write the values of one step as a row, and flush the file."""
        row = {"epoch": epoch, "step": step, **{name: f"{value:.9g}" for name, value in values.items()}}
        csv.writer(self._file).writerow([row.get(column, "") for column in self._columns])
        self._file.flush()

    def close(self, error: BaseException | None) -> None:
        """Close the file."""
        self._file.close()

    def measured(self, event: MeasuredEvent) -> None:
        """Add the values that another handler reports to a row of the table.

        If the row of this step is complete but not yet written, add them to this row, else to the next row.
        """
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
        """Return the rows in an existing file that stay: those up to the step at which this training begins.

        Move the file of another training aside, and return no rows.

        Raises:
          ArgumentError: the file has other columns than this training writes.
        """
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
        """Rename the file of another training to the first free name, `log.1.csv` ..., and log a warning.

        Args:
          count: the number of rows in the file, for the warning.
        """
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
    """A logger that writes scalars for TensorBoard; `tensorboard --logdir LOGDIR` shows them.

    The scalars are the outputs of the program, as means over the steps since the last write, and every value that
    another handler reports. A resumed training replaces the values that were written after its first step.

    Args:
      logdir: the directory of the run.
      every: the interval: a number of steps, or "epoch", "2 epochs" ...

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
        # This event makes TensorBoard discard the values that an earlier training wrote for its step or a later one.
        start = proto.SessionLog(status=proto.SessionLog.START)
        self._writer.add_event(proto.Event(wall_time=time.time(), step=self.done + 1, session_log=start))

    def write(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Add an event with the values of one step."""
        _, proto = _tensorboard()
        event = proto.Event(wall_time=time.time(), step=step)
        for name, value in values.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._writer.add_event(event)

    def flush(self) -> None:
        """Write all events that are still in memory to the file."""
        self._writer.flush()

    def close(self, error: BaseException | None) -> None:
        """Close the event file."""
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
