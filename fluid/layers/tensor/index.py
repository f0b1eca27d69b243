"""Selection of elements and rows by index: slices, gathering, one-hot rows."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, axis_of, dense, describe, is_sequence, layer, like, row_dims, rows_at
from fluid.layers.checks import check_ids
from fluid.layers.no_effect import no_effect


@layer
def slice(
    input: core.Value, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int], name: str | None = None
) -> Any:
    """Return the part of a value between two indices along some dimensions.

    Args:
      input: any shape, or a SequenceBatch.
      axes: the dimensions.
      starts: the first index along each dimension; negative counts from the end.
      ends: the index after the last along each dimension; an index beyond the end stands for the end.
      name: name of the layer; by default `slice_N`.

    Returns:
      A value of the kind of the input.

    Raises:
      ArgumentError: the lists differ in length, there is no such axis, or it is the rows of sequences.

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
    input: core.Value,
    axes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    strides: Sequence[int],
    name: str | None = None,
) -> Any:
    """Return the part of a value between two indices along some dimensions, with a step.

    Args:
      input: any shape, or a SequenceBatch.
      axes: the dimensions.
      starts: the first index along each dimension; negative counts from the end.
      ends: the index before which each dimension stops.
      strides: the step along each dimension; negative goes backwards.
      name: name of the layer; by default `strided_slice_N`.

    Returns:
      A value of the kind of the input.

    Raises:
      ArgumentError: the lists differ in length, there is no such axis, or it is the rows of sequences.

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
def gather(input: core.Value, index: core.Value, overwrite: bool = True, name: str | None = None) -> Any:
    """Return rows of an array, or steps of sequences, by their index.

    Args:
      input: `[rows, ...]`; or a SequenceBatch, whose rows are the steps of all sequences, one after another.
      index: integers `[count]` or `[count, 1]`, or a SequenceBatch of `[1]`.
      overwrite: accepted for programs written for Fluid, but has no effect: the gradient of a row that is taken twice
        is the sum of both.
      name: name of the layer; by default `gather_N`.

    Returns:
      `[count, ...]`, or a SequenceBatch if the index is one. For a computed index that does not exist, the row is NaN,
      or for integers the smallest integer.

    Raises:
      ArgumentTypeError: the index holds no integers.
      ShapeError: the index is no list of integers.

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
def gather_nd(input: core.Value, index: core.Value, name: str | None = None) -> jax.Array:
    """Return elements or slices of an array, by their indices in its first dimensions.

    Args:
      input: any shape.
      index: integers `[..., k]`: for each slice its indices in the first `k` dimensions.
      name: name of the layer; by default `gather_nd_N`.

    Returns:
      `[..., *input.shape[k:]]`.

    Raises:
      ArgumentTypeError: the index holds no integers.
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
    # While a model is exported, sizes are symbols, which have no maximum.
    if sizes and this.frame.discovering and this.frame.placeholder_batch not in sizes:
        core.limit_feed(index, -max(sizes), max(sizes))
    return this.output(array[tuple(jnp.moveaxis(ids, -1, 0))])


@layer
def index_select(input: core.Value, index: core.Value, dim: int = 0, name: str | None = None) -> jax.Array:
    """Return slices of an array along a dimension, by their index.

    Args:
      input: any shape.
      index: integers `[count]`.
      dim: the dimension.
      name: name of the layer; by default `index_select_N`.

    Returns:
      The shape of the input, with `count` as the size of the dimension. For a computed index that does not exist, the
      slice is NaN, or for integers the smallest integer.

    Raises:
      ArgumentError: there is no such dimension.
      ArgumentTypeError: the index holds no integers.
      ShapeError: the index is no vector.

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
def index_sample(x: core.Value, index: core.Value, name: str | None = None) -> jax.Array:
    """Return elements of each row, by their index in the row.

    Args:
      x: `[batch, n]`.
      index: integers `[batch, count]`.
      name: name of the layer; by default `index_sample_N`.

    Returns:
      `[batch, count]`. For an index that does not exist, the element is NaN, or for integers the smallest integer.

    Raises:
      ArgumentTypeError: the index holds no integers.
      ShapeError: the inputs are no matrices, or their numbers of rows differ.

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
    input: core.Value, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1, name: str | None = None
) -> Any:
    """Convert ids to their index in one shard, where a range of ids is divided between several shards.

    Shard `k` has the ids from `k * size` on, where `size = ceil(index_num / nshards)`.

    Args:
      input: ids `[..., 1]` of an integer dtype, or a SequenceBatch.
      index_num: the number of ids.
      nshards: the number of shards.
      shard_id: the index of this shard, counted from 0.
      ignore_value: the result for ids of other shards.
      name: name of the layer; by default `shard_index_N`.

    Returns:
      Integers, in the kind and shape of the input.

    Raises:
      ArgumentError: a count is not positive, or there is no such shard.
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
def one_hot(input: core.Value, depth: int, allow_out_of_range: bool = False, name: str | None = None) -> Any:
    """Return a row of zeros for each class, with 1 at the index of the class.

    Args:
      input: classes `[batch, ..., 1]` of an integer dtype, or a SequenceBatch.
      depth: the number of classes.
      allow_out_of_range: whether other integers give a row of zeros, instead of an error when they are fed.
      name: name of the layer; by default `one_hot_N`.

    Returns:
      `[batch, ..., depth]`, float32.

    Raises:
      ArgumentError: `depth` is no positive integer.
      ArgumentTypeError: the classes are no integers.
      ShapeError: the classes do not end in a dimension of 1.

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


def _limit(this: Layer, index: core.Value, size: int) -> None:
    """Limit fed indices to the size of the dimension, unless the dimension is the batch."""
    if size != this.frame.placeholder_batch:
        core.limit_feed(index, 0, size)


def _slice(this: Layer, input: Any, axes: Any, starts: Any, ends: Any, strides: Any) -> Any:
    """Record the part of a value for one start, one end and one stride per axis."""
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
    """Return slices along an axis by index; NaN, or the smallest integer, for an index that does not exist."""
    wanted = jnp.where(numbers < 0, array.shape[axis], numbers)
    return jnp.take(array, wanted, axis=axis, mode="fill", fill_value=None)
