"""Comparisons, logical operations, and tests for numbers that are not finite."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core
from fluid.layers.base import Layer, dense, layer, on_data
from fluid.layers.checks import check_same_shape


@layer
def has_inf(x: core.Value, name: str | None = None) -> jax.Array:
    """Whether any element is infinite.

    Args:
      x: any shape, or a SequenceBatch, of which the valid steps count.
      name: instead of `isinf_N`.

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
def has_nan(x: core.Value, name: str | None = None) -> jax.Array:
    """Whether any element is NaN.

    Args:
      x: any shape, or a SequenceBatch, of which the valid steps count.
      name: instead of `isnan_N`.

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
      name: instead of `{kind}_N`.

    Returns:
      bool, of the same kind and shape as `x`.

    Raises:
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = [fluid.layers.data(name, shape=[3], dtype="{dtype}") for name in ("x", "y")]
      ...     return fluid.layers.{kind}(x, y)
      >>> print(fluid.Program(program).outputs[0])
      bool[batch, 3]
    """


def _make(kind: str, title: str, function: Callable[[Any, Any], Any], dtype: str = "float32") -> Callable[..., Any]:
    """A layer that applies a function of two arrays of the same shape; `dtype` is that of the example."""

    def compare(x: core.Value, y: core.Value, name: str | None = None) -> Any:
        this = Layer(kind, name)
        check_same_shape(this, x, y, ("x", "y"))
        return this.output(on_data(function, x, y))

    compare.__name__ = compare.__qualname__ = kind
    compare.__doc__ = _DOCUMENTATION.format(title=title, kind=kind, dtype=dtype)
    return layer(compare)


less_than = _make("less_than", "Elementwise: whether `x < y`.", jnp.less)
less_equal = _make("less_equal", "Elementwise: whether `x <= y`.", jnp.less_equal)
greater_than = _make("greater_than", "Elementwise: whether `x > y`.", jnp.greater)
greater_equal = _make("greater_equal", "Elementwise: whether `x >= y`.", jnp.greater_equal)
equal = _make("equal", "Elementwise: whether `x == y`.", jnp.equal)
not_equal = _make("not_equal", "Elementwise: whether `x != y`.", jnp.not_equal)
logical_and = _make("logical_and", "Elementwise: whether both are true.", jnp.logical_and, "bool")
logical_or = _make("logical_or", "Elementwise: whether at least one is true.", jnp.logical_or, "bool")
logical_xor = _make("logical_xor", "Elementwise: whether exactly one is true.", jnp.logical_xor, "bool")


@layer
def logical_not(x: core.Value, name: str | None = None) -> Any:
    """Elementwise: whether `x` is false.

    Args:
      x: bool, any shape, or a SequenceBatch.
      name: instead of `logical_not_N`.

    Returns:
      bool, of the same kind and shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.logical_not(fluid.layers.data("x", shape=[3], dtype="bool"))
      >>> print(fluid.Program(program).outputs[0])
      bool[batch, 3]
    """
    return Layer("logical_not", name).output(on_data(jnp.logical_not, x))


@layer
def isfinite(x: core.Value, name: str | None = None) -> jax.Array:
    """Whether all elements are finite numbers.

    Args:
      x: any shape, or a SequenceBatch, of which the valid steps count.
      name: instead of `isfinite_N`.

    Returns:
      A scalar, `[]`, bool.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.isfinite(fluid.layers.data("x", shape=[3]))).outputs[0])
      bool[]
    """
    this = Layer("isfinite", name)
    return this.output(jnp.all(jnp.isfinite(dense(x))))
