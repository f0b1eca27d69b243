"""Where the arrays of checkpoints come from and go to, and whether all processes see the same folder."""

import secrets
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.distributed import Group
from fluid.distributed.arrays import is_here
from fluid.storage.folder import Folder


def on_host(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copies on the host. On a CPU they share memory with the arrays, and XLA copies what a step would take over."""
    for value in arrays.values():
        if isinstance(value, jax.Array):
            value.copy_to_host_async()
    return {name: np.asarray(value) for name, value in arrays.items()}


def read_onto(arrays: Mapping[str, Any]) -> dict[str, jax.sharding.Sharding]:
    """Where the arrays of a session lie that have elements and are divided among processes, by name."""
    return {name: value.sharding for name, value in arrays.items() if value.size and not is_here(value)}


def check_shared(folder: Folder, group: Group) -> None:
    """Refuse a folder that is another one in another process: a token that the first process writes must be seen.

    Raises:
      CheckpointError: it is, or it is in an object store.
    """
    if group.size == 1:
        return
    if not folder.is_local:
        raise errors.CheckpointError(
            f"{group.size} processes cannot keep checkpoints in {folder.name!r}: of a store only one process writes "
            f"them. Expected a folder that all processes share, such as one on a network file system"
        )
    token = folder.path / f"{group.of_first('the name of a token', secrets.token_hex(8))}.token"
    if group.is_first:
        token.touch()
    group.meet("the folder of checkpoints")
    seen = group.exchange("who sees the folder of checkpoints", token.exists())
    if group.is_first:
        token.unlink(missing_ok=True)
    if not all(seen):
        raise errors.CheckpointError(
            f"the folder of checkpoints, {folder.name!r}, is another one in process "
            f"{', '.join(str(i) for i, found in enumerate(seen) if not found)} than in process 0; expected a folder "
            f"that all processes share, such as one on a network file system"
        )
