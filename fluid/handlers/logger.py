"""Loggers: Logger, the base class of all loggers, and CSVLogger, TensorBoard, MLflow and WandB."""

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
from fluid.trainer.evaluation.means import by_name, known_values, number
from fluid.trainer.every import Interval


@fitting("fluid.handlers.Logger")
class Logger(Recorder):
    """The base class of all loggers; it passes scalars to the method `write`, which a subclass defines.

    The scalars are the outputs of the program, as means over the steps since the last write, and all values that other
    handlers report. A logger writes them some steps later, when the device has computed them. It writes all scalars
    before each checkpoint and at the end of training, even after an error.

    Args:
      every: the interval of writing outputs of the program: a number of steps, or "epoch", "2 epochs" ...

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
        """Open the file or tracker that receives the values, when training begins after `self.done` completed steps.

        A subclass should discard values that an earlier training wrote for later steps.
        """

    def write(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one step.

        Args:
          epoch: the index of the epoch, from 0.
          step: the number of completed training steps, including the steps before a resume.
          values: the scalars by name.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Store all written values, so that a crash of this process cannot lose them; called before each checkpoint."""

    def close(self, error: BaseException | None) -> None:
        """Close the output; called at the end of training.

        Args:
          error: the exception that ended the training, or None.
        """

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Call `open`, in which a subclass may open its output."""
        super().begin_train(event)
        self.open(event)
        self._opened = True

    def end_train(self, event: EndTrainEvent) -> None:
        """Write all unwritten values, and call `close`."""
        if self._opened:
            self._opened = False
            try:
                super().end_train(event)
            finally:
                self.close(event.error)

    def state(self) -> dict[str, Any]:
        """Return the state of this logger for a checkpoint, as a dict for JSON: the means that are not complete yet.

        Complete means of program outputs are written and flushed first.
        """
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

    The columns are `epoch`, `step` (completed steps, including the steps before a resume), the scalars of the program,
    and the values that other handlers report. A row has the mean of each scalar over the steps since the last row, and
    the latest reported value since the last row.

    The logger appends to an existing file. A resumed training keeps the rows up to its first step, and replaces later
    rows, because it repeats their steps. A training that begins at step 0 renames the file of another training to
    `log.1.csv`, and logs a warning.

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
        """Open the CSV file for writing; keep only the rows up to the step at which this training begins."""
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
        """Add the values that another handler reports to the row of this step in the CSV file.

        If the row is already written, add the values to the next row.
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
        """Return the rows of an existing file up to the step at which this training begins.

        If the file belongs to another training, rename it and return no rows.
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
        # this training begins at step 0, so the rows of the file belong to an earlier training
        if whole and not self.done and self._resumed is None:
            self._move_aside(len(whole))
            return []
        return kept

    def _move_aside(self, count: int) -> None:
        """Rename the file of another training to the first unused name, such as `log.1.csv`, and log a warning."""
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

    The scalars are the outputs of the program, as means over the steps since the last write, and all values that other
    handlers report. A resumed training replaces values that the interrupted training wrote for later steps.

    Args:
      logdir: the directory of the run.
      every: the interval of writing: a number of steps, or "epoch", "2 epochs" ...

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
        """Open a new event file in the directory of the run."""
        make_writer, proto = _tensorboard()
        self._writer = make_writer(self._logdir)
        # A START event makes TensorBoard discard values that an earlier training wrote for this step and later steps.
        start = proto.SessionLog(status=proto.SessionLog.START)
        self._writer.add_event(proto.Event(wall_time=time.time(), step=self.done + 1, session_log=start))

    def write(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Add an event with the values of one step to the event file."""
        _, proto = _tensorboard()
        event = proto.Event(wall_time=time.time(), step=step)
        for name, value in values.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._writer.add_event(event)

    def flush(self) -> None:
        """Write all events in memory to the event file."""
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


# `_INTERVAL`: seconds between two requests to MLflow. A request takes some milliseconds, so each writes many values.
_INTERVAL = 1.0
# `_AT_ONCE`: the maximum number of values that MLflow accepts in one request.
_AT_ONCE = 1000


