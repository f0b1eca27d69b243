"""Layers that read and write elements by index, or select elements by a condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, axis_of, dense, describe, is_sequence, layer, like, row_dims, rows_at
from fluid.layers.checks import check_ids, shape_of
from fluid.layers.no_effect import no_effect

# The largest index of int32; its negative is below the indices of all arrays.
_LAST = 2**31 - 1


@layer
def slice(
    input: Value, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int], name: str | None = None
) -> Any:
    """Slice a value along some dimensions, from a start index to an end index.

    Args:
      input: an array of any shape, or a SequenceBatch.
      axes: the dimensions.
      starts: the first index along each dimension; negative counts from the end.
      ends: the index after the last along each dimension; an index beyond the end stands for the end.
      name: name of the layer; by default `slice_N`.

    Returns:
      The slice, of the type of the input (array or SequenceBatch).

    Raises:
      ArgumentError: the lists differ in length, the axis does not exist, or is the row dimension of a SequenceBatch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.slice(fluid.layers.data("x", shape=[5, 4]), axes=[1], starts=[-2], ends=[5])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2, 4]
    """
    return _slice(Layer("slice", name), input, axes, starts, ends, [1] * len(axes))


@layer
def strided_slice(
    input: Value,
    axes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    strides: Sequence[int],
    name: str | None = None,
) -> Any:
    """Slice a value along some dimensions, from a start index to an end index, with a stride.

    Args:
      input: an array of any shape, or a SequenceBatch.
      axes: the dimensions.
      starts: the first index along each dimension; negative counts from the end.
      ends: the index before which each dimension stops.
      strides: the step along each dimension; negative goes backwards.
      name: name of the layer; by default `strided_slice_N`.

    Returns:
      The slice, of the type of the input (array or SequenceBatch).

    Raises:
      ArgumentError: the lists differ in length, the axis does not exist, or is the row dimension of a SequenceBatch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.strided_slice(fluid.layers.data("x", shape=[5]), [1], [0], [5], [2])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return _slice(Layer("strided_slice", name), input, axes, starts, ends, strides)


