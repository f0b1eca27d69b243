"""Convolutions and transposed convolutions of images and volumes."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.initializer import Normal
from fluid.layers.base import Layer, layer
from fluid.layers.checks import Sizes, sizes_of
from fluid.layers.functional import Activation
from fluid.layers.image.spatial import (
    CHANNELS_FIRST,
    Image,
    Padding,
    Pairs,
    check_groups,
    finish_convolution,
    images_of,
    kind_without_cudnn,
    paddings,
    seems_channels_last,
)
from fluid.layers.kernels.convolution import Geometry, convolution, grouped_convolution
from fluid.layers.no_effect import no_effect
from fluid.param_attr import ParamSetting


@layer
@no_effect(use_mkldnn="XLA chooses the kernels")
def conv2d(
    input: Value,
    num_filters: int,
    filter_size: Sizes,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int | None = None,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    use_cudnn: bool = True,
    act: Activation = None,
    name: str | None = None,
    data_format: str = CHANNELS_FIRST,
    use_mkldnn: bool = False,
) -> jax.Array:
    """Apply a 2D convolution to images.

    Args:
      input: `[batch, channels, height, width]`, or `[batch, height, width, channels]` with "NHWC". For a SequenceBatch
        of images, the result is a SequenceBatch too.
      num_filters: the number of filters; the result has one channel for each filter.
      filter_size: `k` or `[kh, kw]`.
      stride: one or two integers.
      padding: an integer, `[h, w]`, `[top, bottom, left, right]`, "SAME" or "VALID".
      dilation: one or two integers: the distance in pixels between neighbouring elements of a filter.
      groups: the number of groups into which the channels are divided; each group has its own filters; 1 by default.
      param_attr: ParamAttr of the filters, whose shape is `[num_filters, channels / groups, kh, kw]` for both layouts.
        The default initializer is normal with standard deviation `sqrt(2 / (kh * kw * channels))`.
      bias_attr: ParamAttr of the bias `[num_filters]`; False for none.
      use_cudnn: changes only the automatic name: with False, a depthwise convolution is named `depthwise_conv2d_N`, as
        in Fluid. XLA chooses the kernels.
      act: name of an activation, or a function.
      name: name of the layer; by default `conv2d_N`.
      data_format: "NCHW" or "NHWC".
      use_mkldnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.

    Returns:
      `[batch, num_filters, height', width']`; with "NHWC", the channels are the last dimension.

    Raises:
      ArgumentError: a number is not positive, or an argument has an unsupported value.
      ShapeError: the input is not a batch of images, `groups` does not divide its channels, or an image is smaller than
        a filter.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 8, 8])
      ...     return fluid.layers.conv2d(image, num_filters=4, filter_size=3, padding=1, act="relu")
      >>> p = fluid.Program(program)
      >>> print(p.outputs[0], p.parameters["conv2d_0.w_0"].shape)
      float32[batch, 4, 8, 8] (4, 3, 3, 3)
    """
    kind = "conv2d"
    kind = kind if use_cudnn else kind_without_cudnn(kind, input, data_format, groups, num_filters)
    return _convolve(
        Layer(kind, name), 2, input, num_filters, filter_size, stride, padding, dilation, groups,
        param_attr, bias_attr, act, data_format,
    )  # fmt: skip


@layer
@no_effect(use_cudnn="XLA chooses the kernels", use_mkldnn="XLA chooses the kernels")
def conv3d(
    input: Value,
    num_filters: int,
    filter_size: Sizes,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int | None = None,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    use_cudnn: bool = True,
    act: Activation = None,
    name: str | None = None,
    data_format: str = "NCDHW",
    use_mkldnn: bool = False,
) -> jax.Array:
    """Apply a 3D convolution to volumes, which have a depth in addition to height and width.

    Args:
      input: `[batch, channels, depth, height, width]`, or with the channels last for "NDHWC".
      num_filters: the number of filters; the result has one channel for each filter.
      filter_size: one or three integers.
      stride: one or three integers.
      padding: one integer; three integers, one for each dimension; six integers, before and after each dimension;
        "SAME" or "VALID".
      dilation: one or three integers: the distance between neighbouring elements of a filter.
      groups: the number of groups into which the channels are divided; 1 by default.
      param_attr: ParamAttr of the filters `[num_filters, channels / groups, kd, kh, kw]`. The default initializer is
        normal with standard deviation `sqrt(2 / (kd * kh * kw * channels))`.
      bias_attr: ParamAttr of the bias `[num_filters]`; False for none.
      use_cudnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.
      act: name of an activation, or a function.
      name: name of the layer; by default `conv3d_N`.
      data_format: "NCDHW" or "NDHWC".
      use_mkldnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.

    Returns:
      `[batch, num_filters, depth', height', width']`; with "NDHWC", the channels are the last dimension.

    Raises:
      ArgumentError: a number is not positive, or an argument has an unsupported value.
      ShapeError: the input is not a batch of volumes, `groups` does not divide its channels, or a volume is smaller
        than a filter.

    Example:
      >>> import fluid
      >>> def program():
      ...     scan = fluid.layers.data("scan", shape=[1, 4, 8, 8])
      ...     return fluid.layers.conv3d(scan, num_filters=2, filter_size=3)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2, 2, 6, 6]
    """
    return _convolve(
        Layer("conv3d", name), 3, input, num_filters, filter_size, stride, padding, dilation, groups,
        param_attr, bias_attr, act, data_format,
    )  # fmt: skip


def _convolve(
    this: Layer, dims: int, input: Any, num_filters: int, filter_size: Any, stride: Any, padding: Any, dilation: Any,
    groups: int | None, param_attr: Any, bias_attr: Any, act: Any, data_format: str,
) -> Any:  # fmt: skip
    """Compute a convolution of images (`dims=2`) or volumes (`dims=3`); `conv2d` describes the other arguments."""
    image = images_of(this, input, dims + 2, data_format)
    kernel = sizes_of(this, "filter_size", filter_size, dims)
    strides = sizes_of(this, "stride", stride, dims)
    dilations = sizes_of(this, "dilation", dilation, dims)
    groups = check_groups(this, image.channels, num_filters, groups)
    windows = tuple(d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True))
    pads = paddings(this, padding, image, windows, strides)
    if any(size + sum(pad) < window for size, pad, window in zip(image.pixels, pads, windows, strict=True)):
        turned = "data_format='NHWC', or " if seems_channels_last(this, image.array, data_format) else ""
        raise errors.ShapeError(
            f"{this.name}: an image of {list(image.pixels)} pixels padded by {pads} is smaller than a filter of "
            f"{list(windows)}; use {turned}a smaller filter_size, or padding={windows[0] // 2}"
        )
    default = Normal(0.0, math.sqrt(2.0 / (math.prod(kernel) * image.channels)))
    filters = this.weight(param_attr, [num_filters, image.channels // groups, *kernel], image.array.dtype, default)
    geometry = Geometry(strides, pads, dilations, (1,) * dims, image.layout)
    result = convolution(image.array, filters, geometry, groups, this.frame.mode == core.TRAIN)
    return finish_convolution(this, image, result, bias_attr, act)


@layer
def conv2d_transpose(
    input: Value,
    num_filters: int,
    output_size: Sizes | None = None,
    filter_size: Sizes | None = None,
    padding: Padding = 0,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int | None = None,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    use_cudnn: bool = True,
    act: Activation = None,
    name: str | None = None,
    data_format: str = CHANNELS_FIRST,
) -> jax.Array:
    """Apply a 2D transposed convolution to images, which enlarges them.

    A transposed convolution computes the gradient of an ordinary convolution with respect to its input. The ordinary
    convolution is a `conv2d` with equal `stride`, `padding` and `dilation`. It maps an image in the shape of this
    layer's result to an image in the shape of this layer's input.

    Args:
      input: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      num_filters: the number of channels of the result.
      output_size: `[height', width']`; by default it follows from `filter_size`.
      filter_size: `k` or `[kh, kw]`; by default it follows from `output_size`.
      padding: an integer, `[h, w]`, `[top, bottom, left, right]`, "SAME" or "VALID".
      stride: one or two integers: approximately the factor by which the image grows.
      dilation: one or two integers: the distance in pixels between neighbouring elements of a filter.
      groups: the number of groups into which the channels are divided; 1 by default.
      param_attr: ParamAttr of the filters `[channels, num_filters / groups, kh, kw]`; Xavier uniform by default.
      bias_attr: ParamAttr of the bias `[num_filters]`; False for none.
      use_cudnn: changes only the automatic name: with False, a depthwise convolution is named
        `depthwise_conv2d_transpose_N`, as in Fluid. XLA chooses the kernels.
      act: name of an activation, or a function.
      name: name of the layer; by default `conv2d_transpose_N`.
      data_format: "NCHW" or "NHWC".

    Returns:
      `[batch, num_filters, height', width']`; with "NHWC", the channels are the last dimension. Without `output_size`
      and dilation, `height' = (height - 1) * stride - 2 * padding + kh`.

    Raises:
      ArgumentError: neither `output_size` nor `filter_size` is given, or other arguments contradict `output_size`.
      ShapeError: the input is not a batch of images, or `groups` does not divide its channels.

    Example:
      >>> import fluid
      >>> def program():
      ...     seed = fluid.layers.data("seed", shape=[8, 4, 4])
      ...     return fluid.layers.conv2d_transpose(seed, num_filters=2, filter_size=4, stride=2, padding=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2, 8, 8]
    """
    kind = "conv2d_transpose"
    kind = kind if use_cudnn else kind_without_cudnn(kind, input, data_format, groups, num_filters)
    return _transposed_convolution(
        Layer(kind, name), 2, input, num_filters, output_size, filter_size, padding, stride, dilation,
        groups, param_attr, bias_attr, act, data_format,
    )  # fmt: skip


@layer
@no_effect(use_cudnn="XLA chooses the kernels")
def conv3d_transpose(
    input: Value,
    num_filters: int,
    output_size: Sizes | None = None,
    filter_size: Sizes | None = None,
    padding: Padding = 0,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int | None = None,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    use_cudnn: bool = True,
    act: Activation = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> jax.Array:
    """Apply a 3D transposed convolution to volumes, which enlarges them; see `conv2d_transpose`.

    Args:
      input: `[batch, channels, depth, height, width]`, or with the channels last for "NDHWC".
      num_filters: the number of channels of the result.
      output_size: `[depth', height', width']`; by default it follows from `filter_size`.
      filter_size: one or three integers; by default it follows from `output_size`.
      padding: one integer; three integers, one for each dimension; six integers, before and after each dimension;
        "SAME" or "VALID".
      stride: one or three integers: approximately the factors by which the volume grows.
      dilation: one or three integers: the distance between neighbouring elements of a filter.
      groups: the number of groups into which the channels are divided; 1 by default.
      param_attr: ParamAttr of the filters `[channels, num_filters / groups, kd, kh, kw]`; Xavier uniform by default.
      bias_attr: ParamAttr of the bias `[num_filters]`; False for none.
      use_cudnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.
      act: name of an activation, or a function.
      name: name of the layer; by default `conv3d_transpose_N`.
      data_format: "NCDHW" or "NDHWC".

    Returns:
      `[batch, num_filters, depth', height', width']`; with "NDHWC", the channels are the last dimension.

    Raises:
      ArgumentError: neither `output_size` nor `filter_size` is given, or other arguments contradict `output_size`.
      ShapeError: the input is not a batch of volumes, or `groups` does not divide its channels.

    Example:
      >>> import fluid
      >>> def program():
      ...     seed = fluid.layers.data("seed", shape=[8, 2, 2, 2])
      ...     return fluid.layers.conv3d_transpose(seed, num_filters=2, filter_size=2, stride=2)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2, 4, 4, 4]
    """
    return _transposed_convolution(
        Layer("conv3d_transpose", name), 3, input, num_filters, output_size, filter_size, padding, stride, dilation,
        groups, param_attr, bias_attr, act, data_format,
    )  # fmt: skip


def _transposed_convolution(
    this: Layer, dims: int, input: Any, num_filters: int, output_size: Any, filter_size: Any, padding: Any, stride: Any,
    dilation: Any, groups: int | None, param_attr: Any, bias_attr: Any, act: Any, data_format: str,
) -> Any:  # fmt: skip
    """Compute a transposed convolution of images (`dims=2`) or volumes (`dims=3`); see `conv2d_transpose`."""
    image = images_of(this, input, dims + 2, data_format)
    strides = sizes_of(this, "stride", stride, dims)
    dilations = sizes_of(this, "dilation", dilation, dims)
    groups = check_groups(this, image.channels, num_filters, groups)
    kernel, pads = _transposed_geometry(this, image, output_size, filter_size, padding, strides, dilations)
    shape = [image.channels, num_filters // groups, *kernel]
    filters = this.weight(param_attr, shape, image.array.dtype)
    # Compute the transposed convolution as an ordinary convolution: dilate the input by the stride, reverse the
    # filters, and swap their input and output channels.
    turned = jnp.flip(filters, tuple(range(2, 2 + dims))).reshape(groups, image.channels // groups, *shape[1:])
    turned = jnp.swapaxes(turned, 1, 2).reshape(num_filters, image.channels // groups, *kernel)
    geometry = Geometry((1,) * dims, pads, dilations, strides, image.layout)
    result = grouped_convolution(image.array, turned, geometry, groups)
    return finish_convolution(this, image, result, bias_attr, act)


def _transposed_geometry(
    this: Layer, image: Image, output_size: Any, filter_size: Any, padding: Any, strides: Any, dilations: Any
) -> tuple[tuple[int, ...], Pairs]:
    """Compute the filter size and the padding of the ordinary convolution that computes a transposed convolution."""
    dims = len(image.pixels)
    wanted = None if output_size is None else sizes_of(this, "output_size", output_size, dims)
    if filter_size is None:
        if wanted is None:
            raise errors.ArgumentError(f"{this.name} needs filter_size or output_size, as in filter_size={[3] * dims}")
        pads = paddings(this, padding, image, (1,) * dims, strides)
        kernel = tuple(
            (out - (size - 1) * s + sum(p) - 1) // d + 1
            for out, size, s, p, d in zip(wanted, image.pixels, strides, pads, dilations, strict=True)
        )
    else:
        kernel = sizes_of(this, "filter_size", filter_size, dims)
    spans = tuple(d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True))
    pads = paddings(this, padding, image, spans, strides)
    natural = [
        (size - 1) * s - sum(p) + span for size, s, p, span in zip(image.pixels, strides, pads, spans, strict=True)
    ]
    wanted = tuple(natural) if wanted is None else wanted
    extra = [w - n for w, n in zip(wanted, natural, strict=True)]
    if min(kernel) < 1 or min(wanted) < 1 or any(not 0 <= e < s for e, s in zip(extra, strides, strict=True)):
        raise errors.ArgumentError(
            f"{this.name}: images of {list(image.pixels)} pixels with filter {list(kernel)}, stride {list(strides)} "
            f"and padding {pads} grow to {natural}, or up to stride - 1 more; found output_size={list(wanted)}"
        )
    pairs = [(span - 1 - p[0], span - 1 - p[1] + e) for span, p, e in zip(spans, pads, extra, strict=True)]
    return kernel, pairs
