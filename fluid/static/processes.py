"""Runs of an Executor in several processes: each process feeds its rows, and all compute the whole minibatch."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.compat.lod_tensor import LoDTensor
from fluid.distributed import group
from fluid.static.tape import values


def check_processes(what: str, count: int) -> None:
    """Check that exactly `count` processes are connected; `what` names the caller in the message.

    Raises:
      DistributedError: more or fewer processes are connected.
    """
    if group().size != count:
        raise errors.DistributedError(
            f"{what} says that {count} processes train together, and this process has found {group().size}; start "
            f"all of them on this machine by python -m fluid launch --processes {count} train.py, or on several as "
            f"docs/distributed.md shows"
        )


def feeds_of_all(feed: Mapping[str, Any], divided: Collection[str]) -> list[dict[str, Any]]:
    """Return the feed of each process, in the order of the processes.

    All processes must call this function for each run; they wait for each other.

    Args:
      feed: arrays, LoDTensors or batches of sequences by name.
      divided: names of the feeds whose rows differ from process to process.

    Raises:
      ArgumentTypeError: a feed is a list; DistributedError: the processes run different programs.
    """
    here = {name: _part(name, feed[name]) for name in sorted(divided)}
    told = group().exchange(
        "the feeds of exe.run", {n: [str(data.dtype), data.shape, lengths] for n, (data, lengths) in here.items()}
    )
    if any(theirs.keys() != here.keys() for theirs in told):
        raise errors.DistributedError(f"the processes feed different names: {[list(theirs) for theirs in told]}")
    found: list[dict[str, Any]] = [{} for _ in told]
    for name, (data, _) in here.items():
        kinds = [theirs[name] for theirs in told]
        every = _bytes_of_all(data, [math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape, _ in kinds])
        for part, content, (dtype, shape, lengths) in zip(found, every, kinds, strict=True):
            array = np.frombuffer(content, dtype).reshape(shape)
            part[name] = LoDTensor(array, lengths) if lengths else array
    return found


def _part(name: str, value: Any) -> tuple[np.ndarray, list[list[int]]]:
    """Return the array of a feed, and at each LoD level the lengths of its sequences."""
    if isinstance(value, list | tuple):
        raise errors.ArgumentTypeError(
            f"the feed {name!r} is a list, and the rows of several processes are put together; feed an array or a "
            f"LoDTensor: fluid.create_lod_tensor(rows, [lengths], place)"
        )
    if isinstance(value, values.SEQUENCES):
        value = LoDTensor.of(jax.tree.map(np.asarray, value))
    lengths = value.recursive_sequence_lengths() if isinstance(value, LoDTensor) else []
    return np.ascontiguousarray(value), lengths


def _bytes_of_all(data: np.ndarray, sizes: list[int]) -> list[bytes]:
    """Return the bytes of `data` from each process; `sizes` has the number of bytes in each process.

    The processes exchange bytes, because a device would convert numbers to other dtypes.
    """
    from jax.experimental import multihost_utils  # loaded on use: a single process never needs it

    flat = np.frombuffer(data.tobytes(), np.uint8)
    every = multihost_utils.process_allgather(np.pad(flat, (0, max(sizes) - flat.size)))
    return [row[:size].tobytes() for row, size in zip(np.reshape(every, (len(sizes), -1)), sizes, strict=True)]