@layer
@no_effect(overwrite="the gradient of a row that is taken twice is the sum of both")
def gather(input: Value, index: Value, overwrite: bool = True, name: str | None = None) -> Any:
    """Select rows of an array, or steps of sequences, by their indices.

    Args:
      input: `[rows, ...]`; or a SequenceBatch, whose rows are the valid steps of all sequences, concatenated.
      index: integers `[count]` or `[count, 1]`, or a SequenceBatch with steps of shape `[1]`.
      overwrite: accepted for programs written for Fluid, but has no effect: the gradient of a row that is taken twice
        is the sum of both.
      name: name of the layer; by default `gather_N`.

    Returns:
      `[count, ...]`, or a SequenceBatch if the index is one. If a computed index is out of range, the row is NaN, or
      the smallest integer if the input holds integers.

    Raises:
      ArgumentTypeError: the index does not hold integers.
      ShapeError: the index does not have shape `[count]` or `[count, 1]`.

    Example:
      >>> import fluid
      >>> def program():
      ...     table = fluid.layers.create_parameter([10, 4], name="table")
      ...     return fluid.layers.gather(table, fluid.layers.data("i", shape=[1], dtype="int64"))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    this = Layer("gather", name)
    array = dense(input)
    ids = check_ids(this.name, index)
    dims = row_dims(index)
    if ids.shape[dims:] not in ((), (1,)) or array.ndim == 0:
        raise errors.ShapeError(
            f"{this.name}: index {describe(index)} is no list of rows of {describe(input)}; expected [count] or "
            f"[count, 1]"
        )
    if not is_sequence(input):
        _limit(this, index, array.shape[0])
    return this.output(like(index, rows_at(input, ids.reshape(index.shape[:dims] if dims > 1 else -1))))


@layer
def gather_nd(input: Value, index: Value, name: str | None = None) -> jax.Array:
    """Select elements or slices of an array, by indices into its first dimensions.

    Args:
      input: any shape.
      index: integers `[..., k]`: for each slice its indices in the first `k` dimensions.
      name: name of the layer; by default `gather_nd_N`.

    Returns:
      `[..., *input.shape[k:]]`. If a computed index is out of range, the slice is NaN, or the smallest integer if the
      input holds integers.

    Raises:
      ArgumentTypeError: the index does not hold integers.
      ShapeError: `k` is larger than the number of dimensions of the input.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3, 4], append_batch_size=False)
      ...     return fluid.layers.gather_nd(x, fluid.layers.data("i", shape=[2], dtype="int64"))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch]
    """
    this = Layer("gather_nd", name)
    array = array_of(this, input)
    ids = check_ids(this.name, array_of(this, index))
    if ids.ndim < 1 or ids.shape[-1] > array.ndim:
        raise errors.ShapeError(
            f"{this.name}: index {describe(index)} has too many numbers for {describe(input)}; expected [..., k], "
            f"with k at most {array.ndim}"
        )
    sizes = array.shape[: ids.shape[-1]]
    # Check the range of fed indices of several dimensions only if the batch size is none of the sizes. In an exported
    # program the batch size is a symbol, for which `max` fails.
    if sizes and this.frame.discovering and this.frame.placeholder_batch not in sizes:
        core.limit_feed(index, -max(sizes), max(sizes))
    elif len(sizes) == 1:
        core.limit_feed(index, -_LAST, None)
    return this.output(array.at[tuple(jnp.moveaxis(ids, -1, 0))].get(mode="fill", fill_value=None))


@layer
def index_select(input: Value, index: Value, dim: int = 0, name: str | None = None) -> jax.Array:
    """Select slices of an array along a dimension, by their indices.

    Args:
      input: any shape.
      index: integers `[count]`.
      dim: the dimension.
      name: name of the layer; by default `index_select_N`.

    Returns:
      The shape of the input, with `count` as the size of the dimension. If a computed index is out of range, the slice
      is NaN, or the smallest integer if the input holds integers.

    Raises:
      ArgumentError: the dimension does not exist.
      ArgumentTypeError: the index does not hold integers.
      ShapeError: the index is not a vector.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.index_select(fluid.layers.data("x", shape=[5]), [0, 3, 3], dim=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("index_select", name)
    array = array_of(this, input)
    ids = check_ids(this.name, array_of(this, index), "index")
    if ids.ndim != 1:
        raise errors.ShapeError(f"{this.name}: index {describe(index)}; expected [count], as in [0, 3, 3]")
    axis = axis_of(input, dim, "dim")
    _limit(this, index, array.shape[axis])
    return this.output(_taken(array, ids, axis))


@layer
def index_sample(x: Value, index: Value, name: str | None = None) -> jax.Array:
    """Select elements of each row, by their indices in the row.

    Args:
      x: `[batch, n]`.
      index: integers `[batch, count]`.
      name: name of the layer; by default `index_sample_N`.

    Returns:
      `[batch, count]`. If an index is out of range, the element is NaN, or the smallest integer if `x` holds integers.

    Raises:
      ArgumentTypeError: the index does not hold integers.
      ShapeError: the inputs are not matrices, or their numbers of rows differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, i = fluid.layers.data("x", shape=[5]), fluid.layers.data("i", shape=[2], dtype="int64")
      ...     return fluid.layers.index_sample(x, i)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2]
    """
    this = Layer("index_sample", name)
    array = array_of(this, x)
    ids = check_ids(this.name, array_of(this, index), "index")
    if array.ndim != 2 or ids.ndim != 2 or array.shape[0] != ids.shape[0]:
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} and index {describe(index)} do not fit; expected [batch, n] and "
            f'[batch, count], as from layers.data("i", shape=[2], dtype="int64")'
        )
    core.limit_feed(index, 0, array.shape[1])
    return this.output(jax.vmap(lambda row, places: _taken(row, places, 0))(array, ids))


