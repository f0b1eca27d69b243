"""The calls of `train`: which one continues another one, which is done already, and which starts anew."""

import logging
from collections.abc import Sequence

from fluid import errors
from fluid.reader.base import ReaderLike
from fluid.trainer.checkpoint import Checkpoints, NoCheckpoints
from fluid.trainer.programs import Source
from fluid.trainer.resume import Progress, check_storable

log = logging.getLogger("fluid")

Readers = Sequence[ReaderLike | None]
"""The reader of each program, as the user gave it."""


class Calls:
    """Says where each call of `Trainer.train` begins.

    A call that Ctrl-C, SIGTERM or `pause` has ended goes on with the next one. With checkpoints, a program that is run
    again makes the same calls as before: those that were done are left out, and the one that was under way goes on.
    What happens is logged, so that no call continues, or does nothing, without a word.

    Args:
      checkpoints: where the position is restored from and saved to; None keeps it in this process only.
    """

    def __init__(self, checkpoints: Checkpoints | None):
        self._checkpoints = checkpoints
        self._progress = (checkpoints.restore() if checkpoints is not None else None) or Progress()
        self._ended = 0  # calls in this process that have ended
        self._open: Readers | None = None  # the readers of the call that was interrupted or paused

    def begin(
        self, readers: Readers, source: Source, num_epochs: int, resume: bool | None
    ) -> tuple[Progress, NoCheckpoints]:
        """Where a call begins, and what saves it.

        Args:
          readers: as the user gave them.
          source: its passes.
          num_epochs: how many are asked for.
          resume: see `Trainer.train`.

        Raises:
          ArgumentError: there is nothing to resume, or a call that was done before had another `num_epochs`.
          ArgumentTypeError: `resume` is something else than True, False or None.
        """
        if resume not in (None, True, False):
            raise errors.ArgumentTypeError(f"train(resume={resume!r}): expected True, False or None")
        if resume is False:
            self._start_anew()
        elif self._open is not None:
            return self._reopened(readers, num_epochs, resume)
        if self._checkpoints is None:
            if resume:
                raise errors.ArgumentError(
                    "train(resume=True): no training was interrupted or paused in this process, and the Trainer has no "
                    "checkpoint_config; leave resume out"
                )
            self._progress = Progress()
            return self._progress, NoCheckpoints()
        return self._recorded(source, num_epochs, resume, self._checkpoints)

    def end(self, progress: Progress, num_epochs: int) -> None:
        """Note that a call has ended, all of it or by `stop`."""
        if self._open is not None and progress is not self._progress:
            return  # it had nothing to do, and what was interrupted can still be continued
        self._open = None
        self._ended += 1
        if progress is self._progress:
            progress.finish(num_epochs)

    def leave_open(self, readers: Readers, how: str) -> None:
        """Note that a call was interrupted or paused, so that the next one continues it.

        Args:
          readers: as the user gave them.
          how: what happened to it, such as "interrupted".
        """
        self._open = readers
        what_continues = "the next train() with the same reader continues there"
        if self._checkpoints is not None:
            what_continues = (
                f"saved as {self._checkpoints.where}; the next train() continues there, or this program when run again"
            )
        log.warning("training was %s %s; %s", how, self._progress.place, what_continues)

    def go_back(self, progress: Progress) -> None:
        """Let the next call continue from a position that was restored."""
        self._progress = progress
        self._progress.frozen = None  # what is frozen from here on, the caller says
        self._ended = progress.call
        self._open = None

    def _start_anew(self) -> None:
        """Let the next call begin with epoch 0, whatever there was before."""
        if self._open is not None or self._progress.begun:
            log.warning("training starts with epoch 0; what was left to do %s is given up", self._progress.place)
            self._progress.finish(None)
        self._open = None
        self._ended = self._progress.call

    def _reopened(self, readers: Readers, num_epochs: int, resume: bool | None) -> tuple[Progress, NoCheckpoints]:
        """Continue the call that was interrupted or paused in this process."""
        progress = self._progress
        assert self._open is not None
        same = all(given is before for given, before in zip(readers, self._open, strict=True))
        hooks = NoCheckpoints() if self._checkpoints is None else self._checkpoints.of(progress)
        if not same and not resume and self._checkpoints is None:
            log.warning(
                "training starts with epoch 0, since the reader is another one; the training that was interrupted %s "
                "is given up. To continue it, hand over the same reader, or resume=True with one of the same data",
                progress.place,
            )
            self._open = None
            self._progress = Progress()
            return self._progress, hooks
        if num_epochs <= progress.epoch:
            log.warning(
                "nothing to train: %d epochs are done, and num_epochs=%d counts them. To train on, ask for more than "
                "%d; to begin with epoch 0, train(..., num_epochs=%d, resume=False)",
                progress.epoch,
                num_epochs,
                progress.epoch,
                num_epochs,
            )
            return Progress.done(num_epochs), NoCheckpoints()
        log.warning("training continues %s", progress.place)
        if not same:
            progress.drop_live_pass()
        return progress, hooks

    def _recorded(
        self, source: Source, num_epochs: int, resume: bool | None, checkpoints: Checkpoints
    ) -> tuple[Progress, NoCheckpoints]:
        """Do what the same call of an earlier run had left to do."""
        known = self._progress
        if self._ended < known.call:
            self._check_same_call(num_epochs)
            log.warning(
                "nothing to train: call %d of train(), of %d epochs, was done before the checkpoint; resume=False "
                "trains again from there",
                self._ended,
                num_epochs,
            )
            known.skip(self._ended, source)
            return Progress.done(num_epochs), NoCheckpoints()
        if resume and not known.begun:
            raise errors.ArgumentError(
                f"train(resume=True): there is nothing to continue in {checkpoints.where}; leave resume out"
            )
        if known.begun and num_epochs <= known.epoch:
            log.warning(
                "nothing to train: %d of %d epochs are done. To train on, ask for more than %d; to begin with epoch 0 "
                "from the parameters as they are, train(..., resume=False); to start from the beginning, use another "
                "checkpoint_dir",
                known.epoch,
                num_epochs,
                known.epoch,
            )
            known.skip_to_end(source)
        check_storable(source)
        return known, checkpoints.of(known)

    def _check_same_call(self, num_epochs: int) -> None:
        before = self._progress.epochs_of(self._ended)
        if before is not None and before != num_epochs:
            raise errors.ArgumentError(
                f"train(num_epochs={num_epochs}): call {self._ended} of train() had num_epochs={before} when the "
                f"checkpoint was written, and it was not the last one, so it cannot be continued. Ask for {before} as "
                f"before; or train {num_epochs} epochs from the checkpoint on: train(..., resume=False); or start from "
                f"the beginning with another checkpoint_dir"
            )
