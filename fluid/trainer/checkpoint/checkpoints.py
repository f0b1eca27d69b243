"""Checkpoints while training: when to save, what to keep, and how to restore it."""

import contextlib
import importlib.metadata
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax

from fluid import errors
from fluid.core import Program, own_array
from fluid.distributed import group
from fluid.distributed.arrays import is_here
from fluid.runtime import Session
from fluid.runtime.finite import Health
from fluid.runtime.state_io import names_here, origins_of
from fluid.storage import packed
from fluid.storage.folder import newest_whole
from fluid.storage.remote import folder_of
from fluid.trainer.checkpoint.config import CheckpointConfig
from fluid.trainer.checkpoint.match import check_checkpoint, check_seed, describe_optimizers, digests_of
from fluid.trainer.checkpoint.score import BestMeasured, Score
from fluid.trainer.checkpoint.shared import check_shared
from fluid.trainer.checkpoint.writer import Writer
from fluid.trainer.handlers import Handler
from fluid.trainer.policy import Call, Policy
from fluid.trainer.resume import Progress

log = logging.getLogger("fluid")


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


class NoCheckpoints(Policy):
    """Save nothing: for a training without checkpoints.

    `with checkpoints:` surrounds a training; however it is left, the last save is complete then.
    """

    def __enter__(self) -> "NoCheckpoints":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        pass

    def after_epoch(self) -> None:
        """Save if it is time after a whole epoch, when its handlers are done."""


