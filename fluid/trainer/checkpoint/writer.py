"""The class Writer, which writes checkpoints to a folder in a thread of each process while training continues."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fluid import errors
from fluid.checkpoint.folder import Folder
from fluid.checkpoint.multi_process import in_first, write_together
from fluid.distributed import Group
from fluid.runtime.finite import Health
from fluid.trainer.checkpoint.config import Score

log = logging.getLogger("fluid")


class NotFiniteError(Exception):
    """The reason why a checkpoint is not written: some of its arrays are not finite."""


class Writer:
    """A writer of checkpoints to a folder, one at a time, each in a separate thread.

    While the thread runs, only the thread may use the attributes and the folder: all other code calls `wait` first. In
    a multi-process training, each process has one thread. While training continues, the threads of all processes agree
    whether the checkpoint was written.

    Attributes:
      base: the step of the checkpoint that was restored or written last; None before the first one.
      known: the steps of the checkpoints in the folder that this trainer has found or written.
      lost: if the last checkpoint could not be written, its step and the exception; else None. The exception is a
        NotFiniteError if the checkpoint was refused.
    """

    def __init__(self, folder: Folder, keep: int | None, score: Score | None, group: Group):
        self.base: int | None = None
        self.known: set[int] = set()
        self.lost: tuple[int, Exception] | None = None
        self._folder = folder
        self._keep = keep
        self._score = score
        self._group = group.apart()
        # the error that `wait` raises if the processes could not agree whether a checkpoint was written; else None
        self._failure: errors.DistributedError | None = None
        self._health = Health()
        self._unhealthy = False
        self._thread: threading.Thread | None = None

    def restored(self, step: int, steps: list[int]) -> None:
        """Record that training continues from the checkpoint at `step`; `steps` lists all checkpoints in the folder."""
        self.base = step
        self.known = set(steps)

    def begin(self, health: Health) -> None:
        """Store the check that refuses checkpoints with non-finite arrays; the next refusal is logged as an error."""
        self._health = health
        self._unhealthy = False

    def start(self, step: int, arrays: Mapping[str, Any], meta: Callable[[], dict[str, Any]]) -> None:
        """Start to write a checkpoint in a thread. A failure is logged, and training continues.

        Call `wait` first, because only one checkpoint is written at a time. After this method returns, the next
        training step may donate the arrays (reuse their memory).
        """
        copied = threading.Event()
        arguments = (step, arrays, meta, copied.set)
        self._thread = threading.Thread(target=self._write, args=arguments, name="fluid-checkpoint")
        self._thread.start()
        if self._group.size > 1:
            copied.wait()

    def wait(self) -> None:
        """Wait until the started checkpoint is complete.

        Raises:
          DistributedError: the processes could not agree on the outcome of the checkpoint.
        """
        self.join()
        if self._failure is not None:
            raise self._failure

    def join(self) -> None:
        """Wait until the thread that writes a checkpoint has ended, with or without success."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(
        self,
        step: int,
        arrays: Mapping[str, Any],
        meta: Callable[[], dict[str, Any]],
        copied: Callable[[], None],
    ) -> None:
        self.lost = None
        try:
            if complaint := self._health.complaint(arrays):
                raise NotFiniteError(complaint)
            self._unhealthy = False
            in_first(self._group, "checkpoints that were undone", lambda: self._set_undone_aside(step))
            if self._group.size == 1:
                self._folder.write(step, arrays, meta())
            else:
                write_together(self._folder, step, arrays, meta, self._group, copied)
            self.base = step
            self.known.add(step)
            self.known = set(in_first(self._group, "checkpoints that are too many", self._delete_old))
        except errors.DistributedError as error:
            self._failure = error
        except NotFiniteError as error:
            self.lost = (step, error)
            self._log_refusal(step, error)
        except Exception as error:
            self.lost = (step, error)
            reason = str(error).partition("\n")[0][:300]
            # Every process logs its failure: each process writes other files, and may fail for another reason.
            log.error(
                "checkpoint %d failed: %s: %s; training goes on", step, type(error).__name__, reason, exc_info=error
            )
        finally:
            copied()

    def _log_refusal(self, step: int, error: NotFiniteError) -> None:
        """Log why a checkpoint with non-finite arrays is not written: as an error the first time, then at debug level.

        After a checkpoint was written, the next message of this kind is an error again.
        """
        level = logging.DEBUG if self._unhealthy else logging.ERROR
        self._unhealthy = True
        if self._group.is_first:
            log.log(level, "checkpoint %d is not saved: %s", step, error)

    def _set_undone_aside(self, step: int) -> None:
        """Rename checkpoints whose steps are computed again, because training has continued from an older checkpoint.

        These are the checkpoints after the checkpoint that was restored or written last. Checkpoints of `step`, the
        step to save, and of later steps are renamed too.
        """
        for stale in self._folder.steps():
            if stale >= step or (self.base is not None and stale > self.base):
                name = self._folder.set_aside(stale, "undone")
                log.warning("checkpoint %d was undone, it is set aside as %s", stale, name)

    def _delete_old(self) -> list[int]:
        """Delete the oldest checkpoints until `keep` are left, but never the best one; return the remaining steps."""
        steps = self._folder.steps()
        if self._keep is None or len(steps) <= self._keep:
            return steps
        best = None if self._score is None else self._score.best(self._folder, steps)
        for step in steps[: -self._keep]:
            if step != best:
                self._folder.delete(step)
        return self._folder.steps()
