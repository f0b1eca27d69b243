"""Checkpoints of several processes: each process writes its part, the first one seals the folder with checksums.

    DIR/
      40.writing-7a1c/
        arrays/
          ocdbt.process_0/   shards of process 0, and the arrays that are equal in all processes
          ocdbt.process_1/   shards of process 1
          manifest.ocdbt     written last: the location of each part of each array

Orbax divides arrays by their shardings, so no process holds more of an array than its own devices hold. The result is
one checkpoint: any number of processes can read it, and each process reads only its parts. Orbax's own synchronization
has fixed time limits, and does not report that another process has failed. The processes therefore exchange
messages through a `Group`, to confirm that all have written their parts. The unfinished folder has a new name each
time, because processes of a killed run may still write when the next run begins.
"""

import asyncio
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from fluid import errors
from fluid.checkpoint import integrity
from fluid.checkpoint.folder import ARRAYS, Folder, with_elements
from fluid.distributed import Group

T = TypeVar("T")


def write_together(
    folder: Folder,
    step: int,
    arrays: Mapping[str, Any],
    meta: Callable[[], Mapping[str, Any]],
    group: Group,
    copied: Callable[[], None],
) -> None:
    """Write a checkpoint to a folder that several processes share. Every process must call this function.

    Args:
      arrays: the arrays by name. JAX arrays may be divided among the processes; the first process writes all other
        arrays.

    Raises:
      CheckpointError: a process has failed. The new checkpoint is removed, and all earlier checkpoints stay unchanged.
      DistributedError: a process did not arrive in time. The next trainer removes the unfinished checkpoint.
    """
    name = in_first(group, "a checkpoint that begins", lambda: _begun(folder, step))
    temporary = folder.path / name
    try:
        parts = in_all(group, "the parts of a checkpoint", lambda: _write_part(temporary, arrays, copied))
        sealed = {name: checksum for part in parts[1:] for name, checksum in part.items()}

        def finish() -> None:
            _handler().finalize(temporary / ARRAYS)
            folder.finish(temporary, step, arrays, meta(), sealed)

        in_first(group, "the seal of a checkpoint", finish)
    except errors.CheckpointError:
        if group.is_first:
            folder.discard(temporary)
        raise


def in_all(group: Group, what: str, work: Callable[[], T]) -> list[T]:
    """Run `work` in all processes; if it fails in one process, fail in all processes.

    Raises:
      CheckpointError: `work` has failed in a process. With a single process, exceptions of `work` propagate.
      DistributedError: a process did not arrive in time.

    Example:
      >>> in_all(Group(), "a sum", lambda: 1 + 2)
      [3]
    """
    if group.size == 1:
        return [work()]
    result = None
    failure = None
    problem = None
    try:
        result = work()
    except Exception as error:
        failure = error
        problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
    exchanged = group.exchange(what, [problem, result])
    for other, (reason, _) in enumerate(exchanged):
        if reason is not None:
            raise errors.CheckpointError(f"{what}: process {other} has failed: {reason}") from failure
    return [found for _, found in exchanged]


def in_first(group: Group, what: str, work: Callable[[], T]) -> T:
    """Run the function `work` in the first of several processes, and return its result in all processes.

    If `work` fails, all processes raise an error; see `in_all`.

    Example:
      >>> in_first(Group(), "a sum", lambda: 1 + 2)
      3
    """
    # `in_all` returns a list with one result for each process. Only the first process has called `work`, so the other
    # results are None.
    return in_all(group, what, work if group.is_first else lambda: None)[0]  # type: ignore[return-value]


def _begun(folder: Folder, step: int) -> str:
    temporary = folder.begin(step)
    (temporary / ARRAYS).mkdir(mode=0o700)
    return temporary.name


def _write_part(temporary: pathlib.Path, arrays: Mapping[str, Any], copied: Callable[[], None]) -> dict[str, str]:
    """Write the arrays and shards of this process; return the checksums of the files by name."""
    import orbax.checkpoint as ocp

    shared = {n: a if _is_shared(a) else np.asarray(a) for n, a in with_elements(arrays).items()}
    # `async_save` returns after the copy to the host; its results are the writes that are still in progress.
    writes = asyncio.run(_handler().async_save(temporary / ARRAYS, args=ocp.args.PyTreeSave(shared)))
    copied()
    for write in writes or []:
        write.result()
    own = f"{ARRAYS}/ocdbt.process_{jax.process_index()}"
    return integrity.checksums(temporary, integrity.files_below(temporary, own))


def _is_shared(array: Any) -> bool:
    """Return whether an array has shards on devices of other processes.

    A checkpoint stores all other arrays as NumPy arrays.
    """
    return isinstance(array, jax.Array) and not array.is_fully_addressable


def _handler() -> Any:
    """Return an Orbax handler that writes the first replica of each shard, without waiting for other processes."""
    import orbax.checkpoint as ocp

    kinds = ocp.type_handlers
    registry = kinds.create_type_handler_registry(
        (jax.Array, kinds.ArrayHandler(use_replica_parallel=False, enable_write_sharding_file=False)),
        (np.ndarray, kinds.NumpyHandler()),
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
