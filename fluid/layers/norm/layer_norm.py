"""Normalisation of the last axes, of groups of channels, and of single examples."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import (
    Layer,
    array_of,
    axis_of,
    dense,
    describe,
    layer,
    like,
    row_dims,
    wide,
    wide_dtype,
)
from fluid.layers.functional import Activation
from fluid.layers.kernels.data_format import along_axis, as_computed
from fluid.layers.norm.moments import affine, channel_axis_of, moments, recorded_moments, scale_of
from fluid.param_attr import ParamSetting

_EXAMPLE = core.default(1)
_CHANNELS_FIRST = core.default("NCHW")


@layer
def layer_norm(
    input: Value,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = _EXAMPLE,
    epsilon: float = 1e-05,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    act: Activation = None,
    name: str | None = None,
) -> Any:
    """Normalise each example to mean 0 and variance 1: layer normalisation (Ba, Kiros and Hinton, 2016).

    Args:
      input: `[batch, ...]`, or a SequenceBatch, in which each step is an example.
      scale: whether to multiply the result by a parameter.
      shift: whether to add a parameter to the result.
      begin_norm_axis: the first dimension to normalise over; all later ones follow. The default, 1, normalises
        `[batch, time, features]` over time too, with a warning: `feature_norm` normalises only the last axis.
      epsilon: added to the variance.
      param_attr: ParamAttr of the scale, a vector with one number for each element of an example.
      bias_attr: ParamAttr of the shift, a vector of the same size.
      act: name of an activation, or a function.
      name: name of the layer; by default `layer_norm_N`.

    Returns:
      A value of the same type and shape as the input.

    Raises:
      ArgumentError: there is no such axis.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.layer_norm(fluid.layers.data("x", shape=[4, 6]), begin_norm_axis=1)
      >>> fluid.Program(program).parameters["layer_norm_0.w_0"].shape
      (24,)
    """
    this = Layer("layer_norm", name)
    x = dense(input)
    begin = axis_of(input, begin_norm_axis, "begin_norm_axis")
    shape = x.shape[begin:]
    if core.is_default(begin_norm_axis) and row_dims(input) == 1 and x.ndim == 3 and min(shape) > 1:
        core.doubt_reading(
            f"{this.name} of {describe(input)} normalises over {shape[0]} x {shape[1]} numbers, time too, so that a "
            f"step depends on the steps after it; begin_norm_axis=2 for the last axis, as layers.feature_norm(x) does; "
            f"begin_norm_axis=1 if both dimensions are meant"
        )
    size = [math.prod(shape)]
    dtype = wide_dtype(x.dtype)
    factors = scale_of(this, param_attr, size, dtype) if scale else None
    bias = this.bias(bias_attr, size, dtype) if shift else None
    whole, mean, variance = moments(x, tuple(range(begin, x.ndim)))
    mean, variance = recorded_moments(this, mean, variance)
    result = affine((whole - mean) * jax.lax.rsqrt(variance + epsilon), factors, bias, shape)
    return this.finish(like(input, result.astype(x.dtype)), act)


@layer
def group_norm(
    input: Value,
    groups: int,
    epsilon: float = 1e-05,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    act: Activation = None,
    data_layout: str = _CHANNELS_FIRST,
    name: str | None = None,
) -> jax.Array:
    """Normalise each group of channels of each image to mean 0 and variance 1 (Wu and He, 2018).

    Args:
      input: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      groups: the number of groups, which divides the number of channels.
      epsilon: added to the variance.
      param_attr: ParamAttr of a scale `[channels]`; without it there is no scale.
      bias_attr: ParamAttr of a bias `[channels]`; without it there is no bias.
      act: name of an activation, or a function.
      data_layout: "NCHW" or "NHWC".
      name: name of the layer; by default `group_norm_N`.

    Returns:
      An array of the same shape as the input.

    Raises:
      ArgumentError: `groups` is not a positive integer.
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
    axis = channel_axis_of(this, input, data_layout, "data_layout")
    x, axis, as_written = as_computed(array_of(this, input), axis)
    channels = x.shape[axis]
    if channels % core.whole_number(this.name, "groups", groups):
        raise errors.ShapeError(
            f"{this.name}: groups={groups} does not divide the {channels} channels of {describe(input)}; "
            f"use a divisor, as in groups={_usual_groups(channels)}"
        )
    scale = scale_of(this, param_attr, [channels], wide_dtype(x.dtype)) if param_attr else None
    bias = this.bias(bias_attr, [channels], wide_dtype(x.dtype)) if bias_attr else None
    # A group of one number is 0 whatever the input, of which the moments in `_normal_groups` warn.
    normalise = _normal_groups if axis == 1 or math.prod(x.shape[1:]) == groups else _normal_groups_of_last
    result = affine(normalise(this, x, axis, groups, epsilon), scale, bias, along_axis(axis, x.ndim))
    return this.finish(as_written(result.astype(x.dtype)), act)


