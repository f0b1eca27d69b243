"""Writes checkpoints in a thread, so that training goes on meanwhile."""

import importlib.metadata
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fluid.core import Origin
from fluid.distributed import Group
from fluid.storage import packed
from fluid.storage.folder import Folder
from fluid.trainer.checkpoint.score import Score
from fluid.trainer.health import Health

log = logging.getLogger("fluid")


class Snapshot(NamedTuple):
    """What one checkpoint will hold.

    Attributes:
      step: training steps done.
      arrays: everything of the session by name, on the host.
      position: gives the position of training, as JSON; called in the thread, as it takes a while.
      score: what `Score.take` gave, or None.
      optimizers: what `describe_optimizers` gave.
      origins: where parameters with automatic names come from, by name.
    """

    step: int
    arrays: Mapping[str, np.ndarray]
    position: Callable[[], dict[str, Any]]
    score: dict[str, Any] | None
    optimizers: list[str]
    origins: Mapping[str, Origin]


class Writer:
    """Writes snapshots to a folder, one at a time, each in a thread of its own.

    While a thread runs, the attributes and the folder are that thread's alone: everybody else calls `wait` first.

    Args:
      folder: where to.
      keep: how many of the newest checkpoints are kept; None for all.
      score: tells which one is best, and kept as well; or None.
      group: the processes that train together, the first of which writes.

    Attributes:
      base: the step that training continued from or that was written last; None before the first.
      known: the steps in the folder that are this trainer's.
    """

    def __init__(self, folder: Folder, keep: int | None, score: Score | None, group: Group):
        self.base: int | None = None
        self.known: set[int] = set()
        self._folder = folder
        self._keep = keep
        self._score = score
        self._group = group
        self._started = False  # whether something was started since `wait`
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

    def start(self, snapshot: Snapshot) -> None:
        """Begin to write; an earlier snapshot must be complete. A failure is logged, and training goes on."""
        self._started = True
        if self._group.is_first:
            self._thread = threading.Thread(target=self._write, args=(snapshot,), name="fluid-checkpoint")
            self._thread.start()

    def wait(self) -> None:
        """Wait until what was started is complete, and tell all processes what became of it."""
        self.join()
        if self._started:
            self._started = False
            self.base, known = self._group.of_first("the last checkpoint", [self.base, sorted(self.known)])
            self.known = set(known)

    def join(self) -> None:
        """Wait until what was started is complete, without the other processes."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, snapshot: Snapshot) -> None:
        try:
            if complaint := self._health.complaint(snapshot.arrays):
                self._refuse(snapshot.step, complaint)
                return
            self._unhealthy = False
            self._set_undone_aside(snapshot.step)
            versions = {name: importlib.metadata.version(name) for name in ("jax", "orbax-checkpoint")}
            meta = {
                "position": snapshot.position(),
                "score": snapshot.score,
                "optimizers": snapshot.optimizers,
                "origins": packed(snapshot.origins),
                "versions": versions,
            }
            self._folder.write(snapshot.step, snapshot.arrays, meta)
            self.base = snapshot.step
            self.known.add(snapshot.step)
            self._delete_old()
            self.known = set(self._folder.steps())
        except Exception as error:
            reason = str(error).partition("\n")[0][:300]
            log.error("checkpoint %d failed: %s: %s; training goes on", snapshot.step, type(error).__name__, reason)

    def _refuse(self, step: int, complaint: str) -> None:
        """Say why a checkpoint is not written: loudly the first time, since the next ones are no better."""
        level = logging.DEBUG if self._unhealthy else logging.ERROR
        self._unhealthy = True
        log.log(level, "checkpoint %d is not saved: %s", step, complaint)

    def _set_undone_aside(self, step: int) -> None:
        """Set aside what was written after the step that training went back to."""
        for stale in self._folder.steps():
            if stale >= step or (self.base is not None and stale > self.base):
                name = self._folder.set_aside(stale, "undone")
                log.warning("checkpoint %d was undone, it is set aside as %s", stale, name)

    def _delete_old(self) -> None:
        steps = self._folder.steps()
        if self._keep is None or len(steps) <= self._keep:
            return
        best = None if self._score is None else self._score.best(self._folder, steps)
        for step in steps[: -self._keep]:
            if step != best:
                self._folder.delete(step)
