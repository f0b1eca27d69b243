"""What normalisations share: means and variances, and where the channels are."""

from typing import Any

import jax.numpy as jnp

from fluid import errors
from fluid.layers.base import Layer, dense, describe, row_dims, wide


def channel_axis_of(this: Layer, value: Any, layout: str, argument: str) -> int:
    """Where the channels of a value lie, for a layout such as "NCHW".

    Raises:
      ArgumentError: no such layout. ShapeError: the value has no channels.
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
    return x.ndim - 1 if layout.endswith("C") else row_dims(value)


def moments(x: Any, axes: tuple[int, ...], where: Any = None) -> tuple[Any, Any, Any]:
    """Mean and variance over some axes, in two passes.

    Args:
      x: any shape.
      axes: what the moments are over.
      where: bool, which elements count; all by default.

    Returns:
      `x` in a dtype wide enough for sums, its mean and its variance, both with 1 for the axes.
    """
    x = wide(x)
    mean = jnp.mean(x, axis=axes, keepdims=True, where=where)
    return x, mean, jnp.mean(jnp.square(x - mean), axis=axes, keepdims=True, where=where)


def affine(x: Any, scale: Any, bias: Any, axis: int) -> Any:
    """`x * scale + bias` with one number `[channels]` for each place along an axis; None leaves that part out."""
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    x = x if scale is None else x * scale.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)
