"""Sigmoids, and what is multiplied by one."""

from typing import Any

from fluid.layers import functional
from fluid.layers.base import Layer, layer, on_data


@layer
def stanh(x: Any, scale_a: float = 0.67, scale_b: float = 1.7159, name: str | None = None) -> Any:
    """Scaled tanh (LeCun et al., 1998): `scale_b * tanh(scale_a * x)`.

    Args:
      x: any shape, or a SequenceBatch.
      scale_a: scale of the argument.
      scale_b: scale of the result.
      name: instead of `stanh_N`.

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
def hard_sigmoid(x: Any, slope: float = 0.2, offset: float = 0.5, name: str | None = None) -> Any:
    """`slope * x + offset`, held between 0 and 1.

    Args:
      x: any shape, or a SequenceBatch.
      slope: of the line.
      offset: of the line.
      name: instead of `hard_sigmoid_N`.

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
def swish(x: Any, beta: float = 1.0, name: str | None = None) -> Any:
    """`x * sigmoid(beta * x)` (Ramachandran, Zoph and Le, 2017).

    Args:
      x: any shape, or a SequenceBatch.
      beta: scale of the argument.
      name: instead of `swish_N`.

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
def hard_swish(x: Any, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0, name: str | None = None) -> Any:
    """`x * min(max(0, x + offset), threshold) / scale` (Howard et al., 2019).

    Args:
      x: any shape, or a SequenceBatch.
      threshold: bound of the second factor.
      scale: divisor.
      offset: added within the second factor.
      name: instead of `hard_swish_N`.

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
def gelu(x: Any, approximate: bool = False, name: str | None = None) -> Any:
    """`x` times the normal distribution function of `x` (Hendrycks and Gimpel, 2016).

    Args:
      x: any shape, or a SequenceBatch.
      approximate: whether to use the formula with tanh.
      name: instead of `gelu_N`.

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
