"""Products of matrices."""

import math
from typing import Any

import jax.numpy as jnp

from fluid import errors
from fluid.layers.base import Layer, array_of, dense, describe, layer, like, row_dims


@layer
def matmul(
    x: Any,
    y: Any,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Any:
    """Product of matrices, or of batches of them.

    Args:
      x: `[..., n, m]`, or a vector `[m]`.
      y: `[..., m, k]`, or a vector `[m]`.
      transpose_x: whether `x` is `[..., m, n]` instead.
      transpose_y: whether `y` is `[..., k, m]` instead.
      alpha: multiplies the result.
      name: instead of `matmul_N`.

    Returns:
      `[..., n, k]`; a scalar for two vectors.

    Raises:
      ShapeError: the sizes do not fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[3, 4]), fluid.layers.data("y", shape=[5, 4])
      ...     return fluid.layers.matmul(x, y, transpose_y=True)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 5]
    """
    this = Layer("matmul", name)
    left, right = dense(x), array_of(this, y)
    left = jnp.swapaxes(left, -1, -2) if transpose_x and left.ndim > 1 else left
    right = jnp.swapaxes(right, -1, -2) if transpose_y and right.ndim > 1 else right
    try:
        product = jnp.matmul(left, right)
    except (TypeError, ValueError) as error:
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} and y {describe(y)} do not fit with transpose_x={transpose_x}, "
            f"transpose_y={transpose_y}; the last size of x must be the last but one of y, as in "
            f"matmul(x, y, transpose_y=True)"
        ) from error
    return this.output(like(x, product if alpha == 1.0 else product * alpha))


@layer
def mul(x: Any, y: Any, x_num_col_dims: int = 1, y_num_col_dims: int = 1, name: str | None = None) -> Any:
    """Product of two values, each flattened to a matrix.

    Args:
      x: `[*rows, *inner]`, or a SequenceBatch of steps `[*inner]`.
      y: `[*inner, *columns]`.
      x_num_col_dims: how many dimensions of `x` are rows.
      y_num_col_dims: how many dimensions of `y` are inner ones.
      name: instead of `mul_N`.

    Returns:
      `[*rows, *columns]`.

    Raises:
      ShapeError: the inner sizes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.mul(x, fluid.layers.create_parameter([4, 2], name="w"))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2]
    """
    this = Layer("mul", name)
    left, right = dense(x), array_of(this, y)
    keep = x_num_col_dims + row_dims(x) - 1
    inner, other = math.prod(left.shape[keep:]), math.prod(right.shape[:y_num_col_dims])
    if not 0 < keep < left.ndim or not 0 < y_num_col_dims < right.ndim or inner != other:
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} has {inner} columns beyond its first {x_num_col_dims} dimensions, y "
            f"{describe(y)} has {other} rows in its first {y_num_col_dims}; they must be equal"
        )
    product = left.reshape(*left.shape[:keep], inner) @ right.reshape(inner, -1)
    return this.output(like(x, product.reshape(*left.shape[:keep], *right.shape[y_num_col_dims:])))
