"""Layers that rescale values by norms, by statistics of all previous data, by singular values, or per channel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.initializer import Constant, Normal
from fluid.layers.base import Layer, array_of, axis_of, dense, describe, is_sequence, layer, like, valid_steps, wide
from fluid.layers.functional import Activation
from fluid.layers.image.spatial import image_of
from fluid.layers.kernels.data_format import along_axis
from fluid.layers.no_effect import no_effect
from fluid.layers.norm.moments import affine, channel_axis_of


@layer
def lrn(
    input: Value,
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
      alpha: the factor of the sum of squares.
      beta: the exponent of the divisor.
      name: name of the layer; by default `lrn_N`.
      data_format: "NCHW" or "NHWC".

    Returns:
      An array of the same shape as the input.

    Raises:
      ArgumentError: `n` is not a positive integer.
      ShapeError: the input is not a batch of images.

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
def l2_normalize(x: Value, axis: int, epsilon: float = 1e-12, name: str | None = None) -> Any:
    """Divide `x` by its Euclidean norm along one dimension.

    Args:
      x: `[batch, ...]` or a SequenceBatch.
      axis: the dimension.
      epsilon: added to the sum of squares.
      name: name of the layer; by default `l2_normalize_N`.

    Returns:
      A value of the same type and shape as `x`.

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
    x: Value,
    scale: Value | None = None,
    bias: Value | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    act: Activation = None,
) -> jax.Array:
    """Multiply each channel by its scale, and add its bias.

    Args:
      x: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      scale: `[channels]`; 1 by default.
      bias: `[channels]`; 0 by default.
      data_layout: "NCHW" or "NHWC".
      name: name of the layer; by default `affine_channel_N`.
      act: name of an activation, or a function.

    Returns:
      An array of the same shape as `x`.

    Raises:
      ShapeError: the input is not a batch of images, or there is not one number for each channel.

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


# The initial values of the states of `data_norm`: 10000 rows of mean 0 and standard deviation 1.
_START = {"batch_size": 1e4, "batch_sum": 0.0, "batch_square": 1e4}


@layer
@no_effect(
    in_place="XLA decides which memory is used again",
    moving_mean_name="the statistics are three sums",
    moving_variance_name="the statistics are three sums",
    do_model_average_for_mean_and_var="averages of parameters leave statistics as they are",
    sync_stats="a step sees the whole batch",
)
def data_norm(
    input: Value,
    act: Activation = None,
    epsilon: float = 1e-5,
    param_attr: Mapping[str, float] | None = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    slot_dim: int = -1,
    sync_stats: bool = False,
    summary_decay_rate: float = 0.9999999,
    enable_scale_and_shift: bool = False,
) -> Any:
    """Normalise each channel by the mean and standard deviation of all previous batches.

    Three states per channel summarise the data: the number of rows `n`, their sum `s`, and the sum `q` of their squared
    distances from the mean. The result is `(x - s / n) * sqrt(n / q)`. A training step multiplies the states by
    `summary_decay_rate` and adds its batch; the result for this batch uses the states before the update.

    Args:
      input: `[batch, channels, ...]`, or with the channels last for "NHWC"; or a SequenceBatch of `[channels]`.
      act: name of an activation, or a function.
      epsilon: added to the sum of squared distances for each row.
      param_attr: the initial values of the states: a dict of "batch_size", "batch_sum" and "batch_square"; by
        default 10000 rows of mean 0 and standard deviation 1.
      data_layout: "NCHW" or "NHWC".
      in_place: accepted for programs written for Fluid, but has no effect: XLA decides which memory is used again.
      name: the prefix of the states, as in `NAME.batch_size`; "dn" by default, shared by all layers without a name.
      moving_mean_name: accepted for programs written for Fluid, but has no effect: the statistics are three sums.
      moving_variance_name: accepted for programs written for Fluid, but has no effect: the statistics are three sums.
      do_model_average_for_mean_and_var: accepted for programs written for Fluid, but has no effect: averages of
        parameters leave statistics as they are.
      slot_dim: not supported; only -1 is accepted.
      sync_stats: accepted for programs written for Fluid, but has no effect: a step sees the whole batch.
      summary_decay_rate: the fraction of the states that each step keeps.
      enable_scale_and_shift: not supported; only False is accepted.

    Returns:
      A value of the same type and shape as the input.

    Raises:
      ArgumentError: there is no such layout, `param_attr` holds other keys or no positive number of rows or squares,
        or an argument is not supported.
      ShapeError: the input has fewer than two dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.data_norm(fluid.layers.data("x", shape=[3]), name="seen")
      >>> list(fluid.Program(program).states)
      ['seen.batch_size', 'seen.batch_sum', 'seen.batch_square_sum']
    """
    this = Layer("data_norm", name)
    if slot_dim != -1 or enable_scale_and_shift:
        raise errors.ArgumentError(
            f"{this.name}: slot_dim={slot_dim}, enable_scale_and_shift={enable_scale_and_shift} are not possible; "
            f"scale and shift by parameters, as in layers.data_norm(x) * layers.create_parameter([channels])"
        )
    x = wide(input)
    axis = channel_axis_of(this, input, data_layout, "data_layout")
    names, (count, total, squares) = _statistics(this, name, _start(this, param_attr), x, axis)
    shape = along_axis(axis, x.ndim)
    mean = (total / count).reshape(shape)
    added = _of_batch(input, jax.lax.stop_gradient(x), mean, axis, epsilon)
    for state, before, more in zip(names, (count, total, squares), added, strict=True):
        core.set_state(state, summary_decay_rate * before + more)
    result = (x - mean) * jnp.sqrt(count / squares).reshape(shape)
    return this.finish(like(input, result.astype(dense(input).dtype)), act)


def _start(this: Layer, given: Mapping[str, float] | None) -> list[float]:
    """Return the initial values of the three states of `data_norm`: the user's values, or the defaults."""
    if given is None:
        return list(_START.values())
    if not isinstance(given, Mapping) or given.keys() - _START.keys():
        raise errors.ArgumentError(
            f"{this.name}: param_attr={given!r}; expected a dict of {', '.join(map(repr, _START))}, as in "
            f"param_attr={_START}"
        )
    start = {key: float(value) for key, value in {**_START, **given}.items()}
    if not (start["batch_size"] > 0 and start["batch_square"] > 0):
        raise errors.ArgumentError(
            f"{this.name}: param_attr={given!r}; expected batch_size and batch_square above 0, by which it divides"
        )
    return list(start.values())


