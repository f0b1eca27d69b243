"""HasCheckpoints: the methods of a Trainer that save and restore checkpoints."""

import logging

from fluid import errors
from fluid.runtime import Session
from fluid.trainer.calls import Calls
from fluid.trainer.checkpoint import Checkpoints
from fluid.trainer.resume import Progress

log = logging.getLogger("fluid")


class HasCheckpoints:
    """A base class of Trainer with methods that save and restore checkpoints, if there is a `checkpoint_config`.

    Attributes:
      session: the session of the Trainer.
    """

    session: Session
    _checkpoints: Checkpoints | None
    _calls: Calls
    _training: bool

    def save_checkpoint(self) -> None:
        """Request a checkpoint; handlers call this method during `train`.

        The checkpoint is saved after all handlers of the current step have run. In an event at the end of an epoch, and
        in the last step of an epoch, the checkpoint is saved after all handlers of the end of the epoch.

        Raises:
          CheckpointError: the Trainer has no `checkpoint_config`.
          ArgumentError: no training is running, so no handler is the caller.
        """
        if self._checkpoints is None:
            raise errors.CheckpointError(
                "this Trainer keeps no checkpoints; give it a folder: "
                "fluid.Trainer(..., checkpoint_config=fluid.CheckpointConfig('checkpoints'))"
            )
        if not self._training:
            raise errors.ArgumentError(
                "save_checkpoint() is for handlers of train(), whose end is saved by itself; "
                "trainer.save_params(path) writes what was trained"
            )
        self._checkpoints.ask()

    def restore(self, step: int | str | None = None) -> None:
        """Restore a checkpoint: parameters, optimizer state, counters and the position in the data.

        The next `train` continues from this position. Its first save sets newer checkpoints aside.

        Args:
          step: the training step of the checkpoint; "best" for the checkpoint of `keep_best`, None for the newest.

        Raises:
          CheckpointError: the checkpoint does not exist or is damaged, or the Trainer has no `checkpoint_config`.

        Example:
          >>> import fluid, numpy as np
          >>> def program():
          ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
          >>> config = fluid.CheckpointConfig("checkpoints", step_interval=2)
          >>> trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1), checkpoint_config=config)
          >>> history = trainer.train(fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=2))
          >>> trainer.restore(2)
          >>> int(trainer.session.scope.step)
          2
        """
        if self._training:
            raise errors.ArgumentError("restore() was called by a handler of train(); call trainer.stop() first")
        found = None if self._checkpoints is None else self._checkpoints.restore(step)
        if found is None:
            raise errors.CheckpointError(
                "there is no checkpoint to go back to; they are written while a Trainer trains that has a "
                "checkpoint_config=fluid.CheckpointConfig('checkpoints')"
            )
        self._calls.go_back(found)

    def _freeze_as_before(self, position: Progress) -> None:
        """Freeze the parameters that were frozen in a checkpoint, if this call of `train` continues from it."""
        before = position.frozen
        position.frozen = None
        if before is None or not position.begun or before == self.session.engine.freezing.chosen:
            return
        self.session.engine.freezing.put(before)
        log.warning(
            "training continues with what was frozen when the checkpoint was written: %s. To change that, freeze and "
            "unfreeze in a handler, or train(..., resume=False)",
            ", ".join(n for n in self.session.scope.specs if n in self.session.engine.freezing.names) or "nothing",
        )
