"""Rescaling layers: local response normalisation, L2 normalisation, and an affine map per channel."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, axis_of, dense, describe, is_sequence, layer, like, wide
from fluid.layers.functional import Activation
from fluid.layers.image.spatial import image_of
from fluid.layers.kernels.layout import along_axis
from fluid.layers.norm.moments import affine, channel_axis_of


@layer
def lrn(
    input: core.Value,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    name: str | None = None,
    data_format: str = "NCHW",
) -> jax.Array:
    """Apply local response normalisation (Krizhevsky et al., 2012): `x / (k + alpha * squares) ** beta`.

    Here `squares` is the sum of the squares of `n` neighbouring channels of one pixel.

    Args:
      input: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      n: the number of neighbouring channels, including the channel itself.
      k: a constant that keeps the divisor away from 0.
      alpha: the factor of the sum.
      beta: the exponent.
      name: name of the layer; by default `lrn_N`.
      data_format: "NCHW" or "NHWC".

    Returns:
      The same shape as the input.

    Raises:
      ArgumentError: `n` is no positive integer.
      ShapeError: the input is no batch of images.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.lrn(fluid.layers.data("image", shape=[6, 8, 8]), n=3)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 6, 8, 8]
    """
    this = Layer("lrn", name)
    axis = channel_axis_of(this, input, data_format, "data_format")
    x = array_of(this, input)
    if x.ndim != 4:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)}; expected [batch, channels, height, width], "
            f"as from layers.reshape(x, [-1, 1, 28, 28])"
        )
    core.whole_number(this.name, "n", n)
    window = [n if i == axis else 1 for i in range(4)]
    before = (n - 1) // 2
    pads = [(before, n - 1 - before) if i == axis else (0, 0) for i in range(4)]
    squares = jnp.square(wide(x))
    near = jax.lax.reduce_window(squares, np.array(0, squares.dtype), jax.lax.add, window, [1] * 4, pads)
    return this.output((x / (k + alpha * near) ** beta).astype(x.dtype))


@layer
def l2_normalize(x: core.Value, axis: int, epsilon: float = 1e-12, name: str | None = None) -> Any:
    """Divide `x` by its Euclidean norm along one dimension.

    Args:
      x: `[batch, ...]` or a SequenceBatch.
      axis: the dimension.
      epsilon: added to the sum of squares.
      name: name of the layer; by default `l2_normalize_N`.

    Returns:
      The same kind and shape as `x`.

    Raises:
      ArgumentError: there is no such axis.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.l2_normalize(fluid.layers.data("x", shape=[4]), axis=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    this = Layer("l2_normalize", name)
    array = wide(x)
    dtype = dense(x).dtype
    place = axis_of(x, axis)
    if array.shape[place] == 1:
        core.doubt(
            f"{this.name} of {describe(x)} along axis {axis} is over one number, so that the result is 1, -1 or 0; "
            f"normalise over the dimension of the features, or leave out the layer"
        )
    if place == 0 and array.ndim > 1 and this.frame.placeholder_batch not in (None, *array.shape[1:]):
        if array.shape[0] == this.frame.placeholder_batch and not is_sequence(x):
            core.doubt(
                f"{this.name} of {describe(x)} along axis 0 is over the rows of the minibatch, so that the result of a "
                f"row depends on the other rows; write layers.l2_normalize(x, axis=-1)"
            )
    squares = jnp.sum(jnp.square(array), axis=place, keepdims=True)
    result = this.output(like(x, (array * jax.lax.rsqrt(squares + epsilon)).astype(dtype)))
    this.record_aside(like(x, jnp.sqrt(squares + epsilon).astype(dtype)))
    return result


@layer
def affine_channel(
    x: core.Value,
    scale: core.Value | None = None,
    bias: core.Value | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    act: Activation = None,
) -> jax.Array:
    """Multiply each channel by a scale, and add a bias.

    Args:
      x: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      scale: `[channels]`; 1 by default.
      bias: `[channels]`; 0 by default.
      data_layout: "NCHW" or "NHWC".
      name: name of the layer; by default `affine_channel_N`.
      act: name of an activation, or a function.

    Returns:
      The same shape as `x`.

    Raises:
      ShapeError: the input is no batch of images, or there is not one number for each channel.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 8, 8])
      ...     return fluid.layers.affine_channel(image, fluid.layers.create_parameter([3], name="gain"))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 8, 8]
    """
    this = Layer("affine_channel", name)
    image = image_of(this, x, 4, data_layout, "data_layout")
    for argument, value in (("scale", scale), ("bias", bias)):
        if value is not None and dense(value).size != image.channels:
            raise errors.ShapeError(
                f"{this.name}: {argument} {describe(value)} for the {image.channels} channels of {describe(x)}; "
                f"expected [{image.channels}]"
            )
    factors, summands = (None if value is None else dense(value) for value in (scale, bias))
    return this.finish(affine(image.array, factors, summands, along_axis(image.channel_axis, 4)), act)
