"""Products of vectors and of batches of matrices, and distances between values."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.assigning import assigns
from fluid.layers.base import Layer, array_of, axis_of, describe, layer


@layer
def bmm(x: core.Value, y: core.Value, name: str | None = None) -> jax.Array:
    """Multiply two batches of matrices.

    Args:
      x: `[batch, n, m]`.
      y: `[batch, m, k]`.
      name: name of the layer; by default `bmm_N`.

    Returns:
      `[batch, n, k]`.

    Raises:
      ShapeError: the sizes do not fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[3, 4]), fluid.layers.data("y", shape=[4, 5])
      ...     return fluid.layers.bmm(x, y)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 5]
    """
    this = Layer("bmm", name)
    left = array_of(this, x)
    right = array_of(this, y)
    if left.ndim != 3 or right.ndim != 3 or left.shape[0] != right.shape[0] or left.shape[2] != right.shape[1]:
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} and y {describe(y)} do not fit; expected [batch, n, m] and [batch, m, k], "
            f"as in layers.bmm(x, layers.transpose(y, [0, 2, 1]))"
        )
    return this.output(jnp.matmul(left, right))


@layer
def addmm(
    input: core.Value, x: core.Value, y: core.Value, alpha: float = 1.0, beta: float = 1.0, name: str | None = None
) -> jax.Array:
    """Multiply two matrices and add another matrix: `beta * input + alpha * x @ y`.

    Args:
      input: `[n, k]`; a size may be 1 instead.
      x: `[n, m]`.
      y: `[m, k]`.
      alpha: the factor of the product.
      beta: the factor of the input.
      name: name of the layer; by default `addmm_N`.

    Returns:
      `[n, k]`.

    Raises:
      ShapeError: the sizes do not fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     bias, y = (fluid.layers.create_parameter(shape) for shape in ([1, 2], [4, 2]))
      ...     return fluid.layers.addmm(bias, fluid.layers.data("x", shape=[4]), y, alpha=0.5)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2]
    """
    this = Layer("addmm", name)
    added, left, right = (array_of(this, v) for v in (input, x, y))
    fits = left.ndim == right.ndim == added.ndim == 2 and left.shape[1] == right.shape[0]
    if not fits or any(a not in (1, b) for a, b in zip(added.shape, (left.shape[0], right.shape[1]), strict=True)):
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)}, x {describe(x)} and y {describe(y)} do not fit; expected [n, k], "
            f"[n, m] and [m, k], as in layers.addmm(input, x, layers.transpose(y, [1, 0]))"
        )
    return this.output(beta * added + alpha * jnp.matmul(left, right))


@layer
def dot(x: core.Value, y: core.Value, name: str | None = None) -> jax.Array:
    """Compute the inner product of two vectors, or of each row of two matrices.

    Args:
      x: `[n]` or `[batch, n]`.
      y: an array of the shape of `x`.
      name: name of the layer; by default `dot_N`.

    Returns:
      `[]` or `[batch, 1]`.

    Raises:
      ShapeError: the shapes differ, or are no vectors or matrices.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.dot(fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[4]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1]
    """
    this = Layer("dot", name)
    left = array_of(this, x)
    right = array_of(this, y)
    if left.shape != right.shape or left.ndim not in (1, 2):
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} and y {describe(y)} do not fit; expected two vectors or two matrices of one "
            f"shape, as in layers.dot(layers.flatten(x), layers.flatten(y))"
        )
    return this.output(jnp.sum(left * right, axis=-1, keepdims=left.ndim == 2))


@layer
def cross(input: core.Value, other: core.Value, dim: int | None = None, name: str | None = None) -> jax.Array:
    """Compute the cross product of vectors of three numbers.

    Args:
      input: `[..., 3, ...]`.
      other: an array of the shape of `input`.
      dim: the dimension of the vectors; the first dimension of size 3 by default.
      name: name of the layer; by default `cross_N`.

    Returns:
      An array of the shape of the inputs.

    Raises:
      ArgumentError: there is no such dimension.
      ShapeError: the shapes differ, or the dimension has another size than 3.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.cross(fluid.layers.data("x", shape=[3]), fluid.layers.data("y", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("cross", name)
    left = array_of(this, input)
    right = array_of(this, other)
    axis = left.shape.index(3) if dim is None and 3 in left.shape else axis_of(input, -1 if dim is None else dim, "dim")
    if left.shape != right.shape or left.shape[axis] != 3:
        raise errors.ShapeError(
            f"{this.name}: {describe(input)} and {describe(other)} with dim={dim}; expected one shape, with 3 numbers "
            f"along a dimension, as in cross(x, y, dim=1) of two [batch, 3]"
        )
    return this.output(jnp.cross(left, right, axis=axis))


@layer
@assigns(out="z = layers.kron(x, y)")
def kron(x: core.Value, y: core.Value, out: core.Value | None = None, name: str | None = None) -> jax.Array:
    """Compute the Kronecker product: each element of `x` becomes a block, which is the element times `y`.

    Args:
      x: any shape.
      y: any shape; the input with fewer dimensions gets leading dimensions of size 1.
      out: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `kron_N`.

    Returns:
      An array; each size is the product of the sizes of `x` and `y`.

    Raises:
      ArgumentError: `out` is given.
      ShapeError: an input is a sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.kron(fluid.layers.data("x", shape=[3]), fluid.layers.ones([1, 2], "float32"))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 6]
    """
    this = Layer("kron", name)
    return this.output(jnp.kron(array_of(this, x), array_of(this, y)))


@layer
def dist(x: core.Value, y: core.Value, p: float = 2, name: str | None = None) -> jax.Array:
    """Compute the p-norm of the difference of two values.

    Args:
      x: any shape.
      y: any shape that broadcasts with `x`.
      p: the order of the norm: 2 for the Euclidean norm, 1 for the sum of absolute values, infinity (or minus infinity)
        for the largest (or smallest) absolute value, 0 for the number of elements that differ.
      name: name of the layer; by default `dist_N`.

    Returns:
      A scalar, `[]`.

    Raises:
      ArgumentError: `p` is negative.
      ShapeError: the shapes do not fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.dist(fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[4]), p=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("dist", name)
    if p < 0 and p != -jnp.inf:
        raise errors.ArgumentError(f"{this.name}: p={p!r}; expected 0 or more, or an infinity, as in p=2")
    try:
        difference = array_of(this, x) - array_of(this, y)
    except (TypeError, ValueError) as error:
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} and y {describe(y)} cannot be broadcast; reshape one: layers.reshape(y, ...)"
        ) from error
    return this.output(_norm(difference, p).astype(difference.dtype))


def _norm(x: Any, p: float) -> Any:
    """Return the p-norm of all elements, a scalar; the gradient is 0 if all elements are 0."""
    sizes = jnp.abs(x.astype(jnp.promote_types(x.dtype, jnp.float32)))
    if p == 0:
        return jnp.sum(sizes != 0)
    if abs(p) == jnp.inf:
        return jnp.max(sizes) if p > 0 else jnp.min(sizes)
    total = jnp.sum(sizes**p)
    positive = total > 0
    return jnp.where(positive, jnp.where(positive, total, 1) ** (1 / p), 0)