class Checkpoints(NoCheckpoints):
    """Saves a Session and its Progress when a CheckpointConfig says so, and brings them back.

    Arrays go to the host while training waits; a Writer does the rest in another thread. In several processes each
    writes its part of them.

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
        best = config.keep_best
        self._score = Score(by_name, *best) if isinstance(best, tuple) else None
        self.folder = folder_of(config.checkpoint_dir)
        self._group = group()
        check_shared(self.folder, self._group)
        self._writer = Writer(self.folder, config.max_num_checkpoints, self._score, self._group)
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
        progress.frozen = self._session.engine.freezing.chosen
        log.warning(
            "continuing from checkpoint %d in %s: epoch %d, step %d",
            meta["step"],
            self.folder.name,
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
        with contextlib.ExitStack() as held:
            if self._group.is_first:
                held.enter_context(self.folder.locked())
            chosen, flaws = self._chosen(step)
            if chosen is None:
                return None
            meta = self.folder.meta(chosen)
            here = f"checkpoint {chosen} in {self.folder.name!r}"
            _check_loop(meta.get("position"), own_loop, here)
            check_checkpoint(meta, self._session, self._programs, here)
            arrays = self._read(chosen)
            divided = {name for name, array in arrays.items() if isinstance(array, jax.Array)}
            self._group.meet("a checkpoint that was read")
            for damaged, problem in flaws.items() if self._group.is_first else ():
                name = self.folder.set_aside(damaged, "damaged")
                log.warning("checkpoint %d is damaged (%s) and was set aside as %s", damaged, problem, name)
            check_seed(arrays["@root"], self._session, here)
            self._session.restore(arrays, divided)
            self._writer.restored(chosen, self.folder.steps())
        self._since = 0
        return meta

    def _chosen(self, step: int | str | None) -> tuple[int | None, dict[int, str]]:
        """The step to go back to, which all processes look for together, and the flaws of newer ones."""
        if self._group.is_first:
            self.folder.sweep()
        steps = self._group.of_first("the checkpoints", self.folder.steps())
        return self._newest(steps) if step is None else (self._this(step, steps), {})

    def _flaw(self, step: int) -> str | None:
        """What is wrong with a step, or None; each process reads its share of the files."""
        group = self._group
        found = group.exchange(f"the files of checkpoint {step}", self.folder.flaw(step, group.index, group.size))
        return next((problem for problem in found if problem is not None), None)

    @property
    def where(self) -> str:
        """The newest checkpoint, in words."""
        steps = self.folder.steps()
        return f"checkpoint {steps[-1]} in {self.folder.name!r}" if steps else f"{self.folder.name!r}"

    def of(self, progress: "Position") -> "Checkpoints":
        """Say whose position is saved with the session."""
        self._progress = progress
        return self

    def __enter__(self) -> "Checkpoints":
        self.wait()
        importlib.import_module("orbax.checkpoint")  # now, as it takes a while and would slow down the first steps
        self._lock()
        try:
            self._writer.begin(Health.at_start(self._arrays(), self._session.engine.members))
        except BaseException:
            self.folder.release()
            raise
        return self

    def _lock(self) -> None:
        """Keep other trainers out of the folder; of several processes the first one does."""
        if not self._group.is_first:
            return
        self.folder.acquire()
        self.folder.sweep()
        if unknown := set(self.folder.steps()) - self._writer.known:
            self.folder.release()
            raise errors.CheckpointError(
                f"{self.folder.name!r} holds checkpoints that were written since this Trainer was made: "
                f"{', '.join(map(str, sorted(unknown)))}; make a new Trainer to continue from them"
            )

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        # After an interruption the session is as the last step left it. After any other exception that is uncertain, so
        # nothing is saved.
        try:
            if kind is None or (not issubclass(kind, Exception) and not self._is_alone_with(error)):
                self.save()
                self.wait()
        finally:
            self._writer.join()
            self.folder.release()

    def _is_alone_with(self, error: BaseException) -> bool:
        """Whether one of several processes ends by itself, with `sys.exit` and not by a signal that all agreed upon."""
        agreed = isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and error.code == 143)
        return self._group.size > 1 and not agreed

    def ask(self) -> None:
        """Save after this step, or after the epoch that it ends."""
        self._asked = True

    def steps_ahead(self) -> float:
        """How many steps may run in one call before it is time to save."""
        interval = self.config.step_interval
        return math.inf if interval is None else max(1, interval - self._since)

    def after_steps(self, call: Call) -> None:
        """Save if it is time; what is due at the last step of an epoch waits for its end."""
        if self._score is not None:
            for outputs, _ in call.results:
                self._score.add(outputs, call.program)
        self.count(len(call.results))

    def count(self, steps: int) -> None:
        """Count steps that were trained, and save if a checkpoint is due."""
        self._since += steps
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
        arrays = self._arrays()
        step = int(arrays["@step"])
        if step == self._writer.base:
            return
        self._since = 0
        score = None if self._score is None else self._score.take(step)
        described = {
            "score": score,
            "optimizers": describe_optimizers(self._programs),
            "digests": digests_of(self._programs),
            "origins": packed(origins_of(self._session.programs)),
        }
        position = self._progress.snapshot()
        self._writer.start(step, arrays, lambda: {"position": position(), **described, "versions": _versions()})

    def wait(self) -> None:
        """Wait until the last save is complete."""
        self._writer.wait()

    def check_saved(self) -> None:
        """Check that the end of a training was saved; the session keeps its parameters in any case.

        Raises:
          CheckpointError: the last save has failed.
        """
        if self._writer.lost is None:
            return
        step, error = self._writer.lost
        raise errors.CheckpointError(
            f"what was trained is not saved: checkpoint {step} in {self.folder.name!r} failed: {type(error).__name__}: "
            f"{str(error).partition(chr(10))[0][:300]}; the parameters are there: make room, and train() with the same "
            f"arguments saves them, or trainer.save_params(path) to another disk"
        ) from error

    def _is_best(self, value: float) -> bool:
        """Whether a measured value is better than those of all checkpoints."""
        self.wait()
        improves = self._score is not None and self._score.improves(self.folder, value)
        return bool(self._group.of_first("whether this is the best value", improves))

    def _due(self) -> bool:
        interval = self.config.step_interval
        return self._asked or (interval is not None and self._since >= interval)

    def _newest(self, steps: Sequence[int]) -> tuple[int | None, dict[int, str]]:
        """The newest whole step, None in an empty folder; and the flaws of newer ones."""
        found, flaws = newest_whole(steps, self._flaw)
        aside = self.folder.aside()
        if found is None and (flaws or aside):
            listed = [*(f"{step}: {problem}" for step, problem in flaws.items()), *(f"{n}: set aside" for n in aside)]
            raise errors.CheckpointError(
                f"no checkpoint in {self.folder.name!r} is whole:\n  " + "\n  ".join(listed) + "\n"
                "training does not start anew by itself; bring back a copy, or move this folder away to start anew"
            )
        return found, flaws

    def _this(self, step: int | str, steps: Sequence[int]) -> int:
        chosen: int | str | None = step
        if step == "best":
            chosen = None if self._score is None else self._score.best(self.folder, steps)
        if chosen not in steps:
            raise errors.CheckpointError(
                f"there is no checkpoint {step!r} in {self.folder.name!r}, there are "
                f"{', '.join(map(str, steps)) or 'none'}"
            )
        assert isinstance(chosen, int)
        if problem := self._flaw(chosen):
            raise errors.CheckpointError(
                f"checkpoint {chosen} in {self.folder.name!r} is damaged: {problem}; take another one of "
                f"{', '.join(map(str, steps))}"
            )
        return chosen

    def _arrays(self) -> dict[str, Any]:
        """Return all arrays of the session: on the host; in several processes on the devices, which share them.

        On a CPU they share memory with the arrays, and XLA copies what a step would donate.
        """
        state = self._session.state()
        if self._group.size > 1:
            return state
        return dict(zip(state, jax.device_get(list(state.values())), strict=True))

    def _read(self, step: int) -> dict[str, Any]:
        """The arrays of a step: on the host; and those of which other processes have parts, where they shall lie."""
        try:
            shared = {n: a.sharding for n, a in self._session.state().items() if a.size and not is_here(a)}
            here = names_here(self._session.programs, self.folder.meta(step)["arrays"])
            divided = {there: shared[name] for there, name in here.items() if name in shared}
            found = self.folder.arrays(step, divided)
            for name in divided:  # one copy at a time, since a training step can donate copies only
                found[name] = own_array(found[name])
            return {here[name]: array for name, array in found.items()}
        except Exception as error:
            raise errors.CheckpointError(
                f"checkpoint {step} in {self.folder.name!r} is whole, but Orbax cannot read it: {error}; read it "
                f"with the versions that wrote it: {self.folder.meta(step).get('versions')}"
            ) from error


def _versions() -> dict[str, str]:
    """Return the versions of the libraries that write checkpoints."""
    return {name: importlib.metadata.version(name) for name in ("jax", "orbax-checkpoint")}


def _check_loop(position: Mapping[str, Any] | None, own_loop: bool, here: str) -> None:
    """Refuse a checkpoint of another kind of loop: it does not have the position that is needed."""
    if position is None:
        raise errors.CheckpointError(f"{here} holds no position of a training; expected one that fluid has written")
    if ("states" in position) != own_loop:
        writer, reader = ("a Trainer", "fluid.Checkpoint of a loop of your own")[:: -1 if "states" in position else 1]
        raise errors.CheckpointError(
            f"{here} was written by {writer}, and is read by {reader}, which keeps another position in the data; "
            f"continue with what wrote it, or use another folder; its parameters alone: "
            f"fluid.Inferencer(program, checkpoint=folder)"
        )
