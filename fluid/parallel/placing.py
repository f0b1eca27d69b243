"""Feeds on a mesh: rows on the host become arrays on the devices."""

import math
from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fluid.parallel.mesh import batch_axes


def split_rows(value: Any, mesh: jax.sharding.Mesh) -> Any:
    """Divide the rows of a value over the axes of the batch, inside a compiled step.

    The numbers do not change. If the rows cannot be divided evenly, each device has all of them before the step, and
    only its shard of them after this function. So arrays keep the shape from the user, and sums need no mask. XLA can
    divide a number of rows that is no multiple of the number of devices: some devices get fewer rows.

    Args:
      value: array `[batch, ...]`, or a tree of them; an array with fewer rows than shards is returned as it is.
      mesh: the devices.
    """

    def split(array: Any) -> Any:
        if not array.ndim or array.shape[0] < shards(mesh):
            return array
        return jax.lax.with_sharding_constraint(array, _over_rows(mesh))

    return jax.tree.map(split, value)


def shards(mesh: jax.sharding.Mesh) -> int:
    """Return the number of shards into which a mesh divides the batch."""
    return math.prod(mesh.shape[axis] for axis in batch_axes(mesh))


def rows_sharding(shape: tuple[int, ...], mesh: jax.sharding.Mesh) -> NamedSharding:
    """Return the sharding of an array `[batch, ...]` of a feed: by rows if they divide evenly, else whole."""
    even = len(shape) > 0 and shape[0] > 0 and shape[0] % shards(mesh) == 0
    return _over_rows(mesh) if even else NamedSharding(mesh, PartitionSpec())


def rows_here(count: int, mesh: jax.sharding.Mesh) -> Collection[int]:
    """Return the indices of the rows, of a minibatch of `count` rows, that are on devices of this process.

    Example:
      >>> sorted(rows_here(3, jax.make_mesh((1,), ("data",))))
      [0, 1, 2]
    """
    if count % shards(mesh):
        return range(count)
    parts = _over_rows(mesh).addressable_devices_indices_map((count,)).values()
    return {row for (part,) in map(tuple, filter(None, parts)) for row in range(*part.indices(count))}


def put(value: Any, shardings: Any) -> Any:
    """Put a tree of arrays on devices; every process passes the whole arrays and puts its own shards.

    Args:
      value: a tree of arrays of NumPy or JAX.
      shardings: a tree of shardings with the structure of `value`.

    Returns:
      The tree as arrays on the devices; with several processes, each is one global array.
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
