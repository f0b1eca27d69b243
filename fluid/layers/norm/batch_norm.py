"""The layer `batch_norm`, which normalises each channel over the batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core
from fluid.core import Value
from fluid.initializer import Constant
from fluid.layers.base import (
    Layer,
    dense,
    is_sequence,
    layer,
    like,
    valid_steps,
    wide,
    wide_dtype,
)
from fluid.layers.functional import Activation
from fluid.layers.kernels.data_format import along_axis, as_computed, without_bias
from fluid.layers.no_effect import Warned, no_effect
from fluid.layers.norm.moments import affine, channel_axis_of, recorded_moments, scale_of
from fluid.param_attr import ParamSetting

_CHANNELS_FIRST = core.default("NCHW")


@layer
@no_effect(
    in_place="XLA decides which memory is used again",
    do_model_average_for_mean_and_var="averages of parameters leave the moving mean and variance as they are",
    fuse_with_relu=Warned(
        "only the kernels of MKLDNN follow it", asks=lambda value, given: bool(value), instead="write act='relu'"
    ),
    use_mkldnn="XLA chooses the kernels",
)
def batch_norm(
    input: Value,
    act: Activation = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-05,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    data_layout: str = _CHANNELS_FIRST,
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
    fuse_with_relu: bool = False,
    use_mkldnn: bool = False,
) -> Any:
    """Normalise each channel to mean 0 and variance 1, then scale and shift it (Ioffe and Szegedy, 2015).

    Training uses the mean and variance of the batch, and updates their moving averages by
    `moving = momentum * moving + (1 - momentum) * batch`; testing uses the moving averages. In a SequenceBatch, only
    the valid steps count; a batch without a valid step uses the moving averages and keeps them. While the layer is
    frozen, by `fluid.frozen` or `trainer.freeze`, training uses the moving averages too, and does not update them.

    Args:
      input: `[batch, channels]`, `[batch, channels, ...]`, `[batch, ..., channels]` with "NHWC", or a SequenceBatch.
      act: name of an activation, or a function.
      is_test: whether training uses the moving averages too, without updating them.
      momentum: the fraction of the moving averages that each step keeps.
      epsilon: added to the variance.
      param_attr: ParamAttr of the scale `[channels]`; False for none.
      bias_attr: ParamAttr of the bias `[channels]`; False for none.
      data_layout: "NCHW" or "NHWC".
      in_place: accepted for programs written for Fluid, but has no effect: XLA decides which memory is used again.
      name: name of the layer; by default `batch_norm_N`.
      moving_mean_name: name of the moving mean; by default `batch_norm_N.w_1`.
      moving_variance_name: name of the moving variance; by default `batch_norm_N.w_2`.
      do_model_average_for_mean_and_var: accepted for programs written for Fluid, but has no effect: averages of
        parameters leave the moving mean and variance as they are.
      use_global_stats: another name for `is_test`.
      fuse_with_relu: accepted for programs written for Fluid, but has no effect: only the kernels of MKLDNN
        follow it.
      use_mkldnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.

    Returns:
      A value of the same type and shape as the input.

    Raises:
      ArgumentError: there is no such layout.
      ShapeError: the input has fewer than two dimensions.

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
    axis = channel_axis_of(this, input, data_layout, "data_layout")
    _doubt_momentum(momentum)
    x, axis, as_written = as_computed(x, axis)
    size = [x.shape[axis]]
    dtype = wide_dtype(x.dtype)
    scale = scale_of(this, param_attr, size, dtype)
    bias = this.bias(bias_attr, size, dtype)
    mean_name, moving_mean = this.state(moving_mean_name, "w", size, dtype, Constant(0.0))
    variance_name, moving_variance = this.state(moving_variance_name, "w", size, dtype, Constant(1.0))
    moving = is_test or use_global_stats or this.frame.mode == core.TEST or core.is_frozen(mean_name)
    centre, centred = _centred(this, x, axis, moving_mean if moving else None)
    if moving:
        mean, variance = moving_mean, moving_variance
    else:
        _warn_of_one_row(this, input, x, axis)
        mean, variance = _moments(input, centre, centred, axis, (moving_mean, moving_variance))
        core.set_state(mean_name, momentum * moving_mean + (1 - momentum) * jax.lax.stop_gradient(mean))
        core.set_state(variance_name, momentum * moving_variance + (1 - momentum) * jax.lax.stop_gradient(variance))
    mean, variance = recorded_moments(this, mean, variance)
    # Multiply the scale by the inverse standard deviation of each channel first, and then all images by this product:
    # multiplying all images twice would cost much more.
    factor = jax.lax.rsqrt(variance + epsilon) * (1 if scale is None else scale)
    rest = (centre - mean) * factor + (0 if bias is None else bias)
    result = affine(centred, factor, rest, along_axis(axis, x.ndim))
    result = result.astype(x.dtype)
    recorded = this.output(like(input, as_written(result)))
    this.frame.note(recorded, made="norm")
    return this.activate(recorded, act)


