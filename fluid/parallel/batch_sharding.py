"""Batch sharding: the rows of each minibatch are divided over the axes "data" and "fsdp" of a mesh."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fluid.core import DATA, FSDP, Program
from fluid.place import own


class BatchSharding:
    """The shardings of feeds on a mesh: arrays with a batch dimension are divided by rows, others replicated."""

    def __init__(self, mesh: jax.sharding.Mesh):
        self._mesh = mesh
        self._device = mesh.local_devices[0]
        # `_whole`: names of feeds, parameters and states without a batch dimension, of which every device gets the
        # whole array.
        self._whole: set[str] = set()
        # True if feeds stay in host memory: on a single CPU device, the step itself transfers them fastest.
        self._takes_from_host = mesh.size == 1 and self._device.platform == "cpu"

    def add(self, program: Program) -> None:
        """Register the arrays of a program that have no batch dimension, so that their rows are not divided.

        These are some of the feeds, and all parameters and states, which a user can also feed.
        """
        self._whole |= {n for n, spec in program.feeds.items() if spec.shape[:1] != (None,)}
        self._whole |= program.parameters.keys() | program.states.keys()

    def sharding(self, name: str, shape: tuple[int, ...]) -> NamedSharding:
        """Return the sharding on the mesh that an array of the feed `name` has inside a compiled step."""
        return NamedSharding(self._mesh, PartitionSpec()) if name in self._whole else rows_sharding(shape, self._mesh)

    def fed(self, name: str, shape: tuple[int, ...]) -> NamedSharding | None:
        """Return the sharding of an array of the feed `name` after `take`; None if the array stays in host memory."""
        return None if self._takes_from_host else self.sharding(name, shape)

    def take(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Copy the arrays of a minibatch from the caller's memory, and divide their rows among the devices."""
        taken = {n: jax.tree.map(lambda array: own(array, self._device), value) for n, value in feed.items()}
        if self._takes_from_host and all(type(array) is np.ndarray for array in jax.tree.leaves(taken)):
            return taken
        shardings = {n: jax.tree.map(lambda a, n=n: self.sharding(n, a.shape), value) for n, value in taken.items()}
        # One call of `put` for all arrays, because each call of `jax.device_put` takes as long as a small step.
        placed: dict[str, Any] = put(taken, shardings)
        return placed

    def split(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Divide the rows of the arrays of a minibatch among the devices, inside a compiled step; see `split_rows`."""
        return {n: v if n in self._whole else split_rows(v, self._mesh) for n, v in feed.items()}


def batch_axes(mesh: jax.sharding.Mesh) -> tuple[str, ...]:
    """Return the axes of a mesh that divide the batch, outermost first."""
    return tuple(name for name in mesh.axis_names if name in (DATA, FSDP))


def split_rows(value: Any, mesh: jax.sharding.Mesh) -> Any:
    """Divide the rows of a value over the batch axes of a mesh, inside a compiled step; the numbers do not change.

    Rows that cannot be divided evenly are replicated before the step, and XLA divides them inside the step: some
    devices get fewer rows. So arrays keep the shape that the user passed, and sums need no mask.

    Args:
      value: an array `[batch, ...]`, or a tree of such arrays. An array with fewer rows than shards stays unchanged.
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
    """Return the sharding for a fed array `[batch, ...]`: divided by rows if they divide evenly, else replicated."""
    even = len(shape) > 0 and shape[0] > 0 and shape[0] % shards(mesh) == 0
    return _over_rows(mesh) if even else NamedSharding(mesh, PartitionSpec())


def rows_here(count: int, mesh: jax.sharding.Mesh) -> Collection[int]:
    """Return the indices of those rows of a minibatch of `count` rows that are on devices of this process.

    Example:
      >>> sorted(rows_here(3, jax.make_mesh((1,), ("data",))))
      [0, 1, 2]
    """
    if count % shards(mesh):
        return range(count)
    parts = _over_rows(mesh).addressable_devices_indices_map((count,)).values()
    return {row for (part,) in map(tuple, filter(None, parts)) for row in range(*part.indices(count))}


def put(value: Any, shardings: Any) -> Any:
    """Put a tree of arrays on devices. Every process passes the full arrays, and transfers only its own shards."""
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