def _normal_groups(this: Layer, x: Any, axis: int, groups: int, epsilon: float) -> Any:
    """Normalise each group of channels of images, with a transpose that moves the channels before the pixels.

    Args:
      x: `[batch, ..., channels, ...]`.
    """
    first = jnp.moveaxis(x, axis, 1)
    parts, mean, variance = moments(first.reshape(x.shape[0], groups, -1), (2,))
    mean, variance = recorded_moments(this, mean, variance, shape=(x.shape[0], groups))
    normal = ((parts - mean) * jax.lax.rsqrt(variance + epsilon)).reshape(first.shape)
    return jnp.moveaxis(normal, 1, axis)


def _normal_groups_of_last(this: Layer, x: Any, axis: int, groups: int, epsilon: float) -> Any:
    """Normalise each group of channels of images whose channels are the last dimension, without a transpose.

    The function first computes the mean of each channel over its pixels, and then the mean over the channels of a
    group: XLA on a CPU uses vector instructions only for sums over pixels. For images of 56 x 56 x 256 and 32 groups,
    with the gradient, this function takes 9.1 ms; with a transpose (`_normal_groups`), it takes 58 ms (`python
    benchmarks/survey.py group_norm`, jax 0.10.2, two cores, 24 November 2026).
    """
    pixels = tuple(range(1, axis))

    def of_groups(values: Any) -> Any:
        return jnp.mean(jnp.mean(values, axis=pixels).reshape(x.shape[0], groups, -1), axis=2)

    def of_channels(moment: Any) -> Any:
        return jnp.expand_dims(jnp.repeat(moment, x.shape[axis] // groups, axis=1), pixels)

    whole = wide(x)
    mean = of_groups(whole)
    variance = of_groups(jnp.square(whole - of_channels(mean)))
    mean, variance = recorded_moments(this, mean, variance, shape=(x.shape[0], groups))
    return (whole - of_channels(mean)) * of_channels(jax.lax.rsqrt(variance + epsilon))


@layer
def instance_norm(
    input: Value,
    epsilon: float = 1e-05,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    name: str | None = None,
    data_format: str = _CHANNELS_FIRST,
) -> jax.Array:
    """Normalise each channel of each image to mean 0 and variance 1 (Ulyanov et al., 2016).

    Args:
      input: `[batch, channels, ...]`, or with the channels last for "NHWC".
      epsilon: added to the variance.
      param_attr: ParamAttr of the scale `[channels]`; False for none.
      bias_attr: ParamAttr of the bias `[channels]`; False for none.
      name: name of the layer; by default `instance_norm_N`.
      data_format: "NCHW" or "NHWC".

    Returns:
      An array of the same shape as the input.

    Raises:
      ShapeError: the input has fewer than three dimensions.

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
    axis = channel_axis_of(this, input, data_format, "data_format")
    size = [x.shape[axis]]
    dtype = wide_dtype(x.dtype)
    scale = scale_of(this, param_attr, size, dtype)
    bias = this.bias(bias_attr, size, dtype)
    whole, mean, variance = moments(x, tuple(i for i in range(1, x.ndim) if i != axis))
    mean, variance = recorded_moments(this, mean, variance)
    normal = (whole - mean) * jax.lax.rsqrt(variance + epsilon)
    return this.output(affine(normal, scale, bias, along_axis(axis, x.ndim)).astype(x.dtype))


def _usual_groups(channels: int) -> int:
    return max(d for d in range(1, min(channels, 32) + 1) if channels % d == 0)


@layer
def feature_norm(
    x: Value,
    epsilon: float = 1e-5,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    name: str | None = None,
) -> Any:
    """Normalise the last axis to mean 0 and variance 1: layer normalisation (Ba, Kiros and Hinton, 2016).

    In `[batch, time, features]`, each step is normalised alone; `layer_norm` normalises over time and features jointly.

    Args:
      x: `[batch, ..., features]`, or a SequenceBatch of steps `[..., features]`.
      epsilon: added to the variance.
      param_attr: ParamAttr of the scale `[features]`, 1 by default; False for none.
      bias_attr: ParamAttr of the bias `[features]`; False for none.
      name: name of the layer; by default `feature_norm_N`.

    Returns:
      A value of the same type, shape and dtype as `x`; mean and variance are computed in float32 for half precision.

    Raises:
      ShapeError: `x` has no dimension of features.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.feature_norm(fluid.layers.data("x", shape=[4, 6]))
      >>> fluid.Program(program).parameters["feature_norm_0.w_0"].shape
      (6,)
    """
    this = Layer("feature_norm", name)
    array = _with_features(this, x)
    scale = scale_of(this, param_attr, [array.shape[-1]], wide_dtype(array.dtype))
    bias = this.bias(bias_attr, [array.shape[-1]], wide_dtype(array.dtype))
    whole, mean, variance = moments(array, (array.ndim - 1,))
    result = affine((whole - mean) * jax.lax.rsqrt(variance + epsilon), scale, bias, [-1])
    return this.output(like(x, result.astype(array.dtype)))


@layer
def rms_norm(x: Value, epsilon: float = 1e-6, param_attr: ParamSetting = None, name: str | None = None) -> Any:
    """Divide the last axis by its root mean square, then scale it (Zhang and Sennrich, 2019).

    The result is `x / sqrt(mean(x ** 2) + epsilon) * scale`.

    Args:
      x: `[batch, ..., features]`, or a SequenceBatch of steps `[..., features]`.
      epsilon: added to the mean square.
      param_attr: ParamAttr of the scale `[features]`, 1 by default; False for none.
      name: name of the layer; by default `rms_norm_N`.

    Returns:
      A value of the same type, shape and dtype as `x`; the mean square is computed in float32 for half precision.

    Raises:
      ShapeError: `x` has no dimension of features.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.rms_norm(fluid.layers.data("x", shape=[4, 6]))
      >>> fluid.Program(program).parameters["rms_norm_0.w_0"].shape
      (6,)
    """
    this = Layer("rms_norm", name)
    array = _with_features(this, x)
    scale = scale_of(this, param_attr, [array.shape[-1]], wide_dtype(array.dtype))
    whole = wide(array)
    square = jnp.mean(jnp.square(whole), axis=-1, keepdims=True)
    result = affine(whole * jax.lax.rsqrt(square + epsilon), scale, None, [-1])
    return this.output(like(x, result.astype(array.dtype)))


def _with_features(this: Layer, value: Value) -> Any:
    """Return the array `[..., features]` of a value, after checking that it has a dimension of features."""
    array = dense(value)
    if array.ndim <= row_dims(value):
        raise errors.ShapeError(
            f"{this.name}: input {describe(value)} has no features; expected [batch, ..., features], as from "
            f"layers.dense(x, size=10)"
        )
    return array