class _Tracker(Logger):
    """The base class of loggers that write to a run of an experiment tracker, such as MLflow.

    Each Trainer has a separate run. Further calls of `train`, and a resumed training, continue the run. The logger
    creates the run when it writes the first values, so a call of `train` without steps creates no run.
    """

    run_id: str | None

    def __init__(self, every: Interval):
        super().__init__(every)
        self.run_id = None
        self._begun_run = False

    def open(self, event: BeginTrainEvent) -> None:
        """Begin a call of `train`: the next `write` creates a run in the experiment tracker, or continues the run."""
        self._begun_run = False

    def write(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one step to a run of the experiment tracker.

        The first call in a training creates the run, or continues it if the training is resumed.
        """
        if not self._begun_run:
            self._begin_run()
            self._begun_run = True
        self._log(step, values)

    def state(self) -> dict[str, Any]:
        """Write all completed means to the experiment tracker, and return the rest as JSON for a checkpoint.

        The result has the means that are not complete yet, and the id of the run in the tracker.
        """
        return {**super().state(), "run": self.run_id}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the incomplete means and the id of the run from a checkpoint."""
        super().restore(state)
        self.run_id = state["run"]

    def _forget(self) -> None:
        super()._forget()
        self.run_id = None

    def _begin_run(self) -> None:
        raise NotImplementedError

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        raise NotImplementedError


@fitting("fluid.handlers.MLflow")
class MLflow(_Tracker):
    """A logger that writes scalars and the settings of a run to MLflow; `mlflow ui` shows them.

    The scalars are the outputs of the program, as means over the steps since the last write, and all values that other
    handlers report. A resumed training continues its run without duplicate points. The logger does not use MLflow's
    global run, which `mlflow.start_run` creates.

    Args:
      experiment: the name of the experiment, which is created if it does not exist.
      tracking_uri: the URI of the MLflow store, such as "sqlite:///mlflow.db"; None for the setting of MLflow.
      run_name: the name of the run; None lets MLflow choose a name.
      params: settings to write once for the run, by name, such as `{"learning_rate": 1e-3}`.
      every: the interval of writing: a number of steps, or "epoch", "2 epochs" ...

    Attributes:
      run_id: the id of the run in MLflow; None before the first values are written.

    Raises:
      ArgumentError: the package mlflow is not installed.

    Example:
      >>> import fluid
      >>> logger = fluid.handlers.MLflow("digits", "sqlite:///mlflow.db", params={"learning_rate": 1e-3})
      >>> handlers = [logger, fluid.handlers.TestEvery(reader=[])]
    """

    def __init__(
        self,
        experiment: str = "Default",
        tracking_uri: str | None = None,
        run_name: str | None = None,
        params: Mapping[str, Any] | None = None,
        every: Interval = 10,
    ):
        super().__init__(every)
        self._experiment = experiment
        self._tracking_uri = tracking_uri
        self._run_name = run_name
        self._params = dict(params or {})
        self._client: Any = None
        self._unsent: list[Any] = []
        self._next = 0.0
        self._there: set[tuple[str, int, float]] = set()
        _mlflow()

    def flush(self) -> None:
        """Send all collected values to MLflow."""
        for first in range(0, len(self._unsent), _AT_ONCE):
            self._client.log_batch(self.run_id, metrics=self._unsent[first : first + _AT_ONCE])
        self._unsent = []
        self._next = time.monotonic() + _INTERVAL

    def close(self, error: BaseException | None) -> None:
        """Send all unsent values, and set the final status of the run: finished, killed or failed."""
        if self._begun_run:
            self.flush()
            interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
            status = "FINISHED" if error is None else "KILLED" if interrupted else "FAILED"
            self._client.set_terminated(self.run_id, status)

    def _begin_run(self) -> None:
        make_client, _ = _mlflow()
        self._client = make_client(tracking_uri=self._tracking_uri)
        self._unsent = []
        self._there = set()
        if self.run_id is None:
            self.run_id = self._new_run()
            return
        self._client.update_run(self.run_id, status="RUNNING")
        for name in self._client.get_run(self.run_id).data.metrics:
            points = self._client.get_metric_history(self.run_id, name)
            self._there |= {(name, point.step, point.value) for point in points}

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        """Collect values of one step for MLflow; if the last request is at least a second old, send all of them."""
        _, make_metric = _mlflow()
        now = int(1000 * time.time())
        new = ((name, value) for name, value in values.items() if (name, step, value) not in self._there)
        self._unsent += [make_metric(name, value, now, step) for name, value in new]
        if time.monotonic() >= self._next:
            self.flush()

    def _new_run(self) -> str:
        known = self._client.get_experiment_by_name(self._experiment)
        experiment = self._client.create_experiment(self._experiment) if known is None else known.experiment_id
        run = self._client.create_run(experiment, run_name=self._run_name)
        for name, value in self._params.items():
            self._client.log_param(run.info.run_id, name, value)
        return run.info.run_id


class WandB(_Tracker):
    """A logger that writes scalars to a run of Weights & Biases, which the package wandb shows in a browser.

    The scalars are the outputs of the program, as means over the steps since the last write, and all values that other
    handlers report. A resumed training continues its run. `mode="offline"` writes the run to the folder `wandb` and
    sends nothing; each call of `train` then writes a separate part, and `wandb sync` joins the parts.

    Args:
      project: the name of the project; None for the setting of wandb.
      every: the interval of writing: a number of steps, or "epoch", "2 epochs" ...
      options: further arguments of `wandb.init`, such as `mode="offline"`, `name=`, `config={"learning_rate": 1e-3}`.

    Attributes:
      run_id: the id of the run in wandb; None before the first values are written.

    Raises:
      ArgumentError: the package wandb is not installed.

    Example:
      >>> import fluid
      >>> logger = fluid.handlers.WandB("digits", mode="offline", config={"learning_rate": 1e-3})
      >>> handlers = [logger, fluid.handlers.LearningRateMonitor(every=10)]
    """

    def __init__(self, project: str | None = None, every: Interval = 10, **options: Any):
        super().__init__(every)
        self._options = {"reinit": "create_new", **options, "project": project}
        self._run: Any = None
        _wandb()

    def close(self, error: BaseException | None) -> None:
        """Finish the run in wandb with exit code 0, or with exit code 1 if training ended with an error."""
        if self._begun_run:
            self._run.finish(exit_code=0 if error is None else 1)

    def _begin_run(self) -> None:
        known = {} if self.run_id is None else {"id": self.run_id, "resume": "allow"}
        self._run = _wandb().init(**{**self._options, **known})
        self.run_id = self._run.id

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)


def _mlflow() -> tuple[Any, Any]:
    """Import MLflow, and return its classes MlflowClient and Metric."""
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric
    except ImportError as error:
        raise errors.ArgumentError(
            "fluid.handlers.MLflow needs the package mlflow, which is not installed: pip install mlflow"
        ) from error
    return MlflowClient, Metric


def _wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise errors.ArgumentError(
            "fluid.handlers.WandB needs the package wandb, which is not installed: pip install wandb"
        ) from error
    return wandb
