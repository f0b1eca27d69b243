"""Arithmetic between two values, with Fluid's rule to align the second value with dimensions of the first."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, describe, filled, is_sequence, layer, like, row_dims
from fluid.layers.functional import Activation

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

# These functions have no value or no slope if both arguments are 0. They read the padding of a SequenceBatch as 1.
_PARTIAL = ("elementwise_div", "elementwise_pow", "elementwise_mod", "elementwise_floordiv")


def _make(kind: str, title: str, function: Callable[[Any, Any], Any], integer: bool = False) -> Callable[..., Any]:
    """Return a layer that applies a function of two arrays; `integer` selects integers for its doctest example."""

    def elementwise(
        x: core.Value, y: core.Value | float, axis: int = -1, act: Activation = None, name: str | None = None
    ) -> Any:
        this = Layer(kind, name)
        left, right = _aligned(this, x, y, axis, fill=1 if kind in _PARTIAL else 0)
        result = function(left, right)
        return this.finish(like(x, result), act)

    elementwise.__name__ = elementwise.__qualname__ = kind
    dtype, found = ("int64", "int32") if integer else ("float32", "float32")
    elementwise.__doc__ = _DOCUMENTATION.format(title=title, kind=kind, dtype=dtype, found=found)
    return layer(elementwise)


def _aligned(this: Layer, x: Any, y: Any, axis: int, fill: float) -> tuple[Any, Any]:
    """Return the arrays of two values, the second reshaped to as many dimensions as the first.

    Args:
      this: the layer, for messages.
      x: the first value.
      y: the second value.
      axis: the dimension of `x` that is aligned with the first dimension of `y`.
      fill: the number that replaces the padding of sequence batches.

    Raises:
      ShapeError: the shapes do not fit.
    """
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
    """Return the shape of a value in Fluid's form: batch and time of a sequence batch are one dimension, the rows."""
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
    """Return quotients without fraction: for integers rounded towards zero, for floats rounded down."""
    return _quotient(x, y) if _are_integers(x, y) else jnp.floor_divide(x, y)


def _remainder(x: Any, y: Any) -> Any:
    """Return remainders: for integers with the sign of `x`, for floats with the sign of `y`."""
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
