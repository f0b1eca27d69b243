"""Values as such: naming, creating, converting, scaling and adding them."""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.initializer import Constant, Xavier
from fluid.layers.base import Layer, dense, describe, filled, is_sequence, layer, like, on_data, wide
from fluid.param_attr import ParamAttr, to_attr


@layer
def identity(x: Any, name: str | None = None) -> Any:
    """The value itself, under a name by which it can be fetched, overridden and differentiated with respect to.

    Args:
      x: any value.
      name: exactly this, behind the prefix of open name scopes; `identity_N.tmp_0` by default.

    Returns:
      `x`, or what the feed puts in its place.

    Raises:
      ProgramError: the name is in use.

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
    if result is value:  # what is known of the value stays known
        facts = {k: v for k, v in this.frame.facts.get(id(x), {}).items() if k in ("logits", "logits_axis", "weight")}
        if facts:
            this.frame.note(result, **facts)
    return result


@layer
def create_parameter(
    shape: Sequence[int],
    dtype: str = "float32",
    name: str | None = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Any = None,
) -> Any:
    """A trained parameter of your own.

    Args:
      shape: its sizes.
      dtype: its dtype.
      name: its name; `create_parameter_N.w_0` by default.
      attr: ParamAttr, whose name goes before `name`.
      is_bias: whether it starts as zeros, and is called `.b_0`.
      default_initializer: where `attr` gives none; Xavier uniform, or zeros for a bias, by default.

    Returns:
      The parameter, `shape`.

    Raises:
      ParameterError: the name is used already with another shape.

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
        attr = ParamAttr(name=this.name)
    if to_attr(attr) is None:
        raise errors.ArgumentError("create_parameter cannot do without the parameter; leave attr=False out")
    return this.parameter("b" if is_bias else "w", attr, shape, dtype, default)


@layer
def assign(input: Any, output: Any = None, name: str | None = None) -> Any:
    """A copy of a value, or a constant from NumPy.

    Args:
      input: a value, a SequenceBatch, an array, a list or a number.
      output: has no effect; use what is returned.
      name: instead of `assign_N`.

    Returns:
      The same numbers.

    Example:
      >>> import fluid
      >>> fluid.Program(lambda: fluid.layers.assign([[1.0, 2.0]])).outputs[0].shape
      (1, 2)
    """
    return Layer("assign", name).output(on_data(lambda v: v, input))


@layer
def cast(x: Any, dtype: Any, name: str | None = None) -> Any:
    """Convert to another dtype.

    Args:
      x: any shape, or a SequenceBatch.
      dtype: such as "float32"; "int64" is held in JAX's default integer.
      name: instead of `cast_N`.

    Returns:
      Same shape as `x`.

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
    return Layer("cast", name).output(on_data(lambda v: v.astype(target), x))


@layer
def scale(
    x: Any,
    scale: Any = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: Any = None,
    name: str | None = None,
) -> Any:
    """Multiply by one number and add another.

    Args:
      x: any shape, or a SequenceBatch.
      scale: factor.
      bias: summand.
      bias_after_scale: `scale * x + bias`, else `scale * (x + bias)`.
      act: name of an activation, or a function.
      name: instead of `scale_N`.

    Returns:
      Same shape and dtype as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.scale(fluid.layers.data("x", shape=[3]), scale=0.5, bias=1.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("scale", name)
    factor = scale if isinstance(scale, int | float) else dense(scale).reshape(())
    array = dense(x)
    result = array * factor + bias if bias_after_scale else (array + bias) * factor
    return this.finish(like(x, result.astype(array.dtype)), act)


@layer
def sums(input: Any, out: Any = None, name: str | None = None) -> Any:
    """Sum of several values.

    Args:
      input: a list of arrays, or of SequenceBatches, of one shape.
      out: has no effect; use what is returned.
      name: instead of `sum_N`.

    Returns:
      Same shape as each.

    Raises:
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     return fluid.layers.sums([x, x, x])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return _total(Layer("sum", name), input)


@layer
def sum(x: Any, name: str | None = None) -> Any:
    """Sum of several values: `sums`, by its other name. For the sum of the elements of one value use `reduce_sum`.

    Args:
      x: a list of arrays, or of SequenceBatches, of one shape.
      name: instead of `sum_N`.

    Returns:
      Same shape as each.

    Raises:
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     return fluid.layers.sum([x, x])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return _total(Layer("sum", name), x)


@layer
def clip(x: Any, min: float, max: float, name: str | None = None) -> Any:
    """Hold each element between two bounds.

    Args:
      x: any shape, or a SequenceBatch.
      min: lower bound.
      max: upper bound.
      name: instead of `clip_N`.

    Returns:
      Same shape as `x`.

    Raises:
      ArgumentError: the bounds are the wrong way round.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.clip(fluid.layers.data("x", shape=[3]), min=-1.0, max=1.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    if min > max:
        raise errors.ArgumentError(f"clip(min={min}, max={max}): min is the smaller one, as in clip(x, {max}, {min})")
    return Layer("clip", name).output(on_data(lambda v: jnp.clip(v, min, max), x))


@layer
def clip_by_norm(x: Any, max_norm: float, name: str | None = None) -> Any:
    """Scale down to a largest Euclidean norm.

    Args:
      x: any shape, or a SequenceBatch.
      max_norm: the largest norm of all elements together.
      name: instead of `clip_by_norm_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.clip_by_norm(fluid.layers.data("x", shape=[3]), max_norm=1.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("clip_by_norm", name)
    array = dense(x)
    squares = jnp.sum(jnp.square(wide(array)))
    # Where nothing is clipped the root is not taken: its slope at 0 is infinite.
    over = squares > max_norm * max_norm
    norm = jnp.sqrt(jnp.where(over, squares, 1.0))
    return this.output(like(x, jnp.where(over, array * (max_norm / norm), array).astype(array.dtype)))


@layer
def pow(x: Any, factor: Any = 1.0, name: str | None = None) -> Any:
    """Raise to a power.

    Args:
      x: any shape, or a SequenceBatch.
      factor: the exponent, a number or a scalar value.
      name: instead of `pow_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.pow(fluid.layers.data("x", shape=[3]), factor=2.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    exponent = factor if isinstance(factor, int | float) else dense(factor).reshape(())
    return Layer("pow", name).output(like(x, filled(x, 1) ** exponent))


def _total(this: Layer, given: Any) -> Any:
    values = list(given) if isinstance(given, list | tuple) else [given]
    if not values or len({dense(v).shape for v in values}) > 1:
        raise errors.ShapeError(
            f"{this.name}: sums adds values of one shape, found {', '.join(describe(v) for v in values) or 'none'}; "
            f"use layers.elementwise_add(x, y) to repeat one along the other"
        )
    return this.output(on_data(lambda *arrays: functools.reduce(operator.add, arrays), *values))


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
    if not isinstance(shape, list | tuple) or not all(isinstance(d, int | np.integer) for d in shape):
        raise errors.ArgumentTypeError(f"{caller}: shape={shape!r}; expected a list of integers, as in shape=[-1, 10]")
    return [int(d) for d in shape]
