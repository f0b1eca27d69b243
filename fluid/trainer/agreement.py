"""Multi-process training: processes compare their programs at the start, and agree after each step when to end."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.core import Program
from fluid.distributed import Group
from fluid.reader.pipeline import Batches
from fluid.runtime import Session
from fluid.runtime.state_io import live_state
from fluid.trainer.checkpoint.checkpoints import describe_optimizers, digests_of
from fluid.trainer.device_calls import DeviceCall, Policy
from fluid.trainer.resume import Progress
from fluid.trainer.signals import Signals

_NONE = "none"

log = logging.getLogger("fluid")


class Agreement(Policy):
    """A hook of the training loop that makes all processes end each epoch, and the training, after the same step.

    With a single process, the hook only records whether the step is the last one of its epoch.

    `stop()`, `pause()` or a signal in one process ends the training of all processes. An epoch ends for all processes
    when the data of one process ends, or when the next minibatches of the processes differ in shape, because all
    processes compute one step together.

    Args:
      requested: a function that returns two flags of this process: True if `stop()` or `pause()` was called, and True
        if `pause()` was called.

    Example:
      >>> from types import SimpleNamespace
      >>> from fluid.distributed import Group
      >>> progress = Progress()
      >>> agreement = Agreement(Group(), Signals(), progress, requested=lambda: (False, False), stop=print, pause=print)
      >>> agreement.after_steps(SimpleNamespace(batches=SimpleNamespace(ended=True)))
      >>> progress.last
      True
    """

    def __init__(
        self,
        group: Group,
        signals: Signals,
        progress: Progress,
        requested: Callable[[], tuple[bool, bool]],
        stop: Callable[[], None],
        pause: Callable[[], None],
    ):
        self._group = group
        self._signals = signals
        self._progress = progress
        self._requested = requested
        self._stop = stop
        self._pause = pause

    @property
    def needs_end(self) -> bool:
        """True in a multi-process training: the loop then reads the next minibatch early, to know if the data ends."""
        return self._group.size > 1

    def before_epoch(self, batches: Batches) -> bool:
        """Agree with the other processes of the training whether an epoch has a first step."""
        return self._group.size > 1 and self._agree(batches) and not batches.ended

    def after_steps(self, call: DeviceCall) -> None:
        """Find out whether the epoch ends after this step, together with all other processes; set `progress.last`."""
        batches = call.batches
        self._progress.last = batches.ended if self._group.size == 1 else self._agree(batches)

    def _agree(self, batches: Batches) -> bool:
        epoch, step = self._progress.epoch, self._progress.step
        here = [*self._requested(), self._signals.received, _upcoming(batches)]
        exchanged = self._group.exchange(f"what comes after step {step} of epoch {epoch}", here)
        stopping, pausing, signals, upcoming = ([each[i] for each in exchanged] for i in range(4))
        if any(pausing):
            self._pause()
        elif any(stopping):
            self._stop()
        self._signals.arrived = next((number for number in signals if number is not None), None)
        if any(stopping) or self._signals.arrived is not None:
            return all(shapes == _NONE for shapes in upcoming)
        differ = any(shapes != upcoming[0] for shapes in upcoming)
        if differ:
            log.warning(
                "epoch %d ends after %d steps, since the next minibatches differ: %s; expected a reader that gives the "
                "same minibatches in all processes",
                epoch,
                step,
                ", ".join(f"{shapes} in process {i}" for i, shapes in enumerate(upcoming)),
            )
        return differ or upcoming[0] == _NONE


def _upcoming(batches: Batches) -> str:
    """Return the shapes of the feeds (input arrays) in the next minibatch, as text; "none" at the end of the data."""
    if batches.ended:
        return _NONE
    batch = batches.upcoming
    return "unknown" if batch is None else ", ".join(f"{n} {list(v.shape)}" for n, v in sorted(batch.feed.items()))


def compare(group: Group, session: Session, programs: Sequence[Program], **settings: Any) -> None:
    """Check that all processes train equal programs, with equal settings and equal parameters.

    Raises:
      DistributedError: a setting, a program, an optimizer or a parameter differs.
      ArgumentError: the session does not use the devices of all processes.
    """
    if group.size == 1:
        return
    mesh = session.engine.layout.mesh
    if mesh is None or len({device.process_index for device in mesh.devices.flat}) < group.size:
        raise errors.ArgumentError(
            f"{group.size} processes run this program, and each would train by itself; to train together, "
            f"fluid.Trainer(..., parallel=True), without place="
        )
    described = {
        **settings,
        "the mesh": dict(mesh.shape),
        **{f"the program {program.name}": _described(program) for program in programs},
        "the optimizer": describe_optimizers(programs),
        "what the layers compute": digests_of(programs),
    }
    group.compare("what they train", described)
    group.compare("their parameters", {n: _checksum_of(v) for n, v in sorted(live_state(session).items())})


def _described(program: Program) -> dict[str, list[str]]:
    """Return strings with the name, dtype and shape of each feed, parameter, state and output of a program."""
    arrays = program.parameters | program.states
    return {
        "feeds": [f"{name} {spec.dtype}{list(spec.shape)}" for name, spec in program.feeds.items()],
        "arrays": [f"{name} {spec.dtype}{list(spec.shape)}" for name, spec in arrays.items()],
        "outputs": [str(output) for output in program.outputs],
    }


def _checksum_of(array: Any) -> str:
    if isinstance(array, jax.Array) and not array.is_fully_replicated:
        return str(array.shape)
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()
