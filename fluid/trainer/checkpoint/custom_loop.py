"""The class Checkpoint, which saves and restores a custom training loop over a Session."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fluid import errors
from fluid.checkpoint import PathLike
from fluid.core import warn
from fluid.runtime import Session
from fluid.trainer.checkpoint.checkpoints import Checkpoints
from fluid.trainer.checkpoint.config import CheckpointConfig
from fluid.trainer.signals import Signals

log = logging.getLogger("fluid")


class Stateful(Protocol):
    """An object whose state a checkpoint stores: a Reader, a result of `fluid.reader.prefetch`, or a user's object."""

    def state(self) -> Any:
        """Return the current state of this object, such as a reader's position in the data, as JSON for `restore`."""

    def restore(self, state: Any) -> Any:
        """Restore a state that the method `state` has returned, maybe in an earlier process."""


class Checkpoint:
    """Checkpoints of a custom training loop over a Session, from which the loop continues after a crash.

    Created before the loop, this object restores the newest complete checkpoint: parameters, states, optimizer state,
    the step counter, the random key, and the position in the data. Inside `with checkpoint:` the loop calls
    `after_step` after each minibatch. A loop that is killed at any moment and run again ends with identical bits. The
    folder has the format in which a Trainer with a `fluid.CheckpointConfig` writes.

    Inside the block, the first Ctrl-C or SIGTERM waits for `after_step`, which saves; the second does not wait. After
    any other exception the state is uncertain, so nothing is saved.

    Args:
      session: a Session with all of its programs.
      checkpoint_dir: a folder for the checkpoints of this loop only, created if necessary.
      state_of: other objects whose state decides how the loop continues: a result of `fluid.reader.prefetch`, a Reader,
        or any object with `state()`, which returns JSON, and `restore(state)`; one object, or several in a fixed order.
      step_interval: the number of calls of `after_step` between two saves; None saves at the end of the block only.
      max_num_checkpoints: the number of newest checkpoints to keep, at least 1; None keeps all.

    Attributes:
      restored: the training step from which the loop continues; None for a new start.

    Raises:
      CheckpointError: the folder cannot be used, or holds only damaged checkpoints, or checkpoints of a Trainer.
      ParameterError: the checkpoint belongs to other programs or optimizers.
      ArgumentTypeError: an object in `state_of` has no state, or its state is not JSON.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     fluid.optimizer.SGD(0.1).minimize(loss)
      ...     return loss
      >>> def run(num_epochs):
      ...     session = fluid.Session(program)
      ...     reader = fluid.reader.arrays(np.ones((8, 2), "float32"), batch_size=4, shuffle=True)
      ...     feeds = fluid.reader.prefetch(reader, session)
      ...     with fluid.Checkpoint(session, "own_loop", feeds) as checkpoint:
      ...         while feeds.epoch < num_epochs:
      ...             for feed in feeds:
      ...                 session.step(feed)
      ...                 checkpoint.after_step()
      ...     return checkpoint.restored, int(session.scope.step)
      >>> run(num_epochs=3), run(num_epochs=5)
      ((None, 6), (6, 10))
    """

    def __init__(
        self,
        session: Session,
        checkpoint_dir: PathLike = "checkpoints",
        state_of: Stateful | Sequence[Stateful] = (),
        *,
        step_interval: int | None = 10,
        max_num_checkpoints: int | None = 3,
    ):
        if not isinstance(session, Session):
            raise errors.ArgumentTypeError(
                f"Checkpoint(session, checkpoint_dir, state_of): expected a fluid.Session, found "
                f"{type(session).__name__}. A Trainer takes checkpoint_config=fluid.CheckpointConfig('checkpoints'), "
                f"and fluid.handlers.CheckpointEvery(every='epoch') asks for saves while it trains"
            )
        config = CheckpointConfig(checkpoint_dir, max_num_checkpoints, None, step_interval)
        self._session = session
        self._position = _States(state_of)
        self._checkpoints = Checkpoints(config, session, list(session.programs.values())).of(self._position)
        self._signals = Signals()
        self._block: contextlib.ExitStack | None = None
        self._first = 0  # the number of training steps done when the `with` block begins
        # True if the user's training loop has called `after_step` or `save` in the current `with checkpoint:` block
        self._called = False
        # True while `after_step` raises after a signal: the training state is then consistent and can be saved
        self._between_steps = False
        self.restored: int | None = None
        self.restore()

    def restore(self, step: int | None = None) -> int | None:
        """Restore a checkpoint. The next save renames all newer checkpoints, so that no later run restores them.

        Args:
          step: the training step of the checkpoint; None for the newest complete checkpoint.

        Returns:
          The step of the restored checkpoint; None if there is no checkpoint: then nothing has changed.

        Raises:
          CheckpointError: the checkpoint does not exist, or is damaged.
        """
        meta = self._checkpoints.bring_back(step, own_loop=True)
        if meta is None:
            return None
        self._position.restore(meta["position"]["states"])
        self.restored = int(meta["step"])
        log.warning("continuing from checkpoint %d in %s", self.restored, self._checkpoints.folder.name)
        return self.restored

    def __enter__(self) -> Checkpoint:
        self._position.check_storable()
        self._called = False
        self._first = int(self._session.scope.step)
        self._between_steps = False
        self._signals = Signals(terminate=True)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._session.engine.guard.watching())
            stack.enter_context(self._signals)
            self._checkpoints.__enter__()
            stack.push(self._leave)
            self._block = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        assert self._block is not None
        block = self._block
        self._block = None
        block.__exit__(kind, error, traceback)
        steps = int(self._session.scope.step) - self._first
        if kind is None and steps > 0 and not self._called and self._checkpoints.config.step_interval is not None:
            warn(
                f"{steps} steps were trained inside `with fluid.Checkpoint(...) as checkpoint:` without a call of "
                f"checkpoint.after_step(), so that nothing was saved before the end, and a loop that is killed begins "
                f"anew; call it after each step, or give step_interval=None to save at the end only"
            )

    def after_step(self) -> None:
        """Record the end of a minibatch: save if a checkpoint is due, and raise an exception after Ctrl-C or SIGTERM.

        Raises:
          KeyboardInterrupt: after Ctrl-C.
          SystemExit: after SIGTERM.
          ArgumentError: the loop is not inside `with checkpoint:`.
        """
        self._check_entered("after_step")
        self._called = True
        self._checkpoints.count(1)
        self._between_steps = True
        self._signals.check()
        self._between_steps = False

    def save(self) -> None:
        """Save a checkpoint now, whatever `step_interval` is. A step that is saved already is not saved again.

        The loop calls this method between two training steps.

        Raises:
          CheckpointError: the folder of the checkpoints does not exist any more.
          ArgumentError: the loop is not inside `with checkpoint:`.
        """
        self._check_entered("save")
        self._called = True
        self._checkpoints.save()

    def _leave(self, kind: Any, error: Any, traceback: Any) -> None:
        """Save a checkpoint at the end of the `with` block, if the block ends without an exception.

        A checkpoint is also saved after Ctrl-C or SIGTERM, if `after_step` has raised the exception.
        """
        certain = kind is None or (self._between_steps and not issubclass(kind, Exception))
        self._checkpoints.__exit__(kind if certain else Exception, error, traceback)
        if kind is None:
            self._checkpoints.check_saved()

    def _check_entered(self, method: str) -> None:
        if self._block is None:
            raise errors.ArgumentError(
                f"checkpoint.{method}() was called outside of the block that locks the folder, expected inside: "
                f"with fluid.Checkpoint(session, 'checkpoints', feeds) as checkpoint: ..."
            )


