"""Checkpoints while training: when to save, what to keep, and how to come back."""

import importlib
import importlib.metadata
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid import errors, storage
from fluid.core import Program
from fluid.session import Results, Session
from fluid.trainer.checkpoint_folder import Folder
from fluid.trainer.checkpoint_score import Score
from fluid.trainer.resume import Progress

log = logging.getLogger("fluid")


@dataclass(frozen=True)
class CheckpointConfig:
    """Where and how often a Trainer saves all that it needs to continue after being killed.

    Saves run in the background, besides training; each is whole or not there. A Trainer with the same folder continues
    from the newest whole one.

    Args:
      checkpoint_dir: a folder for the checkpoints of this training alone; made when it is not there.
      max_num_checkpoints: how many of the newest are kept, at least 1; None keeps all.
      epoch_interval: save at the end of every so many epochs; None does not. The end of training is always saved.
      step_interval: save after every so many steps; None does not.
      keep_best: `(output, "min" or "max")`: also keep the checkpoint whose output, a scalar given by its name or
        position, was best, as the mean over the training steps since the checkpoint before.

    Raises:
      ArgumentError: a number is below 1, or `keep_best` is something else.

    Example:
      >>> CheckpointConfig("checkpoints", step_interval=1000, keep_best=("accuracy", "max")).max_num_checkpoints
      3
    """

    checkpoint_dir: str | os.PathLike[str]
    max_num_checkpoints: int | None = 3
    epoch_interval: int | None = 1
    step_interval: int | None = 10
    keep_best: tuple[str | int, str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.checkpoint_dir, str | os.PathLike) or not os.fspath(self.checkpoint_dir):
            raise errors.ArgumentTypeError(
                f"checkpoint_dir={self.checkpoint_dir!r}: expected the path of a folder: CheckpointConfig('here')"
            )
        for name in ("max_num_checkpoints", "epoch_interval", "step_interval"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise errors.ArgumentError(f"{name}={value!r}: expected a whole number from 1 on, or None: {name}=10")
        best = self.keep_best
        if best is not None and not (
            isinstance(best, tuple)
            and len(best) == 2
            and isinstance(best[0], str | int)
            and not isinstance(best[0], bool)
            and best[1] in ("min", "max")
        ):
            raise errors.ArgumentError(
                f'keep_best={best!r}: expected an output and "min" or "max": keep_best=("accuracy", "max")'
            )


class NoCheckpoints:
    """What a training without checkpoints does about them: nothing."""

    def __enter__(self) -> "NoCheckpoints":
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def after_step(self, metrics: Results) -> None:
        """Called after each step, when its handlers are done."""

    def after_epoch(self) -> None:
        """Called after a whole epoch, when its handlers are done."""


class Checkpoints(NoCheckpoints):
    """Saves a Session and its Progress as the config says; one save at a time, in a thread.

    `with checkpoints.of(progress):` surrounds the training; however it is left, the last save is complete then.

    Args:
      config: the config.
      session: whose state is saved.
      program: whose outputs `keep_best` names.

    Raises:
      CheckpointError: the folder cannot be used.
      UnknownNameError, ArgumentError: `keep_best` names no output, or one that is no scalar.

    Example:
      >>> import fluid
      >>> program = fluid.Program(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> checkpoints = Checkpoints(CheckpointConfig("here"), fluid.Session(program), program)
      >>> checkpoints.restore() is None  # there is nothing yet
      True
    """

    def __init__(self, config: CheckpointConfig, session: Session, program: Program):
        self.config = config
        self._session = session
        self._score = None if config.keep_best is None else Score(program, *config.keep_best)
        self.folder = Folder(config.checkpoint_dir)
        self._progress = Progress()
        self._known: set[int] = set()
        self._base: int | None = None  # the step that was restored or saved last
        self._since = 0  # steps since then
        self._saving: threading.Thread | None = None
        self._exempt: set[str] = set()
        self._sick = False
        self._asked = False

    def restore(self, step: int | str | None = None) -> Progress | None:
        """Bring the session to a checkpoint.

        Args:
          step: which one, or "best"; None for the newest that is whole. Damaged ones that are newer are set aside.

        Returns:
          The position of training, or None when there is no checkpoint.

        Raises:
          CheckpointError: the step is not there or not whole, or none is whole; nothing is changed then.
          ParameterError: the program has other parameters or another optimizer; nothing is changed then.
        """
        with self.folder.locked():
            self.folder.sweep()
            flaws: dict[int, str] = {}
            chosen = self._newest(flaws) if step is None else self._this(step)
            if chosen is None:
                return None
            meta = self.folder.meta(chosen)
            self._check(chosen, meta)
            arrays = self._read(chosen)
            for damaged, problem in flaws.items():
                name = self.folder.set_aside(damaged, "damaged")
                log.warning("checkpoint %d is damaged (%s) and was set aside as %s", damaged, problem, name)
            self._session.restore(arrays)
            self._base, self._known, self._since = chosen, set(self.folder.steps()), 0
        progress = Progress.of(meta["position"])
        where = f"epoch {progress.epoch}, step {progress.step}"
        log.warning("continuing from checkpoint %d in %s: %s", chosen, self.folder.path, where)
        return progress

    def of(self, progress: Progress) -> "Checkpoints":
        """Say whose position is saved with the session."""
        self._progress = progress
        return self

    def __enter__(self) -> "Checkpoints":
        self._wait()
        importlib.import_module("orbax.checkpoint")  # takes a while; not beside the first steps
        self.folder.acquire()
        try:
            self.folder.sweep()
            if unknown := set(self.folder.steps()) - self._known:
                raise errors.CheckpointError(
                    f"{str(self.folder.path)!r} holds checkpoints that were written since this Trainer was made: "
                    f"{', '.join(map(str, sorted(unknown)))}; make a new Trainer to continue from them"
                )
            # What a program itself makes infinite, a mask for example, says nothing about the health of training.
            self._exempt = _non_finite(_on_host(self._session.state()))
        except BaseException:
            self.folder.release()
            raise
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        # After an interruption everything is as the last step left it; after any other exception, who knows.
        try:
            if kind is None or not issubclass(kind, Exception):
                self._save()
        finally:
            self._wait()
            self.folder.release()

    def ask(self) -> None:
        """Have it be time."""
        self._asked = True

    def after_step(self, metrics: Results) -> None:
        """Save if it is time; what is due at the last step of an epoch waits for its end."""
        self._since += 1
        if self._score is not None:
            self._score.add(metrics)
        if self._due() and not self._progress.last:
            self._save()

    def after_epoch(self) -> None:
        """Save if it is time."""
        interval = self.config.epoch_interval
        if self._due() or (interval is not None and self._progress.epoch % interval == 0):
            self._save()

    def _due(self) -> bool:
        interval = self.config.step_interval
        return self._asked or (interval is not None and self._since >= interval)

    def _save(self) -> None:
        self._asked = False
        self._wait()
        self.folder.check_there()
        arrays = _on_host(self._session.state())
        step = int(arrays["@step"])
        if step == self._base:
            return
        position = self._progress.snapshot()
        score = None if self._score is None else self._score.take()
        self._since = 0
        self._saving = threading.Thread(
            target=self._write, args=(step, arrays, position, score), name="fluid-checkpoint"
        )
        self._saving.start()

    def _write(self, step: int, arrays: Mapping[str, Any], position: Callable[[], Any], score: Any) -> None:
        try:
            if sick := sorted(_non_finite(arrays) - self._exempt):
                level, self._sick = logging.DEBUG if self._sick else logging.ERROR, True
                log.log(level, "checkpoint %d is not saved: %s not finite", step, _listed(sick))
                return
            self._sick = False
            for stale in self.folder.steps():
                if stale >= step or (self._base is not None and stale > self._base):
                    name = self.folder.set_aside(stale, "undone")
                    log.warning("checkpoint %d was undone, it is set aside as %s", stale, name)
            versions = {name: importlib.metadata.version(name) for name in ("jax", "orbax-checkpoint")}
            self.folder.write(step, arrays, {"position": position(), "score": score, "versions": versions})
            self._base = step
            self._known.add(step)
            self._delete_old()
            self._known = set(self.folder.steps())
        except Exception as error:
            reason = str(error).partition("\n")[0][:300]
            log.error("checkpoint %d failed: %s: %s; training goes on", step, type(error).__name__, reason)

    def _delete_old(self) -> None:
        kept, steps = self.config.max_num_checkpoints, self.folder.steps()
        if kept is None or len(steps) <= kept:
            return
        best = self._best(steps)
        for step in steps[:-kept]:
            if step != best:
                self.folder.delete(step)

    def _wait(self) -> None:
        if self._saving is not None:
            self._saving.join()
            self._saving = None

    def _newest(self, flaws: dict[int, str]) -> int | None:
        found = self.folder.newest_whole(flaws.__setitem__)
        aside = self.folder.aside()
        if found is None and (flaws or aside):
            listed = [*(f"{step}: {problem}" for step, problem in flaws.items()), *(f"{n}: set aside" for n in aside)]
            raise errors.CheckpointError(
                f"no checkpoint in {str(self.folder.path)!r} is whole:\n  " + "\n  ".join(listed) + "\n"
                "training does not start anew by itself; bring back a copy, or move this folder away to start anew"
            )
        return found

    def _this(self, step: int | str) -> int:
        steps = self.folder.steps()
        chosen = self._best(steps) if step == "best" else step
        if chosen not in steps:
            raise errors.CheckpointError(
                f"there is no checkpoint {step!r} in {str(self.folder.path)!r}, there are "
                f"{', '.join(map(str, steps)) or 'none'}"
            )
        assert isinstance(chosen, int)
        if problem := self.folder.flaw(chosen):
            raise errors.CheckpointError(
                f"checkpoint {chosen} in {str(self.folder.path)!r} is damaged: {problem}; take another one of "
                f"{', '.join(map(str, steps))}"
            )
        return chosen

    def _best(self, steps: list[int]) -> int | None:
        if self._score is None:
            return None
        scores = {step: self._score.of(self.folder, step) for step in steps}
        known = {step: value for step, value in scores.items() if value is not None}
        return max(known, key=lambda step: (known[step], step), default=None)

    def _check(self, step: int, meta: Mapping[str, Any]) -> None:
        listed = meta["arrays"].items()
        found = {n: SimpleNamespace(shape=tuple(a["shape"]), dtype=a["dtype"]) for n, a in listed}
        wanted = {n: (v.shape, str(v.dtype)) for n, v in self._session.state().items()}
        storage.check_match(found, wanted, f"checkpoint {step} in {str(self.folder.path)!r}")

    def _read(self, step: int) -> dict[str, np.ndarray]:
        try:
            return self.folder.arrays(step)
        except Exception as error:
            raise errors.CheckpointError(
                f"checkpoint {step} in {str(self.folder.path)!r} is whole, but Orbax cannot read it: {error}; read it "
                f"with the versions that wrote it: {self.folder.meta(step)['versions']}"
            ) from error


def _on_host(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copies on the host. On a CPU they share memory with the arrays, and XLA copies what a step would take over."""
    for value in arrays.values():
        value.copy_to_host_async()
    return {name: np.asarray(value) for name, value in arrays.items()}


def _non_finite(arrays: Mapping[str, np.ndarray]) -> set[str]:
    numbers = {n: a for n, a in arrays.items() if jnp.issubdtype(a.dtype, jnp.inexact)}
    return {n for n, a in numbers.items() if not np.isfinite(a).all()}


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more are" if len(names) > 5 else " is")