def _statistics(this: Layer, name: str | None, start: list[float], x: Any, axis: int) -> tuple[list[str], list[Any]]:
    """Create the three states of `data_norm`, and return their names and their values, each `[channels]`."""
    stem = "dn" if name is None else this.name
    suffixes = ("batch_size", "batch_sum", "batch_square_sum")
    found = [
        this.state(f"{stem}.{suffix}", "w", [x.shape[axis]], x.dtype, Constant(value))
        for suffix, value in zip(suffixes, start, strict=True)
    ]
    return [state for state, _ in found], [value for _, value in found]


def _of_batch(value: Any, x: Any, mean: Any, axis: int, epsilon: float) -> list[Any]:
    """Compute the increments that a batch adds to the three states of `data_norm`.

    Returns:
      The number of rows, their sum, and the sum of their squared distances from the mean, each `[channels]`.
    """
    valid = valid_steps(value, x.ndim) if is_sequence(value) else None
    axes = tuple(i for i in range(x.ndim) if i != axis)
    count, total, squares = (jnp.sum(v, axis=axes, where=valid) for v in (jnp.ones_like(x), x, jnp.square(x - mean)))
    return [count, total, squares + count * epsilon]


@layer
def spectral_norm(
    weight: Value, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, name: str | None = None
) -> jax.Array:
    """Divide a weight by its largest singular value (Miyato et al., 2018), as in discriminators of GANs.

    Power iteration estimates the singular value. The singular vectors are states, and each training step refines the
    vectors of the previous step. No gradient flows through them.

    Args:
      weight: a parameter of two dimensions or more, read as a matrix whose rows are dimension `dim`.
      dim: the dimension of the outputs: 0 for filters of `conv2d`, 1 for weights of `fc`.
      power_iters: the number of iterations in each call.
      eps: added to the norm of a singular vector before the vector is divided by its norm.
      name: name of the layer; by default `spectral_norm_N`.

    Returns:
      An array of the same shape as the weight.

    Raises:
      ArgumentError: there is no such dimension, or `power_iters` is not an integer of at least 0.
      ShapeError: the weight has fewer than two dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     weight = fluid.layers.create_parameter([4, 3], name="w")
      ...     return fluid.layers.matmul(x, fluid.layers.spectral_norm(weight, dim=1))
      >>> list(fluid.Program(program).states)
      ['spectral_norm_0.w_0', 'spectral_norm_0.w_1']
    """
    this = Layer("spectral_norm", name)
    array = wide(array_of(this, weight))
    if array.ndim < 2:
        raise errors.ShapeError(
            f"{this.name}: weight {describe(weight)} is no matrix; expected two dimensions or more, as from "
            f"layers.create_parameter([4, 3])"
        )
    place = axis_of(weight, dim, "dim")
    matrix = jnp.moveaxis(array, place, 0).reshape(array.shape[place], -1)
    left_name, left = this.state(None, "w", [matrix.shape[0]], array.dtype, Normal(0.0, 1.0))
    right_name, right = this.state(None, "w", [math.prod(matrix.shape[1:])], array.dtype, Normal(0.0, 1.0))
    fixed = jax.lax.stop_gradient(matrix)
    for _ in range(core.whole_number(this.name, "power_iters", power_iters, least=0)):
        right = _unit(fixed.T @ left, right, eps)
        left = _unit(fixed @ right, left, eps)
    core.set_state(left_name, left)
    core.set_state(right_name, right)
    largest = left @ matrix @ right
    return this.output((array / jnp.where(largest == 0, 1, largest)).astype(array_of(this, weight).dtype))


def _unit(vector: Any, before: Any, eps: float) -> Any:
    norm = jnp.linalg.norm(vector)
    return jnp.where(norm > 0, vector / (norm + eps), before)
