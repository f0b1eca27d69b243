"""Rectifiers: functions that are linear on one side of a threshold, and constant or nearly constant on the other."""

from typing import Any

import jax.numpy as jnp

from fluid import core, errors
from fluid.initializer import Constant
from fluid.layers import functional
from fluid.layers.base import Layer, axis_of, dense, describe, layer, like, on_data, row_dims
from fluid.layers.kernels.layout import along_axis
from fluid.param_attr import ParamSetting


@layer
def leaky_relu(x: core.Value, alpha: float = 0.02, name: str | None = None) -> Any:
    """Apply the leaky rectifier (Maas, Hannun and Ng, 2013): `x` where positive, else `alpha * x`.

    Args:
      x: any shape, or a SequenceBatch.
      alpha: slope for negative values.
      name: name of the layer; by default `leaky_relu_N`.

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
def elu(x: core.Value, alpha: float = 1.0, name: str | None = None) -> Any:
    """Apply the exponential linear unit (Clevert et al., 2015): `x` where positive, else `alpha * (exp(x) - 1)`.

    Args:
      x: any shape, or a SequenceBatch.
      alpha: very negative values approach `-alpha`.
      name: name of the layer; by default `elu_N`.

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
def selu(x: core.Value, scale: float | None = None, alpha: float | None = None, name: str | None = None) -> Any:
    """Apply the scaled `elu` (Klambauer et al., 2017), which keeps mean 0 and variance 1 from layer to layer.

    Args:
      x: any shape, or a SequenceBatch.
      scale: the factor of the `elu`; 1.0507 by default.
      alpha: as in `elu`; 1.6733 by default.
      name: name of the layer; by default `selu_N`.

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
def relu6(x: core.Value, threshold: float = 6.0, name: str | None = None) -> Any:
    """Limit `x` to the range from 0 to a threshold.

    Args:
      x: any shape, or a SequenceBatch.
      threshold: the largest value.
      name: name of the layer; by default `relu6_N`.

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
def brelu(x: core.Value, t_min: float = 0.0, t_max: float = 24.0, name: str | None = None) -> Any:
    """Limit `x` to the range between two bounds.

    Args:
      x: any shape, or a SequenceBatch.
      t_min: lower bound.
      t_max: upper bound.
      name: name of the layer; by default `brelu_N`.

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
def soft_relu(x: core.Value, threshold: float = 40.0, name: str | None = None) -> Any:
    """Compute `log(1 + exp(x))`, with `x` limited to the range from `-threshold` to `threshold`.

    Args:
      x: any shape, or a SequenceBatch.
      threshold: the bound of `x`.
      name: name of the layer; by default `soft_relu_N`.

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
def softshrink(x: core.Value, alpha: float = 0.5, name: str | None = None) -> Any:
    """Move `x` towards 0 by `alpha`; values nearer to 0 than `alpha` become 0.

    Args:
      x: any shape, or a SequenceBatch.
      alpha: the distance; not negative.
      name: name of the layer; by default `softshrink_N`.

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
def hard_shrink(x: core.Value, threshold: float = 0.5, name: str | None = None) -> Any:
    """Replace `x` by 0 where its absolute value is at most a threshold.

    Args:
      x: any shape, or a SequenceBatch.
      threshold: the largest absolute value that becomes 0.
      name: name of the layer; by default `hard_shrink_N`.

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
def thresholded_relu(x: core.Value, threshold: float = 1.0, name: str | None = None) -> Any:
    """Apply the thresholded rectifier (Konda, Memisevic and Krueger, 2014): `x` where above a threshold, else 0.

    Args:
      x: any shape, or a SequenceBatch.
      threshold: only larger values pass.
      name: name of the layer; by default `thresholded_relu_N`.

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
def prelu(x: core.Value, mode: str, param_attr: ParamSetting = None, name: str | None = None) -> Any:
    """Apply the parametric rectifier (He et al., 2015): `x` where positive, else a trained slope times `x`.

    Args:
      x: `[batch, ...]`; for mode "all" a SequenceBatch too.
      mode: "all" for one slope, "channel" for one for each channel (dimension 1), "element" for one for each element.
      param_attr: ParamAttr of the slopes: `[1]`, `[1, channels, 1, 1]` or `[1, ...]`; 0.25 by default.
      name: name of the layer; by default `prelu_N`.

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
        shape = [1]
    elif mode == "channel":
        shape = [1, array.shape[1], 1, 1]
    else:
        shape = [1, *array.shape[1:]]
    slope = this.parameter("w", param_attr, shape, array.dtype, Constant(0.25))
    if mode == "channel":  # Fluid's parameter shape is meant for images; the data may have other dimensions
        slope = slope.reshape(along_axis(1, array.ndim))
    return this.output(like(x, jnp.where(array > 0, array, slope * array)))


@layer
def maxout(x: core.Value, groups: int, name: str | None = None, axis: int = 1) -> Any:
    """Return the largest of each `groups` neighbouring channels: maxout (Goodfellow et al., 2013).

    Args:
      x: `[batch, channels, height, width]`, or with the channels in another dimension.
      groups: the number of channels that become one; it divides the number of channels.
      name: name of the layer; by default `maxout_N`.
      axis: the dimension of the channels.

    Returns:
      Same shape as `x`, with `channels / groups` channels.

    Raises:
      ArgumentError: `groups` is no positive integer.
      ShapeError: `groups` does not divide the channels.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.maxout(fluid.layers.data("x", shape=[4, 8, 8]), groups=2)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2, 8, 8]
    """
    this = Layer("maxout", name)
    array = dense(x)
    place = axis_of(x, axis)
    channels = array.shape[place]
    if channels % core.whole_number(this.name, "groups", groups):
        raise errors.ShapeError(
            f"{this.name}: groups={groups} does not divide the {channels} channels of {describe(x)} along "
            f"axis={axis}; use a divisor, as in groups=2"
        )
    shape = [*array.shape[:place], channels // groups, groups, *array.shape[place + 1 :]]
    return this.output(like(x, jnp.max(array.reshape(shape), axis=place + 1)))
