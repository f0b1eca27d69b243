"""Values of variables in a run: arrays, sequence batches, and the arrays that loops write."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core
from fluid.layers.control.tensor_array import TensorArray
from fluid.layers.structured.beam import Beams

SEQUENCES = (core.SequenceBatch, core.NestedSequenceBatch)


def is_leaf(value: Any) -> bool:
    """Return whether a value belongs to one variable as a whole, although JAX sees a tree of arrays."""
    return isinstance(value, (*SEQUENCES, TensorArray, Beams))


def is_value(value: Any) -> bool:
    """Return whether a value can be fetched: an array or a sequence batch."""
    return isinstance(value, SEQUENCES) or (hasattr(value, "dtype") and hasattr(value, "shape"))


def leaves(tree: Any) -> list[Any]:
    """Return the values in a layer's result, in order."""
    return jax.tree.leaves(tree, is_leaf=is_leaf)


def dense_of(value: Any) -> Any:
    """Return the padded array of a batch of sequences; return an array unchanged. Shapes are treated as arrays."""
    return value.data if isinstance(value, SEQUENCES) else value


def single_steps(tree: Any) -> Any:
    """Replace sequences of one step in a tree by rows.

    A sequence of any other length becomes a row of NaN, of the smallest integer, or of False.
    """

    def rows(value: Any) -> Any:
        if not isinstance(value, core.SequenceBatch):
            return value
        first = core.filled(value, 0)[:, 0]
        is_single = (value.lengths == 1).reshape(-1, *[1] * (first.ndim - 1))
        if first.dtype == bool:
            return first & is_single
        nothing = jnp.nan if jnp.issubdtype(first.dtype, jnp.inexact) else jnp.iinfo(first.dtype).min
        return jnp.where(is_single, first, nothing)

    return jax.tree.map(rows, tree, is_leaf=is_leaf)


def with_known_sizes(tree: Any, unknown: int) -> Any:
    """Resize arrays in a tree: an inner size of `unknown` becomes the known size of another array in this dimension.

    Args:
      tree: arrays; only arrays of the same rank are compared.
      unknown: the trial batch size, which stands for unknown sizes.
    """
    arrays = [value for value in leaves(tree) if is_value(value)]

    def size(i: int, own: int, rank: int) -> int:
        known = [a.shape[i] for a in arrays if a.ndim == rank and a.shape[i] not in (1, unknown)]
        return known[0] if i and own == unknown and known else own

    def resized(value: Any) -> Any:
        if not is_value(value):
            return value
        return jnp.resize(value, tuple(size(i, own, value.ndim) for i, own in enumerate(value.shape)))

    return jax.tree.map(resized, tree, is_leaf=is_leaf)


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
