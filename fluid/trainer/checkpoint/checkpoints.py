"""The class Checkpoints, which saves a training at intervals, keeps the newest and best checkpoints, and restores one.

The training thread copies the arrays to the host. Another thread writes the arrays with Orbax and adds checksums,
because Orbax does not check the bytes of arrays. When a checkpoint is complete, the thread renames its folder. A
checkpoint with non-finite arrays is not written. The checkpoint manager of Orbax is not used: it mistakes an empty
folder for the newest step, and loses a save that fails.

Before arrays are restored, the checkpoint is compared with the program and the optimizers of the Trainer. An error
lists the differences.
"""

import contextlib
import importlib.metadata
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import jax
import numpy as np

from fluid import errors
from fluid._util.text import described
from fluid.checkpoint import ArraySource
from fluid.checkpoint.folder import newest_whole
from fluid.checkpoint.object_store import folder_of
from fluid.core import Program, creation_paths, creation_sites, own_array
from fluid.distributed import group
from fluid.distributed.group import is_here
from fluid.runtime import Session
from fluid.runtime.finite import Health
from fluid.runtime.state_io import check_state, live_state, names_here
from fluid.trainer.checkpoint.config import BestMeasured, CheckpointConfig, FollowsBest, Score, check_shared
from fluid.trainer.checkpoint.writer import NotFiniteError, Writer
from fluid.trainer.device_calls import DeviceCall, Policy
from fluid.trainer.handlers import Handler
from fluid.trainer.resume import Progress


def describe_optimizers(programs: Sequence[Program]) -> list[str]:
    """Return the class and the settings of each optimizer of the programs, as strings that are equal in every process.

    Example:
      >>> import fluid
      >>> def program():
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     fluid.optimizer.Momentum(0.1, momentum=0.8).minimize(loss)
      ...     return loss
      >>> describe_optimizers([fluid.Program(program)])
      ['Momentum(learning_rate=0.1, momentum=0.8)']
    """
    return [described(minimize.optimizer) for program in programs for minimize in program.minimizes]


def digests_of(programs: Sequence[Program]) -> list[str]:
    """Return the `Program.digest` of each program: a checksum of the JAX equations that compute its losses."""
    return [program.digest for program in programs]


def check_seed(saved: Any, session: Session, where: str) -> None:
    """Log a warning if the seed of a session differs from the seed in a checkpoint."""
    if not np.array_equal(np.asarray(saved), np.asarray(session.scope.root)):
        log.warning("%s: the seed was another one than now; training continues with the seed of the checkpoint", where)


def check_checkpoint(meta: Mapping[str, Any], session: Session, programs: Sequence[Program], where: str) -> None:
    """Raise ParameterError for a checkpoint of another program or optimizer; log a warning for lesser differences.

    Lesser differences are changed settings of the optimizers, and a changed computation of the losses with unchanged
    parameters. The data is not compared.

    Raises:
      ParameterError: names, shapes or dtypes of arrays differ; or the `fluid.reader.Table` of the program, which
        converts raw rows of data to feeds, differs.
    """
    found = {n: SimpleNamespace(shape=tuple(a["shape"]), dtype=a["dtype"]) for n, a in meta["arrays"].items()}
    before = meta.get("optimizers")
    now = describe_optimizers(programs)
    changed = (
        "" if before in (None, now) else f"{' and '.join(before)} when it was written, and {' and '.join(now)} now"
    )
    same_parameters = _parameters(found) == _parameters(live_state(session))
    advice = _OTHER_OPTIMIZER.format(changed or "another one than now") if same_parameters else _OTHER_PROGRAM
    check_state(session, found, where, advice, *(meta.get(key) or {} for key in ("sites", "paths")))
    ArraySource({}, where, table=meta.get("table")).check_table(session.table)
    if changed:
        log.warning("%s: the optimizer was %s; training continues with the settings of now", where, changed)
    digests = meta.get("digests")
    # The digest (checksum) of a program is computed from its equations as JAX prints them, which may change with the
    # version of JAX. So digests are compared only if the checkpoint was written with the installed version.
    same_jax = meta.get("versions", {}).get("jax") == importlib.metadata.version("jax")
    if same_jax and digests not in (None, digests_of(programs)):
        log.warning(
            "%s: the program computes its loss in another way than when it was written, with the same parameters; "
            "training continues with the program of now",
            where,
        )


