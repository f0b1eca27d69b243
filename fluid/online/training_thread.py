"""The class Control, whose thread trains on the minibatches of a journal, and runs tasks between two steps.

The thread calls `Trainer.train` for one endless epoch. If another thread requests a task (`save`, `publish`, `pause`,
`stop`), the reader pauses the Trainer: `train` writes a checkpoint and returns. Then the task runs, and the thread
calls `train` again.
"""

import atexit
import collections
import importlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from fluid import errors
from fluid.online.minibatches import JournalMinibatches, JournalReader
from fluid.runtime.finite import Health
from fluid.runtime.state_io import live_state
from fluid.trainer import BeginTrainEvent, EndStepEvent, Handler, Trainer
from fluid.trainer.evaluation.means import scalar_outputs
from fluid.trainer.events import EventHandler

LOG = logging.getLogger("fluid.online")
# Arrays with at most this many numbers are checked for NaN after each step. Larger ones, such as tables of embeddings
# of which a step changes a few rows, are checked before each checkpoint and each task only.
_SMALL = 1 << 20
Task = Callable[[Trainer], Any]


class Control:
    """A controller of the thread in which an OnlineTrainer trains, from `start` to `stop`.

    Args:
      make: a function that returns a new Trainer for each later `start`; this Trainer continues from the newest
        checkpoint.

    Attributes:
      steps: the number of training steps done.
      failure: the error that ended the training, or None.
      outputs: the scalar outputs of the last step by name, on the device.
      begun: the number of training steps done when `Trainer.train` was last called.
    """

    def __init__(
        self,
        trainer: Trainer,
        make: Callable[[], Trainer],
        minibatches: JournalMinibatches,
        handlers: Sequence[Handler | EventHandler],
        after_step: Callable[[int], None],
        after_save: Callable[[], None],
    ):
        self.steps = int(trainer.session.scope.step)
        self.failure: BaseException | None = None
        self.outputs: dict[str, Any] = {}
        self._make = make
        self._minibatches = minibatches
        self._last = _AfterStep(self, after_step)
        self._handlers = [*handlers, self._last]
        self._after_save = after_save
        self._changed = minibatches.journal.changed
        self._trainer: Trainer | None = trainer
        self._thread: threading.Thread | None = None
        self._tasks: collections.deque[tuple[Task, Future[Any]]] = collections.deque()
        self.begun = 0
        self._paused = False
        self._stopping = False
        self._leaving = False
        self._starting = threading.Lock()

    @property
    def state(self) -> str:
        """The state of the training: "training", "waiting" for rows, "paused", "stopped", or "failed"."""
        with self._changed:
            if self.failure is not None:
                return "failed"
            if self._thread is None or self._stopping:
                return "stopped"
            if self._paused:
                return "paused"
            return "training" if self._minibatches.is_there(self.steps) else "waiting"

    def _prepared(self) -> Trainer:
        """Return the Trainer; if its training thread has ended, create a new Trainer from the newest checkpoint."""
        if self._trainer is None:
            self._trainer = self._make()
            self.steps = int(self._trainer.session.scope.step)
        return self._trainer

    def start(self) -> None:
        """Start the thread that begins or continues the training; do nothing if the thread runs already.

        If Python exits while the thread runs, `leave` ends the training.
        """
        with self._starting:
            if self._runs:
                return
            self.stop()
            self._prepared()
            # the import of Orbax is slow: load it now, so that the first rows do not wait
            importlib.import_module("orbax.checkpoint")
            self.failure = None
            self._stopping = False
            self._paused = False
            self._thread = threading.Thread(target=self._run, name="fluid-online", daemon=True)
            self._thread.start()
            atexit.register(self.leave)

    @property
    def _runs(self) -> bool:
        alive = self._thread is not None and self._thread.is_alive()
        return alive and not self._stopping and self.failure is None

    def go_back(self, change: Callable[[int], None]) -> None:
        """Go back to the newest checkpoint, and call `change` with its number of steps before a later `start`.

        Raises:
          OnlineError: a training is running, or is paused.
        """
        with self._starting:
            if self._runs:
                raise errors.OnlineError(f"the training is {self.state}, expected a stopped one: call stop() first")
            self.stop()
            self._prepared()
            change(self.steps)

    def pause(self) -> None:
        """Pause the training until `resume`; when this call returns, a checkpoint holds all steps done."""
        with self._changed:
            self.check_started()
            self._paused = True
        self.ask(lambda trainer: None)

    def resume(self) -> None:
        """Continue the training after `pause`."""
        with self._changed:
            self.check_started()
            self._paused = False
            self._changed.notify_all()

    def stop(self) -> None:
        """End the training after the current step; when this call returns, a checkpoint holds all steps done."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        # A handler may call `stop` in the training thread, which must not join itself.
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            self._thread = None
            atexit.unregister(self.leave)

    def leave(self) -> None:
        """End the training after the current step without a checkpoint, as if the process was killed.

        Python calls this method when it exits. Python must not exit while a thread runs JAX, and Orbax cannot save at
        that time.
        """
        with self._changed:
            self._leaving = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def ask(self, task: Task) -> Any:
        """Call `task` in the training thread between two steps, after a checkpoint was written; return the result.

        Raises:
          OnlineError: the training thread is not running.
        """
        with self._changed:
            self.check_started()
            if self._thread is threading.current_thread():
                raise errors.OnlineError("a handler asked for what is done between two steps; ask from another thread")
            result = self.ask_later(task)
        return result.result()

    def ask_later(self, task: Task) -> Future[Any]:
        """Queue a task, a function that the training thread calls between two steps; return a Future of the result."""
        result: Future[Any] = Future()
        with self._changed:
            self._tasks.append((task, result))
            self._changed.notify_all()
        return result

    def check_started(self) -> None:
        """Raise OnlineError if the training has failed, was not started, or was stopped; not if it is paused."""
        if self.failure is not None:
            raise errors.OnlineError(f"the training has failed: {self.failure}; start() continues from the checkpoint")
        if self._thread is None or self._stopping:
            raise errors.OnlineError("nothing is trained now; start() begins, or goes on")

    def _run(self) -> None:
        """Train, and run queued tasks such as `save`, until the training ends. The training thread runs this method."""
        try:
            while self._wait():
                self._do_tasks()
                if not self._stopping and self._may_train():
                    self._train()
        except _Left:
            pass
        except BaseException as error:
            LOG.exception("the training has failed; what was saved is continued by start()")
            self.failure = error
        finally:
            with self._changed:
                self._stopping = True
                self._trainer = None
                while self._tasks:
                    _, result = self._tasks.popleft()
                    result.set_exception(errors.OnlineError("the training ended before this could be done"))

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._leaving or self._stopping or self._tasks or self._may_train())
            return not self._leaving and (not self._stopping or bool(self._tasks))

    def _may_train(self) -> bool:
        return not self._paused and self._minibatches.is_there(self.steps)

    def _ending(self) -> bool:
        """Return whether the reader has to end its epoch, so that `Trainer.train` returns."""
        if self._leaving:
            raise _Left
        # A task, such as `save`, waits until at least one step is done since `Trainer.train` was called. Otherwise
        # frequent tasks could prevent all training.
        return self._stopping or self._paused or (bool(self._tasks) and self.steps > self.begun)

    def rows(self, steps: range) -> str:
        """Return the numbers in the journal of the first and the last row that some training steps train on."""
        split = self._minibatches.split
        return f"{min(split.trained(steps[0]))} to {max(split.trained(steps[-1]))}"

    def _do_tasks(self) -> None:
        while self._tasks:
            task, result = self._tasks.popleft()
            try:
                result.set_result(task(self._prepared()))
            except Exception as error:  # the exception is raised in the thread that called `ask`
                result.set_exception(error)

    def _train(self) -> None:
        """Call `Trainer.train`, which trains until the reader ends its epoch, and then writes a checkpoint."""
        trainer = self._prepared()
        self.begun = self.steps
        ended = threading.Event()

        def end() -> None:
            ended.set()
            # Because of `Trainer.pause`, the checkpoint records that the epoch continues after the last minibatch.
            trainer.pause()

        reader = JournalReader(self._minibatches, self._ending, end)
        trainer.train(reader, 1, handlers=self._handlers, progress=False)
        self._last.check(live_state(trainer.session), range(self.begun, self.steps))
        self._after_save()
        if not ended.is_set():
            LOG.warning("a handler has ended the training after %d steps", self.steps)
            self._stopping = True


class _Left(Exception):
    """An exception that ends a training without a checkpoint; see `Control.leave`."""


class _AfterStep(Handler):
    """A handler that records the last step and its outputs in a Control, the controller of the training thread.

    The first non-finite loss or parameter ends the training, before it is published and before later rows are trained
    on.
    """

    def __init__(self, control: Control, then: Callable[[int], None]):
        self._control = control
        self._then = then
        self._health = Health()

    def begin_train(self, event: BeginTrainEvent) -> None:
        self._health = Health.at_start(live_state(self.trainer.session))

    def check(self, arrays: Mapping[str, Any], steps: range) -> None:
        """Check that the arrays after the training steps `steps` are finite."""
        if complaint := self._health.complaint(arrays):
            raise errors.NonFiniteError(
                f"{complaint} after a step on the rows {self._control.rows(steps)} of the journal; expected finite "
                f"numbers. Checkpoints and published versions are of earlier steps; skip([...]) leaves out the bad "
                f"rows, and start() continues from the newest checkpoint"
            )

    def end_step(self, event: EndStepEvent) -> None:
        """Record the number of steps and the scalar outputs in the Control (the controller of the training thread).

        Then call the function that acts after each training step.
        """
        state = live_state(self.trainer.session)
        checked = {n: a for n, a in state.items() if a.size <= _SMALL}
        # A huge number may make the loss infinite, and the parameters huge: then a later step makes them NaN.
        checked["the loss"] = event.metrics[self.trainer.program.loss_output]
        # An earlier step may have made a large array NaN, which only the loss of this step shows.
        all_are_small = all(name in checked for name in state)
        first = event.step if all_are_small else self._control.begun
        self.check(checked, range(first, event.step + 1))
        positions = scalar_outputs(self.trainer.program)
        self._control.outputs = {name: event.metrics[position] for name, position in positions.items()}
        self._control.steps = event.step + 1
        self._then(event.step + 1)
