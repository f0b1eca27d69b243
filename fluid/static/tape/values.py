"""Values of variables in a run: arrays, sequence batches, and the arrays that loops write."""

from typing import Any

import jax

from fluid import core
from fluid.layers.control.tensor_array import TensorArray
from fluid.layers.structured.beam import Beams

SEQUENCES = (core.SequenceBatch, core.NestedSequenceBatch)


def is_leaf(value: Any) -> bool:
    """Return whether one variable holds a value, although the value is a tree for JAX."""
    return isinstance(value, (*SEQUENCES, TensorArray, Beams))


def is_value(value: Any) -> bool:
    """Return whether a value can be fetched: an array or a sequence batch."""
    return isinstance(value, SEQUENCES) or (hasattr(value, "dtype") and hasattr(value, "shape"))


def leaves(tree: Any) -> list[Any]:
    """Return the values in a layer's result, in order."""
    return jax.tree.leaves(tree, is_leaf=is_leaf)


def dense_of(value: Any) -> Any:
    """Return the array of a value, with its padding; or the shape of that array."""
    return value.data if isinstance(value, SEQUENCES) else value


def at_batch(first: Any, second: Any, batches: tuple[int, int], batch: int) -> Any:
    """Return the shape of a value at another batch size than the two trial batch sizes.

    Args:
      first: the shape at the first trial batch size.
      second: the shape at the second trial batch size.
      batches: the two trial batch sizes.
      batch: the other batch size, which may be symbolic.
    """

    def size(a: int, b: int) -> Any:
        slope = (b - a) // (batches[1] - batches[0])
        return a + slope * (batch - batches[0]) if slope else a

    def struct(a: Any, b: Any) -> Any:
        return jax.ShapeDtypeStruct(tuple(map(size, a.shape, b.shape)), a.dtype)

    return jax.tree.map(struct, first, second)
