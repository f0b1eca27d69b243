"""Where a feed lies: the one place at which rows of the host become arrays on the devices of a mesh."""

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fluid.parallel.mesh import batch_axes


def place_rows(value: Any, mesh: jax.sharding.Mesh, whole: bool = False) -> Any:
    """Put the rows of a minibatch on the devices of a mesh, divided over the axes of the batch.

    Rows that cannot be divided evenly are put on every device as a whole; `split_rows`, in the compiled step, gives
    each device its part of them. So the arrays have the shape that the user gave, and nothing has to be left out of
    sums.

    In several processes the devices of the mesh belong to all of them, and each process calls this with rows of its
    own: an equal share of the minibatch, the first process having the first rows, in a number that its own devices
    divide. The array that each of them gets back is that of the whole minibatch, of which it holds the rows on its own
    devices. A minibatch that cannot be divided so is given as a whole, by all processes alike; who reads must say so,
    since nobody here knows how many rows the others have.

    Args:
      value: array `[batch, ...]`, of NumPy or JAX, or a tree of them, such as a SequenceBatch.
      mesh: the devices.
      whole: in several processes, whether this is the whole minibatch instead of a share of it.

    Returns:
      The same, as arrays on the mesh. They share no memory with those of NumPy.
    """
    return jax.tree.map(lambda array: _placed(array, mesh, whole), value)


def split_rows(value: Any, mesh: jax.sharding.Mesh) -> Any:
    """Divide the rows of a value over the axes of the batch, inside a compiled step; its numbers stay what they are.

    XLA divides what is no multiple of the number of devices, too: some get fewer rows, and the sums know it.

    Args:
      value: array `[batch, ...]`, or a tree of them.
      mesh: the devices.
    """

    def split(array: Any) -> Any:
        if not array.ndim or array.shape[0] < shards(mesh):
            return array
        return jax.lax.with_sharding_constraint(array, _over_rows(mesh))

    return jax.tree.map(split, value)


def shards(mesh: jax.sharding.Mesh) -> int:
    """Into how many parts a mesh divides the batch."""
    return math.prod(mesh.shape[axis] for axis in batch_axes(mesh))


def own(value: Any, device: jax.Device) -> Any:
    """An array that later changes of the caller's memory do not reach once it lies on a device of this kind."""
    on_host = isinstance(value, np.ndarray) and device.platform == "cpu"
    return np.array(value) if on_host or not isinstance(value, np.ndarray | jax.Array) else value


def _placed(array: Any, mesh: jax.sharding.Mesh, whole: bool) -> jax.Array:
    array = own(array, mesh.local_devices[0])
    if mesh.is_multi_process and not whole and array.ndim:
        return jax.make_array_from_process_local_data(_over_rows(mesh), np.asarray(array))
    even = array.ndim > 0 and array.shape[0] > 0 and array.shape[0] % shards(mesh) == 0
    return jax.device_put(array, _over_rows(mesh) if even else NamedSharding(mesh, PartitionSpec()))


def _over_rows(mesh: jax.sharding.Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(batch_axes(mesh)))
