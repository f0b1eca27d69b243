"""Sigmoids, and inputs multiplied by a sigmoid."""

from typing import Any

from fluid import core
from fluid.layers import functional
from fluid.layers.base import Layer, layer, on_data


@layer
def stanh(x: core.Value, scale_a: float = 0.67, scale_b: float = 1.7159, name: str | None = None) -> Any:
    """Apply the scaled tanh (LeCun et al., 1998): `scale_b * tanh(scale_a * x)`.

    Args:
      x: any shape, or a SequenceBatch.
      scale_a: factor of the argument.
      scale_b: factor of the result.
      name: name of the layer; by default `stanh_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.stanh(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("stanh", name).output(on_data(lambda v: functional.stanh(v, scale_a, scale_b), x))


@layer
def hard_sigmoid(x: core.Value, slope: float = 0.2, offset: float = 0.5, name: str | None = None) -> Any:
    """Compute `slope * x + offset`, limited to the range from 0 to 1.

    Args:
      x: any shape, or a SequenceBatch.
      slope: the slope of the line.
      offset: the value of the line at 0.
      name: name of the layer; by default `hard_sigmoid_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.hard_sigmoid(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("hard_sigmoid", name).output(on_data(lambda v: functional.hard_sigmoid(v, slope, offset), x))


@layer
def swish(x: core.Value, beta: float = 1.0, name: str | None = None) -> Any:
    """Apply Swish (Ramachandran, Zoph and Le, 2017): `x * sigmoid(beta * x)`.

    Args:
      x: any shape, or a SequenceBatch.
      beta: factor of the argument of the sigmoid.
      name: name of the layer; by default `swish_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.swish(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("swish", name).output(on_data(lambda v: functional.swish(v, beta), x))


@layer
def hard_swish(
    x: core.Value, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0, name: str | None = None
) -> Any:
    """Apply the hard Swish (Howard et al., 2019): `x * min(max(0, x + offset), threshold) / scale`.

    Args:
      x: any shape, or a SequenceBatch.
      threshold: the largest value of the second factor.
      scale: the divisor.
      offset: the number that is added to `x` in the second factor.
      name: name of the layer; by default `hard_swish_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.hard_swish(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("hard_swish", name).output(on_data(lambda v: functional.hard_swish(v, threshold, scale, offset), x))


@layer
def gelu(x: core.Value, approximate: bool = False, name: str | None = None) -> Any:
    """Apply the Gaussian error linear unit (Hendrycks and Gimpel, 2016): `x` times the normal CDF of `x`.

    Args:
      x: any shape, or a SequenceBatch.
      approximate: whether a formula with tanh approximates the normal cumulative distribution function.
      name: name of the layer; by default `gelu_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.gelu(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("gelu", name).output(on_data(lambda v: functional.gelu(v, approximate), x))