class _States:
    """A training position of a custom loop: the states of the objects in `state_of`, from which the loop continues."""

    epoch = 0
    last = False

    def __init__(self, parts: Any):
        self._parts: list[Stateful] = [parts] if hasattr(parts, "restore") else list(parts)
        for part in self._parts:
            if not (callable(getattr(part, "state", None)) and callable(getattr(part, "restore", None))):
                raise errors.ArgumentTypeError(
                    f"Checkpoint(state_of=...): expected objects with state() and restore(state), such as what "
                    f"fluid.reader.prefetch(reader, session) returns, found {type(part).__name__}"
                )
            feeds = getattr(part, "_feeds", None)  # the minibatches of a `fluid.Loop`; None for another object
            if hasattr(feeds, "restore") and feeds not in self._parts:
                warn(
                    "Checkpoint(state_of=...) has a fluid.Loop and not the feeds that it reads, so that a continued "
                    "loop reads them from the beginning: state_of=[feeds, loop]"
                )
        self.check_storable()

    def check_storable(self) -> None:
        """Raise ArgumentTypeError, before the first step, if the state of an object is not JSON."""
        for part in self._parts:
            try:
                json.dumps(part.state())
            except (TypeError, ValueError) as error:
                raise errors.ArgumentTypeError(
                    f"Checkpoint(state_of=...): the state() of {type(part).__name__} cannot be stored: {error}; "
                    f"expected JSON: numbers, strings, lists, and dicts of them"
                ) from error

    def restore(self, states: Sequence[Any]) -> None:
        """Restore the objects of the argument `state_of`, such as a reader, from the states in a checkpoint."""
        if len(states) != len(self._parts):
            raise errors.CheckpointError(
                f"the checkpoint has the states of {len(states)} objects, found {len(self._parts)} in state_of, "
                f"expected the same as when it was written: Checkpoint(session, folder, state_of=[...])"
            )
        for part, state in zip(self._parts, states, strict=True):
            part.restore(state)

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Copy the states of the objects in `state_of`, and return a function that returns the copies as JSON.

        The states are copied, because the loop may change them while a thread writes the checkpoint.
        """
        states = [copy.deepcopy(part.state()) for part in self._parts]
        return lambda: {"epoch": "-", "step": "-", "states": states}
