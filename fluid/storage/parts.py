"""A checkpoint of several processes: each writes its part, and the first one seals the whole once all have.

    DIR/
      40.writing-7a1c/
        arrays/
          ocdbt.process_0/   what process 0 holds of the arrays, and what all of them have alike
          ocdbt.process_1/   what process 1 holds
          manifest.ocdbt     made last: where each part of each array is

Orbax divides arrays by where their parts lie, so that no process ever has more of one than its own devices. What it
has written is one checkpoint, which any number of processes reads, each what it needs. Orbax's own way to wait for the
others has fixed time limits, and does not tell them that one has failed; so the processes agree through their `Group`
on whether all have written their parts. The unfinished folder has another name each time, since processes of a run that
was killed may still be writing when the next one begins.
"""

import asyncio
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from fluid import errors
from fluid.distributed import Group
from fluid.storage import seal
from fluid.storage.folder import ARRAYS, Folder, with_elements

T = TypeVar("T")


def write_together(
    folder: Folder,
    step: int,
    arrays: Mapping[str, Any],
    meta: Callable[[], Mapping[str, Any]],
    group: Group,
    copied: Callable[[], None],
) -> None:
    """Add a step to a folder that several processes share. All of them call this.

    Args:
      folder: the same in all processes.
      step: its number.
      arrays: by name; those of JAX may be divided among the processes, others are written by the first one.
      meta: gives what to keep beside the arrays, as JSON; called in the first process.
      group: the processes.
      copied: called when the arrays are on the host, and the caller may do with them what it wants.

    Raises:
      CheckpointError: one of them has failed. Nothing of the step stays then, and the other steps are as they were.
      DistributedError: one of them did not come in time. What is left is swept away by the next trainer.
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
    """Do something in all processes, which fails in all of them when it fails in one.

    Args:
      group: the processes.
      what: is done, in words.
      work: does it in this process, and returns JSON.

    Returns:
      What it has returned in each process.

    Raises:
      CheckpointError: it has failed in one of them; alone, whatever `work` raises.
      DistributedError: not all of them have come in time.

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
    told = group.exchange(what, [problem, result])
    for other, (reason, _) in enumerate(told):
        if reason is not None:
            raise errors.CheckpointError(f"{what}: process {other} has failed: {reason}") from failure
    return [found for _, found in told]


def in_first(group: Group, what: str, work: Callable[[], T]) -> T:
    """Do something in the first process; all get what it returns, or its failure. As `in_all` otherwise.

    Example:
      >>> in_first(Group(), "a sum", lambda: 1 + 2)
      3
    """
    # Of the others nobody reads the result.
    return in_all(group, what, work if group.is_first else lambda: None)[0]  # type: ignore[return-value]


def _begun(folder: Folder, step: int) -> str:
    """Make the folder to write to; returns its name."""
    temporary = folder.begin(step)
    (temporary / ARRAYS).mkdir(mode=0o700)
    return temporary.name


def _write_part(temporary: pathlib.Path, arrays: Mapping[str, Any], copied: Callable[[], None]) -> dict[str, str]:
    """Write what this process holds of the arrays; returns the checksums of the files, by name."""
    import orbax.checkpoint as ocp

    shared = {n: a if _is_shared(a) else np.asarray(a) for n, a in with_elements(arrays).items()}
    # Returns when all is on the host; what it returns are the writes that go on.
    writes = asyncio.run(_handler().async_save(temporary / ARRAYS, args=ocp.args.PyTreeSave(shared)))
    copied()
    for write in writes or []:
        write.result()
    own = f"{ARRAYS}/ocdbt.process_{jax.process_index()}"
    return seal.checksums(temporary, seal.files_below(temporary, own))


def _is_shared(array: Any) -> bool:
    """Whether an array belongs to all processes; what only this one has is written as an array of NumPy is."""
    return isinstance(array, jax.Array) and not array.is_fully_addressable


def _handler() -> Any:
    """What writes arrays and waits for no other process: of each part of an array its first replica."""
    import orbax.checkpoint as ocp

    kinds = ocp.type_handlers
    registry = kinds.create_type_handler_registry(
        (jax.Array, kinds.ArrayHandler(use_replica_parallel=False, enable_write_sharding_file=False)),
        (np.ndarray, kinds.NumpyHandler()),
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
