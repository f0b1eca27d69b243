"""Layers for comparisons, logical operations, and tests for non-finite numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core import Value
from fluid.layers.base import Layer, dense, layer, on_data, row_dims
from fluid.layers.checks import check_same_shape
from fluid.layers.no_effect import assigns, no_effect


@layer
def has_inf(x: Value, name: str | None = None) -> jax.Array:
    """Return whether any element is infinite.

    Args:
      x: an array of any shape, or a SequenceBatch, whose padding is ignored.
      name: name of the layer; by default `isinf_N`.

    Returns:
      A scalar, `[]`, bool.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.has_inf(fluid.layers.data("x", shape=[3]))).outputs[0])
      bool[]
    """
    this = Layer("isinf", name)
    return this.output(jnp.any(jnp.isinf(dense(x))))


@layer
def has_nan(x: Value, name: str | None = None) -> jax.Array:
    """Return whether any element is NaN.

    Args:
      x: an array of any shape, or a SequenceBatch, whose padding is ignored.
      name: name of the layer; by default `isnan_N`.

    Returns:
      A scalar, `[]`, bool.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.has_nan(fluid.layers.data("x", shape=[3]))).outputs[0])
      bool[]
    """
    this = Layer("isnan", name)
    return this.output(jnp.any(jnp.isnan(dense(x))))


_DOCUMENTATION = """{title}

    Args:
      x: any shape, or a SequenceBatch.
      y: the same shape.
      {target}: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `{kind}_N`.

    Returns:
      bool, of the same kind and shape as `x`.

    Raises:
      ArgumentError: `{target}` is given.
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = [fluid.layers.data(name, shape=[3], dtype="{dtype}") for name in ("x", "y")]
      ...     return fluid.layers.{kind}(x, y)
      >>> print(fluid.Program(program).outputs[0])
      bool[batch, 3]
    """


def _comparison(kind: str, title: str, function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Create the layer `kind`, which compares the elements of two values of equal shape by `function`."""

    def compare(x: Value, y: Value, cond: Value | None = None, name: str | None = None) -> Any:
        return _compared(Layer(kind, name), function, x, y)

    return _finished(compare, kind, title, "cond", "float32")


def _logical(kind: str, title: str, function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Create the layer `kind`, which combines the elements of two bool values of equal shape by `function`."""

    def combine(x: Value, y: Value, out: Value | None = None, name: str | None = None) -> Any:
        return _elementwise(Layer(kind, name), function, x, y)

    return _finished(combine, kind, title, "out", "bool")


def _finished(function: Callable[..., Any], kind: str, title: str, target: str, dtype: str) -> Callable[..., Any]:
    """Make the public layer called `kind` from a function: set its name and docstring, and check an argument.

    `target` is the name of the argument in which Fluid stores the result. Passing this argument is an error here.
    """
    function.__name__ = function.__qualname__ = kind
    function.__doc__ = _DOCUMENTATION.format(title=title, kind=kind, target=target, dtype=dtype)
    return layer(assigns(**{target: f"c = layers.{kind}(x, y)"})(function))


def _compared(this: Layer, function: Callable[[Any, Any], Any], x: Value, y: Value) -> Any:
    """Compare the elements of two values of equal shape by `function`, and record the result.

    In a program written for PaddlePaddle Fluid, the shapes may differ if they broadcast.
    """
    if this.frame.as_fluid and _broadcast(x, y):
        return this.output(on_data(function, x, y))
    return _elementwise(this, function, x, y)


def _broadcast(x: Value, y: Value) -> bool:
    """Return whether the shapes of two values broadcast.

    An array and a sequence batch broadcast only if one of them has a single element.
    """
    try:
        np.broadcast_shapes(dense(x).shape, dense(y).shape)
    except ValueError:
        return False
    return row_dims(x) == row_dims(y) or 1 in (dense(x).size, dense(y).size)


def _elementwise(this: Layer, function: Callable[[Any, Any], Any], x: Value, y: Value) -> Any:
    check_same_shape(this, x, y, ("x", "y"))
    return this.output(on_data(function, x, y))


@layer
@assigns(cond="c = layers.less_than(x, y)")
@no_effect(force_cpu="XLA decides where values lie")
def less_than(
    x: Value,
    y: Value,
    force_cpu: bool | None = None,
    cond: Value | None = None,
    name: str | None = None,
) -> Any:
    """Return for each element whether `x < y`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      y: a value of the shape of `x`.
      force_cpu: accepted for programs written for Fluid, but has no effect: XLA decides where values lie.
      cond: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `less_than_N`.

    Returns:
      bool, with the type (array or SequenceBatch) and the shape of `x`.

    Raises:
      ArgumentError: `cond` is given.
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.less_than(fluid.layers.data("x", shape=[3]), fluid.layers.data("y", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      bool[batch, 3]
    """
    return _compared(Layer("less_than", name), jnp.less, x, y)


less_equal = _comparison("less_equal", "Elementwise: whether `x <= y`.", jnp.less_equal)
greater_than = _comparison("greater_than", "Elementwise: whether `x > y`.", jnp.greater)
greater_equal = _comparison("greater_equal", "Elementwise: whether `x >= y`.", jnp.greater_equal)
equal = _comparison("equal", "Elementwise: whether `x == y`.", jnp.equal)
not_equal = _comparison("not_equal", "Elementwise: whether `x != y`.", jnp.not_equal)
logical_and = _logical("logical_and", "Elementwise: whether both are true.", jnp.logical_and)
logical_or = _logical("logical_or", "Elementwise: whether at least one is true.", jnp.logical_or)
logical_xor = _logical("logical_xor", "Elementwise: whether exactly one is true.", jnp.logical_xor)


@layer
@assigns(out="c = layers.logical_not(x)")
def logical_not(x: Value, out: Value | None = None, name: str | None = None) -> Any:
    """Return for each element whether `x` is false.

    Args:
      x: a bool array of any shape, or a SequenceBatch.
      out: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `logical_not_N`.

    Returns:
      bool, with the type (array or SequenceBatch) and the shape of `x`.

    Raises:
      ArgumentError: `out` is given.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.logical_not(fluid.layers.data("x", shape=[3], dtype="bool"))
      >>> print(fluid.Program(program).outputs[0])
      bool[batch, 3]
    """
    return Layer("logical_not", name).output(on_data(jnp.logical_not, x))


@layer
def isfinite(x: Value, name: str | None = None) -> jax.Array:
    """Return whether all elements are finite numbers.

    Args:
      x: an array of any shape, or a SequenceBatch, whose padding is ignored.
      name: name of the layer; by default `isfinite_N`.

    Returns:
      A scalar, `[]`, bool.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.isfinite(fluid.layers.data("x", shape=[3]))).outputs[0])
      bool[]
    """
    this = Layer("isfinite", name)
    return this.output(jnp.all(jnp.isfinite(dense(x))))
