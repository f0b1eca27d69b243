"""Layers for arithmetic: a value with numbers, sums of several values, and two values elementwise.

The elementwise layers broadcast as Fluid does: an argument `axis` aligns the second value with dimensions of the first.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, dense, describe, filled, is_sequence, layer, like, on_data, row_dims, wide
from fluid.layers.functional import Activation
from fluid.layers.no_effect import assigns


@layer
def increment(x: Value, value: float = 1.0, in_place: bool = True, name: str | None = None) -> Any:
    """Add a number to a value.

    Args:
      x: an array of any shape, or a SequenceBatch.
      value: the number. For an integer `x`, the number is truncated to an integer first, as in Fluid.
      in_place: whether Fluid would store the result in `x`. In this package values never change. So with True, use only
        the returned value after the call, as in `i = layers.increment(i)`.
      name: name of the layer; by default `increment_N`.

    Returns:
      A value with the type (array or SequenceBatch), the shape and the dtype of `x`.

    Raises:
      ProgramError: with `in_place=True`, a later layer uses `x`; that layer raises the error.

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
    x: Value,
    scale: Value | float = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: Activation = None,
    name: str | None = None,
) -> Any:
    """Multiply a value by one number and add another number.

    Args:
      x: an array of any shape, or a SequenceBatch.
      scale: the factor. For an integer `x`, the factor is truncated to an integer first, as in Fluid; a FluidWarning
        reports it if the factor changes.
      bias: the number that is added; for an integer `x`, the number is truncated too.
      bias_after_scale: whether the result is `scale * x + bias`, instead of `scale * (x + bias)`.
      act: name of an activation, or a function.
      name: name of the layer; by default `scale_N`.

    Returns:
      A value with the type (array or SequenceBatch), the shape and the dtype of `x`.

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
def sums(input: Value | Sequence[Value], out: Value | None = None, name: str | None = None) -> Any:
    """Add several values.

    Args:
      input: a list of arrays, or of SequenceBatches, of one shape.
      out: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `sum_N`.

    Returns:
      A value with the type (array or SequenceBatch) and the shape of each input.

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
def sum(x: Value | Sequence[Value], name: str | None = None) -> Any:
    """Add several values, another name for `sums`. To sum the elements of one value use `reduce_sum`.

    Args:
      x: a list of arrays, or of SequenceBatches, of one shape.
      name: name of the layer; by default `sum_N`.

    Returns:
      A value with the type (array or SequenceBatch) and the shape of each input.

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
def clip(x: Value, min: float, max: float, name: str | None = None) -> Any:
    """Limit each element to the range from `min` to `max`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      min: the lower bound.
      max: the upper bound.
      name: name of the layer; by default `clip_N`.

    Returns:
      A value with the type (array or SequenceBatch) and the shape of `x`.

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
def clip_by_norm(x: Value, max_norm: float, name: str | None = None) -> Any:
    """Scale a value down, so that its Euclidean norm is at most `max_norm`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      max_norm: the largest allowed norm over all elements; a value with a smaller norm stays unchanged.
      name: name of the layer; by default `clip_by_norm_N`.

    Returns:
      A value with the type (array or SequenceBatch) and the shape of `x`.

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
    # Take the square root only if the norm is too large, because the derivative of the square root at 0 is infinite.
    over = squares > max_norm * max_norm
    norm = jnp.sqrt(jnp.where(over, squares, 1.0))
    return this.output(like(x, jnp.where(over, array * (max_norm / norm), array).astype(array.dtype)))


@layer
def pow(x: Value, factor: Value | float = 1.0, name: str | None = None) -> Any:
    """Raise each element to a power.

    Args:
      x: an array of any shape, or a SequenceBatch.
      factor: the exponent, a number or a value of one element.
      name: name of the layer; by default `pow_N`.

    Returns:
      A value with the type (array or SequenceBatch) and the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.pow(fluid.layers.data("x", shape=[3]), factor=2.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    exponent = factor if isinstance(factor, int | float) else dense(factor).reshape(())
    return Layer("pow", name).output(like(x, filled(x, 1) ** exponent))


def _cut(this: Layer, array: Any, **numbers: Value | float) -> list[Any]:
    """Convert numbers to scalars; if `array` holds integers, truncate the numbers, and warn if a number changes."""
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
    """Return the sum of a list of values of one shape; the sum of a single value is the value itself."""
    values = list(given) if isinstance(given, list | tuple) else [given]
    if not values or len({dense(v).shape for v in values}) > 1:
        raise errors.ShapeError(
            f"{this.name}: sums adds values of one shape, found {', '.join(describe(v) for v in values) or 'none'}; "
            f"use layers.elementwise_add(x, y) to repeat one along the other"
        )
    return this.output(on_data(lambda *arrays: functools.reduce(operator.add, arrays), *values))


_DOCUMENTATION = """{title}

    The dimensions of `y` are aligned with those of `x` from `axis` on; -1 aligns them with the last dimensions. Along a
    dimension of size 1, and along all other dimensions of `x`, `y` is repeated.

    Args:
      x: any shape, or a SequenceBatch.
      y: an array whose sizes are those of neighbouring dimensions of `x`, or 1; a SequenceBatch like `x`; or a number.
      axis: the dimension of `x` with which the first of `y` is aligned.
      act: name of an activation, or a function.
      name: name of the layer; by default `{kind}_N`.

    Returns:
      The same kind and shape as `x`.

    Raises:
      ShapeError: `y` does not fit there.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3, 4], dtype="{dtype}")
      ...     y = fluid.layers.data("y", shape=[3], append_batch_size=False, dtype="{dtype}")
      ...     return fluid.layers.{kind}(x, y, axis=1)
      >>> print(fluid.Program(program).outputs[0])
      {found}[batch, 3, 4]
    """

# `_PARTIAL`: the layers of functions, such as `x / y`, that have no value or no derivative at `x = y = 0`. So these
# layers read the padding of a SequenceBatch as 1, not as 0.
_PARTIAL = ("elementwise_div", "elementwise_pow", "elementwise_mod", "elementwise_floordiv")


def _make(kind: str, title: str, function: Callable[[Any, Any], Any], integer: bool = False) -> Callable[..., Any]:
    """Create an elementwise layer, such as `elementwise_add`, from a function of two arrays.

    `kind` is the name of the layer, and `title` is a part of its docstring. With `integer`, the docstring has an
    example with integers.
    """

    def elementwise(x: Value, y: Value | float, axis: int = -1, act: Activation = None, name: str | None = None) -> Any:
        this = Layer(kind, name)
        left, right = _aligned(this, x, y, axis, fill=1 if kind in _PARTIAL else 0)
        result = function(left, right)
        return this.finish(like(x, result), act)

    elementwise.__name__ = elementwise.__qualname__ = kind
    dtype, found = ("int64", "int32") if integer else ("float32", "float32")
    elementwise.__doc__ = _DOCUMENTATION.format(title=title, kind=kind, dtype=dtype, found=found)
    return layer(elementwise)


def _aligned(this: Layer, x: Any, y: Any, axis: int, fill: float) -> tuple[Any, Any]:
    """Return two values as arrays, the second reshaped so that both broadcast as Fluid aligns their dimensions."""
    left = filled(x, fill)
    right = filled(y, fill)
    if right.ndim == 0:
        return left, right
    whole = _sizes(x)
    sizes = _sizes(y)
    begin = len(whole) - len(sizes) if axis == -1 else axis
    while len(sizes) > 1 and sizes[-1] == 1 and begin + len(sizes) > len(whole):
        sizes = sizes[:-1]
    span = whole[begin : begin + len(sizes)] if begin >= 0 else []
    fits = len(span) == len(sizes) and all(
        b in (1, a) or (a == 1 and len(sizes) == len(whole)) for a, b in zip(span, sizes, strict=True)
    )
    shape = [1] * begin + sizes + [1] * (len(whole) - begin - len(sizes))
    lead = row_dims(x)
    if is_sequence(y):
        fits = fits and right.shape[:lead] == left.shape[:lead] and row_dims(y) == lead and begin == 0
        shape[:1] = right.shape[:lead]
    elif lead > 1:
        fits = fits and shape[0] == 1
        shape[:1] = [1] * lead
    if not fits:
        raise errors.ShapeError(
            f"{this.name}: y {describe(y)} does not fit x {describe(x)} from axis={axis}; its sizes must be those of x "
            f"from that axis on, or 1, as after layers.reshape(y, {[-1, *left.shape[1:]]})"
        )
    return left, right.reshape(shape)


def _sizes(value: Any) -> list[int]:
    shape = np.shape(value)
    lead = row_dims(value)
    return [math.prod(shape[:lead]), *shape[lead:]] if is_sequence(value) else list(shape)


def _quotient(x: Any, y: Any) -> Any:
    """Divide two arrays; quotients of integers are rounded towards zero, as in Fluid."""
    if not _are_integers(x, y):
        return jnp.divide(x, y)
    dtype = jnp.result_type(x, y)
    return jax.lax.div(*jnp.broadcast_arrays(x.astype(dtype), y.astype(dtype)))


def _whole_quotient(x: Any, y: Any) -> Any:
    return _quotient(x, y) if _are_integers(x, y) else jnp.floor_divide(x, y)


def _remainder(x: Any, y: Any) -> Any:
    return jnp.fmod(x, y) if _are_integers(x, y) else jnp.mod(x, y)


def _are_integers(x: Any, y: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x, y), jnp.integer)


elementwise_add = _make("elementwise_add", "Sum: `x + y`.", jnp.add)
elementwise_sub = _make("elementwise_sub", "Difference: `x - y`.", jnp.subtract)
elementwise_mul = _make("elementwise_mul", "Product: `x * y`.", jnp.multiply)
elementwise_div = _make("elementwise_div", "Quotient: `x / y`; of integers cut towards zero.", _quotient)
elementwise_max = _make("elementwise_max", "The larger of `x` and `y`.", jnp.maximum)
elementwise_min = _make("elementwise_min", "The smaller of `x` and `y`.", jnp.minimum)
elementwise_pow = _make("elementwise_pow", "Power: `x ** y`.", jnp.power)
elementwise_mod = _make(
    "elementwise_mod",
    "Remainder of `x / y`, with the sign of `x`; of floats with that of `y`.",
    _remainder,
    integer=True,
)
elementwise_floordiv = _make(
    "elementwise_floordiv",
    "Whole part of `x / y`, cut towards zero; of floats rounded down.",
    _whole_quotient,
    integer=True,
)
