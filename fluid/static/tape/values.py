"""What a variable may hold in a run: arrays, sequence batches, and the arrays that loops write."""

from typing import Any

import jax

from fluid import core
from fluid.layers.control.tensor_array import TensorArray
from fluid.layers.structured.beam_rows import Beams

SEQUENCES = (core.SequenceBatch, core.NestedSequenceBatch)


def is_leaf(value: Any) -> bool:
    """Whether a value is held by one variable, although JAX would take it apart."""
    return isinstance(value, (*SEQUENCES, TensorArray, Beams))


def is_value(value: Any) -> bool:
    """Whether a value is an array or a sequence batch: what can be fetched."""
    return isinstance(value, SEQUENCES) or (hasattr(value, "dtype") and hasattr(value, "shape"))


def leaves(tree: Any) -> list[Any]:
    """The values in what a layer returned, in order."""
    return jax.tree.leaves(tree, is_leaf=is_leaf)


def dense_of(value: Any) -> Any:
    """The array of a value, with its padding; or what stands for one."""
    return value.data if isinstance(value, SEQUENCES) else value


def at_batch(first: Any, second: Any, batches: tuple[int, int], batch: int) -> Any:
    """What stands for a value when the program runs with another batch size than the two that were tried.

    Args:
      first: what stands for it at the first of two batch sizes.
      second: the same at the second.
      batches: these two.
      batch: the third, which may be a symbol.
    """

    def size(a: int, b: int) -> Any:
        slope = (b - a) // (batches[1] - batches[0])
        return a + slope * (batch - batches[0]) if slope else a

    def struct(a: Any, b: Any) -> Any:
        return jax.ShapeDtypeStruct(tuple(map(size, a.shape, b.shape)), a.dtype)

    return jax.tree.map(struct, first, second)
