"""Normalisation of the last axis alone, as in transformers: `feature_norm` and `rms_norm`."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.initializer import Constant
from fluid.layers.base import Layer, dense, describe, layer, like, row_dims, wide, wide_dtype
from fluid.layers.norm.moments import affine, moments
from fluid.param_attr import ParamSetting


@layer
def feature_norm(
    x: core.Value,
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
      The same kind, shape and dtype as `x`; mean and variance are computed in float32 for half precision.

    Raises:
      ShapeError: `x` has no dimension after its rows.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.feature_norm(fluid.layers.data("x", shape=[4, 6]))
      >>> fluid.Program(program).parameters["feature_norm_0.w_0"].shape
      (6,)
    """
    this = Layer("feature_norm", name)
    array = _with_features(this, x)
    gain = _scale(this, param_attr, array)
    bias = this.bias(bias_attr, [array.shape[-1]], wide_dtype(array.dtype))
    whole, mean, variance = moments(array, (array.ndim - 1,))
    result = affine((whole - mean) * jax.lax.rsqrt(variance + epsilon), gain, bias, [-1])
    return this.output(like(x, result.astype(array.dtype)))


@layer
def rms_norm(x: core.Value, epsilon: float = 1e-6, param_attr: ParamSetting = None, name: str | None = None) -> Any:
    """Divide the last axis by its root mean square, then scale it (Zhang and Sennrich, 2019).

    The result is `x / sqrt(mean(x ** 2) + epsilon) * scale`.

    Args:
      x: `[batch, ..., features]`, or a SequenceBatch of steps `[..., features]`.
      epsilon: added to the mean square.
      param_attr: ParamAttr of the scale `[features]`, 1 by default; False for none.
      name: name of the layer; by default `rms_norm_N`.

    Returns:
      The same kind, shape and dtype as `x`; the mean square is computed in float32 for half precision.

    Raises:
      ShapeError: `x` has no dimension after its rows.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.rms_norm(fluid.layers.data("x", shape=[4, 6]))
      >>> fluid.Program(program).parameters["rms_norm_0.w_0"].shape
      (6,)
    """
    this = Layer("rms_norm", name)
    array = _with_features(this, x)
    gain = _scale(this, param_attr, array)
    whole = wide(array)
    square = jnp.mean(jnp.square(whole), axis=-1, keepdims=True)
    result = affine(whole * jax.lax.rsqrt(square + epsilon), gain, None, [-1])
    return this.output(like(x, result.astype(array.dtype)))


def _with_features(this: Layer, value: core.Value) -> Any:
    """Return a value as an array `[..., features]`.

    Raises:
      ShapeError: the value has no dimension after its rows.
    """
    array = dense(value)
    if array.ndim <= row_dims(value):
        raise errors.ShapeError(
            f"{this.name}: input {describe(value)} has no features; expected [batch, ..., features], as from "
            f"layers.dense(x, size=10)"
        )
    return array


def _scale(this: Layer, attr: ParamSetting, x: Any) -> Any:
    """Create the scale of the last axis of `x`; return None if `attr` is False."""
    if attr is False:
        return None
    return this.parameter("w", attr, [x.shape[-1]], wide_dtype(x.dtype), Constant(1.0))
