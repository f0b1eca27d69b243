"""Functions that check arguments of layers: ids, axes, dtypes, shapes, sizes."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, axis_of, dense, describe, is_sequence, row_dims

# `Sizes` is the type of an argument for several dimensions: one integer for all dimensions, or a list with one integer
# for each dimension.
Sizes = int | Sequence[int]


def check_ids(layer_name: str, value: Any, argument: str = "ids") -> Any:
    """Check that a value holds integers, such as ids, and return its array.

    Raises:
      ArgumentTypeError: the value does not hold integers.
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
    """Check indices of new axes: they must be different, and exist in a result of `dims` dimensions.

    Raises:
      ArgumentError: an axis is out of range, is not an integer, or occurs twice.
    """
    if any(not isinstance(a, int) or not -dims <= a < dims for a in axes) or len({a % dims for a in axes}) < len(axes):
        raise errors.ArgumentError(
            f"{this.name}: axes {list(axes)} cannot be put into {describe(value)}; expected different integers from "
            f"{-dims} to {dims - 1}"
        )


def known_shape(this: Layer, shape: Any) -> list[int]:
    """Convert a shape to a list of sizes, and refuse -1, which would mean an unknown size.

    Raises:
      ArgumentError: a size is negative.
      ArgumentTypeError: the shape is not a list of integers.
    """
    sizes = shape_of(this.name, shape)
    if any(d < 0 for d in sizes):
        raise errors.ArgumentError(
            f"{this.name}: shape={sizes} has a size that is not known; for one that follows the batch use "
            f"layers.fill_constant_batch_size_like(x, [-1, 10], 'float32', 0.0)"
        )
    return sizes


def inner_axis_of(this: Layer, value: Any, axis: int) -> int:
    """Convert the user's axis to a dimension of the array; refuse axis 0 (batch and time) of a sequence batch.

    Raises:
      ArgumentError: the axis does not exist, or is axis 0 of a sequence batch.
    """
    place = axis_of(value, axis)
    if place == 0 and row_dims(value) > 1:
        raise errors.ArgumentError(
            f"{this.name}: axis={axis} are the rows of {describe(value)}; expected 1 or more, or -1"
        )
    return place


def check_same_shape(this: Layer, first: Any, second: Any, names: tuple[str, str] = ("input", "label")) -> None:
    """Check that two values have equal shapes, and are both arrays or both sequence batches.

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
    """Convert a dtype to the dtype that JAX uses for it: int32 for int64, unless `jax_enable_x64` is set.

    Raises:
      ArgumentError: the dtype does not exist.
    """
    try:
        return jax.dtypes.canonicalize_dtype(jnp.dtype(dtype))
    except TypeError as error:
        raise errors.ArgumentError(
            f'{caller}: dtype={dtype!r} does not exist; use "float32", "int64" or "bool"'
        ) from error


def shape_of(caller: str, shape: Any) -> list[int]:
    """Convert a shape to a list of integers or symbolic sizes; -1 may stand for an unknown size.

    Raises:
      ArgumentTypeError: the shape is not a list or tuple of sizes.
    """
    if not isinstance(shape, list | tuple) or not all(map(core.is_size, shape)):
        raise errors.ArgumentTypeError(f"{caller}: shape={shape!r}; expected a list of integers, as in shape=[-1, 10]")
    return [int(d) if isinstance(d, int | np.integer) else d for d in shape]


def sizes_of(this: Layer, name: str, value: Any, count: int, least: int = 1) -> tuple[int, ...]:
    """Convert an argument such as `3` or `[3, 5]` to a tuple with one size for each of `count` dimensions.

    Raises:
      ArgumentError: the number of sizes is not `count`, or a size is not an integer of at least `least`.
    """
    several = isinstance(value, Iterable) and not isinstance(value, str)
    sizes = tuple(value) if several else (value,) * count
    if len(sizes) != count:
        raise errors.ArgumentError(
            f"{this.name}({name}={value!r}): expected one integer or {count} of them, as in {name}={[least] * count}"
        )
    return tuple(core.whole_number(this.name, name, size, least) for size in sizes)
