"""What a Trainer does with its checkpoints: save one, go back to one, continue from one."""

import logging

from fluid import errors
from fluid.runtime import Session
from fluid.trainer.calls import Calls
from fluid.trainer.checkpoint import Checkpoints
from fluid.trainer.resume import Progress

log = logging.getLogger("fluid")


class HasCheckpoints:
    """The checkpoints of a Trainer, if it has a `checkpoint_config`.

    Attributes:
      session: that of the Trainer.
    """

    session: Session
    _checkpoints: Checkpoints | None
    _calls: Calls
    _training: bool

    def save_checkpoint(self) -> None:
        """Called by a handler: save a checkpoint when all handlers are done with this step, or with the epoch it ends.

        Raises:
          CheckpointError: the Trainer has no `checkpoint_config`.
          ArgumentError: no handler called it: nothing is being trained.
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
        """Go back to a checkpoint: parameters, optimizer slots, counters and the position in the data.

        The next `train` continues from there. Its first save sets newer checkpoints aside.

        Args:
          step: which one; "best" for the one that `keep_best` keeps, None for the newest.

        Raises:
          CheckpointError: there is no such checkpoint, it is damaged, or the Trainer has no `checkpoint_config`.

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
        """Freeze what was frozen when the checkpoint was written, if this call continues from there."""
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
