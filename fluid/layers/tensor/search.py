"""The largest and the smallest elements, and the order of elements."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, dense, describe, layer, like
from fluid.layers.checks import inner_axis_of


@layer
def topk(input: core.Value, k: int, name: str | None = None) -> tuple[Any, Any]:
    """The `k` largest elements along the last dimension, largest first, and where they are.

    Args:
      input: `[..., n]`, or a SequenceBatch.
      k: the number of elements.
      name: instead of `top_k_N`.

    Returns:
      `(values, indices)`, both `[..., k]`, and SequenceBatches if the input is one.

    Raises:
      ArgumentError: `k` is not between 1 and `n`.
      ShapeError: the input has no dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.topk(fluid.layers.data("x", shape=[10]), k=3)
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 3] int32[batch, 3]
    """
    this = Layer("top_k", name)
    array = dense(input)
    if array.ndim == 0:
        raise errors.ShapeError(f"{this.name}: {describe(input)} is a single number; expected [..., n]")
    values, places = jax.lax.top_k(array, core.whole_number(this.name, "k", k, most=array.shape[-1]))
    return this.output(like(input, values)), this.output(like(input, places))


@layer
def argmax(x: core.Value, axis: int = 0, name: str | None = None) -> Any:
    """The index of the largest element along a dimension.

    Args:
      x: any shape, or a SequenceBatch.
      axis: the dimension.
      name: instead of `arg_max_N`.

    Returns:
      Integers, the shape of `x` without that dimension.

    Raises:
      ArgumentError: there is no such axis, or it is the rows of sequences.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.argmax(fluid.layers.data("x", shape=[10]), axis=-1)
      >>> print(fluid.Program(program).outputs[0])
      int32[batch]
    """
    this = Layer("arg_max", name)
    return this.output(like(x, jnp.argmax(dense(x), axis=inner_axis_of(this, x, axis))))


@layer
def argmin(x: core.Value, axis: int = 0, name: str | None = None) -> Any:
    """The index of the smallest element along a dimension.

    Args:
      x: any shape, or a SequenceBatch.
      axis: the dimension.
      name: instead of `arg_min_N`.

    Returns:
      Integers, the shape of `x` without that dimension.

    Raises:
      ArgumentError: there is no such axis, or it is the rows of sequences.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.argmin(fluid.layers.data("x", shape=[10]), axis=-1)
      >>> print(fluid.Program(program).outputs[0])
      int32[batch]
    """
    this = Layer("arg_min", name)
    return this.output(like(x, jnp.argmin(dense(x), axis=inner_axis_of(this, x, axis))))


@layer
def argsort(input: core.Value, axis: int = -1, name: str | None = None) -> tuple[Any, Any]:
    """Sort along a dimension, smallest first, and give the index that each element had.

    Args:
      input: any shape, or a SequenceBatch.
      axis: the dimension.
      name: instead of `argsort_N`.

    Returns:
      `(sorted, indices)`, both of the same kind and shape as the input.

    Raises:
      ArgumentError: there is no such axis, or it is the rows of sequences.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.argsort(fluid.layers.data("x", shape=[10]))
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 10] int32[batch, 10]
    """
    this = Layer("argsort", name)
    array = dense(input)
    place = inner_axis_of(this, input, axis)
    order = jnp.argsort(array, axis=place)
    return (
        this.output(like(input, jnp.take_along_axis(array, order, axis=place))),
        this.output(like(input, order)),
    )
