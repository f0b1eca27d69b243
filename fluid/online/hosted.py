"""The class HostedTrainer: a Trainer and its readers, controlled by other threads and by clients over HTTP."""

import collections
import logging
import pathlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fluid import errors
from fluid._util.paths import PathLike, local_path
from fluid.core import whole_number
from fluid.reader.base import ReaderLike
from fluid.serving.server import HTTPServer
from fluid.serving.settings import Settings
from fluid.trainer import BeginEpochEvent, EndEpochEvent, EndStepEvent, EndTrainEvent, Handler, Trainer
from fluid.trainer.evaluation.means import finite, number, scalar_outputs

LOG = logging.getLogger("fluid.online")
_KEPT = 100_000  # the maximum number of events that are kept in memory, the newest ones
_WAIT = 1.0  # if there is no new event, a request for events gets an empty response after this number of seconds


class HostedTrainer:
    """A Trainer with its readers that trains in a separate thread, and that other threads control.

    Attributes:
      folders: a dict from paths of the server to the names that replace them in error messages to clients.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)
      >>> hosted = HostedTrainer(fluid.Trainer(program, fluid.optimizer.SGD(0.1)), reader)
      >>> hosted.train(num_epochs=2)["state"]
      'training'
      >>> hosted.join()
      >>> hosted.status()["state"], hosted.status()["steps"]
      ('stopped', 4)
    """

    def __init__(
        self, trainer: Trainer, reader: ReaderLike, test_reader: ReaderLike | None = None, folder: PathLike = "."
    ):
        self.folders = {str(local_path(folder)): "the folder of the training"}
        self._trainer, self._reader, self._test_reader = trainer, reader, test_reader
        self._folder = pathlib.Path(folder)
        self._outputs = scalar_outputs(trainer.program)
        self._changed = threading.Condition()
        self._events: collections.deque[dict[str, Any]] = collections.deque(maxlen=_KEPT)
        self._next = 0  # the number of the next event of the training; the first event has number 0
        self._tasks: collections.deque[tuple[Callable[[], Any], Future[Any]]] = collections.deque()
        self._thread: threading.Thread | None = None
        self._state = "stopped"
        self._error: BaseException | None = None
        self._epochs = 0
        self._steps = int(trainer.session.scope.step)
        self._anew = False  # True if `stop` has ended a paused training: then the next `train` does not continue it
        self._last: dict[str, Any] = {}
        self._test: dict[str, float | str] = {}

    def train(self, num_epochs: int = 1) -> dict[str, Any]:
        """Start to train for `num_epochs` epochs in a thread; return the status immediately.

        Raises:
          OnlineError: a training is already running, or is paused.
        """
        epochs = whole_number("RemoteTrainer.train", "num_epochs", num_epochs)
        with self._changed:
            if self._state in ("training", "paused"):
                raise errors.OnlineError(f"the trainer is {self._state}, expected a stopped one: call stop() first")
            self._epochs = epochs
            self._begin()
            return self.status()

    def pause(self) -> dict[str, Any]:
        """Pause the training after the current step, until `resume`; return the status.

        Raises:
          OnlineError: no training is running.
        """
        return self._end(self._trainer.pause, "paused")

    def resume(self) -> dict[str, Any]:
        """Continue the training after `pause`; return the status.

        Raises:
          OnlineError: the training is not paused.
        """
        with self._changed:
            if self._state != "paused":
                raise errors.OnlineError(f"the trainer is {self._state}, expected a paused one: call pause() first")
            self._begin()
            return self.status()

    def stop(self) -> dict[str, Any]:
        """End the training after the current step, also if it is paused; return the status."""
        with self._changed:
            if self._state != "training":
                self._anew = self._state == "paused"
                self._state = "stopped" if self._anew else self._state
                return self.status()
        return self._end(self._trainer.stop, "stopped")

    def test(self) -> dict[str, float | str]:
        """Test on the minibatches of the test reader between two steps; return the mean scalar outputs by name.

        Raises:
          OnlineError: there is no test reader.
        """
        if self._test_reader is None:
            raise errors.OnlineError(
                "there is no data to test on, expected a test reader: return trainer, reader, test_reader"
            )
        results = self._between_steps(lambda: self._trainer.test(self._test_reader))
        self._test = finite({name: number(results[i]) for name, i in self._outputs.items()})
        return self._test

    def save(self) -> dict[str, Any]:
        """Write the parameters to a file between two steps; return the status, with the name of the file as `saved`."""

        def write() -> str:
            name = f"step_{self._steps}.params"
            self._folder.mkdir(parents=True, exist_ok=True)
            self._trainer.save_params(self._folder / name)
            return name

        return {"saved": self._between_steps(write), **self.status()}

    def status(self) -> dict[str, Any]:
        """Return the status of the training as a dict.

        The entries `state`, `error`, `steps`, `last` and `test` are as for `OnlineTrainer.status`. `epochs` is the
        requested number of the last `train`, and `events` is the number of all events so far.
        """
        with self._changed:
            return {
                "state": self._state,
                "error": None if self._error is None else str(self._error)[:500],
                "steps": self._steps,
                "epochs": self._epochs,
                "events": self._next,
                "last": finite({name: number(value) for name, value in self._last.items()}),
                "test": self._test,
            }

    def events(self, after: int) -> dict[str, Any]:
        """Return the events from number `after` on, the number of the next event, and the state of the training.

        If the event `after` has not occurred yet while a training is running, the call waits for at most one second.

        Raises:
          OnlineError: the event with the number `after` is too old and is not in memory any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._next > after or self._state != "training", _WAIT)
            first = self._next - len(self._events)
            if after < first:
                raise errors.OnlineError(f"events before {first} are not kept any more, found after={after}")
            found = list(self._events)[after - first :]
            state, following = self._state, self._next
        shown = [
            {**event, "metrics": finite({name: number(v) for name, v in event["metrics"].items()})} for event in found
        ]
        return {"events": shown, "next": following, "state": state}

    def join(self) -> None:
        """Wait until the training thread ends."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def host(self, host: str, port: int, token: str | None, allow_anonymous: bool, settings: Settings) -> HTTPServer:
        """Return a server, not yet started, through which a `fluid.RemoteTrainer` controls this HostedTrainer.

        The arguments are as for `fluid.serve`.
        """
        from fluid.online.app import TrainerApp  # imported only when needed, because servers need additional packages

        return HTTPServer(
            lambda access: TrainerApp(self, settings, access), host, port, token, allow_anonymous, settings
        )

    def _begin(self) -> None:
        self._state, self._error = "training", None
        self._thread = threading.Thread(target=self._run, name="fluid-hosted", daemon=True)
        self._thread.start()

    def _end(self, end: Callable[[], None], state: str) -> dict[str, Any]:
        """Call `end`, which pauses or stops the Trainer, in the training thread; wait until `Trainer.train` returns.

        Then set the state of the training to `state`, unless the training has ended before `end` was called.
        """
        with self._changed:
            if self._state != "training":
                raise errors.OnlineError(f"the trainer is {self._state}, expected one that trains: call train() first")
            done: Future[Any] = Future()
            # A task calls `end` after a training step, because `Trainer.stop` has no effect before the first step.
            self._tasks.append((end, done))
        self.join()
        with self._changed:
            if done.done() and self._state == "stopped":
                self._state = state
            return self.status()

    def _between_steps(self, task: Callable[[], Any]) -> Any:
        """Run a task and return its result: after the current training step, or at once if no training runs."""
        with self._changed:
            if self._state != "training":
                return task()
            result: Future[Any] = Future()
            self._tasks.append((task, result))
        return result.result()

    def _run(self) -> None:
        """Train in the training thread; then run the tasks that still wait in the queue, except pauses and stops.

        Pauses and stops have no effect then, because the training has ended.
        """
        error: BaseException | None = None
        try:
            resume = False if self._anew else None
            self._anew = False
            self._trainer.train(self._reader, self._epochs, handlers=[_Recorder(self)], progress=False, resume=resume)
        except BaseException as failure:
            LOG.exception("the training has failed")
            error = failure
        with self._changed:
            self._state, self._error = ("stopped", None) if error is None else ("failed", error)
            ending = (self._trainer.pause, self._trainer.stop)
            _do([(task, result) for task, result in self._tasks if task not in ending])
            self._tasks.clear()
            self._changed.notify_all()

    def note(self, kind: str, metrics: dict[str, Any], **facts: Any) -> None:
        """Record an event of the training, of the class `kind`; after an EndStepEvent, run the waiting tasks."""
        with self._changed:
            self._events.append({"event": kind, **facts, "metrics": metrics})
            self._next += 1
            self._changed.notify_all()
            tasks = list(self._tasks) if kind == "EndStepEvent" else []
            for _ in tasks:
                self._tasks.popleft()
            if kind == "EndStepEvent":
                self._last, self._steps = metrics, self._steps + 1
        _do(tasks)

    def scalars(self, results: Any) -> dict[str, Any]:
        """Return the scalar outputs of a step by name, as arrays on the device; `results` are all outputs."""
        return {name: results[i] for name, i in self._outputs.items()}


class _Recorder(Handler):
    """A handler that records events for a HostedTrainer, a training that clients control over HTTP."""

    def __init__(self, hosted: HostedTrainer):
        self._hosted = hosted

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        self._hosted.note("BeginEpochEvent", {}, epoch=event.epoch)

    def end_step(self, event: EndStepEvent) -> None:
        metrics = self._hosted.scalars(event.metrics)
        self._hosted.note("EndStepEvent", metrics, epoch=event.epoch, step=event.step)

    def end_epoch(self, event: EndEpochEvent) -> None:
        self._hosted.note("EndEpochEvent", {}, epoch=event.epoch, steps=event.steps, completed=event.completed)

    def end_train(self, event: EndTrainEvent) -> None:
        self._hosted.note("EndTrainEvent", {}, epochs=event.epochs, stopped=event.stopped)


def _do(tasks: list[tuple[Callable[[], Any], Future[Any]]]) -> None:
    for task, result in tasks:
        try:
            result.set_result(task())
        except Exception as error:  # `result` raises the exception in the thread that waits for it
            result.set_exception(error)
