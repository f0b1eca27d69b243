"""MLflow and WandB: loggers that write to experiment trackers."""

import time
from collections.abc import Mapping
from typing import Any

from fluid import errors
from fluid.core import fitting
from fluid.handlers.logger import Logger
from fluid.trainer import BeginTrainEvent
from fluid.trainer.evaluation.values import Interval

# The seconds between two requests to MLflow that write values. Each request costs some milliseconds, so values are
# batched.
_INTERVAL = 1.0
# The maximum number of values that MLflow accepts in one request.
_AT_ONCE = 1000


class _Tracker(Logger):
    """The base class of loggers that write to a run of an experiment tracker.

    Each Trainer has a separate run. Further calls of `train`, and a resumed training, continue this run. The run is
    created when the first values are written, so that a call of `train` without steps creates no run.
    """

    run_id: str | None

    def __init__(self, every: Interval):
        super().__init__(every)
        self.run_id = None
        self._begun_run = False

    def open(self, event: BeginTrainEvent) -> None:
        """Note that the next `write` must create the run or continue it."""
        self._begun_run = False

    def write(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write the values to the run; the first call in a training creates the run or continues it."""
        if not self._begun_run:
            self._begin_run()
            self._begun_run = True
        self._log(step, values)

    def state(self) -> dict[str, Any]:
        """Write all complete means; return the state of the incomplete means and the id of the run, for JSON."""
        return {**super().state(), "run": self.run_id}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the incomplete means and the id of the run from a checkpoint."""
        super().restore(state)
        self.run_id = state["run"]

    def _forget(self) -> None:
        super()._forget()
        self.run_id = None

    def _begin_run(self) -> None:
        """Create a run and set `run_id`; if `run_id` is set already, continue this run."""
        raise NotImplementedError

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        """Pass the values of one step to the tracker."""
        raise NotImplementedError


@fitting("fluid.handlers.MLflow")
class MLflow(_Tracker):
    """A logger that writes scalars and the settings of a run to MLflow; `mlflow ui` shows them.

    The scalars are the outputs of the program, as means over the steps since the last write, and every value that
    another handler reports. A resumed training continues its run without duplicate points. The logger does not use the
    global run of MLflow, `mlflow.start_run`.

    Args:
      experiment: the name of the experiment, which is created if it does not exist.
      tracking_uri: the URI of the MLflow store, such as "sqlite:///mlflow.db"; None for the setting of MLflow.
      run_name: the name of the run; None lets MLflow choose a name.
      params: settings to write once for the run, by name, such as `{"learning_rate": 1e-3}`.
      every: the interval: a number of steps, or "epoch", "2 epochs" ...

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
        """Send all values that were collected and not sent yet to MLflow."""
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
        """Collect the values of one step; send all collected values if the last sending was a second ago."""
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

    The scalars are the outputs of the program, as means over the steps since the last write, and every value that
    another handler reports. A resumed training continues its run. `mode="offline"` writes the run to the folder `wandb`
    and sends nothing; each call of `train` then writes a separate part, and `wandb sync` joins the parts.

    Args:
      project: the name of the project; None for the setting of wandb.
      every: the interval: a number of steps, or "epoch", "2 epochs" ...
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
        """Finish the run, with exit code 0 or, after an error, 1."""
        if self._begun_run:
            self._run.finish(exit_code=0 if error is None else 1)

    def _begin_run(self) -> None:
        known = {} if self.run_id is None else {"id": self.run_id, "resume": "allow"}
        self._run = _wandb().init(**{**self._options, **known})
        self.run_id = self._run.id

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        """Pass the values to wandb, which writes them in a separate process."""
        self._run.log(dict(values), step=step)


def _mlflow() -> tuple[Any, Any]:
    """Return the classes MlflowClient and Metric of MLflow."""
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
