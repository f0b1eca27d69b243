"""Activations, and elementary functions of one array, such as `exp` and `sqrt`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.initializer import Constant
from fluid.layers import functional
from fluid.layers.base import (
    Layer,
    axis_of,
    dense,
    describe,
    doubt_softmax_of_one,
    filled,
    layer,
    like,
    on_data,
    row_dims,
)
from fluid.layers.kernels.data_format import along_axis, elementwise
from fluid.layers.kernels.extremes import largest
from fluid.layers.no_effect import assigns, no_effect
from fluid.param_attr import ParamSetting


@layer
def leaky_relu(x: Value, alpha: float = 0.02, name: str | None = None) -> Any:
    """Apply the leaky rectifier (Maas, Hannun and Ng, 2013): `x` where positive, else `alpha * x`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      alpha: the slope for negative values.
      name: name of the layer; by default `leaky_relu_N`.

    Returns:
      A value in the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.leaky_relu(fluid.layers.data("x", shape=[3]), alpha=0.1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("leaky_relu", name).output(on_data(lambda v: functional.leaky_relu(v, alpha), x))


@layer
def elu(x: Value, alpha: float = 1.0, name: str | None = None) -> Any:
    """Apply the exponential linear unit (Clevert et al., 2015): `x` where positive, else `alpha * (exp(x) - 1)`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      alpha: very negative values approach `-alpha`.
      name: name of the layer; by default `elu_N`.

    Returns:
      A value in the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.elu(fluid.layers.data("x", shape=[3]), alpha=0.5)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("elu", name).output(on_data(lambda v: functional.elu(v, alpha), x))


@layer
def selu(x: Value, scale: float | None = None, alpha: float | None = None, name: str | None = None) -> Any:
    """Apply the scaled `elu` (Klambauer et al., 2017), which keeps mean 0 and variance 1 from layer to layer.

    Args:
      x: an array of any shape, or a SequenceBatch.
      scale: the factor of the `elu`; 1.0507 by default.
      alpha: the `alpha` of the `elu`; 1.6733 by default.
      name: name of the layer; by default `selu_N`.

    Returns:
      A value in the shape of `x`.

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
def relu6(x: Value, threshold: float = 6.0, name: str | None = None) -> Any:
    """Limit `x` to the range from 0 to `threshold`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      threshold: the upper bound.
      name: name of the layer; by default `relu6_N`.

    Returns:
      A value in the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.relu6(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("relu6", name).output(on_data(lambda v: functional.relu6(v, threshold), x))


@layer
def brelu(x: Value, t_min: float = 0.0, t_max: float = 24.0, name: str | None = None) -> Any:
    """Limit `x` to the range from `t_min` to `t_max`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      t_min: the lower bound.
      t_max: the upper bound.
      name: name of the layer; by default `brelu_N`.

    Returns:
      A value in the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.brelu(fluid.layers.data("x", shape=[3]), t_min=-1.0, t_max=1.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("brelu", name).output(on_data(lambda v: functional.brelu(v, t_min, t_max), x))


@layer
def soft_relu(x: Value, threshold: float = 40.0, name: str | None = None) -> Any:
    """Compute `log(1 + exp(x))`, with `x` limited to the range from `-threshold` to `threshold`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      threshold: the bound of the absolute value of `x`.
      name: name of the layer; by default `soft_relu_N`.

    Returns:
      A value in the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.soft_relu(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("soft_relu", name).output(on_data(lambda v: functional.soft_relu(v, threshold), x))


@layer
def softshrink(x: Value, alpha: float = 0.5, name: str | None = None) -> Any:
    """Shrink the absolute value of `x` by `alpha`; values between `-alpha` and `alpha` become 0.

    Args:
      x: an array of any shape, or a SequenceBatch.
      alpha: the number that is subtracted from the absolute value; not negative.
      name: name of the layer; by default `softshrink_N`.

    Returns:
      A value in the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.softshrink(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("softshrink", name).output(on_data(lambda v: functional.softshrink(v, alpha), x))


@layer
def hard_shrink(x: Value, threshold: float = 0.5, name: str | None = None) -> Any:
    """Replace `x` by 0 where its absolute value is at most `threshold`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      threshold: the largest absolute value that becomes 0.
      name: name of the layer; by default `hard_shrink_N`.

    Returns:
      A value in the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.hard_shrink(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("hard_shrink", name).output(on_data(lambda v: functional.hard_shrink(v, threshold), x))


@layer
def thresholded_relu(x: Value, threshold: float = 1.0, name: str | None = None) -> Any:
    """Apply the thresholded rectifier (Konda, Memisevic and Krueger, 2014): `x` where above `threshold`, else 0.

    Args:
      x: an array of any shape, or a SequenceBatch.
      threshold: the largest value that becomes 0.
      name: name of the layer; by default `thresholded_relu_N`.

    Returns:
      A value in the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.thresholded_relu(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("thresholded_relu", name).output(on_data(lambda v: functional.thresholded_relu(v, threshold), x))


@layer
def prelu(x: Value, mode: str, param_attr: ParamSetting = None, name: str | None = None) -> Any:
    """Apply the parametric rectifier (He et al., 2015): `x` where positive, else a trained slope times `x`.

    Args:
      x: `[batch, ...]`; for mode "all" a SequenceBatch too.
      mode: "all" for one slope, "channel" for one for each channel (dimension 1), "element" for one for each element.
      param_attr: ParamAttr of the slopes, which begin with 0.25 by default. Their shape is `[1]` for "all",
        `[1, channels, 1, 1]` for "channel", and `[1, ...]` for "element".
      name: name of the layer; by default `prelu_N`.

    Returns:
      A value in the shape of `x`.

    Raises:
      ArgumentError: `mode` is none of "all", "channel" and "element".
      ShapeError: in mode "channel" or "element", `x` is a SequenceBatch or has less than two dimensions.

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
    # In mode "channel", the slopes have the shape `[1, channels, 1, 1]`, as in Fluid. But `x` may have another number
    # of dimensions than four, so reshape the slopes to broadcast with `x`.
    if mode == "channel":
        slope = slope.reshape(along_axis(1, array.ndim))
    return this.output(like(x, jnp.where(array > 0, array, slope * array)))


@layer
def maxout(x: Value, groups: int, name: str | None = None, axis: int = 1) -> Any:
    """Compute maxout (Goodfellow et al., 2013): the largest value of each group of `groups` adjacent channels.

    Args:
      x: `[batch, channels, height, width]`, or with the channels in another dimension.
      groups: the number of channels in a group; it must divide the number of channels.
      name: name of the layer; by default `maxout_N`.
      axis: the dimension of the channels.

    Returns:
      A value in the shape of `x`, with `channels / groups` channels.

    Raises:
      ArgumentError: `groups` is not a positive integer.
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
    return this.output(like(x, largest(array.reshape(shape), place + 1)))


@layer
def stanh(x: Value, scale_a: float = 0.67, scale_b: float = 1.7159, name: str | None = None) -> Any:
    """Apply the scaled tanh (LeCun et al., 1998): `scale_b * tanh(scale_a * x)`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      scale_a: the factor of `x` inside the tanh.
      scale_b: the factor of the tanh.
      name: name of the layer; by default `stanh_N`.

    Returns:
      A value in the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.stanh(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("stanh", name).output(on_data(lambda v: functional.stanh(v, scale_a, scale_b), x))


@layer
def hard_sigmoid(x: Value, slope: float = 0.2, offset: float = 0.5, name: str | None = None) -> Any:
    """Compute `slope * x + offset`, limited to the range from 0 to 1.

    Args:
      x: an array of any shape, or a SequenceBatch.
      slope: the factor of `x`.
      offset: the number that is added to `slope * x`.
      name: name of the layer; by default `hard_sigmoid_N`.

    Returns:
      A value in the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.hard_sigmoid(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("hard_sigmoid", name).output(on_data(lambda v: functional.hard_sigmoid(v, slope, offset), x))


@layer
def swish(x: Value, beta: float = 1.0, name: str | None = None) -> Any:
    """Apply Swish (Ramachandran, Zoph and Le, 2017): `x * sigmoid(beta * x)`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      beta: the factor of `x` inside the sigmoid.
      name: name of the layer; by default `swish_N`.

    Returns:
      A value in the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.swish(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("swish", name).output(on_data(lambda v: functional.swish(v, beta), x))


@layer
def hard_swish(
    x: Value, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0, name: str | None = None
) -> Any:
    """Apply the hard Swish (Howard et al., 2019): `x * min(max(0, x + offset), threshold) / scale`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      threshold: the largest value of the second factor, `x + offset`.
      scale: the divisor of the product.
      offset: the number that is added to `x` in the second factor.
      name: name of the layer; by default `hard_swish_N`.

    Returns:
      A value in the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.hard_swish(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("hard_swish", name).output(on_data(lambda v: functional.hard_swish(v, threshold, scale, offset), x))


@layer
def gelu(x: Value, approximate: bool = False, name: str | None = None) -> Any:
    """Apply the Gaussian error linear unit (Hendrycks and Gimpel, 2016): `x` times the normal CDF of `x`.

    Args:
      x: an array of any shape, or a SequenceBatch.
      approximate: whether a formula with tanh approximates the normal cumulative distribution function.
      name: name of the layer; by default `gelu_N`.

    Returns:
      A value in the shape of `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.gelu(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("gelu", name).output(on_data(lambda v: functional.gelu(v, approximate), x))


_DOCUMENTATION = """{title}

    Args:
      x: any shape, or a SequenceBatch.
      name: name of the layer; by default `{kind}_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.{kind}(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """

# The elementwise layers, such as `log` and `asin`, whose function has no finite value or no finite derivative at 0 or
# 1. These layers read the padding of a SequenceBatch as 0.5, not as 0.
_PARTIAL = ("log", "sqrt", "rsqrt", "reciprocal", "asin", "acos")


def _make(kind: str, title: str, function: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    """Create an elementwise layer with the name `kind`, and with a docstring that begins with `title`.

    The layer applies `function` to each element; by default, it applies the activation with the name `kind`.
    """
    compute = function or functional.ACTIVATIONS[kind]

    def apply(x: Value, name: str | None = None) -> Any:
        this = Layer(kind, name)
        return this.output(like(x, elementwise(compute, filled(x, 0.5 if kind in _PARTIAL else 0))))

    apply.__name__ = apply.__qualname__ = kind
    apply.__doc__ = _DOCUMENTATION.format(title=title, kind=kind)
    return layer(apply)


sigmoid = _make("sigmoid", "`1 / (1 + exp(-x))`.")
logsigmoid = _make("logsigmoid", "Logarithm of the sigmoid, exact even where the sigmoid itself is rounded to 0.")
relu = _make("relu", "Rectifier (Nair and Hinton, 2010): `max(x, 0)`.")
tanh = _make("tanh", "Hyperbolic tangent.")
tanh_shrink = _make("tanh_shrink", "`x - tanh(x)`.")
softplus = _make("softplus", "`log(1 + exp(x))`.")
softsign = _make("softsign", "`x / (1 + abs(x))`.")
silu = _make("silu", "`x * sigmoid(x)` (Elfwing, Uchibe and Doya, 2017).")
mish = _make("mish", "`x * tanh(softplus(x))` (Misra, 2019).")
exp = _make("exp", "Exponential.")
log = _make("log", "Natural logarithm.")
sqrt = _make("sqrt", "Square root.")
rsqrt = _make("rsqrt", "`1 / sqrt(x)`.")
square = _make("square", "`x * x`.")
reciprocal = _make("reciprocal", "`1 / x`.")
abs = _make("abs", "Absolute value.")
sign = _make("sign", "-1 for negative, 0 for zero and 1 for positive `x`.", jnp.sign)
ceil = _make("ceil", "The smallest integer that is not less than `x`.")
floor = _make("floor", "The largest integer that is not greater than `x`.")
round = _make("round", "The nearest integer; halves are rounded away from 0.")
sin = _make("sin", "Sine.")
cos = _make("cos", "Cosine.")
asin = _make("asin", "Inverse sine.")
acos = _make("acos", "Inverse cosine.")
atan = _make("atan", "Inverse tangent.")
erf = _make(
    "erf",
    "Error function: twice the integral of the normal density with deviation `sqrt(1/2)` from 0 to `x`.",
    jax.lax.erf,
)


@layer
@assigns(out="y = layers.log1p(x)")
def log1p(x: Value, out: Value | None = None, name: str | None = None) -> Any:
    """Compute `log(1 + x)`, exact for `x` near 0.

    Args:
      x: an array of any shape, or a SequenceBatch.
      out: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `log1p_N`.

    Returns:
      A value in the shape of `x`.

    Raises:
      ArgumentError: `out` is given.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.log1p(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("log1p", name).output(on_data(jnp.log1p, x))


@layer
@no_effect(use_cudnn="XLA chooses the kernels")
def softmax(input: Value, use_cudnn: bool = False, name: str | None = None, axis: int = -1) -> Any:
    """Convert logits to probabilities: `exp(x) / sum(exp(x))` along one dimension.

    Args:
      input: logits `[batch, ..., classes]`, or a SequenceBatch.
      use_cudnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.
      name: name of the layer; by default `softmax_N`.
      axis: the dimension of the classes.

    Returns:
      A value in the shape of the input.

    Raises:
      ArgumentError: the axis does not exist.

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
    # Record the logits, so that a cross entropy of this softmax can be computed from the logits, which is more exact.
    # If the user overrides the result in this run, the logits do not belong to it.
    if result is raw:
        this.frame.note(result, logits=input, logits_axis=place)
    return result


@layer
def log_softmax(input: Value, axis: int | None = None, dtype: str | None = None, name: str | None = None) -> Any:
    """Compute the logarithm of the softmax, without rounding small probabilities to 0.

    Args:
      input: logits `[batch, ..., classes]`, or a SequenceBatch.
      axis: the dimension of the classes; the last by default.
      dtype: the dtype to which the logits are converted before the computation; by default no conversion.
      name: name of the layer; by default `log_softmax_N`.

    Returns:
      A value in the shape of the input.

    Raises:
      ArgumentError: the axis does not exist.

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
