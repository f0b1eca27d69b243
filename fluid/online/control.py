"""Control: a thread that trains on the minibatches of a journal, and runs tasks between two steps.

One endless epoch of `Trainer.train` runs in the thread. For a task between two steps (`save`, `publish`, `pause`,
`stop`) the reader ends its pass: `train` returns with a checkpoint, and is called again.
"""

import atexit
import collections
import importlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from fluid import errors
from fluid.online.minibatches import JournalReader, Minibatches
from fluid.trainer import EndStepEvent, Handler, Trainer
from fluid.trainer.evaluation.values import scalar_outputs
from fluid.trainer.events import EventHandler

LOG = logging.getLogger("fluid.online")
Task = Callable[[Trainer], Any]


class Control:
    """A thread that trains, from `start` to `stop`.

    Args:
      trainer: of the first training.
      make: returns another Trainer, which continues from the newest checkpoint.
      minibatches: of the journal.
      handlers: around the training.
      after_step: called in the thread after each step with the number of steps done.
      after_save: called in the thread when checkpoints may have been written.

    Attributes:
      steps: number of steps done.
      failure: the error that ended the training, or None.
      outputs: scalars of the last step by name, on the device.
    """

    def __init__(
        self,
        trainer: Trainer,
        make: Callable[[], Trainer],
        minibatches: Minibatches,
        handlers: Sequence[Handler | EventHandler],
        after_step: Callable[[int], None],
        after_save: Callable[[], None],
    ):
        self.steps = int(trainer.session.scope.step)
        self.failure: BaseException | None = None
        self.outputs: dict[str, Any] = {}
        self._make = make
        self._minibatches = minibatches
        self._handlers = [*handlers, _AfterStep(self, after_step)]
        self._after_save = after_save
        self._changed = minibatches.journal.changed
        self._trainer: Trainer | None = trainer
        self._thread: threading.Thread | None = None
        self._tasks: collections.deque[tuple[Task, Future[Any]]] = collections.deque()
        self._begun = 0  # steps done when the training last went on
        self._paused = False
        self._stopping = False
        self._leaving = False
        self._starting = threading.Lock()

    @property
    def state(self) -> str:
        """State of the training: "training", "waiting" for rows, "paused", "stopped", or "failed"."""
        with self._changed:
            if self.failure is not None:
                return "failed"
            if self._thread is None or self._stopping:
                return "stopped"
            if self._paused:
                return "paused"
            return "training" if self._minibatches.is_there(self.steps) else "waiting"

    def _prepared(self) -> Trainer:
        """Return the Trainer; make one if there is none."""
        if self._trainer is None:
            self._trainer = self._make()
            self.steps = int(self._trainer.session.scope.step)
        return self._trainer

    def start(self) -> None:
        """Begin to train, or go on; do nothing while the thread runs. The end of Python calls `leave`."""
        with self._starting:
            if self._thread is not None and self._thread.is_alive() and not self._stopping:
                return
            self.stop()
            self._prepared()
            importlib.import_module("orbax.checkpoint")  # a slow import, which the first rows should not wait for
            self.failure = None
            self._stopping = False
            self._paused = False
            self._thread = threading.Thread(target=self._run, name="fluid-online", daemon=True)
            self._thread.start()
            atexit.register(self.leave)

    def pause(self) -> None:
        """Pause until `resume`; when this returns, a checkpoint holds all steps."""
        with self._changed:
            self.check_started()
            self._paused = True
        self.ask(lambda trainer: None)

    def resume(self) -> None:
        """Go on after `pause`."""
        with self._changed:
            self.check_started()
            self._paused = False
            self._changed.notify_all()

    def stop(self) -> None:
        """End after the current step; when this returns, a checkpoint holds all steps."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():  # a handler need not wait for itself
            thread.join()
            self._thread = None
            atexit.unregister(self.leave)

    def leave(self) -> None:
        """End after the current step without a checkpoint, as a killed process does; for the end of Python.

        Python must not end under a thread that runs JAX, and Orbax cannot save then.
        """
        with self._changed:
            self._leaving = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def ask(self, task: Task) -> Any:
        """Run a task in the training thread, between two steps and after a checkpoint of them; return its result.

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
        """Queue a task for the time between two steps; return a Future of its result."""
        result: Future[Any] = Future()
        with self._changed:
            self._tasks.append((task, result))
            self._changed.notify_all()
        return result

    def check_started(self) -> None:
        """Raise an OnlineError unless the thread trains."""
        if self.failure is not None:
            raise errors.OnlineError(f"the training has failed: {self.failure}; start() continues from the checkpoint")
        if self._thread is None or self._stopping:
            raise errors.OnlineError("nothing is trained now; start() begins, or goes on")

    def _run(self) -> None:
        """Train and run tasks until the end of the thread."""
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
        """Wait for rows or tasks; return False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._leaving or self._stopping or self._tasks or self._may_train())
            return not self._leaving and (not self._stopping or bool(self._tasks))

    def _may_train(self) -> bool:
        return not self._paused and self._minibatches.is_there(self.steps)

    def _ending(self) -> bool:
        """Return whether the reader has to end its pass.

        Raises:
          _Left: the training has to end without a checkpoint.
        """
        if self._leaving:
            raise _Left
        # Tasks wait for a step, so that training goes on beside any number of tasks.
        return self._stopping or self._paused or (bool(self._tasks) and self.steps > self._begun)

    def _do_tasks(self) -> None:
        while self._tasks:
            task, result = self._tasks.popleft()
            try:
                result.set_result(task(self._prepared()))
            except Exception as error:  # the caller of `ask` raises it
                result.set_exception(error)

    def _train(self) -> None:
        """Train until the reader ends its pass; then `train` writes a checkpoint."""
        trainer = self._prepared()
        self._begun = self.steps
        ended = threading.Event()

        def end() -> None:
            ended.set()
            trainer.pause()  # the position stays between two minibatches

        reader = JournalReader(self._minibatches, self._ending, end)
        trainer.train(reader, 1, handlers=self._handlers, progress=False)
        self._after_save()
        if not ended.is_set():
            LOG.warning("a handler has ended the training after %d steps", self.steps)
            self._stopping = True


class _Left(Exception):
    """The end of a training in the middle, without a checkpoint."""


class _AfterStep(Handler):
    """A handler that notes the last step for a Control."""

    def __init__(self, control: Control, then: Callable[[int], None]):
        self._control = control
        self._then = then

    def end_step(self, event: EndStepEvent) -> None:
        """Note the step."""
        positions = scalar_outputs(self.trainer.program)
        self._control.outputs = {name: event.metrics[position] for name, position in positions.items()}
        self._control.steps = event.step + 1
        self._then(event.step + 1)
