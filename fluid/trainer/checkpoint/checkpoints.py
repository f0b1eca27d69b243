"""Checkpoints while training: when to save, what to keep, and how to restore it."""

import abc
import importlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fluid import errors
from fluid.core import Program, whole_number
from fluid.session import Results, Session
from fluid.storage import PathLike
from fluid.storage.folder import Folder
from fluid.trainer.checkpoint.match import check_checkpoint, describe_optimizers
from fluid.trainer.checkpoint.score import BestMeasured, Score
from fluid.trainer.checkpoint.writer import Snapshot, Writer
from fluid.trainer.handlers import Handler
from fluid.trainer.health import Health
from fluid.trainer.resume import Progress

log = logging.getLogger("fluid")


@dataclass(frozen=True)
class CheckpointConfig:
    """Where and how often a Trainer saves everything that it needs to continue after its process was killed.

    Saves run in the background while training goes on. A checkpoint is complete or not there at all. A Trainer with the
    same folder continues from the newest one that is whole.

    Args:
      checkpoint_dir: a folder for the checkpoints of this training alone; made when it is not there. By default
        `checkpoints` in the current folder.
      max_num_checkpoints: how many of the newest checkpoints are kept, at least 1; None keeps all.
      epoch_interval: save at the end of every so many epochs; None saves none of them. The end of training is always
        saved.
      step_interval: save after every so many steps; None saves at the ends of epochs and of training only.
      keep_best: `(output, "min" or "max")`: also keep the checkpoint with the best output. The output is a scalar,
        given by its name or position, of several programs as "generator/loss", and is compared as the mean over the
        steps of its program since the checkpoint before. Or the
        name of a value that is measured while training goes on, such as `("test_loss", "min")`: when it is the best so
        far, a checkpoint is saved.

    Raises:
      ArgumentError: a number is no whole number from 1 on, `keep_best` is no such pair, or `checkpoint_dir` is an
        address such as "s3://bucket/checkpoints".
      ArgumentTypeError: `checkpoint_dir` is no path.

    Example:
      >>> CheckpointConfig("checkpoints", step_interval=1000, keep_best=("accuracy", "max")).max_num_checkpoints
      3
    """

    checkpoint_dir: PathLike = "checkpoints"
    max_num_checkpoints: int | None = 3
    epoch_interval: int | None = 1
    step_interval: int | None = 10
    keep_best: tuple[str | int, str] | None = None

    def __post_init__(self) -> None:
        if self.checkpoint_dir is None:
            object.__setattr__(self, "checkpoint_dir", "checkpoints")
        if not isinstance(self.checkpoint_dir, str | os.PathLike) or not os.fspath(self.checkpoint_dir):
            raise errors.ArgumentTypeError(
                f"checkpoint_dir={self.checkpoint_dir!r}: expected the path of a folder: CheckpointConfig('here')"
            )
        if "://" in os.fspath(self.checkpoint_dir):
            raise errors.ArgumentError(
                f"checkpoint_dir={self.checkpoint_dir!r} is an address, expected a folder that is mounted here: a "
                f"checkpoint is renamed when it is whole, which object stores cannot do. Give a folder, "
                f"CheckpointConfig('checkpoints'), and copy what is in it"
            )
        for name in ("max_num_checkpoints", "epoch_interval", "step_interval"):
            if getattr(self, name) is not None:
                whole_number("CheckpointConfig", name, getattr(self, name))
        if self.keep_best is not None and not _names_an_output_and_a_mode(self.keep_best):
            raise errors.ArgumentError(
                f'keep_best={self.keep_best!r}: expected an output and "min" or "max": keep_best=("accuracy", "max")'
            )


