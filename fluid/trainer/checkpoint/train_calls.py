"""Calls of `Trainer.train`: a call starts a training, continues one, or returns if an earlier run has finished it.

`docs/resume-exact.md` promises identical bits for a script with several calls of `train`, also if the script is killed
in one call and run again. Therefore a checkpoint holds the index of its call, and the position of the readers after
each earlier call. `HasCheckpoints` has the methods of a Trainer that save and restore checkpoints.
"""

import logging
from collections.abc import Sequence

from fluid import errors
from fluid.reader.base import ReaderLike
from fluid.runtime import Session
from fluid.trainer.checkpoint import Checkpoints, NoCheckpoints
from fluid.trainer.programs import Source
from fluid.trainer.resume import Progress, check_storable

log = logging.getLogger("fluid")

Readers = Sequence[ReaderLike | None]
"""The type of the readers of a call of `train`: for each program of the Trainer a reader, or None."""


class Calls:
    """The calls of `Trainer.train` in their order, and the training position where each call begins.

    The next call continues a call that Ctrl-C, SIGTERM or `pause` ended. With checkpoints, a script that is run again
    repeats its calls: a finished call returns immediately, and the interrupted call continues. Each continued or
    skipped call is logged.
    """

    def __init__(self, checkpoints: Checkpoints | None):
        self._checkpoints = checkpoints
        self._progress = (checkpoints.restore() if checkpoints is not None else None) or Progress()
        # the number of calls of `train` that have ended in this process; after a restore, also the calls before the
        # checkpoint
        self._ended = 0
        # the readers of the call of `train` that was interrupted or paused in this process; else None
        self._open: Readers | None = None

    def begin(
        self, readers: Readers, source: Source, num_epochs: int, resume: bool | None
    ) -> tuple[Progress, NoCheckpoints]:
        """Return the training position where a call of `train` begins, and the hook of the loop that saves checkpoints.

        Raises:
          ArgumentError: there is nothing to resume, or an earlier finished call had another `num_epochs`.
          ArgumentTypeError: `resume` is not True, False or None.
        """
        if resume not in (None, True, False):
            raise errors.ArgumentTypeError(f"train(resume={resume!r}): expected True, False or None")
        if resume is False:
            self._start_anew()
        if self._open is not None and not (self._has_read(readers) or resume or self._checkpoints):
            log.warning(
                "training starts with epoch 0, since the reader is another one; the training that was interrupted %s "
                "is given up. To continue it, hand over the same reader, or resume=True with one of the same data",
                self._progress.place,
            )
            self._open = None
        if self._open is None and self._checkpoints is None:
            if resume:
                raise errors.ArgumentError(
                    "train(resume=True): no training was interrupted or paused in this process, and the Trainer has no "
                    "checkpoint_config; leave resume out"
                )
            self._progress = Progress()
        done = (
            self._continue(readers, num_epochs)
            if self._open is not None
            else self._run_again(source, num_epochs, resume)
        )
        if done:
            return Progress.done(num_epochs), NoCheckpoints()
        if self._checkpoints is None:
            return self._progress, NoCheckpoints()
        check_storable(source)
        return self._progress, self._checkpoints.of(self._progress)

    def end(self, progress: Progress, num_epochs: int) -> None:
        """Record that a call of `train` has ended, after all of its epochs or by `stop`."""
        if self._open is not None and progress is not self._progress:
            # no epochs were left to train in this call, so the next call can still continue the interrupted one
            return
        self._open = None
        self._ended += 1
        if progress is self._progress:
            progress.finish(num_epochs)

    def leave_open(self, readers: Readers, how: str) -> None:
        """Record that a call of `train` was interrupted or paused, so that the next call continues it."""
        self._open = readers
        what_continues = "the next train() with the same reader continues there"
        if self._checkpoints is not None and not self._checkpoints.saved:
            what_continues = f"its checkpoint was not saved, see the error before; {what_continues}"
        elif self._checkpoints is not None:
            what_continues = (
                f"saved as {self._checkpoints.where}; the next train() continues there, or this program when run again"
            )
        log.warning("training was %s %s; %s", how, self._progress.place, what_continues)

    def go_back(self, progress: Progress) -> None:
        """Make the next call of `train` continue from the training position that `Trainer.restore` has read."""
        self._progress = progress
        # the next `train` must not freeze the parameters of the checkpoint again: the user may have unfrozen some
        self._progress.frozen = None
        self._ended = progress.call
        self._open = None

    def _start_anew(self) -> None:
        """Begin the current call of `train` with epoch 0.

        If an earlier call was interrupted, its remaining epochs are not trained.
        """
        if self._open is not None or self._progress.begun:
            log.warning("training starts with epoch 0; what was left to do %s is given up", self._progress.place)
            self._progress.finish(None)
        self._open = None
        self._ended = self._progress.call

    def _has_read(self, readers: Readers) -> bool:
        return self._open is not None and all(a is b for a, b in zip(readers, self._open, strict=True))

    def _continue(self, readers: Readers, num_epochs: int) -> bool:
        """Continue a call of `train` that was interrupted in this process, for example by Ctrl-C.

        Return True if no epochs are left to train.
        """
        progress = self._progress
        if num_epochs <= progress.epoch:
            log.warning(
                "nothing to train: %d epochs are done, and num_epochs=%d counts them. To train on, ask for more than "
                "%d; to begin with epoch 0, train(..., num_epochs=%d, resume=False)",
                progress.epoch,
                num_epochs,
                progress.epoch,
                num_epochs,
            )
            return True
        log.warning("training continues %s", progress.place)
        if not self._has_read(readers):
            progress.drop_live_pass()
        return False

    def _run_again(self, source: Source, num_epochs: int, resume: bool | None) -> bool:
        """Continue this call of `train` from the checkpoint of an earlier run of the script.

        Return True if the earlier run has finished this call: if the checkpoint belongs to a later call.
        """
        progress = self._progress
        if self._ended < progress.call:
            before = progress.finished_epochs[self._ended]
            if before is not None and before != num_epochs:
                raise errors.ArgumentError(
                    f"train(num_epochs={num_epochs}): call {self._ended} of train() had num_epochs={before} when the "
                    f"checkpoint was written, and it was not the last one, so it cannot be continued. Ask for {before} "
                    f"as before; or train {num_epochs} epochs from the checkpoint on: train(..., resume=False); or "
                    f"start from the beginning with another checkpoint_dir"
                )
            log.warning(
                "nothing to train: call %d of train(), of %d epochs, was done before the checkpoint; resume=False "
                "trains again from there",
                self._ended,
                num_epochs,
            )
            progress.skip(self._ended, source)
            return True
        if self._checkpoints is not None and resume and not progress.begun:
            raise errors.ArgumentError(
                f"train(resume=True): there is nothing to continue in {self._checkpoints.where}; leave resume out"
            )
        if progress.begun and num_epochs <= progress.epoch:
            log.warning(
                "nothing to train: %d of %d epochs are done. To train on, ask for more than %d; to begin with epoch 0 "
                "from the parameters as they are, train(..., resume=False); to start from the beginning, use another "
                "checkpoint_dir",
                progress.epoch,
                num_epochs,
                progress.epoch,
            )
            progress.skip(self._ended, source)
        return False


class HasCheckpoints:
    """A base class of Trainer with the methods that save and restore checkpoints; they need a `checkpoint_config`.

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
          ArgumentError: no training is running.
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

        The next call of `train` continues from this position. Its first save renames newer checkpoints, which are then
        not used again.

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
        """Freeze the parameters that were frozen in the checkpoint from which this call of `train` continues."""
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
