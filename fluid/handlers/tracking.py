"""Loggers that write to trackers of experiments: MLflow, and Weights & Biases."""

import time
from collections.abc import Mapping
from typing import Any

from fluid import errors
from fluid.core import fitting
from fluid.handlers.logger import Logger
from fluid.trainer import BeginTrainEvent
from fluid.trainer.evaluation.values import Interval

# Seconds between two transactions: values wait for so long, since each one costs some milliseconds.
_INTERVAL = 1.0
# MLflow takes at most so many values at once.
_AT_ONCE = 1000


class _Tracker(Logger):
    """A logger whose values belong to a run, which further calls of `train` and a training that resumes continue.

    The training of another Trainer is another run. A run begins with its first values, so that a call of `train` which
    has nothing to do leaves none.
    """

    run_id: str | None

    def __init__(self, every: Interval):
        super().__init__(every)
        self.run_id = None
        self._begun_run = False

    def open(self, event: BeginTrainEvent) -> None:
        """Wait for the first values."""
        self._begun_run = False

    def write(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write to the run, which begins or continues with the first values."""
        if not self._begun_run:
            self._begin_run()
            self._begun_run = True
        self._log(step, values)

    def state(self) -> dict[str, Any]:
        """The means that are not complete yet, and which run this is."""
        return {**super().state(), "run": self.run_id}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with these means, and with this run."""
        super().restore(state)
        self.run_id = state["run"]

    def _forget(self) -> None:
        super()._forget()
        self.run_id = None

    def _begin_run(self) -> None:
        """Make the run, or continue that of `run_id`."""
        raise NotImplementedError

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        """Hand values to the tracker."""
        raise NotImplementedError


@fitting("fluid.handlers.MLflow")
class MLflow(_Tracker):
    """Writes scalars and the settings of a run to MLflow; `mlflow ui` shows them.

    These are the scalars of the program, as means over the steps since the last time, and every value that another
    handler announces. A training that resumes continues its run, in which no point is doubled. The global run of
    MLflow, `mlflow.start_run`, is left alone.

    Args:
      experiment: its name; made if there is none.
      tracking_uri: where MLflow keeps runs, such as "sqlite:///mlflow.db"; None for what MLflow has been told.
      run_name: None lets MLflow find one.
      params: settings to write down once, by name, such as `{"learning_rate": 1e-3}`.
      every: a number of steps, or "epoch", "2 epochs" ...

    Attributes:
      run_id: MLflow's name of the run; None before the first values are written.

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
        """Send what was gathered."""
        for first in range(0, len(self._unsent), _AT_ONCE):
            self._client.log_batch(self.run_id, metrics=self._unsent[first : first + _AT_ONCE])
        self._unsent = []
        self._next = time.monotonic() + _INTERVAL

    def close(self, error: BaseException | None) -> None:
        """Send what was gathered, and say how the run has ended."""
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
        """Gather the values, and send them when a second has passed."""
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
    """Writes scalars to a run of Weights & Biases, which the package wandb shows in a browser.

    These are the scalars of the program, as means over the steps since the last time, and every value that another
    handler announces. A training that resumes continues its run. With `mode="offline"` the run is written to the folder
    `wandb`, nothing is sent, and each call of `train` writes a part of its own; `wandb sync` joins them.

    Args:
      project: its name; None for what wandb has been told.
      every: a number of steps, or "epoch", "2 epochs" ...
      options: further arguments of `wandb.init`, such as `mode="offline"`, `name=`, `config={"learning_rate": 1e-3}`.

    Attributes:
      run_id: wandb's name of the run; None before the first values are written.

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
        """End the run."""
        if self._begun_run:
            self._run.finish(exit_code=0 if error is None else 1)

    def _begin_run(self) -> None:
        known = {} if self.run_id is None else {"id": self.run_id, "resume": "allow"}
        self._run = _wandb().init(**{**self._options, **known})
        self.run_id = self._run.id

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        """Hand the values to wandb, which writes them in a process of its own."""
        self._run.log(dict(values), step=step)


def _mlflow() -> tuple[Any, Any]:
    """The client of MLflow, and its class of values."""
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
