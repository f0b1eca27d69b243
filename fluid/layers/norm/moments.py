"""Helpers for normalisation layers: means and variances, scales and biases, and the channel axis."""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from fluid import core, errors
from fluid.initializer import Constant
from fluid.layers.base import Layer, dense, describe, row_dims, wide
from fluid.param_attr import ParamSetting


def channel_axis_of(this: Layer, value: Any, layout: str, argument: str) -> int:
    """Return the index of the channel dimension of a value, for a layout such as "NCHW".

    Raises:
      ArgumentError: there is no such layout.
      ShapeError: the value has no channels.
    """
    if layout not in ("NCHW", "NHWC", "NCDHW", "NDHWC"):
        raise errors.ArgumentError(
            f"{this.name}: {argument}={layout!r}; expected 'NCHW' or 'NHWC', 'NCDHW' or 'NDHWC' for volumes"
        )
    x = dense(value)
    if x.ndim <= row_dims(value):
        raise errors.ShapeError(
            f"{this.name}: input {describe(value)} has no channels; expected [batch, channels] or more dimensions, "
            f"as from layers.fc(x, size=10)"
        )
    if core.is_default(layout) and row_dims(value) == 1 and x.ndim == 3 and min(x.shape[1:]) > 1:
        core.doubt_reading(
            f"{this.name} takes the {x.shape[1]} rows of {describe(value)} for its channels; {argument}='NHWC' "
            f"if these are the last dimension, as in [batch, time, channels]; {argument}='NCHW' if not"
        )
    return x.ndim - 1 if layout.endswith("C") else row_dims(value)


def moments(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Compute the mean and variance over some axes, in two passes over the data."""
    if math.prod(x.shape[axis] for axis in axes) == 1:
        core.doubt(
            f"a normalisation of {describe(x)} over one number makes it 0, whatever the input, so that the result is "
            f"the bias; normalise over more numbers, or leave out the layer"
        )
    x = wide(x)
    mean = jnp.mean(x, axis=axes, keepdims=True)
    return x, mean, jnp.mean(jnp.square(x - mean), axis=axes, keepdims=True)


def recorded_moments(this: Layer, mean: Any, variance: Any, shape: Sequence[int] = (-1,)) -> tuple[Any, Any]:
    """Record the mean and the variance of a layer under names, so that users can fetch and override them.

    In PaddlePaddle Fluid, normalisation layers name the mean `NAME.tmp_0`, the variance `NAME.tmp_1` and the result
    `NAME.tmp_2`. Without a call of this function, the result would get another name.
    """
    recorded_mean = this.output(mean.reshape(shape))
    recorded_variance = this.output(variance.reshape(shape))
    return recorded_mean.reshape(mean.shape), recorded_variance.reshape(variance.shape)


def scale_of(this: Layer, attr: ParamSetting, size: Sequence[int], dtype: Any) -> Any:
    """Create the scale of a normalisation, a parameter that starts at 1; return None if `attr` is False."""
    return None if attr is False else this.parameter("w", attr, size, dtype, Constant(1.0))


def affine(x: Any, scale: Any, bias: Any, shape: Sequence[int]) -> Any:
    """Compute `x * scale + bias`.

    Args:
      shape: the shape in which scale and bias broadcast to `x`; `along_axis` returns the shape for one number per
        channel.
    """
    x = x if scale is None else x * scale.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)
