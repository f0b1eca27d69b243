"""Normalisation over a batch, a layer, groups of channels, an instance, or neighbouring channels."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.initializer import Constant
from fluid.layers.base import (
    Layer,
    array_of,
    axis_of,
    dense,
    describe,
    is_sequence,
    layer,
    like,
    row_dims,
    valid_steps,
    wide,
    wide_dtype,
)


@layer
def batch_norm(
    input: Any,
    act: Any = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
) -> Any:
    """Batch normalisation (Ioffe and Szegedy, 2015): each channel to mean 0 and variance 1, then scaled and shifted.

    Training uses the statistics of the batch and moves the averages,
    `moving = momentum * moving + (1 - momentum) * batch`; testing uses the averages. Of a SequenceBatch only the valid
    steps count.

    Args:
      input: `[batch, channels]`, `[batch, channels, ...]`, `[batch, ..., channels]` with "NHWC", or a SequenceBatch.
      act: name of an activation, or a function.
      is_test: True uses the averages in training too, and does not move them.
      momentum: of the moving averages.
      epsilon: added to the variance.
      param_attr: ParamAttr of the scale `[channels]`; False for none.
      bias_attr: ParamAttr of the bias `[channels]`; False for none.
      data_layout: "NCHW" or "NHWC".
      in_place: has no effect.
      name: instead of `batch_norm_N`.
      moving_mean_name: instead of `batch_norm_N.w_1`.
      moving_variance_name: instead of `batch_norm_N.w_2`.
      do_model_average_for_mean_and_var: has no effect.
      use_global_stats: as `is_test`.

    Returns:
      Same shape as the input.

    Raises:
      ShapeError: the input has less than two dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 8, 8])
      ...     return fluid.layers.batch_norm(image, act="relu")
      >>> p = fluid.Program(program)
      >>> list(p.parameters), list(p.states)
      (['batch_norm_0.w_0', 'batch_norm_0.b_0'], ['batch_norm_0.w_1', 'batch_norm_0.w_2'])
    """
    this = Layer("batch_norm", name)
    x = dense(input)
    axis = _channel_axis(this, input, data_layout, "data_layout")
    size, dtype = [x.shape[axis]], wide_dtype(x.dtype)
    scale = None if param_attr is False else this.parameter("w", param_attr, size, dtype, Constant(1.0))
    bias = this.bias(bias_attr, size, dtype)
    mean_name, moving_mean = this.state(moving_mean_name, "w", size, dtype, Constant(0.0))
    variance_name, moving_variance = this.state(moving_variance_name, "w", size, dtype, Constant(1.0))
    if is_test or use_global_stats or this.frame.mode == core.TEST:
        mean, variance = moving_mean, moving_variance
    else:
        mean, variance = _batch_moments(input, x, axis)
        core.set_state(mean_name, momentum * moving_mean + (1 - momentum) * jax.lax.stop_gradient(mean))
        core.set_state(variance_name, momentum * moving_variance + (1 - momentum) * jax.lax.stop_gradient(variance))
    mean, variance = this.output(mean), this.output(variance)
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    # One factor per channel: scaling the whole image twice would cost much more.
    factor = jax.lax.rsqrt(variance + epsilon) * (1 if scale is None else scale)
    result = (wide(x) - mean.reshape(shape)) * factor.reshape(shape)
    return this.finish(like(input, _affine(result, None, bias, axis).astype(x.dtype)), act)


@layer
def layer_norm(
    input: Any,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    name: str | None = None,
) -> Any:
    """Layer normalisation (Ba, Kiros and Hinton, 2016): each example to mean 0 and variance 1 by itself.

    Args:
      input: `[batch, ...]`, or a SequenceBatch, of which each step is an example.
      scale: whether to multiply by a parameter.
      shift: whether to add a parameter.
      begin_norm_axis: the first dimension to normalise over; those after it too.
      epsilon: added to the variance.
      param_attr: ParamAttr of the scale, flat: `[product of the normalised sizes]`.
      bias_attr: ParamAttr of the shift, likewise.
      act: name of an activation, or a function.
      name: instead of `layer_norm_N`.

    Returns:
      Same shape as the input.

    Raises:
      ArgumentError: there is no such axis.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.layer_norm(fluid.layers.data("x", shape=[4, 6]))
      >>> fluid.Program(program).parameters["layer_norm_0.w_0"].shape
      (24,)
    """
    this = Layer("layer_norm", name)
    x = dense(input)
    begin = axis_of(input, begin_norm_axis, "begin_norm_axis")
    shape = x.shape[begin:]
    size = [math.prod(shape)]
    dtype, scaled = wide_dtype(x.dtype), scale and param_attr is not False
    gain = this.parameter("w", param_attr, size, dtype, Constant(1.0)) if scaled else None
    bias = this.bias(bias_attr, size, dtype) if shift else None
    whole, mean, variance = _moments(x, tuple(range(begin, x.ndim)))
    this.output(mean.reshape(-1)), this.output(variance.reshape(-1))
    result = (whole - mean) * jax.lax.rsqrt(variance + epsilon)
    if gain is not None:
        result = result * gain.reshape(shape)
    if bias is not None:
        result = result + bias.reshape(shape)
    return this.finish(like(input, result.astype(x.dtype)), act)


@layer
def group_norm(
    input: Any,
    groups: int,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    data_layout: str = "NCHW",
    name: str | None = None,
) -> Any:
    """Group normalisation (Wu and He, 2018): the channels of an image in groups, each to mean 0 and variance 1.

    Args:
      input: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      groups: how many; they divide the channels.
      epsilon: added to the variance.
      param_attr: ParamAttr of a scale `[channels]`; there is one only when this is given.
      bias_attr: ParamAttr of a bias `[channels]`; there is one only when this is given.
      act: name of an activation, or a function.
      data_layout: "NCHW" or "NHWC".
      name: instead of `group_norm_N`.

    Returns:
      Same shape as the input.

    Raises:
      ShapeError: the groups do not divide the channels.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[4, 8, 8])
      ...     return fluid.layers.group_norm(image, groups=2, param_attr="scale")
      >>> list(fluid.Program(program).parameters)
      ['scale']
    """
    this = Layer("group_norm", name)
    axis = _channel_axis(this, input, data_layout, "data_layout")
    x = jnp.moveaxis(array_of(this, input), axis, 1)
    channels = x.shape[1]
    if not isinstance(groups, int) or groups < 1 or channels % groups:
        raise errors.ShapeError(
            f"{this.name}: groups={groups!r} does not divide the {channels} channels of {describe(input)}; "
            f"use a divisor, as in groups={max(d for d in range(1, channels + 1) if channels % d == 0 and d <= 32)}"
        )
    scale = this.parameter("w", param_attr, [channels], wide_dtype(x.dtype), Constant(1.0)) if param_attr else None
    bias = this.bias(bias_attr, [channels], wide_dtype(x.dtype)) if bias_attr else None
    parts, mean, variance = _moments(x.reshape(x.shape[0], groups, -1), (2,))
    this.output(mean[..., 0]), this.output(variance[..., 0])
    normal = ((parts - mean) * jax.lax.rsqrt(variance + epsilon)).reshape(x.shape)
    result = jnp.moveaxis(_affine(normal, scale, bias, 1), 1, axis)
    return this.finish(result.astype(x.dtype), act)


@layer
def instance_norm(
    input: Any,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Any:
    """Instance normalisation (Ulyanov et al., 2016): each channel of each image to mean 0 and variance 1.

    Args:
      input: `[batch, channels, ...]`, or with the channels last for "NHWC".
      epsilon: added to the variance.
      param_attr: ParamAttr of the scale `[channels]`; False for none.
      bias_attr: ParamAttr of the bias `[channels]`; False for none.
      name: instead of `instance_norm_N`.
      data_format: "NCHW" or "NHWC".

    Returns:
      Same shape as the input.

    Raises:
      ShapeError: the input has less than three dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.instance_norm(fluid.layers.data("image", shape=[3, 8, 8]))
      >>> fluid.Program(program).parameters["instance_norm_0.w_0"].shape
      (3,)
    """
    this = Layer("instance_norm", name)
    x = array_of(this, input)
    if x.ndim < 3:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} has no pixels; expected [batch, channels, ...], "
            f"as in layers.data(..., shape=[3, 32, 32])"
        )
    axis = _channel_axis(this, input, data_format, "data_format")
    size, dtype = [x.shape[axis]], wide_dtype(x.dtype)
    scale = None if param_attr is False else this.parameter("w", param_attr, size, dtype, Constant(1.0))
    bias = this.bias(bias_attr, size, dtype)
    whole, mean, variance = _moments(x, tuple(i for i in range(1, x.ndim) if i != axis))
    this.output(mean.reshape(-1)), this.output(variance.reshape(-1))
    result = _affine((whole - mean) * jax.lax.rsqrt(variance + epsilon), scale, bias, axis)
    return this.output(result.astype(x.dtype))


@layer
def lrn(
    input: Any,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Any:
    """Local response normalisation (Krizhevsky et al., 2012): `x / (k + alpha * squares) ** beta`.

    Squares are summed over `n` neighbouring channels.

    Args:
      input: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      n: how many neighbouring channels are summed over.
      k: keeps the divisor from 0.
      alpha: weight of the sum.
      beta: exponent.
      name: instead of `lrn_N`.
      data_format: "NCHW" or "NHWC".

    Returns:
      Same shape as the input.

    Raises:
      ShapeError: the input is no batch of images.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.lrn(fluid.layers.data("image", shape=[6, 8, 8]), n=3)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 6, 8, 8]
    """
    this = Layer("lrn", name)
    axis = _channel_axis(this, input, data_format, "data_format")
    x = array_of(this, input)
    if x.ndim != 4:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)}; expected [batch, channels, height, width], "
            f"as from layers.reshape(x, [-1, 1, 28, 28])"
        )
    window = [n if i == axis else 1 for i in range(4)]
    before = (n - 1) // 2
    pads = [(before, n - 1 - before) if i == axis else (0, 0) for i in range(4)]
    squares = jnp.square(wide(x))
    near = jax.lax.reduce_window(squares, np.array(0, squares.dtype), jax.lax.add, window, [1] * 4, pads)
    return this.output((x / (k + alpha * near) ** beta).astype(x.dtype))


@layer
def l2_normalize(x: Any, axis: int, epsilon: float = 1e-12, name: str | None = None) -> Any:
    """Divide by the Euclidean norm along one dimension.

    Args:
      x: `[batch, ...]` or a SequenceBatch.
      axis: the dimension.
      epsilon: added to the sum of squares.
      name: instead of `l2_normalize_N`.

    Returns:
      Same shape as `x`.

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
    array, dtype = wide(x), dense(x).dtype
    squares = jnp.sum(jnp.square(array), axis=axis_of(x, axis), keepdims=True)
    result = this.output(like(x, (array * jax.lax.rsqrt(squares + epsilon)).astype(dtype)))
    this.output(like(x, jnp.sqrt(squares + epsilon).astype(dtype)))
    return result


def _channel_axis(this: Layer, value: Any, layout: str, argument: str) -> int:
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


def _moments(x: Any, axes: tuple[int, ...], where: Any = None) -> tuple[Any, Any, Any]:
    x = wide(x)
    mean = jnp.mean(x, axis=axes, keepdims=True, where=where)
    return x, mean, jnp.mean(jnp.square(x - mean), axis=axes, keepdims=True, where=where)


def _batch_moments(value: Any, x: Any, axis: int) -> tuple[Any, Any]:
    # Both moments in one pass over the data, which is most of the work. Taken about a point near the mean they are as
    # exact as in two passes, and the mean of the first example is such a point.
    valid = valid_steps(value, x.ndim) if is_sequence(value) else None
    axes = tuple(i for i in range(x.ndim) if i != axis)
    x = wide(x)
    near = jax.lax.stop_gradient(jnp.mean(x[:1], axis=axes, keepdims=True))
    shift, square = (jnp.mean(v, axis=axes, where=valid) for v in (x - near, jnp.square(x - near)))
    return near.reshape(-1) + shift, jnp.maximum(square - jnp.square(shift), 0)


def _affine(x: Any, scale: Any, bias: Any, axis: int) -> Any:
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    x = x if scale is None else x * scale.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)
