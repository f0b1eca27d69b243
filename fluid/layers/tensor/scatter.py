"""Writes of elements by index, and selection by an index or a condition."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, array_of, dense, describe, is_sequence, layer, like
from fluid.layers.checks import check_ids, shape_of


@layer
def scatter(
    input: core.Value, index: core.Value, updates: core.Value, name: str | None = None, overwrite: bool = True
) -> jax.Array:
    """Replace rows of an array.

    Args:
      input: `[rows, ...]`.
      index: integers `[count]` or `[count, 1]`: the row that each update replaces. Updates of rows that do not exist
        are dropped.
      updates: the new rows, `[count, ...]`.
      name: name of the layer; by default `scatter_N`.
      overwrite: if several updates have one row, True keeps any one of them, and False keeps their sum.

    Returns:
      An array of the shape of the input.

    Raises:
      ArgumentTypeError: the index holds no integers.
      ShapeError: the updates do not fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     table = fluid.layers.zeros([10, 4], "float32")
      ...     index = fluid.layers.data("index", shape=[1], dtype="int64")
      ...     return fluid.layers.scatter(table, index, fluid.layers.data("row", shape=[4]))
      >>> print(fluid.Program(program).outputs[0])
      float32[10, 4]
    """
    this = Layer("scatter", name)
    array = array_of(this, input)
    rows = array_of(this, updates)
    ids = _row_ids(this, index)
    if array.ndim == 0 or rows.shape != (*ids.shape, *array.shape[1:]):
        raise errors.ShapeError(
            f"{this.name}: updates {describe(updates)} do not fit input {describe(input)} and index "
            f"{describe(index)}; expected {[*ids.shape, *array.shape[1:]]}, one row for each index"
        )
    # mode="drop" drops indices after the last row, but counts negative indices from the end.
    places = jnp.where(ids < 0, array.shape[0], ids)
    rows = rows.astype(array.dtype)
    if overwrite:
        return this.output(array.at[places].set(rows, mode="drop"))
    return this.output(array.at[places].set(0, mode="drop").at[places].add(rows, mode="drop"))


@layer
def scatter_nd(index: core.Value, updates: core.Value, shape: Sequence[int], name: str | None = None) -> jax.Array:
    """Add slices to an array of zeros, by their indices in its first dimensions.

    Args:
      index: integers `[..., k]`: for each slice its indices in the first `k` dimensions.
      updates: the slices, `[..., *shape[k:]]`; slices with equal indices are summed.
      shape: of the result.
      name: name of the layer; by default `scatter_nd_add_N`.

    Returns:
      An array of shape `shape`.

    Raises:
      ArgumentTypeError: the index holds no integers.
      ShapeError: the updates do not fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     index = fluid.layers.data("index", shape=[1], dtype="int64")
      ...     return fluid.layers.scatter_nd(index, fluid.layers.data("value", shape=[4]), shape=[10, 4])
      >>> print(fluid.Program(program).outputs[0])
      float32[10, 4]
    """
    this = Layer("scatter_nd_add", name)
    zeros = jnp.zeros(shape_of(this.name, shape), array_of(this, updates).dtype)
    return this.output(_add_at(this, zeros, index, updates))


@layer
def scatter_nd_add(ref: core.Value, index: core.Value, updates: core.Value, name: str | None = None) -> jax.Array:
    """Add slices to an array, by their indices in its first dimensions.

    Args:
      ref: the array, any shape.
      index: integers `[..., k]`: for each slice its indices in the first `k` dimensions.
      updates: the slices, `[..., *ref.shape[k:]]`; all slices with equal indices are added.
      name: name of the layer; by default `scatter_nd_add_N`.

    Returns:
      An array of the shape of `ref`.

    Raises:
      ArgumentTypeError: the index holds no integers.
      ShapeError: the updates do not fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     counts = fluid.layers.zeros([10], "float32")
      ...     index = fluid.layers.data("index", shape=[1], dtype="int64")
      ...     return fluid.layers.scatter_nd_add(counts, index, fluid.layers.data("value", shape=[]))
      >>> print(fluid.Program(program).outputs[0])
      float32[10]
    """
    this = Layer("scatter_nd_add", name)
    return this.output(_add_at(this, array_of(this, ref), index, updates))


@layer
def multiplex(inputs: Sequence[core.Value], index: core.Value, name: str | None = None) -> jax.Array:
    """Return for each row of the batch the row of one of several arrays.

    Args:
      inputs: a list of arrays `[batch, ...]` of one shape.
      index: integers `[batch, 1]`: the index of the array for each row. For an index that does not exist the row is
        NaN.
      name: name of the layer; by default `multiplex_N`.

    Returns:
      `[batch, ...]`.

    Raises:
      ArgumentTypeError: the index holds no integers.
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     first, second = fluid.layers.data("first", shape=[4]), fluid.layers.data("second", shape=[4])
      ...     index = fluid.layers.data("index", shape=[1], dtype="int32")
      ...     return fluid.layers.multiplex([first, second], index)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    this = Layer("multiplex", name)
    arrays = [array_of(this, v) for v in inputs]
    ids = _row_ids(this, index)
    if not arrays or len({a.shape for a in arrays}) > 1 or arrays[0].shape[:1] != ids.shape:
        raise errors.ShapeError(
            f"{this.name}: inputs {', '.join(describe(v) for v in inputs) or 'none'} and index {describe(index)} do "
            f"not fit; expected values of one shape and one integer for each row, [batch, 1]"
        )
    core.limit_feed(index, 0, len(arrays))
    together = jnp.stack(arrays)
    return this.output(
        together.at[ids, jnp.arange(ids.shape[0])].get(mode="fill", wrap_negative_indices=False)
    )  # fmt: skip


