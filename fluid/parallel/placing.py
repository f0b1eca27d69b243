"""Where a feed lies: the one place at which rows of the host become arrays on the devices of a mesh."""

import math
from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fluid.parallel.mesh import batch_axes


def split_rows(value: Any, mesh: jax.sharding.Mesh) -> Any:
    """Divide the rows of a value over the axes of the batch, inside a compiled step; its numbers stay what they are.

    Rows that cannot be divided evenly lie on every device as a whole before; here each device gets its part of them. So
    arrays have the shape that the user gave, and nothing has to be left out of sums.

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


def rows_sharding(shape: tuple[int, ...], mesh: jax.sharding.Mesh) -> NamedSharding:
    """Where an array `[batch, ...]` of a feed lies: its rows on one device each, if they can be divided evenly."""
    even = len(shape) > 0 and shape[0] > 0 and shape[0] % shards(mesh) == 0
    return _over_rows(mesh) if even else NamedSharding(mesh, PartitionSpec())


def rows_here(count: int, mesh: jax.sharding.Mesh) -> Collection[int]:
    """Which rows of a minibatch of so many lie on devices of this process.

    Example:
      >>> sorted(rows_here(3, jax.make_mesh((1,), ("data",))))
      [0, 1, 2]
    """
    if count % shards(mesh):
        return range(count)
    parts = _over_rows(mesh).addressable_devices_indices_map((count,)).values()
    return {row for (part,) in map(tuple, filter(None, parts)) for row in range(*part.indices(count))}


def put(value: Any, shardings: Any) -> Any:
    """Put a tree of arrays on devices; in several processes, which all have the same, each puts what is its own.

    Args:
      value: arrays of NumPy or JAX.
      shardings: how each shall lie: a tree like that.

    Returns:
      The same, as arrays on the devices; in several processes each is that of all of them.
    """
    if all(sharding.is_fully_addressable for sharding in jax.tree.leaves(shardings)):
        return jax.device_put(value, shardings)
    return jax.tree.map(_put_here, value, shardings)


def _put_here(array: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    divided = isinstance(array, jax.Array) and not array.is_fully_addressable
    if sharding.is_fully_addressable or divided:
        return jax.device_put(array, sharding)
    here = np.asarray(array)
    return jax.make_array_from_callback(here.shape, sharding, lambda index: here[index])


def _over_rows(mesh: jax.sharding.Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(batch_axes(mesh)))
