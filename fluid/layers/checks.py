"""Checks of the arguments of layers: ids, axes, dtypes, shapes, sizes."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, axis_of, dense, describe, is_sequence, row_dims

# An argument for several dimensions: one integer for all of them, or one for each; see `sizes_of`.
Sizes = int | Sequence[int]


def check_ids(layer_name: str, value: Any, argument: str = "ids") -> Any:
    """Check that a value holds integers, such as ids, and return its array.

    Args:
      layer_name: the name of the layer, for the message.
      value: an array or a sequence batch.
      argument: the name of the argument, for the message.

    Raises:
      ArgumentTypeError: the value holds no integers.
    """
    ids = dense(value)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        level = ", lod_level=1" if is_sequence(value) else ""
        raise errors.ArgumentTypeError(
            f"{layer_name}: {argument} are integers, and {describe(value)} holds no integers; "
            f'declare it so: layers.data(..., shape=[1], dtype="int64"{level})'
        )
    return ids


def check_axes(this: Layer, value: Any, axes: Sequence[Any], dims: int) -> None:
    """Check the indices of new axes: different dimensions of a result that has `dims` dimensions.

    Raises:
      ArgumentError: an axis is out of range, no integer, or given twice.
    """
    if any(not isinstance(a, int) or not -dims <= a < dims for a in axes) or len({a % dims for a in axes}) < len(axes):
        raise errors.ArgumentError(
            f"{this.name}: axes {list(axes)} cannot be put into {describe(value)}; expected different integers from "
            f"{-dims} to {dims - 1}"
        )


def known_shape(this: Layer, shape: Any) -> list[int]:
    """Return a shape as a list of sizes; refuse -1, which would stand for an unknown size.

    Raises:
      ArgumentError: a size is negative.
      ArgumentTypeError: the shape is no list of integers.
    """
    sizes = shape_of(this.name, shape)
    if any(d < 0 for d in sizes):
        raise errors.ArgumentError(
            f"{this.name}: shape={sizes} has a size that is not known; for one that follows the batch use "
            f"layers.fill_constant_batch_size_like(x, [-1, 10], 'float32', 0.0)"
        )
    return sizes


def inner_axis_of(this: Layer, value: Any, axis: int) -> int:
    """Return the dimension of an axis, as `axis_of` does, but refuse the axis of the rows of a sequence batch.

    Raises:
      ArgumentError: there is no such axis, or it is axis 0 of a sequence batch.
    """
    place = axis_of(value, axis)
    if place == 0 and row_dims(value) > 1:
        raise errors.ArgumentError(
            f"{this.name}: axis={axis} are the rows of {describe(value)}; expected 1 or more, or -1"
        )
    return place


def check_same_shape(this: Layer, first: Any, second: Any, names: tuple[str, str] = ("input", "label")) -> None:
    """Check that two values have one shape, and are both arrays or both sequence batches.

    Raises:
      ShapeError: only one is a sequence batch, or the shapes differ.
    """
    if row_dims(first) != row_dims(second):
        raise errors.ShapeError(
            f"{this.name}: one of {names[0]} and {names[1]} is a sequence batch, the other is not; declare both with "
            f"lod_level=1, or pool the sequence first: layers.sequence_pool(x, 'average')"
        )
    if dense(first).shape != dense(second).shape:
        raise errors.ShapeError(
            f"{this.name}: {names[0]} {describe(first)} and {names[1]} {describe(second)} differ in shape; "
            f"reshape one: layers.reshape({names[1]}, {[-1, *dense(first).shape[1:]]})"
        )


def dtype_of(caller: str, dtype: Any) -> Any:
    """Return the dtype in which JAX keeps data of a dtype: int32 for int64, unless `jax_enable_x64` is set.

    Raises:
      ArgumentError: there is no such dtype.
    """
    try:
        return jax.dtypes.canonicalize_dtype(jnp.dtype(dtype))
    except TypeError as error:
        raise errors.ArgumentError(
            f'{caller}: dtype={dtype!r} does not exist; use "float32", "int64" or "bool"'
        ) from error


def shape_of(caller: str, shape: Any) -> list[int]:
    """Return a shape as a list of integers or symbolic sizes; -1 may stand for an unknown size.

    Raises:
      ArgumentTypeError: the shape is no list or tuple of sizes.
    """
    if not isinstance(shape, list | tuple) or not all(map(core.is_size, shape)):
        raise errors.ArgumentTypeError(f"{caller}: shape={shape!r}; expected a list of integers, as in shape=[-1, 10]")
    return [int(d) if isinstance(d, int | np.integer) else d for d in shape]


def sizes_of(this: Layer, name: str, value: Any, count: int, least: int = 1) -> tuple[int, ...]:
    """Return an argument such as `3` or `[3, 5]` as a tuple of one size for each of `count` dimensions.

    Raises:
      ArgumentError: the number of sizes is not `count`, or a size is no integer of at least `least`.
    """
    several = isinstance(value, Iterable) and not isinstance(value, str)
    sizes = tuple(value) if several else (value,) * count
    if len(sizes) != count:
        raise errors.ArgumentError(
            f"{this.name}({name}={value!r}): expected one integer or {count} of them, as in {name}={[least] * count}"
        )
    return tuple(core.whole_number(this.name, name, size, least) for size in sizes)
