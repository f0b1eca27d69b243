"""A Session of shapes: its steps can be compiled for any mesh, and none of its arrays is ever made."""

import math
from collections.abc import Mapping
from typing import Any

import jax

from fluid.core import TRAIN, Program, stand_in
from fluid.parallel import OnMesh
from fluid.runtime import Request, Session

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


class ShapesOnly(Session):
    """A Session that has shapes in the place of arrays.

    Args:
      program: what would be trained.
      layout: where its arrays would lie.

    Attributes:
      program: the same.
    """

    def __init__(self, program: Program, layout: ShapesOnMesh):
        self._given_layout = layout
        super().__init__(program)
        self.program = program

    def _laid_out(self, *said: Any) -> OnMesh:
        return self._given_layout

    def feed_shapes(self, batch_size: int, time: int) -> dict[str, Any]:
        """The shapes of a minibatch.

        Args:
          batch_size: its rows.
          time: steps of each sequence.
        """
        specs = self.program.feeds
        shapes = jax.eval_shape(lambda: {n: stand_in(s, batch_size, (time, time)) for n, s in specs.items()})
        return self.layout.take(shapes)

    def lowered(self, feed: Mapping[str, Any]) -> jax.stages.Lowered:
        """The training step for such a minibatch."""
        return self.bind(self.program, Request(TRAIN, None, tuple(feed))).lowered(feed)


def bytes_of(tree: Any) -> int:
    """How many bytes of the arrays of a tree, or of shapes, one device holds."""

    def size(array: Any) -> int:
        return math.prod(array.sharding.shard_shape(array.shape)) * int(array.dtype.itemsize)

    return sum(map(size, jax.tree.leaves(tree)))