_OPTIMIZERS = ("@slots/", "@learning_rate/", "@frozen")
_OTHER_PROGRAM = (
    "the program function is another one than that which was trained; to train this one from the beginning, use "
    "another checkpoint_dir"
)
_OTHER_OPTIMIZER = (
    "the parameters are those of this program, but not the slots of its optimizer: it was {}. Use the optimizer of the "
    "checkpoint; or keep its parameters only: trainer.save_params(path) of a Trainer with that optimizer, then "
    "fluid.Trainer(program, new_optimizer, param_path=path) with another checkpoint_dir"
)


def _parameters(arrays: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {n: (tuple(a.shape), str(a.dtype)) for n, a in arrays.items() if not n.startswith(_OPTIMIZERS)}


log = logging.getLogger("fluid")


class CheckpointPosition(Protocol):
    """The training position that a checkpoint stores: a Progress of a Trainer, or the states of a custom loop.

    Attributes:
      epoch: the number of epochs that have ended.
      last: True if the newest step is the last one of its epoch. If a save is due at this step, the save is
        postponed to the call of `after_epoch`.
    """

    epoch: int
    last: bool

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Copy the current training position, and return a function that returns the copy as JSON."""


class NoCheckpoints(Policy):
    """A hook of the training loop that saves nothing, for a training without checkpoints.

    The training runs in a `with` block of this object. In Checkpoints, which saves, the block ends only after the
    last save is complete or has failed, also after an error.
    """

    def __enter__(self) -> "NoCheckpoints":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        pass

    def steps_left(self) -> float:
        """Return the number of steps to the next save by `step_interval`; infinity without one."""
        return math.inf

    def after_epoch(self) -> None:
        """Save a checkpoint if one is due; the training loop calls this method after each epoch and its handlers."""


class Checkpoints(NoCheckpoints):
    """A hook of the training loop that saves a Session and its training position at intervals, and restores them.

    Training waits only while arrays are copied to the host; a Writer writes the arrays in another thread. In a
    multi-process training, each process writes a part of the arrays.

    Attributes:
      config: the argument `config`.
      folder: the folder of the checkpoints.

    Raises:
      CheckpointError: the folder cannot be used.
      UnknownNameError, ArgumentError: `keep_best` names no output, or an output that is not a scalar.

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
        self._progress: CheckpointPosition = Progress()
        # Exempts the arrays that were non-finite when the session was made or restored. They are found only once: a
        # second `train` would also exempt arrays that the first one has made NaN, and replace the finite checkpoints.
        self._health: Health | None = None
        self._since = 0  # the number of training steps since the last save or restore
        self._asked = False  # True if a handler has requested a save that has not started yet
        self._process: int | None = None  # the process inside the `with` block; another one is a fork of this process

    def handlers(self) -> list[Handler]:
        """Return the handlers that `CheckpointConfig(keep_best=)` needs: one, or none without this setting.

        If `keep_best` names a value that a handler reports, such as a test loss, the handler requests a checkpoint at
        each new best value.
        """
        if self._score is None:
            return []
        return [BestMeasured(self._score, self._is_best) if self._score.measured else FollowsBest(self._score)]

    def restore(self, step: int | str | None = None) -> Progress | None:
        """Restore the parameters, the optimizer state and the counters of the session from a checkpoint.

        Args:
          step: the training step of the checkpoint, or "best"; None for the newest complete checkpoint. Newer damaged
            checkpoints are renamed.

        Raises:
          CheckpointError: the checkpoint is absent or damaged, or no checkpoint is complete; then nothing is changed.
          ParameterError: the program has other parameters or another optimizer; then nothing is changed.
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
        """Restore the arrays of the session from a checkpoint, not the training position; errors as for `restore`."""
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
            self._health = self._health_now()
            self._writer.restored(chosen, self.folder.steps())
        self._since = 0
        return meta

    def _chosen(self, step: int | str | None) -> tuple[int | None, dict[int, str]]:
        """Return a pair: the step of the checkpoint to restore, and a dict of newer checkpoints that are damaged.

        The dict has the step of each damaged checkpoint, with a description of the damage. The first result is None if
        the folder holds no checkpoint. All processes return equal results.
        """
        if self._group.is_first:
            self.folder.sweep()
        steps = self._group.of_first("the checkpoints", self.folder.steps())
        return self._newest(steps) if step is None else (self._this(step, steps), {})

    def _flaw(self, step: int) -> str | None:
        """Return a description of the first flaw in the files of the checkpoint at `step`; None if there is no flaw.

        In a multi-process training, each process checks a part of the files.
        """
        group = self._group
        found = group.exchange(f"the files of checkpoint {step}", self.folder.flaw(step, group.index, group.size))
        return next((problem for problem in found if problem is not None), None)

    @property
    def where(self) -> str:
        """A description of the newest checkpoint and its folder for messages; without a checkpoint, the folder only."""
        steps = self.folder.steps()
        return f"checkpoint {steps[-1]} in {self.folder.name!r}" if steps else f"{self.folder.name!r}"

    def of(self, progress: "CheckpointPosition") -> "Checkpoints":
        """Set the training position that later saves store together with the session; return this object."""
        self._progress = progress
        return self

    def __enter__(self) -> "Checkpoints":
        self._check_process()
        self._process = os.getpid()
        self.wait()
        # the import of Orbax is slow: load Orbax before training, not during the first steps
        importlib.import_module("orbax.checkpoint")
        try:
            self._lock()
            if self._health is None:
                self._health = self._health_now()
            self._writer.begin(self._health)
        except BaseException:
            self._release()
            raise
        return self

    def _release(self) -> None:
        self.folder.release()
        self._process = None

    def _check_process(self) -> None:
        """Check that this process is no fork of the process that trains: both would write to one folder."""
        if self._process not in (None, os.getpid()):
            raise errors.CheckpointError(
                f"this process was forked from process {self._process}, which trains and writes to "
                f"{self.folder.name!r}; expected a fork that ends, as by os._exit(0), or a program that is started anew"
            )

    def _lock(self) -> None:
        """Lock the folder against other trainers; in a multi-process training, only the first process locks it.

        After an error, the caller releases the lock.
        """
        if not self._group.is_first:
            return
        self.folder.acquire()
        self.folder.sweep()
        if unknown := set(self.folder.steps()) - self._writer.known:
            raise errors.CheckpointError(
                f"{self.folder.name!r} holds checkpoints that were written since this Trainer was made: "
                f"{', '.join(map(str, sorted(unknown)))}; make a new Trainer to continue from them"
            )

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        # Save at the end of the `with` block, also after KeyboardInterrupt or SystemExit: the session then holds the
        # result of the last step. After any other exception, the state of the session is uncertain, so nothing is
        # saved. A fork of this process neither saves nor releases the lock, which belongs to this process.
        try:
            self._check_process()
        except errors.CheckpointError as forked:
            log.warning("nothing is saved: %s", forked)
            return
        try:
            if kind is None or (not issubclass(kind, Exception) and not self._is_alone_with(error)):
                self.save()
                self.wait()
        finally:
            self._writer.join()
            self._release()

    def _is_alone_with(self, error: BaseException) -> bool:
        """Return whether only this process of a multi-process training ends, and the others continue.

        A call of `sys.exit` ends one process; Ctrl-C and SIGTERM end all processes. If only this process ends, it must
        not save, because a save needs all processes.
        """
        agreed = isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and error.code == 143)
        return self._group.size > 1 and not agreed

    def ask(self) -> None:
        """Request a checkpoint after the current training step, or after the epoch if this step is its last step."""
        self._asked = True

    def steps_left(self) -> float:
        """Return the number of steps to the next save by `step_interval`, at least 1; infinity without the setting."""
        interval = self.config.step_interval
        return math.inf if interval is None else max(1, interval - self._since)

    def after_steps(self, call: DeviceCall) -> None:
        """Count the steps of one device call, and save if a checkpoint is due.

        At the last step of an epoch, the save waits for the end of the epoch.
        """
        if self._score is not None:
            self._score.add(call)
        self.count(len(call.results))

    def count(self, steps: int) -> None:
        """Count `steps` training steps, and save a checkpoint if one is due.

        After the last step of an epoch, `after_epoch` saves instead.
        """
        self._since += steps
        if self._due() and not self._progress.last:
            self.save()

    def after_epoch(self) -> None:
        """Save if a checkpoint is due: if one is requested, or if `step_interval` or `epoch_interval` has passed."""
        interval = self.config.epoch_interval
        if self._due() or (interval is not None and self._progress.epoch % interval == 0):
            self.save()

    def save(self) -> None:
        """Wait for the earlier save, then start to save the current step, unless this step is saved already.

        Raises:
          CheckpointError: the folder of the checkpoints does not exist any more; or this process was forked during the
            training.
        """
        self._check_process()
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
            "sites": creation_sites(self._session.scope.specs),
            "paths": creation_paths(self._session.scope.specs),
        }
        if (table := self._session.table) is not None:
            described["table"] = table
        position = self._progress.snapshot()
        self._writer.start(step, arrays, lambda: {"position": position(), **described, "versions": _versions()})

    def wait(self) -> None:
        """Wait until the newest save is complete or has failed."""
        self._writer.wait()

    @property
    def saved(self) -> bool:
        """True if the last save has succeeded, or nothing was saved."""
        return self._writer.lost is None

    def check_saved(self) -> None:
        """Check that the last save of a training has succeeded. The session keeps its parameters in any case.

        Raises:
          CheckpointError: the last save has failed, or was refused because arrays were not finite.
        """
        if self._writer.lost is None:
            return
        step, error = self._writer.lost
        checkpoint = f"what was trained is not saved: checkpoint {step} in {self.folder.name!r}"
        if isinstance(error, NotFiniteError):
            raise errors.CheckpointError(
                f"{checkpoint} was refused: {error}. A new Trainer continues from the newest checkpoint, and "
                f"handlers=[fluid.handlers.TerminateOnNaN(report=True)] says where the first NaN comes from"
            )
        raise errors.CheckpointError(
            f"{checkpoint} failed: {type(error).__name__}: "
            f"{str(error).partition(chr(10))[0][:300]}; the parameters are there: make room, and train() with the same "
            f"arguments saves them, or trainer.save_params(path) to another disk"
        ) from error

    def _is_best(self, value: float) -> bool:
        self.wait()
        improves = self._score is not None and self._score.improves(self.folder, value)
        return bool(self._group.of_first("whether this is the best value", improves))

    def _due(self) -> bool:
        interval = self.config.step_interval
        return self._asked or (interval is not None and self._since >= interval)

    def _newest(self, steps: Sequence[int]) -> tuple[int | None, dict[int, str]]:
        """Return a pair: the step of the newest complete checkpoint, and a dict of newer checkpoints that are damaged.

        The dict has the step of each damaged checkpoint, with a description of the damage. The first result is None if
        the folder holds no checkpoint.
        """
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

    def _health_now(self) -> Health:
        return Health.at_start(self._arrays(), self._session.engine.members)

    def _arrays(self) -> dict[str, Any]:
        """Return all arrays of the session: on the host, or in a multi-process training on the devices.

        On a CPU, the returned arrays share memory with the session. This is safe: before a training step donates
        (reuses) a shared buffer, XLA copies the buffer.
        """
        state = live_state(self._session)
        if self._group.size > 1:
            return state
        return dict(zip(state, jax.device_get(list(state.values())), strict=True))

    def _read(self, step: int) -> dict[str, Any]:
        """Return the arrays of the checkpoint at `step`, by name, on the host.

        Arrays that are divided among processes are returned on the devices, sharded as in the session.
        """
        try:
            shared = {n: a.sharding for n, a in live_state(self._session).items() if a.size and not is_here(a)}
            here = names_here(self._session.programs, self.folder.meta(step)["arrays"])
            divided = {there: shared[name] for there, name in here.items() if name in shared}
            found = self.folder.arrays(step, divided)
            # copy each array, because a training step donates (reuses) the buffers of its arrays; copying one array at
            # a time saves memory
            for name in divided:
                found[name] = own_array(found[name])
            return {here[name]: array for name, array in found.items()}
        except Exception as error:
            raise errors.CheckpointError(
                f"checkpoint {step} in {self.folder.name!r} is whole, but Orbax cannot read it: {error}; read it "
                f"with the versions that wrote it: {self.folder.meta(step).get('versions')}"
            ) from error


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("jax", "orbax-checkpoint")}


def _check_loop(position: Mapping[str, Any] | None, own_loop: bool, here: str) -> None:
    """Raise CheckpointError if a Trainer reads a checkpoint of a custom loop, or a loop reads one of a Trainer."""
    if position is None:
        raise errors.CheckpointError(f"{here} holds no position of a training; expected one that fluid has written")
    if ("states" in position) != own_loop:
        writer, reader = ("a Trainer", "fluid.Checkpoint of a loop of your own")[:: -1 if "states" in position else 1]
        raise errors.CheckpointError(
            f"{here} was written by {writer}, and is read by {reader}, which keeps another position in the data; "
            f"continue with what wrote it, or use another folder; its parameters alone: "
            f"fluid.Inferencer(program, checkpoint=folder)"
        )
