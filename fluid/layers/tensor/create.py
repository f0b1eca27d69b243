"""Values created from numbers: constants, ranges, identity matrices."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fluid import core, errors
from fluid.layers.assigning import assigns
from fluid.layers.base import Layer, array_of, dense, describe, layer, on_data
from fluid.layers.checks import dtype_of, known_shape, shape_of
from fluid.layers.no_effect import no_effect


@layer
@assigns(out="x = layers.fill_constant(shape, dtype, value)")
@no_effect(force_cpu="XLA decides where values lie")
def fill_constant(
    shape: Sequence[int],
    dtype: DTypeLike,
    value: float,
    force_cpu: bool = False,
    out: core.Value | None = None,
    name: str | None = None,
) -> jax.Array:
    """Create an array whose elements all have one value.

    Args:
      shape: the shape of the array.
      dtype: the dtype of the array.
      value: the value of every element.
      force_cpu: accepted for programs written for Fluid, but has no effect: XLA decides where values lie.
      out: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `fill_constant_N`.

    Returns:
      An array of shape `shape`.

    Raises:
      ArgumentError: a size is negative, the dtype does not exist, or `out` is given.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.fill_constant([2, 3], "float32", 0.5)).outputs[0])
      float32[2, 3]
    """
    this = Layer("fill_constant", name)
    return this.output(jnp.full(known_shape(this, shape), value, dtype_of("fill_constant", dtype)))


@layer
@no_effect(force_cpu="XLA decides where values lie")
def fill_constant_batch_size_like(
    input: core.Value,
    shape: Sequence[int],
    dtype: DTypeLike,
    value: float,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    name: str | None = None,
    force_cpu: bool = False,
) -> jax.Array:
    """Create an array of one value, with one size from another array, such as the batch.

    Args:
      input: the other array, or a SequenceBatch.
      shape: the shape, in which the size at `output_dim_idx` is replaced.
      dtype: the dtype.
      value: the value of every element.
      input_dim_idx: the dimension of the input whose size is used.
      output_dim_idx: the dimension of `shape` whose size is replaced.
      name: name of the layer; by default `fill_constant_batch_size_like_N`.
      force_cpu: accepted for programs written for Fluid, but has no effect: XLA decides where values lie.

    Returns:
      An array of shape `shape`, with that size replaced.

    Raises:
      ArgumentError: another size is negative, or the dtype does not exist.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.fill_constant_batch_size_like(x, [-1, 8], "float32", 0.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 8]
    """
    this = Layer("fill_constant_batch_size_like", name)
    sizes = shape_of("fill_constant_batch_size_like", shape)
    sizes[output_dim_idx] = dense(input).shape[input_dim_idx]
    return this.output(jnp.full(known_shape(this, sizes), value, dtype_of("fill_constant_batch_size_like", dtype)))


@layer
@no_effect(force_cpu="XLA decides where values lie")
def zeros(shape: Sequence[int], dtype: DTypeLike, force_cpu: bool = False, name: str | None = None) -> jax.Array:
    """Create an array of zeros.

    Args:
      shape: the shape of the array.
      dtype: the dtype of the array.
      force_cpu: accepted for programs written for Fluid, but has no effect: XLA decides where values lie.
      name: name of the layer; by default `fill_constant_N`.

    Returns:
      An array of shape `shape`.

    Raises:
      ArgumentError: a size is negative, or the dtype does not exist.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.zeros([2, 3], "float32")).outputs[0])
      float32[2, 3]
    """
    this = Layer("fill_constant", name)
    return this.output(jnp.zeros(known_shape(this, shape), dtype_of("zeros", dtype)))


@layer
@no_effect(force_cpu="XLA decides where values lie")
def ones(shape: Sequence[int], dtype: DTypeLike, force_cpu: bool = False, name: str | None = None) -> jax.Array:
    """Create an array of ones.

    Args:
      shape: the shape of the array.
      dtype: the dtype of the array.
      force_cpu: accepted for programs written for Fluid, but has no effect: XLA decides where values lie.
      name: name of the layer; by default `fill_constant_N`.

    Returns:
      An array of shape `shape`.

    Raises:
      ArgumentError: a size is negative, or the dtype does not exist.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.ones([2, 3], "float32")).outputs[0])
      float32[2, 3]
    """
    this = Layer("fill_constant", name)
    return this.output(jnp.ones(known_shape(this, shape), dtype_of("ones", dtype)))


@layer
@assigns(out="y = layers.zeros_like(x)")
def zeros_like(x: core.Value, out: core.Value | None = None, name: str | None = None) -> Any:
    """Create zeros in the shape of another value.

    Args:
      x: any shape, or a SequenceBatch.
      out: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `zeros_like_N`.

    Returns:
      A value of the kind, shape and dtype of `x`.

    Raises:
      ArgumentError: `out` is given.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.zeros_like(fluid.layers.data("x", shape=[4]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    return Layer("zeros_like", name).output(on_data(jnp.zeros_like, x))


@layer
def fill_zeros_like(x: core.Value, name: str | None = None) -> Any:
    """Create zeros in the shape of another value, another name for `zeros_like`.

    Args:
      x: any shape, or a SequenceBatch.
      name: name of the layer; by default `fill_zeros_like_N`.

    Returns:
      A value of the kind, shape and dtype of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.fill_zeros_like(fluid.layers.data("x", shape=[4]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    return Layer("fill_zeros_like", name).output(on_data(jnp.zeros_like, x))


@layer
@assigns(out="y = layers.ones_like(x)")
def ones_like(x: core.Value, out: core.Value | None = None, name: str | None = None) -> Any:
    """Create ones in the shape of another value.

    Args:
      x: any shape, or a SequenceBatch.
      out: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `ones_like_N`.

    Returns:
      A value of the kind, shape and dtype of `x`.

    Raises:
      ArgumentError: `out` is given.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.ones_like(fluid.layers.data("x", shape=[4]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    return Layer("ones_like", name).output(on_data(jnp.ones_like, x))


@layer
@assigns(out="y = layers.full_like(x, value)")
@no_effect(device="XLA decides where values lie", stop_gradient="a constant has no gradient")
def full_like(
    input: core.Value,
    fill_value: float,
    out: core.Value | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Any:
    """Create a value in the shape of another value, with one number for all elements.

    Args:
      input: any shape, or a SequenceBatch.
      fill_value: the value of every element.
      out: not possible in a program function, whose values never change: use what is returned.
      dtype: of the result; the dtype of the input by default.
      device: accepted for programs written for Fluid, but has no effect: XLA decides where values lie.
      stop_gradient: accepted for programs written for Fluid, but has no effect: a constant has no gradient.
      name: name of the layer; by default `full_like_N`.

    Returns:
      A value of the kind and shape of the input.

    Raises:
      ArgumentError: there is no such dtype, or `out` is given.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.full_like(fluid.layers.data("x", shape=[4]), 2.5)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    found = None if dtype is None else dtype_of("full_like", dtype)
    return Layer("full_like", name).output(on_data(lambda v: jnp.full_like(v, fill_value, dtype=found), input))


@layer
def range(start: float, end: float, step: float, dtype: DTypeLike, name: str | None = None) -> jax.Array:
    """Return evenly spaced numbers from `start` up to, but not including, `end`.

    Args:
      start: the first number.
      end: the bound.
      step: the distance between numbers.
      dtype: of the result.
      name: name of the layer; by default `range_N`.

    Returns:
      A vector, `[ceil((end - start) / step)]`.

    Raises:
      ArgumentError: the dtype does not exist.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.range(0, 10, 2, "int32")).outputs[0])
      int32[5]
    """
    return Layer("range", name).output(jnp.arange(start, end, step, dtype_of("range", dtype)))


@layer
def linspace(start: float, stop: float, num: int, dtype: DTypeLike = "float32", name: str | None = None) -> jax.Array:
    """Return evenly spaced numbers from `start` to `stop`, including both.

    Args:
      start: the first number.
      stop: the last number.
      num: the number of numbers.
      dtype: of the result.
      name: name of the layer; by default `linspace_N`.

    Returns:
      `[num]`.

    Raises:
      ArgumentError: `num` is no integer of at least 0, or the dtype does not exist.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.linspace(0.0, 1.0, 5)).outputs[0])
      float32[5]
    """
    this = Layer("linspace", name)
    count = core.whole_number(this.name, "num", num, least=0)
    return this.output(jnp.linspace(start, stop, count, dtype=dtype_of("linspace", dtype)))


@layer
def eye(
    num_rows: int,
    num_columns: int | None = None,
    batch_shape: Sequence[int] | None = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> jax.Array:
    """Return identity matrices.

    Args:
      num_rows: the number of rows.
      num_columns: the number of columns; `num_rows` by default.
      batch_shape: sizes of dimensions before the matrix, along which the matrix is repeated; none by default.
      dtype: of the result.
      name: name of the layer; by default `eye_N`.

    Returns:
      `[*batch_shape, num_rows, num_columns]`.

    Raises:
      ArgumentError: a size is negative or no integer, or the dtype does not exist.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.eye(2, 3)).outputs[0])
      float32[2, 3]
    """
    this = Layer("eye", name)
    rows = core.whole_number(this.name, "num_rows", num_rows, least=0)
    columns = rows if num_columns is None else core.whole_number(this.name, "num_columns", num_columns, least=0)
    matrix = jnp.eye(rows, columns, dtype=dtype_of("eye", dtype))
    return this.output(jnp.broadcast_to(matrix, [*known_shape(this, list(batch_shape or ())), *matrix.shape]))


@layer
def meshgrid(input: Sequence[core.Value], name: str | None = None) -> list[jax.Array]:
    """Return the coordinates of all points of a grid.

    Args:
      input: the coordinates along each dimension, a list of vectors `[n_i]`.
      name: name of the layer; by default `meshgrid_N`.

    Returns:
      A list of arrays `[n_1, n_2, ...]`, one for each input; the `i`-th has the `i`-th coordinate of each point.

    Raises:
      ShapeError: an input is no vector, or there are no inputs.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.meshgrid([fluid.layers.range(0, 4, 1, "float32"), fluid.layers.ones([3], "float32")])
      >>> print(*fluid.Program(program).outputs)
      float32[4, 3] float32[4, 3]
    """
    this = Layer("meshgrid", name)
    vectors = [array_of(this, v) for v in input]
    if not vectors or any(v.ndim != 1 for v in vectors):
        raise errors.ShapeError(
            f"{this.name}: {', '.join(map(describe, input)) or 'nothing'}; expected a list of vectors, as in "
            f"meshgrid([layers.reshape(x, [-1]), layers.reshape(y, [-1])])"
        )
    return [this.output(grid) for grid in jnp.meshgrid(*vectors, indexing="ij")]
