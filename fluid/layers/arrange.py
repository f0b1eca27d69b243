"""Shapes: joining, splitting, reshaping and moving dimensions."""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from fluid import errors
from fluid.layers.base import Layer, array_of, axis_of, dense, describe, layer, like, row_dims
from fluid.layers.tensor import shape_of


@layer
def concat(input: Any, axis: int = 0, name: str | None = None) -> Any:
    """Join values along a dimension.

    Args:
      input: a list of arrays that agree in the other dimensions, or of SequenceBatches of equal lengths.
      axis: the dimension.
      name: instead of `concat_N`.

    Returns:
      The joined values.

    Raises:
      ShapeError: they do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[3]), fluid.layers.data("y", shape=[2])
      ...     return fluid.layers.concat([x, y], axis=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 5]
    """
    this = Layer("concat", name)
    values = list(input) if isinstance(input, list | tuple) else [input]
    if not values:
        raise errors.ArgumentError(f"{this.name} was given nothing to join; as in concat([x, y], axis=1)")
    place = axis_of(values[0], axis)
    kinds = {row_dims(v) for v in values}
    shapes = {(*dense(v).shape[:place], *dense(v).shape[place + 1 :]) for v in values}
    if len(shapes) > 1 or len(kinds) > 1 or (place == 0 and kinds != {1}):
        raise errors.ShapeError(
            f"{this.name}: {' and '.join(describe(v) for v in values)} cannot be joined along axis={axis}; "
            f"all other dimensions must agree, and rows of sequences cannot be joined, as in concat([x, y], axis=-1)"
        )
    return this.output(like(values[0], jnp.concatenate([dense(v) for v in values], axis=place)))


@layer
def split(input: Any, num_or_sections: Any, dim: int = -1, name: str | None = None) -> list[Any]:
    """Cut a value into parts along a dimension.

    Args:
      input: any shape, or a SequenceBatch.
      num_or_sections: how many equal parts, or the sizes of the parts, of which one may be -1.
      dim: the dimension.
      name: instead of `split_N`.

    Returns:
      A list of the parts.

    Raises:
      ShapeError: the parts do not make up the whole.

    Example:
      >>> import fluid
      >>> def program():
      ...     first, second = fluid.layers.split(fluid.layers.data("x", shape=[6]), num_or_sections=[2, 4], dim=1)
      ...     return first, second
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 2] float32[batch, 4]
    """
    this = Layer("split", name)
    x, place = dense(input), axis_of(input, dim, "dim")
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
            f"{this.name}: {describe(input)} has {size} along dim={dim}, which num_or_sections={num_or_sections} does "
            "not "
            f"make up; as in split(x, num_or_sections=[1, -1], dim={dim})"
        )
    bounds = [sum(sections[:i]) for i in range(1, len(sections))]
    return [this.output(like(input, part)) for part in jnp.split(x, bounds, axis=place)]


