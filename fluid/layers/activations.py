"""Activations with settings, as layers; `unary` holds those without."""

from typing import Any

import jax

from fluid.layers import functional
from fluid.layers.base import Layer, axis_of, dense, layer, like, on_data


@layer
def softmax(input: Any, use_cudnn: bool = False, name: str | None = None, axis: int = -1) -> Any:
    """Probabilities from logits: `exp(x) / sum(exp(x))` along one dimension.

    Args:
      input: logits `[batch, ..., classes]`, or a SequenceBatch.
      use_cudnn: has no effect.
      name: instead of `softmax_N`.
      axis: the dimension of the classes.

    Returns:
      Same shape as the input.

    Raises:
      ArgumentError: there is no such axis.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.softmax(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("softmax", name)
    place = axis_of(input, axis)
    raw = like(input, functional.softmax(dense(input), axis=place))
    result = this.output(raw)
    if result is raw:  # an override has no logits
        this.frame.note(result, logits=input, logits_axis=place)
    return result


@layer
def log_softmax(input: Any, axis: int | None = None, dtype: str | None = None, name: str | None = None) -> Any:
    """Logarithm of the softmax, computed without rounding small probabilities to 0.

    Args:
      input: logits `[batch, ..., classes]`, or a SequenceBatch.
      axis: the dimension of the classes; the last by default.
      dtype: to convert to before.
      name: instead of `log_softmax_N`.

    Returns:
      Same shape as the input.

    Raises:
      ArgumentError: there is no such axis.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.log_softmax(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("log_softmax", name)
    x = dense(input) if dtype is None else dense(input).astype(jax.dtypes.canonicalize_dtype(dtype))
    return this.output(like(input, functional.log_softmax(x, axis=axis_of(input, -1 if axis is None else axis))))


@layer
def leaky_relu(x: Any, alpha: float = 0.02, name: str | None = None) -> Any:
    """`x` where positive, else `alpha * x` (Maas, Hannun and Ng, 2013).

    Args:
      x: any shape, or a SequenceBatch.
      alpha: slope for negative values.
      name: instead of `leaky_relu_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.leaky_relu(fluid.layers.data("x", shape=[3]), alpha=0.1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("leaky_relu", name).output(on_data(lambda v: functional.leaky_relu(v, alpha), x))


@layer
def elu(x: Any, alpha: float = 1.0, name: str | None = None) -> Any:
    """`x` where positive, else `alpha * (exp(x) - 1)` (Clevert, Unterthiner and Hochreiter, 2015).

    Args:
      x: any shape, or a SequenceBatch.
      alpha: the limit for very negative values, negated.
      name: instead of `elu_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.elu(fluid.layers.data("x", shape=[3]), alpha=0.5)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("elu", name).output(on_data(lambda v: functional.elu(v, alpha), x))


@layer
def selu(x: Any, scale: float | None = None, alpha: float | None = None, name: str | None = None) -> Any:
    """Scaled `elu` that keeps mean 0 and variance 1 (Klambauer et al., 2017).

    Args:
      x: any shape, or a SequenceBatch.
      scale: multiplies everything; 1.0507 by default.
      alpha: as in `elu`; 1.6733 by default.
      name: instead of `selu_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.selu(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    given = {k: v for k, v in {"scale": scale, "alpha": alpha}.items() if v is not None}
    return Layer("selu", name).output(on_data(lambda v: functional.selu(v, **given), x))


@layer
def relu6(x: Any, threshold: float = 6.0, name: str | None = None) -> Any:
    """`x` held between 0 and the threshold.

    Args:
      x: any shape, or a SequenceBatch.
      threshold: largest value.
      name: instead of `relu6_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.relu6(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("relu6", name).output(on_data(lambda v: functional.relu6(v, threshold), x))


@layer
def brelu(x: Any, t_min: float = 0.0, t_max: float = 24.0, name: str | None = None) -> Any:
    """`x` held between two bounds.

    Args:
      x: any shape, or a SequenceBatch.
      t_min: lower bound.
      t_max: upper bound.
      name: instead of `brelu_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.brelu(fluid.layers.data("x", shape=[3]), t_min=-1.0, t_max=1.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("brelu", name).output(on_data(lambda v: functional.brelu(v, t_min, t_max), x))


@layer
def soft_relu(x: Any, threshold: float = 40.0, name: str | None = None) -> Any:
    """`log(1 + exp(x))`, with `x` held to `[-threshold, threshold]`.

    Args:
      x: any shape, or a SequenceBatch.
      threshold: bound of `x`.
      name: instead of `soft_relu_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.soft_relu(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("soft_relu", name).output(on_data(lambda v: functional.soft_relu(v, threshold), x))


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
