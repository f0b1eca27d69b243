"""TensorArray: a container for a fixed number of arrays of equal shape, which a loop writes one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, describe, layer
from fluid.layers.checks import dtype_of, known_shape


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class TensorArray:
    """A container for a fixed number of arrays of equal shape, with the number of arrays written so far.

    A TensorArray is a pytree, so loops can carry it and branches can return it.

    Attributes:
      data: `[max_length, ...]`; arrays that were not written are zeros.
      length: int32 `[]`: one more than the largest index that was written.
    """

    data: jax.Array
    length: jax.Array


@layer
def create_array(dtype: Any, max_length: int, shape: Sequence[int] = (), name: str | None = None) -> TensorArray:
    """Create an empty TensorArray, which `layers.array_write` fills with one array at a time.

    Args:
      dtype: the dtype of each array.
      max_length: the largest number of arrays.
      shape: the shape of each array; scalars by default. For a shape that depends on the batch size, use `x.shape`.
      name: name of the layer; by default `create_array_N`.

    Returns:
      An empty TensorArray; the shape of its `data` is `[max_length, *shape]`.

    Raises:
      ArgumentError: a size is negative, or `max_length` is not a positive integer.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     def body(i, x, powers):
      ...         return i + 1, x * x, fluid.layers.array_write(x, i, powers)
      ...     powers = fluid.layers.create_array("float32", max_length=4, shape=x.shape)
      ...     powers = fluid.layers.while_loop(lambda i, x, powers: i < 4, body, [0, x, powers])[2]
      ...     return powers.data, fluid.layers.array_length(powers)
      >>> print(*fluid.Program(program).outputs)
      float32[4, batch, 3] int32[]
    """
    this = Layer("create_array", name)
    capacity = core.whole_number(this.name, "max_length", max_length)
    sizes = known_shape(this, list(shape))
    return TensorArray(this.output(jnp.zeros([capacity, *sizes], dtype_of("create_array", dtype))), jnp.int32(0))


@layer
def array_write(
    x: Value,
    i: Value | int,
    array: TensorArray | None = None,
    max_length: int | None = None,
    name: str | None = None,
) -> TensorArray:
    """Return a TensorArray in which `x` replaces one array. The argument `array` does not change: use the result.

    Args:
      x: the array to write, with the shape and dtype of the arrays in the TensorArray.
      i: the index of the array to replace: a Python int, or an integer value `[]` or `[1]`. If the value is out of
        range, nothing is written.
      array: the TensorArray; by default a new one with the shape and dtype of `x`.
      max_length: the number of arrays of a new TensorArray.
      name: name of the layer; by default `array_write_N`.

    Returns:
      The new TensorArray.

    Raises:
      ShapeError: `x` has another shape or dtype than the arrays in the TensorArray.
      ArgumentError: `i` is a Python int out of range, neither `array` nor `max_length` is given, or `max_length` is not
        a positive integer.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     array = fluid.layers.array_write(x, 0, max_length=2)
      ...     return fluid.layers.array_write(x * 2, 1, array).data
      >>> print(fluid.Program(program).outputs[0])
      float32[2, batch, 3]
    """
    this = Layer("array_write", name)
    value = array_of(this, x)
    if array is None:
        if max_length is None:
            raise errors.ArgumentError(
                f"{this.name}: neither array nor max_length is given; the room must be known in advance: "
                f"layers.array_write(x, i, array), or layers.array_write(x, i, max_length=20) for a new one"
            )
        capacity = core.whole_number(this.name, "max_length", max_length)
        array = TensorArray(jnp.zeros([capacity, *value.shape], value.dtype), jnp.int32(0))
    data = _check_tensor_array(this, array).data
    index = _index(this, i, data.shape[0])
    if (value.shape, value.dtype) != (data.shape[1:], data.dtype):
        raise errors.ShapeError(
            f"{this.name}: {describe(x)} into an array with room for {data.shape[0]} of {describe(data[0])}; say so "
            f'with layers.create_array("{value.dtype}", max_length, shape=x.shape)'
        )
    # JAX would count a negative index from the end. Replace a negative index by the length of `data`, an index beyond
    # the end, which `mode="drop"` ignores.
    changed = data.at[jnp.where(index < 0, data.shape[0], index)].set(value, mode="drop")
    length = jnp.clip(index + 1, array.length, data.shape[0]).astype(jnp.int32)
    return TensorArray(this.output(changed), length)


@layer
def array_read(array: TensorArray, i: Value | int, name: str | None = None) -> jax.Array:
    """Return one array of a TensorArray.

    Args:
      array: the TensorArray.
      i: the index of the array: a Python int, or an integer value `[]` or `[1]`. If the value is out of range, a
        TensorArray of floats returns NaN.
      name: name of the layer; by default `array_read_N`.

    Returns:
      The array at index `i`; zeros if no array was written there.

    Raises:
      ArgumentError: `i` is a Python int out of range.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     return fluid.layers.array_read(fluid.layers.array_write(x, 0, max_length=1), 0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("array_read", name)
    data = _check_tensor_array(this, array).data
    fill = np.nan if jnp.issubdtype(data.dtype, jnp.inexact) else None
    index = _index(this, i, data.shape[0])
    return this.output(data.at[index].get(mode="fill", fill_value=fill, wrap_negative_indices=False))


@layer
def array_length(array: TensorArray, name: str | None = None) -> jax.Array:
    """Return the number of arrays written to a TensorArray: one more than the largest index that was written.

    Args:
      array: the TensorArray.
      name: name of the layer; by default `array_length_N`.

    Returns:
      int32 `[]`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.array_length(fluid.layers.create_array("float32", max_length=4))
      >>> print(fluid.Program(program).outputs[0])
      int32[]
    """
    this = Layer("array_length", name)
    return this.output(jnp.asarray(_check_tensor_array(this, array).length))


def _check_tensor_array(this: Layer, array: Any) -> TensorArray:
    if not isinstance(array, TensorArray):
        raise errors.ArgumentTypeError(
            f"{this.name}: array is a {type(array).__name__}, expected what layers.create_array or layers.array_write "
            f"returned"
        )
    return array


def _index(this: Layer, i: Any, capacity: int) -> Any:
    """Return the index `i` as an integer array `[]`; check that a Python int is from 0 to `capacity - 1`."""
    if isinstance(i, int | np.integer):
        i = core.whole_number(this.name, "i", i, least=0, most=capacity - 1)
    index = array_of(this, i)
    if not jnp.issubdtype(index.dtype, jnp.integer) or index.size != 1:
        raise errors.ShapeError(
            f'{this.name}: i is {describe(i)}, expected one integer, as in layers.zeros([1], "int32")'
        )
    return index.reshape(())
