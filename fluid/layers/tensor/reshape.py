"""Layers that reshape, pad and crop values, or return a shape as an array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, axis_of, dense, describe, is_sequence, layer, like, row_dims
from fluid.layers.checks import Sizes, check_axes, dtype_of, shape_of
from fluid.layers.functional import Activation


@layer
def shape(input: Value, name: str | None = None) -> jax.Array:
    """Return the shape of a value as an array, as input of other layers; in Python code use `x.shape`.

    Args:
      input: any shape.
      name: name of the layer; by default `shape_N`.

    Returns:
      `[dimensions]`, int32.

    Raises:
      ShapeError: the input is a sequence batch.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.shape(fluid.layers.data("x", shape=[3, 4]))).outputs[0])
      int32[3]
    """
    this = Layer("shape", name)
    return this.output(jnp.asarray(array_of(this, input).shape, jnp.int32))


@layer
def rank(input: Value, name: str | None = None) -> jax.Array:
    """Return the number of dimensions of a value as an array, as input of other layers.

    Args:
      input: any shape.
      name: name of the layer; by default `rank_N`.

    Returns:
      A scalar, `[]`, int32.

    Raises:
      ShapeError: the input is a sequence batch.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.rank(fluid.layers.data("x", shape=[3, 4]))).outputs[0])
      int32[]
    """
    this = Layer("rank", name)
    return this.output(jnp.asarray(array_of(this, input).ndim, jnp.int32))


@layer
def size(input: Value, name: str | None = None) -> jax.Array:
    """Return the number of elements of a value as an array, as input of other layers.

    Args:
      input: any shape.
      name: name of the layer; by default `size_N`.

    Returns:
      A scalar, `[]`, in JAX's default integer dtype.

    Raises:
      ShapeError: the input is a sequence batch.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.size(fluid.layers.data("x", shape=[3, 4]))).outputs[0])
      int32[]
    """
    this = Layer("size", name)
    return this.output(jnp.asarray(math.prod(array_of(this, input).shape), dtype_of("size", "int64")))


@layer
def reshape(
    x: Value,
    shape: Sequence[int],
    actual_shape: Value | None = None,
    act: Activation = None,
    inplace: bool = False,
    name: str | None = None,
) -> Any:
    """Change the shape of a value.

    Args:
      x: an array of any shape, or a SequenceBatch. Batch and time of a SequenceBatch count as one dimension, which
        stays first.
      shape: the new shape. A size of 0 copies the size of `x` at the same index; one size may be -1, and is computed
        from the number of elements.
      actual_shape: must be None: in Fluid, a shape computed from data, which a compiled program cannot have.
      act: name of an activation, or a function.
      inplace: whether Fluid would reshape `x` itself. In this package values never change. So with True, use only the
        returned value after the call.
      name: name of the layer; by default `reshape2_N`.

    Returns:
      A value of the type of `x` (array or SequenceBatch), in the new shape.

    Raises:
      ArgumentError: `actual_shape` is given.
      ArgumentTypeError: the shape is not a list of integers.
      ProgramError: with `inplace=True`, a later layer uses `x`; that layer raises the error.
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
    array = dense(x)
    lead = row_dims(x) - 1
    sizes = shape_of("reshape", shape)
    old = [math.prod(array.shape[: lead + 1]), *array.shape[lead + 1 :]]
    new = [old[i] if d == 0 and i < len(old) else d for i, d in enumerate(sizes)]
    if lead and new and new[0] == -1 and sizes.count(-1) == 1:
        new[0] = old[0]
    if new.count(-1) == 1:
        rest = -math.prod(new)
        new[new.index(-1)] = math.prod(old) // rest if rest > 0 else 0
    if any(d < 0 for d in new) or math.prod(new) != math.prod(old) or (lead and new[:1] != old[:1]):
        raise errors.ShapeError(
            f"{this.name}: {describe(x)} cannot be reshaped to {sizes}; the number of elements must be the same"
            f"{' in each step' if lead else ''}, as in reshape(x, [0, -1]), where 0 copies a size and -1 takes the rest"
        )
    result = array.reshape([*array.shape[: lead + 1], *new[1:]] if lead else new)
    result = this.output(like(x, result))
    if inplace and result is not x and (is_sequence(x) or isinstance(x, jax.Array)):
        core.change_in_place(this.frame, x, "y = layers.reshape(x, shape)")
    this.skip_outputs(1)
    return this.activate(result, act)


