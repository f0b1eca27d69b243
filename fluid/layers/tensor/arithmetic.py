"""Arithmetic of one value with numbers, such as scales, bounds and powers; and sums of several values."""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, dense, describe, filled, is_sequence, layer, like, on_data, wide
from fluid.layers.functional import Activation
from fluid.layers.no_effect import assigns


@layer
def increment(x: core.Value, value: float = 1.0, in_place: bool = True, name: str | None = None) -> Any:
    """Add a number to a value.

    Args:
      x: any shape, or a SequenceBatch.
      value: the number. For an integer `x`, the number is cut to a whole number first, as in Fluid.
      in_place: whether Fluid stores the result in `x`. Values never change here, so `x` must not be used after the
        call: use the returned value, as in `i = layers.increment(i)`.
      name: name of the layer; by default `increment_N`.

    Returns:
      A value of the kind, shape and dtype of `x`.

    Raises:
      ProgramError: in layers that use `x` later, with `in_place=True`.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.increment(fluid.layers.data("x", shape=[3]))).outputs[0])
      float32[batch, 3]
    """
    this = Layer("increment", name)
    array = dense(x)
    (value,) = _cut(this, array, value=value)
    result = this.output(like(x, (array + value).astype(array.dtype)))
    if in_place and (is_sequence(x) or isinstance(x, jax.Array)):
        core.change_in_place(this.frame, x, "j = layers.increment(i, in_place=False)")
    return result


@layer
def scale(
    x: core.Value,
    scale: core.Value | float = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: Activation = None,
    name: str | None = None,
) -> Any:
    """Multiply a value by one number and add another number.

    Args:
      x: any shape, or a SequenceBatch.
      scale: the factor. For an integer `x`, the factor is cut to a whole number first, as in Fluid; a FluidWarning says
        so if this changes the factor.
      bias: the number that is added; for an integer `x`, the number is cut too.
      bias_after_scale: whether the result is `scale * x + bias`, instead of `scale * (x + bias)`.
      act: name of an activation, or a function.
      name: name of the layer; by default `scale_N`.

    Returns:
      A value of the kind, shape and dtype of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.scale(fluid.layers.data("x", shape=[3]), scale=0.5, bias=1.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("scale", name)
    array = dense(x)
    factor, bias = _cut(this, array, scale=scale, bias=bias)
    result = array * factor + bias if bias_after_scale else (array + bias) * factor
    return this.finish(like(x, result.astype(array.dtype)), act)


@layer
@assigns(out="total = layers.sums([x, y])")
def sums(input: core.Value | Sequence[core.Value], out: core.Value | None = None, name: str | None = None) -> Any:
    """Add several values.

    Args:
      input: a list of arrays, or of SequenceBatches, of one shape.
      out: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `sum_N`.

    Returns:
      A value of the kind and shape of each input.

    Raises:
      ArgumentError: `out` is given.
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
def sum(x: core.Value | Sequence[core.Value], name: str | None = None) -> Any:
    """Add several values, another name for `sums`. To sum the elements of one value use `reduce_sum`.

    Args:
      x: a list of arrays, or of SequenceBatches, of one shape.
      name: name of the layer; by default `sum_N`.

    Returns:
      A value of the kind and shape of each input.

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
def clip(x: core.Value, min: float, max: float, name: str | None = None) -> Any:
    """Limit each element to the range from `min` to `max`.

    Args:
      x: any shape, or a SequenceBatch.
      min: the lower bound.
      max: the upper bound.
      name: name of the layer; by default `clip_N`.

    Returns:
      A value of the kind and shape of `x`.

    Raises:
      ArgumentError: `min` is larger than `max`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.clip(fluid.layers.data("x", shape=[3]), min=-1.0, max=1.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    if min > max:
        raise errors.ArgumentError(f"clip(min={min}, max={max}): min is larger than max; write clip(x, {max}, {min})")
    if min == max:
        core.doubt(
            f"clip(min={min}, max={max}) returns {min} for every number, so that nothing before it is trained; give "
            f"two different bounds, as in clip(x, -1.0, 1.0)"
        )
    return Layer("clip", name).output(on_data(lambda v: jnp.clip(v, min, max), x))


@layer
def clip_by_norm(x: core.Value, max_norm: float, name: str | None = None) -> Any:
    """Scale a value down, so that its Euclidean norm is at most `max_norm`.

    Args:
      x: any shape, or a SequenceBatch.
      max_norm: the largest norm of all elements together; a smaller norm is left unchanged.
      name: name of the layer; by default `clip_by_norm_N`.

    Returns:
      A value of the kind and shape of `x`.

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
    # The root is taken only if the norm is too large: the slope of the root at 0 is infinite.
    over = squares > max_norm * max_norm
    norm = jnp.sqrt(jnp.where(over, squares, 1.0))
    return this.output(like(x, jnp.where(over, array * (max_norm / norm), array).astype(array.dtype)))


@layer
def pow(x: core.Value, factor: core.Value | float = 1.0, name: str | None = None) -> Any:
    """Raise each element to a power.

    Args:
      x: any shape, or a SequenceBatch.
      factor: the exponent, a number or a value of one element.
      name: name of the layer; by default `pow_N`.

    Returns:
      A value of the kind and shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.pow(fluid.layers.data("x", shape=[3]), factor=2.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    exponent = factor if isinstance(factor, int | float) else dense(factor).reshape(())
    return Layer("pow", name).output(like(x, filled(x, 1) ** exponent))


def _cut(this: Layer, array: Any, **numbers: core.Value | float) -> list[Any]:
    """Return numbers as scalars to combine with `array`; for an array of integers, cut them to whole numbers."""
    found = [n if isinstance(n, int | float) else dense(n).reshape(()) for n in numbers.values()]
    if not jnp.issubdtype(array.dtype, jnp.integer):
        return found
    whole = [int(n) if isinstance(n, int | float) else n.astype(array.dtype) for n in found]
    for name, given, cut in zip(numbers, found, whole, strict=True):
        if isinstance(cut, int) and given != cut:
            core.warn(
                f"{this.name}: {name}={given!r} is cut to {cut} beside {array.dtype}, as Fluid does; for the exact "
                f"result convert first: layers.cast(x, 'float32') (called at {core.user_site()})"
            )
    return whole


def _total(this: Layer, given: Any) -> Any:
    """Record the sum of a list of values of one shape; a single value is its own sum."""
    values = list(given) if isinstance(given, list | tuple) else [given]
    if not values or len({dense(v).shape for v in values}) > 1:
        raise errors.ShapeError(
            f"{this.name}: sums adds values of one shape, found {', '.join(describe(v) for v in values) or 'none'}; "
            f"use layers.elementwise_add(x, y) to repeat one along the other"
        )
    return this.output(on_data(lambda *arrays: functools.reduce(operator.add, arrays), *values))
