"""Shapes instead of arrays: the steps of an Engine can be compiled for any mesh, and no array is created."""

import math
from collections.abc import Mapping
from typing import Any

import jax

from fluid.core import Program, stand_in
from fluid.parallel import OnMesh
from fluid.runtime.engine import Engine

# A shape, and where an array of it would lie.
Shape = jax.ShapeDtypeStruct


class ShapesOnMesh(OnMesh):
    """Where arrays would lie."""

    def initial(self, program: Program, root: jax.Array | None) -> dict[str, Any]:
        """The shapes of a program's parameters and states, by name."""
        specs = program.parameters | program.states
        return {n: Shape(spec.shape, spec.dtype, sharding=self.sharding(n)) for n, spec in specs.items()}

    def slots(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """The shapes of what a rule keeps."""
        return self.slot_shapes(rule, parameters)

    def take(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """The shapes of a feed."""
        return {n: jax.tree.map(lambda array, name=n: self._fed(name, array), value) for n, value in feed.items()}

    def _fed(self, name: str, array: Any) -> Shape:
        return Shape(array.shape, array.dtype, sharding=self.sharding_in_step(name, array.shape))


def feed_shapes(engine: Engine, program: Program, batch_size: int, time: int) -> dict[str, Any]:
    """Return the shapes of a minibatch with their shardings, by name of feed.

    Args:
      engine: its layout is a ShapesOnMesh.
      program: the program that would be trained.
      batch_size: number of rows.
      time: steps of each sequence.
    """
    specs = program.feeds
    shapes = jax.eval_shape(lambda: {n: stand_in(s, batch_size, (time, time)) for n, s in specs.items()})
    return engine.layout.take(shapes)


def bytes_of(tree: Any) -> int:
    """How many bytes of the arrays of a tree, or of shapes, one device holds."""

    def size(array: Any) -> int:
        return math.prod(array.sharding.shard_shape(array.shape)) * int(array.dtype.itemsize)

    return sum(map(size, jax.tree.leaves(tree)))
