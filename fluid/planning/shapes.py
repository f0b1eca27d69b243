"""Shapes instead of arrays: compile the steps of an Engine for any mesh without creating an array."""

import math
from collections.abc import Mapping
from typing import Any

import jax

from fluid.core import Program, stand_in
from fluid.parallel import OnMesh

# A shape and a dtype, with the sharding that the array would have.
Shape = jax.ShapeDtypeStruct


class ShapesOnMesh(OnMesh):
    """A layout on a mesh that returns shapes with their shardings instead of arrays."""

    def initial(self, program: Program, root: jax.Array | None) -> dict[str, Any]:
        """Return the shapes of a program's parameters and states, by name."""
        specs = program.parameters | program.states
        return {n: Shape(spec.shape, spec.dtype, sharding=self.sharding(n)) for n, spec in specs.items()}

    def slots(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the shapes of the initial optimizer state."""
        return self.slot_shapes(rule, parameters)

    def feed(self, program: Program, batch_size: int, time: int) -> dict[str, Any]:
        """Return the shapes of a minibatch, by name of feed.

        Args:
          program: the program to plan.
          batch_size: number of rows.
          time: number of steps of each sequence.
        """
        specs = program.feeds
        return self.take(jax.eval_shape(lambda: {n: stand_in(s, batch_size, (time, time)) for n, s in specs.items()}))

    def take(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the shapes of a feed, by name."""
        return {n: jax.tree.map(lambda array, name=n: self._fed(name, array), value) for n, value in feed.items()}

    def _fed(self, name: str, array: Any) -> Shape:
        return Shape(array.shape, array.dtype, sharding=self.sharding_in_step(name, array.shape))


def bytes_of(tree: Any) -> int:
    """Return the number of bytes that one device holds of a tree of arrays or shapes."""

    def size(array: Any) -> int:
        return math.prod(array.sharding.shard_shape(array.shape)) * int(array.dtype.itemsize)

    return sum(map(size, jax.tree.leaves(tree)))
