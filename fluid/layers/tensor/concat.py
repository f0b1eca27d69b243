"""Layers that join, split, repeat and reverse values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, axis_of, dense, describe, layer, like, row_dims
from fluid.layers.checks import Sizes, check_axes

_ROWS = core.default(0)


@layer
def concat(input: Sequence[Value], axis: int = _ROWS, name: str | None = None) -> Any:
    """Join values along a dimension.

    Args:
      input: a list of arrays, or of SequenceBatches with equal lengths, which agree in all other dimensions.
      axis: the dimension. 0 joins the rows of SequenceBatches, which may then have different lengths. The default is 0,
        with a warning if it joins values along the batch; -1 joins the features of each row.
      name: name of the layer; by default `concat_N`.

    Returns:
      A value of the type of the inputs (array or SequenceBatch); its size along `axis` is the sum of their sizes.

    Raises:
      ArgumentError: the axis does not exist, or the list is empty.
      ShapeError: the values mix arrays and SequenceBatches, or differ in another dimension.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[3]), fluid.layers.data("y", shape=[2])
      ...     return fluid.layers.concat([x, y], axis=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 5]
    """
    this = Layer("concat", name)
    values: list[Any] = list(input) if isinstance(input, list | tuple) else [input]
    if not values:
        raise errors.ArgumentError(f"{this.name} was given nothing to join; as in concat([x, y], axis=1)")
    place = axis_of(values[0], axis)
    kinds = {row_dims(v) for v in values}
    rows = place == 0 and kinds == {2}
    shapes = {dense(v).shape[2:] if rows else (*dense(v).shape[:place], *dense(v).shape[place + 1 :]) for v in values}
    if len(shapes) > 1 or len(kinds) > 1 or (place == 0 and kinds not in ({1}, {2})):
        raise errors.ShapeError(
            f"{this.name}: {' and '.join(describe(v) for v in values)} cannot be joined along axis={axis}; "
            f"all other dimensions must agree, and rows of nested sequences cannot be joined, as in "
            f"concat([x, y], axis=-1)"
        )
    _doubt_rows(this, values, axis)
    return this.output(
        _one_after_the_other(values)
        if rows
        else like(values[0], jnp.concatenate([dense(v) for v in values], axis=place))
    )


def _doubt_rows(this: Layer, values: list[Any], axis: int) -> None:
    """Warn if `concat` with the default `axis` joins values along the batch, which is probably a mistake."""
    batch = this.frame.placeholder_batch
    arrays = [dense(v) for v in values]
    if core.is_default(axis) and len(arrays) > 1 and all(a.ndim > 1 and a.shape[0] == batch for a in arrays):
        core.doubt_reading(
            f"{this.name} joins {' and '.join(describe(v) for v in values)} along the batch, so that the result has "
            f"{len(arrays)} times as many rows; write axis=-1 to join the features of each row, or axis=0 to join rows"
        )


def _one_after_the_other(batches: list[core.SequenceBatch]) -> core.SequenceBatch:
    """Join sequence batches along the rows: return one sequence batch, padded to the longest sequence."""
    time = max(batch.shape[1] for batch in batches)
    pads = [[(0, 0), (0, time - v.shape[1]), *[(0, 0)] * (v.data.ndim - 2)] for v in batches]
    data = [jnp.pad(dense(v), pad) for v, pad in zip(batches, pads, strict=True)]
    return core.SequenceBatch(jnp.concatenate(data), jnp.concatenate([v.lengths for v in batches]))


@layer
def split(input: Value, num_or_sections: int | Sequence[int], dim: int = -1, name: str | None = None) -> list[Any]:
    """Split a value into parts along a dimension.

    Args:
      input: an array of any shape, or a SequenceBatch.
      num_or_sections: the number of equal parts; or a list of sizes, one of which may be -1 for the rest.
      dim: the dimension.
      name: name of the layer; by default `split_N`.

    Returns:
      A list of the parts.

    Raises:
      ArgumentError: the dimension does not exist.
      ShapeError: the sizes of the parts do not add up to the size of the dimension.

    Example:
      >>> import fluid
      >>> def program():
      ...     first, second = fluid.layers.split(fluid.layers.data("x", shape=[6]), num_or_sections=[2, 4], dim=1)
      ...     return first, second
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 2] float32[batch, 4]
    """
    this = Layer("split", name)
    x = dense(input)
    place = axis_of(input, dim, "dim")
    size = x.shape[place]
    if isinstance(num_or_sections, int):
        count = num_or_sections
        sections = [size // count] * count if count > 0 and size % count == 0 else []
    else:
        sections = [int(v) for v in num_or_sections]
        if sections.count(-1) == 1:
            sections[sections.index(-1)] = size - sum(sections) - 1
    if sum(sections) != size or min(sections, default=0) < 0:
        raise errors.ShapeError(
            f"{this.name}: {describe(input)} has {size} along dim={dim}, to which num_or_sections={num_or_sections} "
            f"does not add up; as in split(x, num_or_sections=[1, -1], dim={dim})"
        )
    bounds = [sum(sections[:i]) for i in range(1, len(sections))]
    return [this.output(like(input, part)) for part in jnp.split(x, bounds, axis=place)]


@layer
def stack(x: Sequence[Value], axis: int = 0, name: str | None = None) -> Any:
    """Join values of one shape along a new dimension.

    Args:
      x: a list of arrays, or of SequenceBatches with equal lengths.
      axis: the index of the new dimension in the result.
      name: name of the layer; by default `stack_N`.

    Returns:
      A value of the type of the inputs (array or SequenceBatch), with a dimension of size `len(x)` at `axis`.

    Raises:
      ArgumentError: the index does not exist.
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     return fluid.layers.stack([x, x], axis=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2, 3]
    """
    this = Layer("stack", name)
    values = list(x) if isinstance(x, list | tuple) else [x]
    arrays = [dense(v) for v in values]
    if len({(row_dims(v), a.shape) for v, a in zip(values, arrays, strict=True)}) != 1:
        raise errors.ShapeError(
            f"{this.name}: stack joins arrays of one shape, found {', '.join(describe(v) for v in values) or 'none'}; "
            f"use layers.concat to join along a dimension that is there"
        )
    lead = row_dims(values[0]) - 1
    dims = arrays[0].ndim - lead + 1
    check_axes(this, values[0], [axis], dims)
    if lead and axis % dims == 0:
        raise errors.ArgumentError(
            f"{this.name}: axis={axis} would come before the rows of sequences; expected 1 or more"
        )
    return this.output(like(values[0], jnp.stack(arrays, axis=axis % dims + lead)))


@layer
def unstack(x: Value, axis: int = 0, num: int | None = None, name: str | None = None) -> list[Any]:
    """Split an array along a dimension into arrays without this dimension.

    Args:
      x: any shape.
      axis: the dimension; its size must be known before the program runs.
      num: the expected size of the dimension, to check; None for no check.
      name: name of the layer; by default `unstack_N`.

    Returns:
      A list of arrays without that dimension.

    Raises:
      ArgumentError: the axis does not exist.
      ShapeError: `num` is not the size of the dimension, or `x` is a sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.unstack(fluid.layers.data("x", shape=[2, 3]), axis=1)
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 3] float32[batch, 3]
    """
    this = Layer("unstack", name)
    array = array_of(this, x)
    place = axis_of(x, axis)
    if num is not None and num != array.shape[place]:
        raise errors.ShapeError(
            f"{this.name}: {describe(x)} has {array.shape[place]} along axis={axis}, found num={num}"
        )
    return [this.output(part) for part in jnp.moveaxis(array, place, 0)]


@layer
def expand(x: Value, expand_times: Sequence[int], name: str | None = None) -> Any:
    """Repeat a value along its dimensions.

    Args:
      x: an array of any shape, or a SequenceBatch. Batch and time of a SequenceBatch count as one dimension, which is
        not repeated.
      expand_times: the number of repetitions along each dimension.
      name: name of the layer; by default `expand_N`.

    Returns:
      A value of the type of `x` (array or SequenceBatch); each size is multiplied by its number of repetitions.

    Raises:
      ArgumentError: there is not one positive integer for each dimension, or the number for the rows of a SequenceBatch
        is not 1.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.expand(fluid.layers.data("x", shape=[1, 3]), expand_times=[1, 4, 1])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4, 3]
    """
    this = Layer("expand", name)
    array = dense(x)
    times = [core.whole_number(this.name, "expand_times", t) for t in expand_times]
    lead = row_dims(x) - 1
    if len(times) != array.ndim - lead or (lead and times[0] != 1):
        raise errors.ArgumentError(
            f"{this.name}: expand_times={times} for {describe(x)}; expected one positive integer for each dimension, "
            f"1 for the rows of sequences, as in expand_times={[1] * (array.ndim - lead)}"
        )
    return this.output(like(x, jnp.tile(array, [1] * lead + times)))


@layer
def expand_as(x: Value, target_tensor: Value, name: str | None = None) -> jax.Array:
    """Repeat a value along its dimensions until it has the shape of another value.

    Args:
      x: an array whose sizes divide the sizes of the other value.
      target_tensor: the other value, of which only the shape is used.
      name: name of the layer; by default `expand_as_N`.

    Returns:
      An array in the shape of `target_tensor`.

    Raises:
      ShapeError: a size does not divide the other size, or the numbers of dimensions differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[1, 3]), fluid.layers.data("y", shape=[4, 3])
      ...     return fluid.layers.expand_as(x, y)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4, 3]
    """
    this = Layer("expand_as", name)
    array = array_of(this, x)
    target = array_of(this, target_tensor).shape
    # Compare the sizes before computing a remainder: in an exported program the batch size is a symbol, and its
    # remainder is unknown.
    fits = len(target) == array.ndim and all(
        a == b or (a and b % a == 0) for a, b in zip(array.shape, target, strict=True)
    )
    if not fits:
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} cannot be repeated to {describe(target_tensor)}; each of its sizes must "
            f"divide the other, as 1 does, after layers.unsqueeze(x, [1])"
        )
    return this.output(jnp.tile(array, [1 if a == b else b // a for a, b in zip(array.shape, target, strict=True)]))


@layer
def flip(input: Value, dims: Sizes, name: str | None = None) -> Any:
    """Reverse the order of elements along one or several dimensions, another name for `reverse`.

    Args:
      input: an array of any shape, or a SequenceBatch.
      dims: the dimensions, one or several.
      name: name of the layer; by default `flip_N`.

    Returns:
      A value with the type (array or SequenceBatch) and the shape of the input.

    Raises:
      ArgumentError: the dimension does not exist, or is the row dimension of a SequenceBatch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.flip(fluid.layers.data("x", shape=[3, 4]), dims=[1, 2])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 4]
    """
    return _reversed(Layer("flip", name), input, dims)


@layer
def roll(input: Value, shifts: Sizes, dims: Sizes | None = None, name: str | None = None) -> jax.Array:
    """Shift elements along dimensions; elements shifted beyond the end reappear at the start.

    Args:
      input: any shape.
      shifts: the number of positions, one number or one for each dimension; negative numbers shift towards the start.
      dims: the dimensions, one or several. Without `dims`, the flattened value is shifted.
      name: name of the layer; by default `roll_N`.

    Returns:
      An array of the shape of the input.

    Raises:
      ArgumentError: the dimension does not exist, or the number of shifts is wrong.
      ShapeError: the input is a sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.roll(fluid.layers.data("x", shape=[3, 4]), shifts=[1, -2], dims=[1, 2])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 4]
    """
    this = Layer("roll", name)
    array = array_of(this, input)
    by: list[Any] = list(shifts) if isinstance(shifts, list | tuple) else [shifts]
    given: Any = dims if isinstance(dims, list | tuple) or dims is None else [dims]
    if len(by) != (1 if given is None else len(given)):
        raise errors.ArgumentError(
            f"{this.name}: shifts={shifts} for dims={dims}; expected one shift for each dimension, as in "
            f"shifts={[1] * len(given or [0])}"
        )
    if given is None:
        return this.output(jnp.roll(array, by[0]))
    return this.output(jnp.roll(array, by, [axis_of(input, d, "dims") for d in given]))


@layer
def reverse(x: Value, axis: Sizes, name: str | None = None) -> Any:
    """Reverse the order of elements along one or several dimensions.

    Args:
      x: an array of any shape, or a SequenceBatch.
      axis: the dimensions, one or several.
      name: name of the layer; by default `reverse_N`.

    Returns:
      A value with the type (array or SequenceBatch) and the shape of `x`.

    Raises:
      ArgumentError: the axis does not exist, or is the row dimension of a SequenceBatch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reverse(fluid.layers.data("x", shape=[3, 4]), axis=[1, 2])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 4]
    """
    return _reversed(Layer("reverse", name), x, axis)


def _reversed(this: Layer, x: Value, axis: Sizes) -> Any:
    """Implement `reverse` and `flip`: reverse the order of elements along `axis`."""
    axes: list[Any] = list(axis) if isinstance(axis, list | tuple) else [axis]
    places = [axis_of(x, a) for a in axes]
    if 0 in places and row_dims(x) > 1:
        raise errors.ArgumentError(
            f"{this.name}: axis={axis} are the rows of {describe(x)}; to reverse each sequence use "
            f"layers.sequence_reverse(x)"
        )
    return this.output(like(x, jnp.flip(dense(x), tuple(places))))