@layer
def where(
    condition: core.Value,
    x: core.Value | float | None = None,
    y: core.Value | float | None = None,
    name: str | None = None,
) -> Any:
    """Return elements of one value where a condition holds, and of another value elsewhere.

    The form `where(condition)`, which lists the indices of true elements, is not possible. The number of these indices
    depends on data, and shapes of a compiled program cannot.

    Args:
      condition: bool, any shape, or a SequenceBatch.
      x: the elements where the condition is true; dimensions of size 1 are repeated.
      y: the elements where the condition is false; dimensions of size 1 are repeated.
      name: name of the layer; by default `where_N`.

    Returns:
      A value of the common shape of all three; a SequenceBatch if one of them is.

    Raises:
      ArgumentError: `x` or `y` is missing.
      ShapeError: the shapes do not fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.where(x > 0, x, fluid.layers.zeros_like(x))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    this = Layer("where", name)
    if x is None or y is None:
        raise errors.ArgumentError(
            f"{this.name}: where(condition) lists the places where a condition holds, whose number depends on data, "
            f"and shapes cannot. Choose element by element instead, where(condition, x, y), or sum the elements where "
            f"it holds, layers.reduce_sum(x * layers.cast(condition, 'float32'))"
        )
    arrays = [dense(v) for v in (condition, x, y)]
    batch = next((v for v in (condition, x, y) if is_sequence(v)), None)
    if batch is not None and any(array.ndim and array.shape[:2] != batch.shape[:2] for array in arrays):
        raise errors.ShapeError(
            f"{this.name}: condition {describe(condition)}, x {describe(x)} and y {describe(y)} do not fit; beside "
            f"the sequences {describe(batch)} there can be sequences of the same lengths and single numbers"
        )
    try:
        return this.output(like(batch, jnp.where(arrays[0].astype(bool), arrays[1], arrays[2])))
    except (TypeError, ValueError) as error:
        raise errors.ShapeError(
            f"{this.name}: condition {describe(condition)}, x {describe(x)} and y {describe(y)} do not fit; sizes "
            f"must be equal, or 1"
        ) from error


def _row_ids(this: Layer, index: Any) -> Any:
    """Read an index as integers `[count]`."""
    ids = check_ids(this.name, array_of(this, index))
    if ids.ndim == 2 and ids.shape[1] == 1:
        ids = ids[:, 0]
    if ids.ndim != 1:
        raise errors.ShapeError(
            f"{this.name}: index {describe(index)}; expected one integer for each row, [count] or [count, 1]"
        )
    return ids


def _add_at(this: Layer, array: Any, index: Any, updates: Any) -> Any:
    """Return an array with slices added to it; see `scatter_nd_add`."""
    ids = check_ids(this.name, array_of(this, index))
    values = array_of(this, updates)
    depth = ids.shape[-1] if ids.ndim else 0
    if not 0 < depth <= array.ndim or values.shape != (*ids.shape[:-1], *array.shape[depth:]):
        raise errors.ShapeError(
            f"{this.name}: index {describe(index)} and updates {describe(updates)} do not fit {describe(array)}; "
            f"expected index [..., k] and updates [..., sizes of the dimensions from k on]"
        )
    ids = jnp.where(jnp.any(ids < 0, axis=-1, keepdims=True), jnp.asarray(array.shape[:depth], ids.dtype), ids)
    return array.at[tuple(jnp.moveaxis(ids, -1, 0))].add(values.astype(array.dtype), mode="drop")
