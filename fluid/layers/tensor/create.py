"""Layers that create, copy and convert values, and that create parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fluid import core, errors
from fluid.core import Value
from fluid.initializer import Constant, Xavier
from fluid.layers.base import Layer, array_of, dense, describe, is_sequence, layer, like, on_data
from fluid.layers.checks import dtype_of, known_shape, shape_of
from fluid.layers.no_effect import assigns, no_effect
from fluid.param_attr import ParamAttr, ParamSetting, Sharding, to_attr


@layer
@assigns(out="x = layers.fill_constant(shape, dtype, value)")
@no_effect(force_cpu="XLA decides where values lie")
def fill_constant(
    shape: Sequence[int],
    dtype: DTypeLike,
    value: float,
    force_cpu: bool = False,
    out: Value | None = None,
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
    input: Value,
    shape: Sequence[int],
    dtype: DTypeLike,
    value: float,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    name: str | None = None,
    force_cpu: bool = False,
) -> jax.Array:
    """Create an array filled with one value, in a shape that copies one size, such as the batch size, from `input`.

    Args:
      input: the array or SequenceBatch whose size is copied.
      shape: the shape, in which the size at `output_dim_idx` is replaced.
      dtype: the dtype.
      value: the value of every element.
      input_dim_idx: the dimension of the input whose size is used.
      output_dim_idx: the dimension of `shape` whose size is replaced.
      name: name of the layer; by default `fill_constant_batch_size_like_N`.
      force_cpu: accepted for programs written for Fluid, but has no effect: XLA decides where values lie.

    Returns:
      An array of shape `shape`, in which the size at `output_dim_idx` is replaced.

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
def zeros_like(x: Value, out: Value | None = None, name: str | None = None) -> Any:
    """Create zeros in the shape of another value.

    Args:
      x: an array of any shape, or a SequenceBatch.
      out: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `zeros_like_N`.

    Returns:
      A value with the type (array or SequenceBatch), the shape and the dtype of `x`.

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
def fill_zeros_like(x: Value, name: str | None = None) -> Any:
    """Create zeros in the shape of another value, another name for `zeros_like`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      name: name of the layer; by default `fill_zeros_like_N`.

    Returns:
      A value with the type (array or SequenceBatch), the shape and the dtype of `x`.

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
def ones_like(x: Value, out: Value | None = None, name: str | None = None) -> Any:
    """Create ones in the shape of another value.

    Args:
      x: an array of any shape, or a SequenceBatch.
      out: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `ones_like_N`.

    Returns:
      A value with the type (array or SequenceBatch), the shape and the dtype of `x`.

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
    input: Value,
    fill_value: float,
    out: Value | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Any:
    """Create a value in the shape of another value, with one number for all elements.

    Args:
      input: an array of any shape, or a SequenceBatch.
      fill_value: the value of every element.
      out: not possible in a program function, whose values never change: use what is returned.
      dtype: the dtype of the result; the dtype of the input by default.
      device: accepted for programs written for Fluid, but has no effect: XLA decides where values lie.
      stop_gradient: accepted for programs written for Fluid, but has no effect: a constant has no gradient.
      name: name of the layer; by default `full_like_N`.

    Returns:
      A value with the type (array or SequenceBatch) and the shape of the input.

    Raises:
      ArgumentError: the dtype does not exist, or `out` is given.

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
      dtype: the dtype of the result.
      name: name of the layer; by default `range_N`.

    Returns:
      A vector of length `ceil((end - start) / step)`.

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
      num: the length of the result.
      dtype: the dtype of the result.
      name: name of the layer; by default `linspace_N`.

    Returns:
      `[num]`.

    Raises:
      ArgumentError: `num` is not an integer of at least 0, or the dtype does not exist.

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
      dtype: the dtype of the result.
      name: name of the layer; by default `eye_N`.

    Returns:
      `[*batch_shape, num_rows, num_columns]`.

    Raises:
      ArgumentError: a size is negative or not an integer, or the dtype does not exist.

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
def meshgrid(input: Sequence[Value], name: str | None = None) -> list[jax.Array]:
    """Return the coordinates of all points of a grid, one array for each dimension.

    Args:
      input: the coordinates along each dimension, a list of vectors `[n_i]`.
      name: name of the layer; by default `meshgrid_N`.

    Returns:
      A list of arrays `[n_1, n_2, ...]`, one for each input; the `i`-th has the `i`-th coordinate of each point.

    Raises:
      ShapeError: an input is not a vector, or there are no inputs.

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


@layer
def identity(x: Value, name: str | None = None) -> Any:
    """Name a value, so that users can fetch and override the value, and fetch its gradient.

    Args:
      x: an array or a SequenceBatch.
      name: the complete name of the value, after the prefixes of enclosing name scopes; `identity_N.tmp_0` by default.

    Returns:
      `x`; or, if a run feeds data under the name, this data.

    Raises:
      ProgramError: the name is used for another value.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.fc(fluid.layers.identity(x * 2, name="doubled"), size=1)
      >>> str(fluid.Program(program).values["doubled"])
      'float32[batch, 4]'
    """
    this = Layer("identity", name)
    value = x if is_sequence(x) else dense(x)
    result = this.output(value) if name is None else core.record(this.name, value)
    # Layers record facts about their results, such as the logits of a softmax. Copy these records from `x` to the
    # result, unless the user feeds another value for the result.
    if result is value:
        this.frame.hand_on(x, result, "logits", "logits_axis", "weight")
    return result


@layer
def shard(x: Value, sharding: Sharding, name: str | None = None) -> Any:
    """Set the sharding of a value: the mesh axes that divide each of its dimensions among devices.

    By default XLA derives the sharding of values from the sharding of parameters and feeds. This layer overrides it.

    Args:
      x: `[batch, ...]`.
      sharding: for each dimension the mesh axis that divides it, a tuple of axes, or None, such as
        `("data", None, "model")`. Dimensions after the last entry are not divided. The axes "data" and "fsdp" divide
        the batch. A mesh with only these two axes ignores all other axes. On one device nothing is divided.
      name: name of the layer; by default `shard_N`.

    Returns:
      `x`.

    Raises:
      ArgumentError: an axis is not an axis of the mesh, or there are more axes than dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     hidden = fluid.layers.fc(x, size=8, act="relu")
      ...     return fluid.layers.fc(fluid.layers.shard(hidden, ("data", "model")), size=1)
      >>> session = fluid.Session(program, place="cpu:0", parallel=fluid.Mesh(data=1, model=1))
      >>> session.run(feed={"x": [[1.0, 2.0, 3.0, 4.0]]})[0].shape
      (1, 1)
    """
    this = Layer("shard", name)
    axes = core.axes_of(f"{this.name}: sharding", sharding, core.axes_here())
    array = dense(x)
    if len(axes) > array.ndim:
        raise errors.ArgumentError(
            f"{this.name}: {tuple(sharding)!r} is for {len(axes)} dimensions, and the value is {describe(x)}; give "
            f"{array.ndim} axes or fewer"
        )
    return this.output(like(x, core.divided(array, axes)))


@layer
def create_parameter(
    shape: Sequence[int],
    dtype: str = "float32",
    name: str | None = None,
    attr: ParamSetting = None,
    is_bias: bool = False,
    default_initializer: Callable[..., Any] | None = None,
) -> jax.Array:
    """Create a trainable parameter, for custom models and layers.

    Args:
      shape: the shape of the parameter.
      dtype: the dtype of the parameter.
      name: the name of the parameter; `create_parameter_N.w_0` by default.
      attr: ParamAttr; a name in it replaces `name`.
      is_bias: whether the parameter is a bias: initial zeros, and an automatic name that ends in `.b_0`.
      default_initializer: the initializer if `attr` has none; by default Xavier uniform, or zeros for a bias.

    Returns:
      The parameter, of shape `shape`.

    Raises:
      ArgumentError: `attr` is False.
      ParameterError: the name is already used with another shape.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return x * fluid.layers.create_parameter([4], name="gain")
      >>> fluid.Program(program).parameters["gain"].shape
      (4,)
    """
    this = Layer("create_parameter", name)
    default = default_initializer or (Constant(0.0) if is_bias else Xavier())
    if attr is None and name is not None:
        attr = ParamAttr(name=this.owner)
    if to_attr(attr) is None:
        raise errors.ArgumentError("create_parameter(attr=False) would create no parameter; leave out attr=False")
    return this.parameter("b" if is_bias else "w", attr, shape, dtype, default)


@layer
@assigns(output="y = layers.assign(x)")
def assign(input: Value | Sequence[Any] | float, output: Value | None = None, name: str | None = None) -> Any:
    """Copy a value, or return a constant for a list or a number.

    Args:
      input: an array, a SequenceBatch, a list or a number.
      output: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `assign_N`.

    Returns:
      A value of the type of the input (array or SequenceBatch), with equal elements.

    Raises:
      ArgumentError: `output` is given.

    Example:
      >>> import fluid
      >>> fluid.Program(lambda: fluid.layers.assign([[1.0, 2.0]])).outputs[0].shape
      (1, 2)
    """
    return Layer("assign", name).output(on_data(jnp.copy, input))


@layer
def cast(x: Value, dtype: DTypeLike, name: str | None = None) -> Any:
    """Convert a value to another dtype.

    Args:
      x: an array of any shape, or a SequenceBatch.
      dtype: the new dtype, such as "float32"; "int64" becomes JAX's default integer dtype.
      name: name of the layer; by default `cast_N`.

    Returns:
      A value with the type (array or SequenceBatch) and the shape of `x`.

    Raises:
      ArgumentError: the dtype does not exist.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.cast(fluid.layers.data("x", shape=[3]), "int32")
      >>> print(fluid.Program(program).outputs[0])
      int32[batch, 3]
    """
    target = dtype_of("cast", dtype)
    this = Layer("cast", name)
    result = this.output(on_data(lambda v: v.astype(target), x))
    this.frame.note(result, cast_from=x)
    return result