@layer
def transpose(x: Value, perm: Sequence[int], name: str | None = None) -> Any:
    """Reorder the dimensions of a value.

    Args:
      x: an array of any shape, or a SequenceBatch. Batch and time of a SequenceBatch count as one dimension, which
        stays first.
      perm: the dimensions of `x` in their new order.
      name: name of the layer; by default `transpose_N`.

    Returns:
      A value of the type of `x` (array or SequenceBatch), with reordered dimensions.

    Raises:
      ShapeError: `perm` does not contain each dimension exactly once.

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
def squeeze(input: Value, axes: Sequence[int], name: str | None = None) -> Any:
    """Remove dimensions of size 1.

    Args:
      input: an array of any shape, or a SequenceBatch.
      axes: the dimensions; an empty list stands for all dimensions of size 1.
      name: name of the layer; by default `squeeze2_N`.

    Returns:
      A value of the type of the input (array or SequenceBatch), without these dimensions.

    Raises:
      ArgumentError: the axis does not exist.
      ShapeError: one of the dimensions has another size.

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
def unsqueeze(input: Value, axes: Sizes, name: str | None = None) -> Any:
    """Insert dimensions of size 1.

    Args:
      input: an array of any shape, or a SequenceBatch.
      axes: the indices of the new dimensions in the result, one or several.
      name: name of the layer; by default `unsqueeze2_N`.

    Returns:
      A value of the type of the input (array or SequenceBatch), with the new dimensions.

    Raises:
      ArgumentError: an axis is out of range, or would insert a dimension before the rows of a SequenceBatch.

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
    check_axes(this, input, places, dims)
    if lead and any(p % dims == 0 for p in places):
        raise errors.ArgumentError(
            f"{this.name}: axes={places} would come before the rows of {describe(input)}; expected 1 or more"
        )
    return this.output(like(input, jnp.expand_dims(dense(input), tuple(p % dims + lead for p in places))))


@layer
def flatten(x: Value, axis: int = 1, name: str | None = None) -> Any:
    """Flatten a value to a matrix.

    Args:
      x: an array of any shape, or a SequenceBatch, whose steps become the rows.
      axis: the dimensions before `axis` become the rows, the others the columns.
      name: name of the layer; by default `flatten_N`.

    Returns:
      `[product of the sizes before axis, product of the other sizes]`; a SequenceBatch if `x` is one.

    Raises:
      ArgumentError: the axis does not exist.

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
            f"{this.name}: {describe(x)} cannot be flattened at axis={axis!r}; expected one of its dimensions, as in "
            f"flatten(x, axis=1)"
        )
    rows = array.shape[:lead] if lead > 1 else [math.prod(array.shape[:axis])]
    return this.output(like(x, array.reshape(*rows, math.prod(array.shape[lead if lead > 1 else axis :]))))


@layer
def pad(x: Value, paddings: Sequence[int], pad_value: float = 0.0, name: str | None = None) -> jax.Array:
    """Pad an array at the start and at the end of each dimension.

    Args:
      x: any shape.
      paddings: the number of elements to add at the start and at the end of each dimension:
        `[before_0, after_0, before_1, ...]`.
      pad_value: the value of the added elements.
      name: name of the layer; by default `pad_N`.

    Returns:
      An array; each size grows by the two paddings of its dimension.

    Raises:
      ArgumentError: there are not two paddings for each dimension, or one is negative.
      ShapeError: `x` is a sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.pad(fluid.layers.data("x", shape=[3]), paddings=[0, 0, 1, 2])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 6]
    """
    this = Layer("pad", name)
    array = array_of(this, x)
    widths = [int(p) for p in paddings]
    if len(widths) != 2 * array.ndim or min(widths, default=0) < 0:
        raise errors.ArgumentError(
            f"{this.name}: paddings={list(paddings)} for {describe(x)}; expected a before and an after for each "
            f"dimension, as in paddings={[0, 0] * (array.ndim - 1) + [1, 1]}"
        )
    pairs = list(zip(widths[::2], widths[1::2], strict=True))
    return this.output(jnp.pad(array, pairs, constant_values=np.array(pad_value, array.dtype)))