class Position(Protocol):
    """Where a training is, as a checkpoint keeps it: a Progress, or that of a loop of the user's own.

    Attributes:
      epoch: how many epochs have ended.
      last: whether the last step was the last one of its epoch, whose end is saved by itself.
    """

    epoch: int
    last: bool

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The position as it is now: a function that gives it as JSON."""


class CheckpointHooks(abc.ABC):
    """What the training loop calls so that checkpoints are saved.

    `with hooks:` surrounds a training; however it is left, the last save is complete then.
    """

    @abc.abstractmethod
    def __enter__(self) -> "CheckpointHooks": ...

    @abc.abstractmethod
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None: ...

    @abc.abstractmethod
    def after_step(self, metrics: Results, program: str) -> None:
        """Called after each step of a program, when its handlers are done."""

    @abc.abstractmethod
    def after_epoch(self) -> None:
        """Called after a whole epoch, when its handlers are done."""


class NoCheckpoints(CheckpointHooks):
    """Saves nothing: for a training without checkpoints."""

    def __enter__(self) -> "NoCheckpoints":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        pass

    def after_step(self, metrics: Results, program: str) -> None:
        """Do nothing."""

    def after_epoch(self) -> None:
        """Do nothing."""


class Checkpoints(CheckpointHooks):
    """Saves a Session and its Progress when a CheckpointConfig says so, and brings them back.

    Arrays go to the host in the training thread; a Writer does the rest in another one.

    Args:
      config: when to save, where to, and what to keep.
      session: whose state is saved.
      programs: those that are trained, one of whose outputs `keep_best` names.

    Attributes:
      config: the same.
      folder: where the checkpoints are.

    Raises:
      CheckpointError: the folder cannot be used.
      UnknownNameError, ArgumentError: `keep_best` names no output, or one that is no scalar.

    Example:
      >>> import fluid
      >>> program = fluid.Program(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> checkpoints = Checkpoints(CheckpointConfig("here"), fluid.Session(program), [program])
      >>> checkpoints.restore() is None  # there is nothing yet
      True
      >>> with checkpoints:
      ...     checkpoints.save()
      >>> checkpoints.folder.steps()
      [0]
    """

    def __init__(self, config: CheckpointConfig, session: Session, programs: Sequence[Program]):
        if not isinstance(config, CheckpointConfig):
            raise errors.ArgumentTypeError(
                f"checkpoint_config={config!r}: expected fluid.CheckpointConfig('checkpoints')"
            )
        self.config = config
        self._session = session
        self._programs = list(programs)
        by_name = {program.name: program for program in self._programs}
        self._score = None if config.keep_best is None else Score(by_name, *config.keep_best)
        self.folder = Folder(config.checkpoint_dir)
        self._writer = Writer(self.folder, config.max_num_checkpoints, self._score)
        self._progress: Position = Progress()
        self._since = 0  # steps since the last save, or since training was restored
        self._asked = False  # whether a handler asked for a save

    def handlers(self) -> list[Handler]:
        """What a training needs so that `keep_best` hears of measured values."""
        return [BestMeasured(self._score, self._is_best)] if self._score and self._score.measured else []

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
        meta = self.bring_back(step)
        if meta is None:
            return None
        progress = Progress.of(meta["position"])
        progress.frozen = self._session.freezing.given()
        log.warning(
            "continuing from checkpoint %d in %s: epoch %d, step %d",
            meta["step"],
            self.folder.path,
            progress.epoch,
            progress.step,
        )
        return progress

    def bring_back(self, step: int | str | None, own_loop: bool = False) -> dict[str, Any] | None:
        """Bring the arrays of the session to a checkpoint; arguments and errors as for `restore`.

        Args:
          step: which one.
          own_loop: whether it must be that of a loop of the user's own, instead of a Trainer.

        Returns:
          What the checkpoint says of itself, or None when there is none.
        """
        with self.folder.locked():
            self.folder.sweep()
            flaws: dict[int, str] = {}
            if step is None:
                chosen, flaws = self._newest()
            else:
                chosen = self._this(step)
            if chosen is None:
                return None
            meta = self.folder.meta(chosen)
            here = f"checkpoint {chosen} in {str(self.folder.path)!r}"
            _check_loop(meta["position"], own_loop, here)
            check_checkpoint(meta, self._session, self._programs, here)
            arrays = self._read(chosen)
            for damaged, problem in flaws.items():
                name = self.folder.set_aside(damaged, "damaged")
                log.warning("checkpoint %d is damaged (%s) and was set aside as %s", damaged, problem, name)
            self._session.restore(arrays)
            self._writer.restored(chosen, self.folder.steps())
        self._since = 0
        return meta

    @property
    def where(self) -> str:
        """The newest checkpoint, in words."""
        steps = self.folder.steps()
        return f"checkpoint {steps[-1]} in {str(self.folder.path)!r}" if steps else f"{str(self.folder.path)!r}"

    def of(self, progress: "Position") -> "Checkpoints":
        """Say whose position is saved with the session."""
        self._progress = progress
        return self

    def __enter__(self) -> "Checkpoints":
        self.wait()
        importlib.import_module("orbax.checkpoint")  # now, as it takes a while and would slow down the first steps
        self.folder.acquire()
        try:
            self.folder.sweep()
            if unknown := set(self.folder.steps()) - self._writer.known:
                raise errors.CheckpointError(
                    f"{str(self.folder.path)!r} holds checkpoints that were written since this Trainer was made: "
                    f"{', '.join(map(str, sorted(unknown)))}; make a new Trainer to continue from them"
                )
            self._writer.begin(Health.at_start(_on_host(self._session.state())))
        except BaseException:
            self.folder.release()
            raise
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        # After an interruption the session is as the last step left it. After any other exception that is uncertain, so
        # nothing is saved.
        try:
            if kind is None or not issubclass(kind, Exception):
                self.save()
        finally:
            self.wait()
            self.folder.release()

    def ask(self) -> None:
        """Save after this step, or after the epoch that it ends."""
        self._asked = True

    def after_step(self, metrics: Results, program: str) -> None:
        """Save if it is time; what is due at the last step of an epoch waits for its end."""
        self._since += 1
        if self._score is not None:
            self._score.add(metrics, program)
        if self._due() and not self._progress.last:
            self.save()

    def after_epoch(self) -> None:
        """Save if it is time."""
        interval = self.config.epoch_interval
        if self._due() or (interval is not None and self._progress.epoch % interval == 0):
            self.save()

    def save(self) -> None:
        """Start a save, after the one before is complete; nothing happens when this step is saved already.

        Raises:
          CheckpointError: the folder has gone.
        """
        self._asked = False
        self.wait()
        self.folder.check_there()
        arrays = _on_host(self._session.state())
        step = int(arrays["@step"])
        if step == self._writer.base:
            return
        self._since = 0
        score = None if self._score is None else self._score.take(step)
        optimizers = describe_optimizers(self._programs)
        self._writer.start(Snapshot(step, arrays, self._progress.snapshot(), score, optimizers, self._session.origins))

    def wait(self) -> None:
        """Wait until the last save is complete."""
        self._writer.wait()

    def _is_best(self, value: float) -> bool:
        """Whether a measured value is better than those of all checkpoints."""
        self.wait()
        return self._score is not None and self._score.improves(self.folder, value)

    def _due(self) -> bool:
        interval = self.config.step_interval
        return self._asked or (interval is not None and self._since >= interval)

    def _newest(self) -> tuple[int | None, dict[int, str]]:
        """The newest whole step, None in an empty folder; and the flaws of newer ones."""
        found, flaws = self.folder.newest_whole()
        aside = self.folder.aside()
        if found is None and (flaws or aside):
            listed = [*(f"{step}: {problem}" for step, problem in flaws.items()), *(f"{n}: set aside" for n in aside)]
            raise errors.CheckpointError(
                f"no checkpoint in {str(self.folder.path)!r} is whole:\n  " + "\n  ".join(listed) + "\n"
                "training does not start anew by itself; bring back a copy, or move this folder away to start anew"
            )
        return found, flaws

    def _this(self, step: int | str) -> int:
        steps = self.folder.steps()
        chosen: int | str | None = step
        if step == "best":
            chosen = None if self._score is None else self._score.best(self.folder, steps)
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

    def _read(self, step: int) -> dict[str, np.ndarray]:
        try:
            return self.folder.arrays(step)
        except Exception as error:
            raise errors.CheckpointError(
                f"checkpoint {step} in {str(self.folder.path)!r} is whole, but Orbax cannot read it: {error}; read it "
                f"with the versions that wrote it: {self.folder.meta(step)['versions']}"
            ) from error


def _check_loop(position: Mapping[str, Any], own_loop: bool, here: str) -> None:
    """Refuse a checkpoint of another kind of loop: it does not have the position that is needed."""
    if ("states" in position) != own_loop:
        writer, reader = ("a Trainer", "fluid.Checkpoint of a loop of your own")[:: -1 if "states" in position else 1]
        raise errors.CheckpointError(
            f"{here} was written by {writer}, and is read by {reader}, which keeps another position in the data; "
            f"continue with what wrote it, or use another folder; its parameters alone: "
            f"fluid.Inferencer(program, checkpoint=folder)"
        )


def _names_an_output_and_a_mode(value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    output, mode = value
    return isinstance(output, str | int) and not isinstance(output, bool) and mode in ("min", "max")


def _on_host(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copies on the host. On a CPU they share memory with the arrays, and XLA copies what a step would take over."""
    for value in arrays.values():
        value.copy_to_host_async()
    return {name: np.asarray(value) for name, value in arrays.items()}