@layer
def shard_index(
    input: Value, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1, name: str | None = None
) -> Any:
    """Convert ids to indices within one shard of a table whose rows are divided among several shards.

    Shard `k` holds `size` ids, from `k * size` on, where `size = ceil(index_num / nshards)`.

    Args:
      input: ids `[..., 1]` of an integer dtype, or a SequenceBatch.
      index_num: the number of ids.
      nshards: the number of shards.
      shard_id: the index of this shard, counted from 0.
      ignore_value: the result for ids of other shards.
      name: name of the layer; by default `shard_index_N`.

    Returns:
      Integers, with the type (array or SequenceBatch) and the shape of the input.

    Raises:
      ArgumentError: a count is not positive, or the shard does not exist.
      ArgumentTypeError: the input holds no integers.

    Example:
      >>> import fluid
      >>> def program():
      ...     ids = fluid.layers.data("ids", shape=[1], dtype="int64")
      ...     return fluid.layers.shard_index(ids, index_num=20, nshards=2, shard_id=0)
      >>> print(fluid.Program(program).outputs[0])
      int32[batch, 1]
    """
    this = Layer("shard_index", name)
    ids = check_ids(this.name, input, "input")
    shards = core.whole_number(this.name, "nshards", nshards)
    number = core.whole_number(this.name, "shard_id", shard_id, least=0, most=shards - 1)
    size = -(-core.whole_number(this.name, "index_num", index_num) // shards)
    core.limit_feed(input, 0, index_num)
    return this.output(like(input, jnp.where(ids // size == number, ids % size, ignore_value)))


@layer
def one_hot(input: Value, depth: int, allow_out_of_range: bool = False, name: str | None = None) -> Any:
    """Encode class ids as one-hot vectors: zeros, with 1 at the index of the class.

    Args:
      input: classes `[batch, ..., 1]` of an integer dtype, or a SequenceBatch.
      depth: the number of classes.
      allow_out_of_range: whether integers outside 0 to `depth - 1` give a row of zeros; if False, feeding them raises
        an error.
      name: name of the layer; by default `one_hot_N`.

    Returns:
      `[batch, ..., depth]`, float32.

    Raises:
      ArgumentError: `depth` is not a positive integer.
      ArgumentTypeError: the classes are not integers.
      ShapeError: the last dimension of the classes is not 1.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.one_hot(fluid.layers.data("label", shape=[1], dtype="int64"), depth=10)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 10]
    """
    this = Layer("one_hot", name)
    core.whole_number(this.name, "depth", depth)
    ids = check_ids(this.name, input)
    if ids.ndim <= row_dims(input) or ids.shape[-1] != 1:
        raise errors.ShapeError(
            f"{this.name}: {describe(input)} does not end in a dimension of 1; expected [batch, ..., 1], "
            f"as from layers.unsqueeze(x, axes=[-1])"
        )
    if not allow_out_of_range:
        core.limit_feed(input, 0, depth)
    return this.output(like(input, this.frame.compute(jax.nn.one_hot(ids[..., 0], depth, dtype=jnp.float32))))


def _limit(this: Layer, index: Value, size: int) -> None:
    core.limit_feed(index, 0, None if size == this.frame.placeholder_batch else size)


def _slice(this: Layer, input: Any, axes: Any, starts: Any, ends: Any, strides: Any) -> Any:
    """Implement `slice` and `strided_slice`: slice a value by one start, end and stride for each axis."""
    array = dense(input)
    if not len(axes) == len(starts) == len(ends) == len(strides):
        raise errors.ArgumentError(
            f"{this.name}: axes={axes}, starts={starts}, ends={ends}; give one of each, as in axes=[1], starts=[0], "
            f"ends=[2]"
        )
    key: list[Any] = [np.s_[:]] * array.ndim
    for axis, start, end, stride in zip(axes, starts, ends, strides, strict=True):
        place = axis_of(input, axis, "axes")
        if place == 0 and row_dims(input) > 1:
            raise errors.ArgumentError(f"{this.name}: rows of {describe(input)} cannot be sliced; slice from axis 1 on")
        key[place] = np.s_[start:end:stride]
    return this.output(like(input, array[tuple(key)]))


def _taken(array: Any, numbers: Any, axis: int) -> Any:
    wanted = jnp.where(numbers < 0, array.shape[axis], numbers)
    return jnp.take(array, wanted, axis=axis, mode="fill", fill_value=None)


@layer
def scatter(input: Value, index: Value, updates: Value, name: str | None = None, overwrite: bool = True) -> jax.Array:
    """Replace rows of an array.

    Args:
      input: `[rows, ...]`.
      index: integers `[count]` or `[count, 1]`: the row that each update replaces. Updates of rows that do not exist
        are dropped.
      updates: the new rows, `[count, ...]`.
      name: name of the layer; by default `scatter_N`.
      overwrite: if several updates have the same index, True stores one of them (not specified which), False their sum.

    Returns:
      An array of the shape of the input.

    Raises:
      ArgumentTypeError: the index does not hold integers.
      ShapeError: the shape of the updates does not match.

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
    # `mode="drop"` ignores indices after the last row, but counts negative indices from the end. So replace negative
    # indices by the number of rows, to ignore them too.
    places = jnp.where(ids < 0, array.shape[0], ids)
    rows = rows.astype(array.dtype)
    if overwrite:
        return this.output(array.at[places].set(rows, mode="drop"))
    return this.output(array.at[places].set(0, mode="drop").at[places].add(rows, mode="drop"))


@layer
def scatter_nd(index: Value, updates: Value, shape: Sequence[int], name: str | None = None) -> jax.Array:
    """Add slices to an array of zeros, at indices into its first dimensions.

    Args:
      index: integers `[..., k]`: for each slice its indices in the first `k` dimensions.
      updates: the slices, `[..., *shape[k:]]`; slices with equal indices are summed.
      shape: the shape of the result.
      name: name of the layer; by default `scatter_nd_add_N`.

    Returns:
      An array of shape `shape`.

    Raises:
      ArgumentTypeError: the index does not hold integers.
      ShapeError: the shape of the updates does not match.

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
def scatter_nd_add(ref: Value, index: Value, updates: Value, name: str | None = None) -> jax.Array:
    """Add slices to an array, at indices into its first dimensions.

    Args:
      ref: the array to which the slices are added, of any shape.
      index: integers `[..., k]`: for each slice its indices in the first `k` dimensions.
      updates: the slices, `[..., *ref.shape[k:]]`; all slices with equal indices are added.
      name: name of the layer; by default `scatter_nd_add_N`.

    Returns:
      An array of the shape of `ref`.

    Raises:
      ArgumentTypeError: the index does not hold integers.
      ShapeError: the shape of the updates does not match.

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
def multiplex(inputs: Sequence[Value], index: Value, name: str | None = None) -> jax.Array:
    """Select each row of the batch from one of several arrays.

    Args:
      inputs: a list of arrays `[batch, ...]` of one shape.
      index: integers `[batch, 1]`: the index of the array for each row. If an index is out of range, the row is NaN.
      name: name of the layer; by default `multiplex_N`.

    Returns:
      `[batch, ...]`.

    Raises:
      ArgumentTypeError: the index does not hold integers.
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
    condition: Value,
    x: Value | float | None = None,
    y: Value | float | None = None,
    name: str | None = None,
) -> Any:
    """Select the elements of `x` where a condition is true, and the elements of `y` elsewhere.

    The form `where(condition)`, which lists the indices of true elements, is not possible: their number depends on
    data, but the shapes in a compiled program cannot depend on data.

    Args:
      condition: a bool array of any shape, or a SequenceBatch.
      x: the elements where the condition is true; dimensions of size 1 are repeated.
      y: the elements where the condition is false; dimensions of size 1 are repeated.
      name: name of the layer; by default `where_N`.

    Returns:
      A value of the common shape of condition, `x` and `y`; a SequenceBatch if one of them is a SequenceBatch.

    Raises:
      ArgumentError: `x` or `y` is missing.
      ShapeError: the shapes do not broadcast.

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
    """Check an index `[count]` or `[count, 1]`, and return it as integers `[count]`."""
    ids = check_ids(this.name, array_of(this, index))
    if ids.ndim == 2 and ids.shape[1] == 1:
        ids = ids[:, 0]
    if ids.ndim != 1:
        raise errors.ShapeError(
            f"{this.name}: index {describe(index)}; expected one integer for each row, [count] or [count, 1]"
        )
    return ids


def _add_at(this: Layer, array: Any, index: Any, updates: Any) -> Any:
    """Implement `scatter_nd` and `scatter_nd_add`: return `array` with the slices `updates` added at `index`."""
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
