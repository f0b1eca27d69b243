"""Layers that find the largest, smallest or distinct elements, and layers that sort."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, dense, describe, layer, like
from fluid.layers.checks import dtype_of, inner_axis_of

_ROWS = core.default(0)


@layer
def topk(input: Value, k: int, name: str | None = None) -> tuple[Any, Any]:
    """Return the `k` largest elements along the last dimension, the largest first, and their indices.

    Args:
      input: `[..., n]`, or a SequenceBatch.
      k: the number of elements.
      name: name of the layer; by default `top_k_N`.

    Returns:
      `(values, indices)`, both `[..., k]`, and SequenceBatches if the input is one.

    Raises:
      ArgumentError: `k` is not between 1 and `n`.
      ShapeError: the input has no dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.topk(fluid.layers.data("x", shape=[10]), k=3)
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 3] int32[batch, 3]
    """
    this = Layer("top_k", name)
    array = dense(input)
    if array.ndim == 0:
        raise errors.ShapeError(f"{this.name}: {describe(input)} is a single number; expected [..., n]")
    values, places = jax.lax.top_k(array, core.whole_number(this.name, "k", k, most=array.shape[-1]))
    return this.output(like(input, values)), this.output(like(input, places))


@layer
def argmax(x: Value, axis: int = _ROWS, name: str | None = None) -> Any:
    """Return the index of the largest element along a dimension.

    Args:
      x: an array of any shape, or a SequenceBatch.
      axis: the dimension. The default is 0, with a warning if dimension 0 is the batch; -1 searches in each row.
      name: name of the layer; by default `arg_max_N`.

    Returns:
      Integers, in the shape of `x` without the dimension `axis`.

    Raises:
      ArgumentError: the axis does not exist, or is the row dimension of a SequenceBatch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.argmax(fluid.layers.data("x", shape=[10]), axis=-1)
      >>> print(fluid.Program(program).outputs[0])
      int32[batch]
    """
    this = Layer("arg_max", name)
    _doubt_rows(this, x, axis)
    return this.output(like(x, jnp.argmax(dense(x), axis=inner_axis_of(this, x, axis))))


@layer
def argmin(x: Value, axis: int = _ROWS, name: str | None = None) -> Any:
    """Return the index of the smallest element along a dimension.

    Args:
      x: an array of any shape, or a SequenceBatch.
      axis: the dimension. The default is 0, with a warning if dimension 0 is the batch; -1 searches in each row.
      name: name of the layer; by default `arg_min_N`.

    Returns:
      Integers, in the shape of `x` without the dimension `axis`.

    Raises:
      ArgumentError: the axis does not exist, or is the row dimension of a SequenceBatch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.argmin(fluid.layers.data("x", shape=[10]), axis=-1)
      >>> print(fluid.Program(program).outputs[0])
      int32[batch]
    """
    this = Layer("arg_min", name)
    _doubt_rows(this, x, axis)
    return this.output(like(x, jnp.argmin(dense(x), axis=inner_axis_of(this, x, axis))))


def _doubt_rows(this: Layer, value: Value, axis: int) -> None:
    """Warn if `argmax` or `argmin` with the default `axis` compares rows of the batch with each other."""
    array = dense(value)
    if core.is_default(axis) and array.ndim > 1 and array.shape[0] == this.frame.placeholder_batch:
        core.doubt_reading(
            f"{this.name} compares the rows of the batch {describe(value)}, and finds one row for each column; axis=-1 "
            f"for the largest or smallest number of each row, axis=0 if rows are meant"
        )


@layer
def argsort(input: Value, axis: int = -1, descending: bool = False, name: str | None = None) -> tuple[Any, Any]:
    """Sort along a dimension, and return the original index of each element. The sort is stable.

    Args:
      input: an array of any shape, or a SequenceBatch.
      axis: the dimension.
      descending: whether the largest element comes first, instead of the smallest.
      name: name of the layer; by default `argsort_N`.

    Returns:
      `(sorted, indices)`, both with the type (array or SequenceBatch) and the shape of the input.

    Raises:
      ArgumentError: the axis does not exist, or is the row dimension of a SequenceBatch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.argsort(fluid.layers.data("x", shape=[10]), descending=True)
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 10] int32[batch, 10]
    """
    this = Layer("argsort", name)
    array = dense(input)
    place = inner_axis_of(this, input, axis)
    order = jnp.argsort(array, axis=place, descending=descending)
    return (
        this.output(like(input, jnp.take_along_axis(array, order, axis=place))),
        this.output(like(input, order)),
    )


@layer
def unique(
    x: Value, dtype: str = "int32", max_length: int | None = None, name: str | None = None
) -> tuple[core.SequenceBatch, jax.Array]:
    """Return the distinct values of a vector, in the order of their first occurrence.

    The number of distinct values depends on the data, but a shape cannot depend on data. So the result is a
    SequenceBatch of one row, whose length is the number of distinct values. Its capacity is `max_length`.

    Args:
      x: `[n]`.
      dtype: the dtype of the index.
      max_length: the largest number of distinct values to return; `n` by default. Further values are dropped.
      name: name of the layer; by default `unique_N`.

    Returns:
      `(values, index)`: the values, a SequenceBatch `[1, max_length]`; and for each element of `x` its index among the
      values, integers `[n]`, -1 for a dropped value.

    Raises:
      ArgumentError: `max_length` is not positive, or the dtype does not exist.
      ShapeError: the input is not a vector.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.unique(fluid.layers.data("x", shape=[], dtype="int64"))
      >>> with fluid.Session(program) as session:
      ...     values, index = session.run(feed={"x": np.array([2, 3, 3, 1, 5, 3])}, mode="test")
      >>> np.asarray(values.rows()[0]).tolist(), index.tolist()
      ([2, 3, 1, 5], [0, 1, 1, 2, 3, 1])
    """
    this = Layer("unique", name)
    values, index, _ = _unique(this, x, dtype, max_length)
    return this.output(values), this.output(index)


@layer
def unique_with_counts(
    x: Value, dtype: str = "int32", max_length: int | None = None, name: str | None = None
) -> tuple[core.SequenceBatch, jax.Array, core.SequenceBatch]:
    """Return the distinct values of a vector, as `unique` does, and the count of each value.

    Args:
      x: `[n]`.
      dtype: the dtype of the index and of the counts.
      max_length: the largest number of distinct values to return; `n` by default. Further values are dropped.
      name: name of the layer; by default `unique_with_counts_N`.

    Returns:
      `(values, index, counts)`: see `unique`; the counts are a SequenceBatch of integers `[1, max_length]`.

    Raises:
      ArgumentError: `max_length` is not positive, or the dtype does not exist.
      ShapeError: the input is not a vector.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.unique_with_counts(fluid.layers.data("x", shape=[], dtype="int64"))
      >>> with fluid.Session(program) as session:
      ...     values, index, counts = session.run(feed={"x": np.array([2, 3, 3, 1, 5, 3])}, mode="test")
      >>> np.asarray(counts.rows()[0]).tolist()
      [1, 3, 1, 1]
    """
    this = Layer("unique_with_counts", name)
    values, index, counts = _unique(this, x, dtype, max_length)
    return this.output(values), this.output(index), this.output(counts)


def _unique(
    this: Layer, value: Any, dtype: Any, max_length: int | None
) -> tuple[core.SequenceBatch, jax.Array, core.SequenceBatch]:
    """Return the distinct values of a vector `[n]`, the index of each element among these values, and the counts."""
    x = array_of(this, value)
    if x.ndim != 1:
        raise errors.ShapeError(f"{this.name}: {describe(value)} is no vector; use layers.reshape(x, [-1]) first")
    kind = dtype_of(this.name, dtype)
    capacity = x.shape[0] if max_length is None else core.whole_number(this.name, "max_length", max_length)
    # After a stable sort, equal elements are adjacent, and keep the order that they have in `x`.
    order = jnp.argsort(x, stable=True)
    ordered = x[order]
    begins = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])[: x.shape[0]]
    is_first = jnp.zeros(x.shape[0], bool).at[order].set(begins)
    rank = jnp.cumsum(is_first) - 1
    group = jnp.cumsum(begins) - 1
    first_of_group = jnp.zeros_like(order).at[jnp.where(begins, group, x.shape[0])].set(order, mode="drop")
    index = jnp.zeros_like(rank).at[order].set(rank[first_of_group[group]])
    values = jnp.zeros(capacity, x.dtype).at[jnp.where(is_first, rank, capacity)].set(x, mode="drop")
    counts = jnp.zeros(capacity, kind).at[index].add(1, mode="drop")
    lengths = jnp.minimum(jnp.sum(is_first, dtype=jnp.int32), capacity).reshape(1)
    kept = jnp.where(index < capacity, index, -1).astype(kind)
    return core.SequenceBatch(values[None], lengths), kept, core.SequenceBatch(counts[None], lengths)