@layer
def stack(x: Any, axis: int = 0, name: str | None = None) -> Any:
    """Join values of one shape along a new dimension.

    Args:
      x: a list of arrays, or of SequenceBatches of equal lengths.
      axis: where the new dimension goes.
      name: instead of `stack_N`.

    Returns:
      The shape of each with `len(x)` put in at `axis`.

    Raises:
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
    _check_axes(this, values[0], [axis], dims)
    if lead and axis % dims == 0:
        raise errors.ArgumentError(f"{this.name}: axis={axis} would part sequences from their rows; begin at 1")
    return this.output(like(values[0], jnp.stack(arrays, axis=axis % dims + lead)))


@layer
def unstack(x: Any, axis: int = 0, num: int | None = None, name: str | None = None) -> list[Any]:
    """Take a dimension apart.

    Args:
      x: any shape.
      axis: the dimension, of a size known in advance.
      num: its size, as a check.
      name: instead of `unstack_N`.

    Returns:
      A list of arrays without that dimension.

    Raises:
      ShapeError: `num` is not the size.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.unstack(fluid.layers.data("x", shape=[2, 3]), axis=1)
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 3] float32[batch, 3]
    """
    this = Layer("unstack", name)
    array, place = array_of(this, x), axis_of(x, axis)
    if num is not None and num != array.shape[place]:
        raise errors.ShapeError(
            f"{this.name}: {describe(x)} has {array.shape[place]} along axis={axis}, found num={num}"
        )
    return [this.output(part) for part in jnp.moveaxis(array, place, 0)]


@layer
def reshape(
    x: Any,
    shape: Sequence[int],
    actual_shape: Any = None,
    act: Any = None,
    inplace: bool = False,
    name: str | None = None,
) -> Any:
    """Give the elements another shape.

    Args:
      x: any shape, or a SequenceBatch, whose first dimension counts as its steps and stays.
      shape: sizes; 0 copies the size of `x` at that place, and one -1 stands for what remains.
      actual_shape: not possible here; shapes are fixed in advance.
      act: name of an activation, or a function.
      inplace: has no effect.
      name: instead of `reshape2_N`.

    Returns:
      The elements in that shape.

    Raises:
      ShapeError: the numbers of elements differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reshape(fluid.layers.data("x", shape=[784]), shape=[-1, 1, 28, 28])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1, 28, 28]
    """
    this = Layer("reshape2", name)
    if actual_shape is not None:
        raise errors.ArgumentError(f"{this.name}: actual_shape is not possible; give sizes: shape=[-1, 10]")
    array, lead = dense(x), row_dims(x) - 1
    sizes = shape_of("reshape", shape)
    old = [math.prod(array.shape[: lead + 1]), *array.shape[lead + 1 :]]
    new = [old[i] if d == 0 and i < len(old) else d for i, d in enumerate(sizes)]
    if lead and new and new[0] == -1 and sizes.count(-1) == 1:
        new[0] = old[0]
    if new.count(-1) == 1:
        rest = -math.prod(new)
        new[new.index(-1)] = math.prod(old) // rest if rest > 0 else 0
    if min(new, default=1) < 0 or math.prod(new) != math.prod(old) or (lead and new[:1] != old[:1]):
        raise errors.ShapeError(
            f"{this.name}: {describe(x)} cannot be reshaped to {sizes}; the number of elements must be the same"
            f"{', step by step' if lead else ''}, as in reshape(x, [0, -1]), where 0 copies a size and -1 takes the "
            "rest"
        )
    result = array.reshape([*array.shape[: lead + 1], *new[1:]] if lead else new)
    result = this.output(like(x, result))
    this.skip_outputs(1)
    return this.activate(result, act)


@layer
def transpose(x: Any, perm: Sequence[int], name: str | None = None) -> Any:
    """Put dimensions in another order.

    Args:
      x: any shape, or a SequenceBatch, whose first dimension counts as its steps and stays.
      perm: the dimensions of `x` in their new order.
      name: instead of `transpose_N`.

    Returns:
      The shape of `x`, reordered.

    Raises:
      ShapeError: `perm` does not name each dimension once.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.transpose(fluid.layers.data("x", shape=[3, 8, 8]), perm=[0, 2, 3, 1])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 8, 8, 3]
    """
    this = Layer("transpose", name)
    array = dense(x)
    order = [int(p) for p in perm]
    lead = row_dims(x) - 1
    if sorted(order) != list(range(array.ndim - lead)) or (lead and order[0] != 0):
        raise errors.ShapeError(
            f"{this.name}: perm={order} does not order the dimensions of {describe(x)}; name each once, the rows of "
            f"sequences first, as in perm={[0, *range(array.ndim - lead - 1, 0, -1)]}"
        )
    places = [*range(lead), *(p + lead for p in order)]
    return this.output(like(x, jnp.transpose(array, places)))


@layer
def squeeze(input: Any, axes: Sequence[int], name: str | None = None) -> Any:
    """Remove dimensions of size 1.

    Args:
      input: any shape, or a SequenceBatch.
      axes: which; an empty list means all of size 1.
      name: instead of `squeeze2_N`.

    Returns:
      The shape without them.

    Raises:
      ShapeError: one has another size.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.squeeze(fluid.layers.data("x", shape=[1, 4]), axes=[1])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    this = Layer("squeeze2", name)
    array = dense(input)
    places = [axis_of(input, a, "axes") for a in axes]
    if not places:
        places = [i for i in range(row_dims(input), array.ndim) if array.shape[i] == 1]
    if any(array.shape[i] != 1 for i in places):
        raise errors.ShapeError(
            f"{this.name}: {describe(input)} has not size 1 along all of axes={list(axes)}; "
            f"use layers.reshape to merge dimensions"
        )
    return this.output(like(input, jnp.squeeze(array, tuple(places))))


