"""The softmax and its logarithm."""

from typing import Any

import jax

from fluid import core
from fluid.layers import functional
from fluid.layers.base import Layer, axis_of, dense, doubt_softmax_of_one, layer, like
from fluid.layers.no_effect import no_effect


@layer
@no_effect(use_cudnn="XLA chooses the kernels")
def softmax(input: core.Value, use_cudnn: bool = False, name: str | None = None, axis: int = -1) -> Any:
    """Convert logits to probabilities: `exp(x) / sum(exp(x))` along one dimension.

    Args:
      input: logits `[batch, ..., classes]`, or a SequenceBatch.
      use_cudnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.
      name: name of the layer; by default `softmax_N`.
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
    doubt_softmax_of_one(input, place)
    raw = like(input, functional.softmax(dense(input), axis=place))
    result = this.output(raw)
    if result is raw:  # an overridden value does not come from these logits
        this.frame.note(result, logits=input, logits_axis=place)
    return result


@layer
def log_softmax(input: core.Value, axis: int | None = None, dtype: str | None = None, name: str | None = None) -> Any:
    """Compute the logarithm of the softmax, without rounding small probabilities to 0.

    Args:
      input: logits `[batch, ..., classes]`, or a SequenceBatch.
      axis: the dimension of the classes; the last by default.
      dtype: the dtype to which the logits are converted first; by default they keep their dtype.
      name: name of the layer; by default `log_softmax_N`.

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
    place = axis_of(input, -1 if axis is None else axis)
    doubt_softmax_of_one(input, place)
    return this.output(like(input, functional.log_softmax(x, axis=place)))
