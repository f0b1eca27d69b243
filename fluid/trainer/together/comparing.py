"""Whether the processes of a training train the same thing: compared once, when the Trainer is made."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.core import Program
from fluid.distributed import Group
from fluid.runtime import Session
from fluid.runtime.state_io import origins_of
from fluid.storage import packed
from fluid.trainer.checkpoint.match import describe_optimizers


def compare(group: Group, session: Session, programs: Sequence[Program], **settings: Any) -> None:
    """Refuse to train in several processes what differs in them, or what would be trained in each by itself.

    Args:
      group: of the processes.
      session: that of the Trainer.
      programs: what is trained.
      **settings: of the Trainer, as JSON.

    Raises:
      DistributedError: a setting, a program, an optimizer or a parameter differs.
      ArgumentError: the session does not work on the devices of all processes.
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
        "what the layers compute": _checksum(json.dumps(packed(origins_of(session.programs)), sort_keys=True).encode()),
    }
    group.compare("what they train", described)
    group.compare("their parameters", {n: _checksum_of(v) for n, v in sorted(session.state().items())})


def _described(program: Program) -> dict[str, list[str]]:
    """The feeds, parameters and outputs of a program, in words."""
    arrays = program.parameters | program.states
    return {
        "feeds": [f"{name} {spec.dtype}{list(spec.shape)}" for name, spec in program.feeds.items()],
        "arrays": [f"{name} {spec.dtype}{list(spec.shape)}" for name, spec in arrays.items()],
        "outputs": [str(output) for output in program.outputs],
    }


def _checksum_of(array: Any) -> str:
    """A checksum of an array that lies on every device as a whole; of others the shape has to do."""
    if isinstance(array, jax.Array) and not array.is_fully_replicated:
        return str(array.shape)
    return _checksum(np.ascontiguousarray(array).tobytes())


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
