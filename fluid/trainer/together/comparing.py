"""A comparison of all processes of a training, when the Trainer is created: programs, settings, parameters."""

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.core import Program
from fluid.distributed import Group
from fluid.runtime import Session
from fluid.trainer.checkpoint.match import describe_optimizers, digests_of


def compare(group: Group, session: Session, programs: Sequence[Program], **settings: Any) -> None:
    """Check that all processes train equal programs with equal settings and parameters, on all their devices.

    Args:
      group: the group of the processes.
      session: the session of the Trainer.
      programs: the trained programs.
      **settings: settings of the Trainer, as JSON.

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
    group.compare("their parameters", {n: _checksum_of(v) for n, v in sorted(session.state().items())})


def _described(program: Program) -> dict[str, list[str]]:
    """Return the feeds, arrays and outputs of a program, in words."""
    arrays = program.parameters | program.states
    return {
        "feeds": [f"{name} {spec.dtype}{list(spec.shape)}" for name, spec in program.feeds.items()],
        "arrays": [f"{name} {spec.dtype}{list(spec.shape)}" for name, spec in arrays.items()],
        "outputs": [str(output) for output in program.outputs],
    }


def _checksum_of(array: Any) -> str:
    """Return a checksum of an array that every device holds completely; of a sharded array, return the shape."""
    if isinstance(array, jax.Array) and not array.is_fully_replicated:
        return str(array.shape)
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()