@layer
def pad_constant_like(x: Value, y: Value, pad_value: float = 0.0, name: str | None = None) -> jax.Array:
    """Pad `y` at the end of each dimension to the shape of `x`.

    Args:
      x: the array with the target shape.
      y: the array to pad; no size is larger than in `x`.
      pad_value: the value of the new elements.
      name: name of the layer; by default `pad_constant_like_N`.

    Returns:
      `y`, padded to the shape of `x`.

    Raises:
      ShapeError: `y` is larger than `x`, or has another number of dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[5]), fluid.layers.data("y", shape=[3])
      ...     return fluid.layers.pad_constant_like(x, y, pad_value=-1.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 5]
    """
    this = Layer("pad_constant_like", name)
    whole = array_of(this, x)
    part = array_of(this, y)
    if whole.ndim != part.ndim or any(a < b for a, b in zip(whole.shape, part.shape, strict=True)):
        raise errors.ShapeError(
            f"{this.name}: y {describe(y)} cannot be padded to the shape of x {describe(x)}; pad_constant_like(x, y) "
            f"pads y, which must not be larger in any dimension"
        )
    pairs = [(0, a - b) for a, b in zip(whole.shape, part.shape, strict=True)]
    return this.output(jnp.pad(part, pairs, constant_values=np.array(pad_value, part.dtype)))


@layer
def crop(
    x: Value,
    shape: Value | Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    name: str | None = None,
) -> jax.Array:
    """Crop an array to a given shape.

    Args:
      x: any shape.
      shape: the shape of the result, in which -1 means all elements from the offset on; or an array with this shape.
      offsets: the first index to keep in each dimension; zeros by default.
      name: name of the layer; by default `crop_N`.

    Returns:
      An array of the given shape.

    Raises:
      ArgumentError: no shape is given, or there is not one size and one offset for each dimension.
      ShapeError: the cropped region extends beyond `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.crop(fluid.layers.data("x", shape=[5, 6]), shape=[-1, 3, 3], offsets=[0, 1, 2])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 3]
    """
    return _crop(Layer("crop", name), x, shape, offsets)


@layer
def crop_tensor(
    x: Value,
    shape: Value | Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    name: str | None = None,
) -> jax.Array:
    """Crop an array to a given shape; `crop_tensor` is another name for `crop`.

    Args:
      x: any shape.
      shape: the shape of the result, in which -1 means all elements from the offset on; or an array with this shape.
      offsets: the first index to keep in each dimension; zeros by default.
      name: name of the layer; by default `crop_tensor_N`.

    Returns:
      An array of the given shape.

    Raises:
      ArgumentError: no shape is given, or there is not one size and one offset for each dimension.
      ShapeError: the cropped region extends beyond `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.crop_tensor(fluid.layers.data("x", shape=[5]), shape=[-1, 3])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return _crop(Layer("crop_tensor", name), x, shape, offsets)


def _crop(this: Layer, x: Any, shape: Any, offsets: Any) -> Any:
    """Implement `crop` and `crop_tensor`: crop `x` to `shape`, from `offsets` on."""
    array = array_of(this, x)
    if shape is None:
        raise errors.ArgumentError(f"{this.name}: give the shape of the part, as in shape={[-1, *array.shape[1:]]}")
    wanted = shape.shape if isinstance(shape, jax.Array) else shape
    sizes = [int(s) for s in wanted]
    starts = [0] * array.ndim if offsets is None else [int(o) for o in offsets]
    if len(sizes) != array.ndim or len(starts) != array.ndim:
        raise errors.ArgumentError(
            f"{this.name}: shape={sizes} and offsets={starts} for {describe(x)}; give one of each for each dimension"
        )
    sizes = [w - s if n == -1 else n for n, s, w in zip(sizes, starts, array.shape, strict=True)]
    ends = [s + n for s, n in zip(starts, sizes, strict=True)]
    if any(s < 0 or n < 0 or e > w for s, n, e, w in zip(starts, sizes, ends, array.shape, strict=True)):
        raise errors.ShapeError(
            f"{this.name}: a part of {sizes} from {starts} on reaches beyond {describe(x)}; use smaller sizes or "
            f"offsets"
        )
    return this.output(jax.lax.slice(array, starts, ends))