@layer
def unsqueeze(input: Any, axes: Any, name: str | None = None) -> Any:
    """Put in dimensions of size 1.

    Args:
      input: any shape, or a SequenceBatch.
      axes: where they are in the result, one or several.
      name: instead of `unsqueeze2_N`.

    Returns:
      The shape with them.

    Raises:
      ArgumentError: there is no such place.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.unsqueeze(fluid.layers.data("x", shape=[4]), axes=[1])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1, 4]
    """
    this = Layer("unsqueeze2", name)
    places = [axes] if isinstance(axes, int) else list(axes)
    lead = row_dims(input) - 1
    dims = dense(input).ndim - lead + len(places)
    _check_axes(this, input, places, dims)
    if lead and any(p % dims == 0 for p in places):
        raise errors.ArgumentError(
            f"{this.name}: axes={places} would part {describe(input)} from its steps; begin at 1"
        )
    return this.output(like(input, jnp.expand_dims(dense(input), tuple(p % dims + lead for p in places))))


@layer
def flatten(x: Any, axis: int = 1, name: str | None = None) -> Any:
    """Merge dimensions into a matrix.

    Args:
      x: any shape, or a SequenceBatch, of which each step becomes a row.
      axis: dimensions before it become rows, the others columns.
      name: instead of `flatten_N`.

    Returns:
      `[product before axis, product of the rest]`.

    Raises:
      ArgumentError: there is no such axis.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.flatten(fluid.layers.data("x", shape=[3, 8, 8]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 192]
    """
    this = Layer("flatten", name)
    array = dense(x)
    lead = row_dims(x)
    if not isinstance(axis, int) or not 0 <= axis <= array.ndim or (lead > 1 and axis != 1):
        raise errors.ArgumentError(
            f"{this.name}: {describe(x)} cannot be flattened at axis={axis!r}; as in flatten(x, axis=1)"
        )
    rows = array.shape[:lead] if lead > 1 else [math.prod(array.shape[:axis])]
    return this.output(like(x, array.reshape(*rows, math.prod(array.shape[lead if lead > 1 else axis :]))))


@layer
def expand(x: Any, expand_times: Sequence[int], name: str | None = None) -> Any:
    """Repeat along dimensions.

    Args:
      x: any shape, or a SequenceBatch, whose first dimension counts as its steps and stays.
      expand_times: how often along each dimension.
      name: instead of `expand_N`.

    Returns:
      Each size multiplied by its number.

    Raises:
      ArgumentError: there is not one number for each dimension.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.expand(fluid.layers.data("x", shape=[1, 3]), expand_times=[1, 4, 1])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4, 3]
    """
    this = Layer("expand", name)
    array = dense(x)
    times = list(expand_times)
    lead = row_dims(x) - 1
    if len(times) != array.ndim - lead or any(int(t) < 1 for t in times) or (lead and times[0] != 1):
        raise errors.ArgumentError(
            f"{this.name}: expand_times={times} for {describe(x)}; expected one positive integer for each dimension, "
            f"1 for the rows of sequences, as in expand_times={[1] * (array.ndim - lead)}"
        )
    return this.output(like(x, jnp.tile(array, [1] * lead + times)))


def _check_axes(this: Layer, value: Any, axes: Sequence[Any], dims: int) -> None:
    if any(not isinstance(a, int) or not -dims <= a < dims for a in axes) or len({a % dims for a in axes}) < len(axes):
        raise errors.ArgumentError(
            f"{this.name}: axes {list(axes)} are no places in the result for {describe(value)}; expected different "
            f"integers from {-dims} to {dims - 1}"
        )