def _doubt_momentum(momentum: Any) -> None:
    """Warn if `momentum` is 1 or below 0.5: in PyTorch, the momentum is 1 minus the momentum of `batch_norm`."""
    if isinstance(momentum, int | float) and momentum == 1:
        core.doubt(
            "batch_norm(momentum=1) never updates the moving averages, so that tests do not normalise at all; the "
            "usual share that is kept in each step is momentum=0.9; without training steps, use_global_stats=True"
        )
    if isinstance(momentum, float) and momentum < 0.5:
        core.doubt(
            f"batch_norm(momentum={momentum}) keeps {momentum:g} of the moving averages in each step, so that tests "
            f"use the last minibatches alone; torch counts the share of the new batch: its momentum={momentum} is "
            f"momentum={1 - momentum:g} here"
        )


def _warn_of_one_row(this: Layer, value: Any, x: Any, axis: int) -> None:
    """Warn, while tracing a training step, if each channel has only one number, so that its variance is 0."""
    if not this.frame.discovering and not is_sequence(value) and x.shape[0] == 1 and x.size == x.shape[axis]:
        core.warn(
            f"{core.user_site()}: {this.name} trains on a minibatch of one row, whose mean is the row itself, so that "
            f"the result is the bias whatever the row holds; leave out a shorter last minibatch: "
            f"fluid.reader.batch(reader, batch_size, drop_last=True), or train with larger minibatches"
        )


def _centred(this: Layer, x: Any, axis: int, mean: Any | None) -> tuple[Any, Any]:
    """Return a number near the mean of each channel, and the input images of `batch_norm` minus this number.

    Without this subtraction, the gradient is a difference of large numbers, which loses precision. Test mode computes
    no gradient, and needs no number near the mean. There, the function returns the bias that the preceding convolution
    added to the images, or 0 without a bias.

    Args:
      mean: the moving mean `[channels]`; None for a mean that is computed from the images.

    Returns:
      The number of each channel, `[channels]`, or the scalar 0; and an array of the shape of `x`, in a dtype wide
      enough for sums.
    """
    # In test mode, subtract no mean from the images, because the subtraction would read all images once more.
    if mean is not None and this.frame.mode == core.TEST:
        images, bias = without_bias(x, axis)
        return bias, wide(images)
    images = wide(x)
    # The subtracted number must only be near the mean of the batch: the mean of the first example is near enough.
    if mean is None:
        others = tuple(i for i in range(x.ndim) if i != axis)
        mean = jax.lax.stop_gradient(jnp.mean(images[:1], axis=others))
    return mean, images - mean.reshape(along_axis(axis, x.ndim))


def _moments(value: Any, centre: Any, centred: Any, axis: int, moving: tuple[Any, Any]) -> tuple[Any, Any]:
    """Compute the mean and variance `[channels]` of a batch over all dimensions but `axis`.

    Reading the data dominates the cost, so one pass computes mean and variance. Moments about a number near the mean
    are as exact as moments from two passes.

    Args:
      centre: a number near the mean of each channel, `[channels]`.
    """
    valid = valid_steps(value, centred.ndim) if is_sequence(value) else None
    axes = tuple(i for i in range(centred.ndim) if i != axis)
    shift, square = (jnp.mean(v, axis=axes, where=valid) for v in (centred, jnp.square(centred)))
    mean, variance = centre + shift, jnp.maximum(square - jnp.square(shift), 0)
    if valid is None:
        return mean, variance
    # The mean of no step is NaN, and one NaN would stay in the moving averages and in the parameters.
    some = valid.any()
    return jnp.where(some, mean, moving[0]), jnp.where(some, variance, moving[1])
