"""Writes checkpoints in a thread of each process, so that training goes on meanwhile."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fluid import errors
from fluid.distributed import Group
from fluid.runtime.finite import Health
from fluid.storage.folder import Folder
from fluid.storage.parts import in_first, write_together
from fluid.trainer.checkpoint.score import Score

log = logging.getLogger("fluid")


class Writer:
    """Writes checkpoints to a folder, one at a time, each in a thread of its own.

    While a thread runs, the attributes and the folder are that thread's alone: everybody else calls `wait` first. In
    several processes each has such a thread, and these agree on what becomes of a checkpoint while training goes on.

    Args:
      folder: where to.
      keep: how many of the newest checkpoints are kept; None for all.
      score: tells which one is best, and kept as well; or None.
      group: the processes that train together.

    Attributes:
      base: the step that training continued from or that was written last; None before the first.
      known: the steps in the folder that are this trainer's.
      lost: the step that was to be written last, and why it could not be; None when it was.
    """

    def __init__(self, folder: Folder, keep: int | None, score: Score | None, group: Group):
        self.base: int | None = None
        self.known: set[int] = set()
        self.lost: tuple[int, Exception] | None = None
        self._folder = folder
        self._keep = keep
        self._score = score
        self._group = group.apart()
        self._failure: errors.DistributedError | None = None  # why the processes could not agree
        self._health = Health()
        self._unhealthy = False
        self._thread: threading.Thread | None = None

    def restored(self, step: int, steps: list[int]) -> None:
        """Note that training continues from a checkpoint, and which ones there are."""
        self.base = step
        self.known = set(steps)

    def begin(self, health: Health) -> None:
        """Note what the arrays are like at the beginning of a training."""
        self._health = health
        self._unhealthy = False

    def start(self, step: int, arrays: Mapping[str, Any], meta: Callable[[], dict[str, Any]]) -> None:
        """Begin to write; an earlier checkpoint must be complete. A failure is logged, and training goes on.

        Returns when the next training step may donate the arrays.

        Args:
          step: training steps done.
          arrays: all arrays of the session by name: on the host; in several processes on their devices.
          meta: returns the JSON beside the arrays; called in the thread, as it takes a while.
        """
        copied = threading.Event()
        arguments = (step, arrays, meta, copied.set)
        self._thread = threading.Thread(target=self._write, args=arguments, name="fluid-checkpoint")
        self._thread.start()
        if self._group.size > 1:
            copied.wait()

    def wait(self) -> None:
        """Wait until what was started is complete.

        Raises:
          DistributedError: the processes could not agree on what became of it.
        """
        self.join()
        if self._failure is not None:
            raise self._failure

    def join(self) -> None:
        """Wait until what was started is complete, or has failed."""
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
                self._refuse(step, complaint)
                return
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
        except Exception as error:
            self.lost = (step, error)
            reason = str(error).partition("\n")[0][:300]
            # In every process: each has its own share of the files, and its own reason.
            log.error(
                "checkpoint %d failed: %s: %s; training goes on", step, type(error).__name__, reason, exc_info=error
            )
        finally:
            copied()

    def _refuse(self, step: int, complaint: str) -> None:
        """Say why a checkpoint is not written: loudly the first time, since the next ones are no better."""
        level = logging.DEBUG if self._unhealthy else logging.ERROR
        self._unhealthy = True
        if self._group.is_first:
            log.log(level, "checkpoint %d is not saved: %s", step, complaint)

    def _set_undone_aside(self, step: int) -> None:
        """Set aside what was written after the step that training went back to."""
        for stale in self._folder.steps():
            if stale >= step or (self.base is not None and stale > self.base):
                name = self._folder.set_aside(stale, "undone")
                log.warning("checkpoint %d was undone, it is set aside as %s", stale, name)

    def _delete_old(self) -> list[int]:
        """Delete the checkpoints that are too many; returns those that are left."""
        steps = self._folder.steps()
        if self._keep is None or len(steps) <= self._keep:
            return steps
        best = None if self._score is None else self._score.best(self._folder, steps)
        for step in steps[: -self._keep]:
            if step != best:
                self._folder.delete(step)
        return self._folder.steps()
