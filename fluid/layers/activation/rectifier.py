"""Rectifiers: what is linear on one side of a threshold, and constant, flat or small on the other."""

from typing import Any

import jax.numpy as jnp

from fluid import core, errors
from fluid.initializer import Constant
from fluid.layers import functional
from fluid.layers.base import Layer, axis_of, dense, describe, layer, like, on_data, row_dims


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
def softshrink(x: Any, alpha: float = 0.5, name: str | None = None) -> Any:
    """`x` moved towards 0 by alpha, and 0 where that would cross it.

    Args:
      x: any shape, or a SequenceBatch.
      alpha: how far; not negative.
      name: instead of `softshrink_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.softshrink(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("softshrink", name).output(on_data(lambda v: functional.softshrink(v, alpha), x))


@layer
def hard_shrink(x: Any, threshold: float = 0.5, name: str | None = None) -> Any:
    """`x`, but 0 within the threshold.

    Args:
      x: any shape, or a SequenceBatch.
      threshold: how far from 0 is still 0.
      name: instead of `hard_shrink_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.hard_shrink(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("hard_shrink", name).output(on_data(lambda v: functional.hard_shrink(v, threshold), x))


@layer
def thresholded_relu(x: Any, threshold: float = 1.0, name: str | None = None) -> Any:
    """`x` where it is above the threshold, else 0 (Konda, Memisevic and Krueger, 2014).

    Args:
      x: any shape, or a SequenceBatch.
      threshold: from which on values pass.
      name: instead of `thresholded_relu_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.thresholded_relu(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("thresholded_relu", name).output(on_data(lambda v: functional.thresholded_relu(v, threshold), x))


@layer
def prelu(x: Any, mode: str, param_attr: Any = None, name: str | None = None) -> Any:
    """`x` where positive, else a trained slope times `x` (He et al., 2015).

    Args:
      x: `[batch, ...]`, or a SequenceBatch for mode "all".
      mode: "all" for one slope, "channel" for one per channel (dimension 1), "element" for one per element.
      param_attr: ParamAttr of the slopes: `[1]`, `[1, channels, 1, 1]` or `[1, ...]`; 0.25 by default.
      name: instead of `prelu_N`.

    Returns:
      Same shape as `x`.

    Raises:
      ArgumentError: there is no such mode.
      ShapeError: `x` has no channels.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.prelu(fluid.layers.data("x", shape=[3, 8, 8]), mode="channel")
      >>> fluid.Program(program).parameters["prelu_0.w_0"].shape
      (1, 3, 1, 1)
    """
    this = Layer("prelu", name)
    array = dense(x)
    if mode not in ("all", "channel", "element"):
        raise errors.ArgumentError(f"{this.name}: mode={mode!r}; expected 'all', 'channel' or 'element'")
    if mode != "all" and (row_dims(x) > 1 or array.ndim < 2):
        raise errors.ShapeError(
            f"{this.name}: input {describe(x)} has no {mode}s that examples share; expected [batch, channels, ...], "
            f"or use prelu(x, mode='all')"
        )
    if mode == "all":
        shape, wide = [1], [1]
    elif mode == "channel":
        shape, wide = [1, array.shape[1], 1, 1], [1, array.shape[1]] + [1] * (array.ndim - 2)
    else:
        shape = wide = [1, *array.shape[1:]]
    slope = this.parameter("w", param_attr, shape, array.dtype, Constant(0.25)).reshape(wide)
    return this.output(like(x, jnp.where(array > 0, array, slope * array)))


@layer
def maxout(x: Any, groups: int, name: str | None = None, axis: int = 1) -> Any:
    """The largest of each `groups` neighbouring channels (Goodfellow et al., 2013).

    Args:
      x: `[batch, channels, height, width]`, or with the channels elsewhere.
      groups: how many channels become one; they divide the channels.
      name: instead of `maxout_N`.
      axis: the dimension of the channels.

    Returns:
      Same shape as `x`, with `channels / groups` channels.

    Raises:
      ShapeError: `groups` does not divide the channels.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.maxout(fluid.layers.data("x", shape=[4, 8, 8]), groups=2)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2, 8, 8]
    """
    this = Layer("maxout", name)
    array, place = dense(x), axis_of(x, axis)
    channels = array.shape[place]
    if channels % core.whole_number(this.name, "groups", groups):
        raise errors.ShapeError(
            f"{this.name}: groups={groups} does not divide the {channels} channels of {describe(x)} along "
            f"axis={axis}; use a divisor, as in groups=2"
        )
    shape = [*array.shape[:place], channels // groups, groups, *array.shape[place + 1 :]]
    return this.output(like(x, jnp.max(array.reshape(shape), axis=place + 1)))
