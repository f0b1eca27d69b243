"""Arguments of layers, checked: ids, dtypes, shapes."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core import is_size
from fluid.layers.base import Layer, axis_of, dense, describe, is_sequence, row_dims


def check_ids(layer_name: str, value: Any, argument: str = "ids") -> Any:
    """The array of integers such as ids.

    Args:
      layer_name: for messages.
      value: an array or a sequence batch.
      argument: what is in it.

    Raises:
      ArgumentTypeError: they are no integers.
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
    """Refuse axes of a result of `dims` dimensions that are not different integers within it.

    Raises:
      ArgumentError: they are not.
    """
    if any(not isinstance(a, int) or not -dims <= a < dims for a in axes) or len({a % dims for a in axes}) < len(axes):
        raise errors.ArgumentError(
            f"{this.name}: axes {list(axes)} are no places in the result for {describe(value)}; expected different "
            f"integers from {-dims} to {dims - 1}"
        )


def known_shape(this: Layer, shape: Any) -> list[int]:
    """Read a shape of which every size is known.

    Raises:
      ArgumentError: one is negative.
    """
    sizes = shape_of(this.name, shape)
    if any(d < 0 for d in sizes):
        raise errors.ArgumentError(
            f"{this.name}: shape={sizes} has a size that is not known; for one that follows the batch use "
            f"layers.fill_constant_batch_size_like(x, [-1, 10], 'float32', 0.0)"
        )
    return sizes


def inner_axis_of(this: Layer, value: Any, axis: int) -> int:
    """Where an axis lies in the array of a value, see `axis_of`; the rows of a sequence batch are none.

    Raises:
      ArgumentError: there is no such axis.
    """
    place = axis_of(value, axis)
    if place == 0 and row_dims(value) > 1:
        raise errors.ArgumentError(
            f"{this.name}: axis={axis} are the rows of {describe(value)}; expected 1 or more, or -1"
        )
    return place


def check_same_shape(this: Layer, first: Any, second: Any, names: tuple[str, str] = ("input", "label")) -> None:
    """Refuse two values of different shapes.

    Raises:
      ShapeError: they differ.
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
    """The dtype that JAX holds such data in.

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
    """Read a shape given as a list of integers.

    Raises:
      ArgumentTypeError: it is something else.
    """
    if not isinstance(shape, list | tuple) or not all(map(is_size, shape)):
        raise errors.ArgumentTypeError(f"{caller}: shape={shape!r}; expected a list of integers, as in shape=[-1, 10]")
    return [int(d) if isinstance(d, int | np.integer) else d for d in shape]
