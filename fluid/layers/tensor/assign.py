"""Named values, parameters, copies and conversions of values."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fluid import core, errors
from fluid.initializer import Constant, Xavier
from fluid.layers.assigning import assigns
from fluid.layers.base import Layer, dense, describe, is_sequence, layer, like, on_data
from fluid.layers.checks import dtype_of
from fluid.param_attr import ParamAttr, ParamSetting, Sharding, to_attr


@layer
def identity(x: core.Value, name: str | None = None) -> Any:
    """Return the value under a name, by which the value can be fetched and overridden, and its gradient fetched.

    Args:
      x: any value.
      name: the whole name, after the prefixes of open name scopes; `identity_N.tmp_0` by default.

    Returns:
      `x`, or the data that is fed under the name.

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
    if result is value:  # known facts about the value also hold for the result
        this.frame.hand_on(x, result, "logits", "logits_axis", "weight")
    return result


@layer
def shard(x: core.Value, sharding: Sharding, name: str | None = None) -> Any:
    """Divide a value over the axes of a mesh of devices, and return the value.

    XLA derives the division of values from the division of parameters and feeds. This layer overrides that choice.

    Args:
      x: `[batch, ...]`.
      sharding: for each dimension the axis of the mesh that divides it, several axes, or None, such as
        `("data", None, "model")`; dimensions after the last entry are not divided. The axes of the batch are "data" and
        "fsdp". On one device nothing is divided. On a mesh with only these two axes, other axes divide nothing.
      name: name of the layer; by default `shard_N`.

    Returns:
      `x`.

    Raises:
      ArgumentError: the mesh has no such axis, or there are more axes than dimensions.

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
    """Create a trained parameter, for custom models and layers.

    Args:
      shape: the shape of the parameter.
      dtype: the dtype of the parameter.
      name: the name of the parameter; `create_parameter_N.w_0` by default.
      attr: ParamAttr; a name in it replaces `name`.
      is_bias: whether the parameter begins as zeros, and its automatic name ends in `.b_0`.
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
def assign(input: core.Value | Sequence[Any] | float, output: core.Value | None = None, name: str | None = None) -> Any:
    """Copy a value, or return a constant for a list or a number.

    Args:
      input: any value, or a list or a number.
      output: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `assign_N`.

    Returns:
      A value of the kind of the input, with equal numbers.

    Raises:
      ArgumentError: `output` is given.

    Example:
      >>> import fluid
      >>> fluid.Program(lambda: fluid.layers.assign([[1.0, 2.0]])).outputs[0].shape
      (1, 2)
    """
    return Layer("assign", name).output(on_data(jnp.copy, input))


@layer
def cast(x: core.Value, dtype: DTypeLike, name: str | None = None) -> Any:
    """Convert a value to another dtype.

    Args:
      x: any shape, or a SequenceBatch.
      dtype: for example "float32"; "int64" is kept as JAX's default integer.
      name: name of the layer; by default `cast_N`.

    Returns:
      A value of the kind and shape of `x`.

    Raises:
      ArgumentError: there is no such dtype.

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
