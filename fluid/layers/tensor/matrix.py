"""Layers for products of matrices and vectors, for triangles and diagonals, and for distances between values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import (
    Layer,
    array_of,
    as_rows,
    axis_of,
    dense,
    describe,
    is_sequence,
    layer,
    like,
    row_dims,
    wide,
)
from fluid.layers.functional import Activation
from fluid.layers.kernels.lookup_table import times_matrix
from fluid.layers.no_effect import assigns
from fluid.param_attr import ParamSetting


@layer
def matmul(
    x: Value,
    y: Value,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Any:
    """Multiply two matrices, or two batches of matrices.

    Args:
      x: `[..., n, m]`, a vector `[m]`, or a SequenceBatch whose steps have one of these shapes.
      y: `[..., m, k]`, or a vector `[m]`; or a SequenceBatch of matrices, one for each matrix of `x`.
      transpose_x: whether `x` is `[..., m, n]` instead, and is transposed.
      transpose_y: whether `y` is `[..., k, m]` instead, and is transposed.
      alpha: a factor of the result.
      name: name of the layer; by default `matmul_N`.

    Returns:
      `[..., n, k]`; a scalar for two vectors.

    Raises:
      ShapeError: the sizes do not match.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[3, 4]), fluid.layers.data("y", shape=[5, 4])
      ...     return fluid.layers.matmul(x, y, transpose_y=True)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 5]
    """
    this = Layer("matmul", name)
    if all(is_sequence(v) and v.data.ndim >= row_dims(v) + 2 for v in (x, y)):
        (left, right), back = as_rows(this, x, y)
    else:
        left, right, back = dense(x), array_of(this, y), lambda product: like(x, product)
    left = jnp.swapaxes(left, -1, -2) if transpose_x and left.ndim > 1 else left
    right = jnp.swapaxes(right, -1, -2) if transpose_y and right.ndim > 1 else right
    try:
        product = jnp.matmul(left, right)
    except (TypeError, ValueError) as error:
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} and y {describe(y)} do not fit with transpose_x={transpose_x}, "
            f"transpose_y={transpose_y}; the last size of x must be the second to last of y, as in "
            f"matmul(x, y, transpose_y=True)"
        ) from error
    return this.output(back(product if alpha == 1.0 else product * alpha))


@layer
def mul(x: Value, y: Value, x_num_col_dims: int = 1, y_num_col_dims: int = 1, name: str | None = None) -> Any:
    """Multiply two values as matrices: each value is flattened to a matrix.

    Args:
      x: `[*rows, *inner]`, or a SequenceBatch of steps `[*inner]`.
      y: `[*inner, *columns]`.
      x_num_col_dims: the number of leading dimensions of `x` that are its rows.
      y_num_col_dims: the number of leading dimensions of `y` that are its rows.
      name: name of the layer; by default `mul_N`.

    Returns:
      `[*rows, *columns]`, a SequenceBatch if `x` is one.

    Raises:
      ShapeError: the sizes of the inner dimensions differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.mul(x, fluid.layers.create_parameter([4, 2], name="w"))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2]
    """
    this = Layer("mul", name)
    left = dense(x)
    right = array_of(this, y)
    keep = x_num_col_dims + row_dims(x) - 1
    inner = math.prod(left.shape[keep:])
    rows_of_y = math.prod(right.shape[:y_num_col_dims])
    if not 0 < keep < left.ndim or not 0 < y_num_col_dims < right.ndim or inner != rows_of_y:
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} has {inner} columns beyond its first {x_num_col_dims} dimensions, y "
            f"{describe(y)} has {rows_of_y} rows in its first {y_num_col_dims}; they must be equal"
        )
    product = times_matrix(left.reshape(*left.shape[:keep], inner), right.reshape(inner, -1))
    return this.output(like(x, product.reshape(*left.shape[:keep], *right.shape[y_num_col_dims:])))


@layer
def diag(diagonal: Value | Sequence[float], name: str | None = None) -> jax.Array:
    """Create a matrix with a vector on its diagonal, and zeros elsewhere.

    Args:
      diagonal: `[n]`.
      name: name of the layer; by default `diag_N`.

    Returns:
      `[n, n]`.

    Raises:
      ShapeError: the input is not a vector.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.diag([1.0, 2.0])).outputs[0])
      float32[2, 2]
    """
    this = Layer("diag", name)
    vector = array_of(this, diagonal)
    if vector.ndim != 1:
        raise errors.ShapeError(
            f"{this.name}: {describe(diagonal)}; expected a vector, as from layers.reshape(x, [-1])"
        )
    return this.output(jnp.diag(vector))


@layer
def tril(input: Value, diagonal: int = 0, name: str | None = None) -> jax.Array:
    """Return the lower triangle of matrices, with zeros elsewhere.

    Args:
      input: `[..., rows, columns]`.
      diagonal: the last diagonal to keep; 0 is the main diagonal, larger numbers are above it.
      name: name of the layer; by default `tril_N`.

    Returns:
      An array of the shape of the input.

    Raises:
      ShapeError: the input has less than two dimensions.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.tril(fluid.layers.ones([3, 4], "float32"))).outputs[0])
      float32[3, 4]
    """
    this = Layer("tril", name)
    return this.output(jnp.tril(_matrices(this, input), diagonal))


@layer
def triu(input: Value, diagonal: int = 0, name: str | None = None) -> jax.Array:
    """Return the upper triangle of matrices, with zeros elsewhere.

    Args:
      input: `[..., rows, columns]`.
      diagonal: the first diagonal to keep; 0 is the main diagonal, larger numbers are above it.
      name: name of the layer; by default `triu_N`.

    Returns:
      An array of the shape of the input.

    Raises:
      ShapeError: the input has less than two dimensions.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.triu(fluid.layers.ones([3, 4], "float32"))).outputs[0])
      float32[3, 4]
    """
    this = Layer("triu", name)
    return this.output(jnp.triu(_matrices(this, input), diagonal))


@layer
def fsp_matrix(x: Value, y: Value, name: str | None = None) -> jax.Array:
    """Compute the FSP matrix (flow of solution procedure) for knowledge distillation (Yim et al., 2017).

    Args:
      x: feature maps `[batch, m, height, width]`.
      y: feature maps `[batch, n, height, width]` of another layer.
      name: name of the layer; by default `fsp_N`.

    Returns:
      `[batch, m, n]`: for each pair of channels, the mean over pixels of the product of the channels.

    Raises:
      ShapeError: the inputs are not feature maps, or differ in batch size, height or width.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[3, 8, 8]), fluid.layers.data("y", shape=[5, 8, 8])
      ...     return fluid.layers.fsp_matrix(x, y)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 5]
    """
    this = Layer("fsp", name)
    left = array_of(this, x)
    right = array_of(this, y)
    if left.ndim != 4 or right.ndim != 4 or left.shape[2:] != right.shape[2:] or left.shape[0] != right.shape[0]:
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} and y {describe(y)} do not fit; expected [batch, m, height, width] and "
            f"[batch, n, height, width], as after layers.pool2d(x, 2, pool_stride=2)"
        )
    return this.output(jnp.einsum("bmhw,bnhw->bmn", left, right) / (left.shape[2] * left.shape[3]))


@layer
def cos_sim(X: Value, Y: Value, name: str | None = None) -> Any:
    """Compute the cosine similarity of two vectors, for each row.

    Args:
      X: `[batch, width]`, or a SequenceBatch with steps `[width]`.
      Y: the shape of `X`, or `[1, width]`, one vector for all rows.
      name: name of the layer; by default `cos_sim_N`.

    Returns:
      `[batch, 1]`; 0 if a row is all zeros.

    Raises:
      ShapeError: the shapes do not match.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.cos_sim(fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[4]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1]
    """
    this = Layer("cos_sim", name)
    rows, back = as_rows(this, X, Y)
    first, second = (wide(v) for v in rows)
    fits = first.ndim == second.ndim == 2 and first.shape[1] == second.shape[1]
    if not fits or second.shape[0] not in (1, first.shape[0]):
        raise errors.ShapeError(
            f"{this.name}: X {describe(X)} and Y {describe(Y)} do not fit; expected [batch, width] twice, or "
            f"[1, width] for Y, as from layers.flatten(x)"
        )
    products = jnp.sum(first * second, axis=1, keepdims=True)
    squares = jnp.sum(first * first, axis=1, keepdims=True) * jnp.sum(second * second, axis=1, keepdims=True)
    nonzero = squares > 0
    result = jnp.where(nonzero, products * jax.lax.rsqrt(jnp.where(nonzero, squares, 1)), 0)
    return this.output(back(result.astype(rows[0].dtype)))


@layer
def bilinear_tensor_product(
    x: Value,
    y: Value,
    size: int,
    act: Activation = None,
    name: str | None = None,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
) -> Any:
    """Apply a bilinear form of two vectors for each output: `act(x @ weight_i @ y + bias_i)`.

    Args:
      x: `[batch, m]`, or a SequenceBatch with steps `[m]`.
      y: `[batch, n]`, or a SequenceBatch with steps `[n]`.
      size: the number of outputs.
      act: name of an activation, or a function.
      name: name of the layer; by default `bilinear_tensor_product_N`.
      param_attr: ParamAttr of the weights `[size, m, n]`.
      bias_attr: ParamAttr of the bias `[1, size]`; False for none.

    Returns:
      `[batch, size]`.

    Raises:
      ArgumentError: `size` is not a positive integer.
      ShapeError: the inputs are not matrices, or have different numbers of rows.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[5])
      ...     return fluid.layers.bilinear_tensor_product(x, y, size=3)
      >>> fluid.Program(program).parameters["bilinear_tensor_product_0.w_0"].shape
      (3, 4, 5)
    """
    this = Layer("bilinear_tensor_product", name)
    core.whole_number(this.name, "size", size)
    (first, second), back = as_rows(this, x, y)
    if first.ndim != 2 or second.ndim != 2 or first.shape[0] != second.shape[0]:
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} and y {describe(y)} do not fit; expected [batch, m] and [batch, n], as from "
            f"layers.flatten(x)"
        )
    weight = this.weight(param_attr, [size, first.shape[1], second.shape[1]], first.dtype)
    bias = this.bias(bias_attr, [1, size], first.dtype)
    product = jnp.einsum("bm,imn,bn->bi", first, weight, second)
    return this.finish(back(product if bias is None else product + bias), act)


def _matrices(this: Layer, value: Value) -> Any:
    """Convert a value to an array, and check that it has at least two dimensions."""
    array = array_of(this, value)
    if array.ndim < 2:
        raise errors.ShapeError(
            f"{this.name}: {describe(value)} is no matrix; expected [..., rows, columns], as from "
            f"layers.unsqueeze(x, [0])"
        )
    return array


@layer
def bmm(x: Value, y: Value, name: str | None = None) -> jax.Array:
    """Multiply two batches of matrices.

    Args:
      x: `[batch, n, m]`.
      y: `[batch, m, k]`.
      name: name of the layer; by default `bmm_N`.

    Returns:
      `[batch, n, k]`.

    Raises:
      ShapeError: the sizes do not match.

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
    input: Value, x: Value, y: Value, alpha: float = 1.0, beta: float = 1.0, name: str | None = None
) -> jax.Array:
    """Multiply two matrices and add another matrix: `beta * input + alpha * x @ y`.

    Args:
      input: `[n, k]`; a size of 1 broadcasts.
      x: `[n, m]`.
      y: `[m, k]`.
      alpha: the factor of the product.
      beta: the factor of the input.
      name: name of the layer; by default `addmm_N`.

    Returns:
      `[n, k]`.

    Raises:
      ShapeError: the sizes do not match.

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
def dot(x: Value, y: Value, name: str | None = None) -> jax.Array:
    """Compute the inner product of two vectors, or of each row of two matrices.

    Args:
      x: `[n]` or `[batch, n]`.
      y: an array of the shape of `x`.
      name: name of the layer; by default `dot_N`.

    Returns:
      `[]` or `[batch, 1]`.

    Raises:
      ShapeError: the shapes differ, or are not shapes of vectors or matrices.

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
def cross(input: Value, other: Value, dim: int | None = None, name: str | None = None) -> jax.Array:
    """Compute the cross product of vectors of three numbers.

    Args:
      input: `[..., 3, ...]`.
      other: an array of the shape of `input`.
      dim: the dimension of the vectors; the first dimension of size 3 by default.
      name: name of the layer; by default `cross_N`.

    Returns:
      An array of the shape of the inputs.

    Raises:
      ArgumentError: the dimension does not exist.
      ShapeError: the shapes differ, or the size of the dimension is not 3.

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
def kron(x: Value, y: Value, out: Value | None = None, name: str | None = None) -> jax.Array:
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
def dist(x: Value, y: Value, p: float = 2, name: str | None = None) -> jax.Array:
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
      ShapeError: the shapes do not match.

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
    """Return the p-norm over all elements, a scalar; its gradient is 0 if all elements are 0."""
    sizes = jnp.abs(x.astype(jnp.promote_types(x.dtype, jnp.float32)))
    if p == 0:
        return jnp.sum(sizes != 0)
    if abs(p) == jnp.inf:
        return jnp.max(sizes) if p > 0 else jnp.min(sizes)
    total = jnp.sum(sizes**p)
    positive = total > 0
    return jnp.where(positive, jnp.where(positive, total, 1) ** (1 / p), 0)
