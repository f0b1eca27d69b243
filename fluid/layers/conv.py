"""Convolutions and transposed convolutions."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.initializer import Normal
from fluid.layers.base import Layer, layer, sizes_of
from fluid.layers.spatial import Image, Pairs, image_of, paddings


@layer
def conv2d(
    input: Any,
    num_filters: int,
    filter_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Any:
    """Convolution of images.

    Args:
      input: `[batch, channels, height, width]`, or `[batch, height, width, channels]` with "NHWC".
      num_filters: how many output channels.
      filter_size: `k` or `[kh, kw]`.
      stride: one or two integers.
      padding: an integer, `[h, w]`, `[top, bottom, left, right]`, "SAME" or "VALID".
      dilation: one or two integers: the distance between neighbouring cells of a filter.
      groups: channels are split into so many groups, each with filters of its own.
      param_attr: ParamAttr of the filters `[num_filters, channels / groups, kh, kw]`, in either layout; by default
        normal with deviation `sqrt(2 / (kh * kw * channels))`.
      bias_attr: ParamAttr of the bias `[num_filters]`; False for none.
      use_cudnn: has no effect; XLA chooses.
      act: name of an activation, or a function.
      name: instead of `conv2d_N`.
      data_format: "NCHW" or "NHWC".

    Returns:
      `[batch, num_filters, height', width']`, or with the channels last.

    Raises:
      ShapeError: the input is no batch of images, its channels cannot be grouped, or it is smaller than a filter.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 8, 8])
      ...     return fluid.layers.conv2d(image, num_filters=4, filter_size=3, padding=1, act="relu")
      >>> p = fluid.Program(program)
      >>> print(p.outputs[0], p.parameters["conv2d_0.w_0"].shape)
      float32[batch, 4, 8, 8] (4, 3, 3, 3)
    """
    return _convolve(
        Layer("conv2d", name), 2, input, num_filters, filter_size, stride, padding, dilation, groups,
        param_attr, bias_attr, act, data_format,
    )  # fmt: skip


@layer
def conv3d(
    input: Any,
    num_filters: int,
    filter_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Any:
    """Convolution of volumes: `conv2d` with a depth before the height.

    Args:
      input: `[batch, channels, depth, height, width]`, or with the channels last for "NDHWC".
      num_filters: how many output channels.
      filter_size: one or three integers.
      stride: one or three integers.
      padding: an integer, three, six (before and after), "SAME" or "VALID".
      dilation: one or three integers.
      groups: as in `conv2d`.
      param_attr: of the filters `[num_filters, channels / groups, kd, kh, kw]`.
      bias_attr: of the bias `[num_filters]`; False for none.
      use_cudnn: has no effect.
      act: name of an activation, or a function.
      name: instead of `conv3d_N`.
      data_format: "NCDHW" or "NDHWC".

    Returns:
      `[batch, num_filters, depth', height', width']`, or with the channels last.

    Raises:
      ShapeError: as `conv2d`.

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


@layer
def conv2d_transpose(
    input: Any,
    num_filters: int,
    output_size: Any = None,
    filter_size: Any = None,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Any:
    """Transposed convolution of images: what carries the gradient of a `conv2d` back, used to grow images.

    Args:
      input: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      num_filters: how many output channels.
      output_size: `[height', width']`; found from the filter when not given, and finds the filter when that is not.
      filter_size: `k` or `[kh, kw]`.
      padding: how much a convolution from output to input would pad; forms as in `conv2d`.
      stride: one or two integers: how much larger the image becomes.
      dilation: one or two integers.
      groups: as in `conv2d`.
      param_attr: of the filters `[channels, num_filters / groups, kh, kw]`; Xavier uniform by default.
      bias_attr: of the bias `[num_filters]`; False for none.
      use_cudnn: has no effect.
      act: name of an activation, or a function.
      name: instead of `conv2d_transpose_N`.
      data_format: "NCHW" or "NHWC".

    Returns:
      `[batch, num_filters, height', width']`, where `height' = (height - 1) * stride - 2 * padding + kh` without
      `output_size` and dilation; or with the channels last.

    Raises:
      ArgumentError: neither a size nor a filter is given, or the size cannot be reached with this stride.
      ShapeError: as `conv2d`.

    Example:
      >>> import fluid
      >>> def program():
      ...     seed = fluid.layers.data("seed", shape=[8, 4, 4])
      ...     return fluid.layers.conv2d_transpose(seed, num_filters=2, filter_size=4, stride=2, padding=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2, 8, 8]
    """
    return _convolve_back(
        Layer("conv2d_transpose", name), 2, input, num_filters, output_size, filter_size, padding, stride, dilation,
        groups, param_attr, bias_attr, act, data_format,
    )  # fmt: skip


@layer
def conv3d_transpose(
    input: Any,
    num_filters: int,
    output_size: Any = None,
    filter_size: Any = None,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Any:
    """Transposed convolution of volumes: `conv2d_transpose` with a depth before the height.

    Args:
      input: `[batch, channels, depth, height, width]`, or with the channels last for "NDHWC".
      num_filters: how many output channels.
      output_size: three integers, or None.
      filter_size: one or three integers, or None.
      padding: as in `conv3d`.
      stride: one or three integers.
      dilation: one or three integers.
      groups: as in `conv2d`.
      param_attr: of the filters `[channels, num_filters / groups, kd, kh, kw]`; Xavier uniform by default.
      bias_attr: of the bias `[num_filters]`; False for none.
      use_cudnn: has no effect.
      act: name of an activation, or a function.
      name: instead of `conv3d_transpose_N`.
      data_format: "NCDHW" or "NDHWC".

    Returns:
      `[batch, num_filters, depth', height', width']`, or with the channels last.

    Raises:
      ArgumentError: as `conv2d_transpose`.
      ShapeError: as `conv2d`.

    Example:
      >>> import fluid
      >>> def program():
      ...     seed = fluid.layers.data("seed", shape=[8, 2, 2, 2])
      ...     return fluid.layers.conv3d_transpose(seed, num_filters=2, filter_size=2, stride=2)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2, 4, 4, 4]
    """
    return _convolve_back(
        Layer("conv3d_transpose", name), 3, input, num_filters, output_size, filter_size, padding, stride, dilation,
        groups, param_attr, bias_attr, act, data_format,
    )  # fmt: skip


def _convolve(
    this: Layer, dims: int, input: Any, num_filters: int, filter_size: Any, stride: Any, padding: Any, dilation: Any,
    groups: int | None, param_attr: Any, bias_attr: Any, act: Any, data_format: str,
) -> Any:  # fmt: skip
    image = image_of(this, input, dims + 2, data_format)
    kernel = sizes_of("filter_size", filter_size, dims)
    strides, dilations = sizes_of("stride", stride, dims), sizes_of("dilation", dilation, dims)
    groups = _check_groups(this, image.channels, num_filters, groups)
    windows = tuple(d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True))
    pads = paddings(this, padding, image, windows, strides)
    if any(size + sum(pad) < window for size, pad, window in zip(image.pixels, pads, windows, strict=True)):
        raise errors.ShapeError(
            f"{this.name}: an image of {list(image.pixels)} pixels padded by {pads} is smaller than a filter of "
            f"{list(windows)}; use a smaller filter_size, or padding={windows[0] // 2}"
        )
    default = Normal(0.0, math.sqrt(2.0 / (math.prod(kernel) * image.channels)))
    filters = this.weight(param_attr, [num_filters, image.channels // groups, *kernel], image.array.dtype, default)
    result = jax.lax.conv_general_dilated(
        image.array,
        filters,
        strides,
        pads,
        rhs_dilation=dilations,
        dimension_numbers=(image.layout, "OIHW" if dims == 2 else "OIDHW", image.layout),
        feature_group_count=groups,
    )
    return _finish(this, image, result, bias_attr, act)


def _convolve_back(
    this: Layer, dims: int, input: Any, num_filters: int, output_size: Any, filter_size: Any, padding: Any, stride: Any,
    dilation: Any, groups: int | None, param_attr: Any, bias_attr: Any, act: Any, data_format: str,
) -> Any:  # fmt: skip
    image = image_of(this, input, dims + 2, data_format)
    strides, dilations = sizes_of("stride", stride, dims), sizes_of("dilation", dilation, dims)
    groups = _check_groups(this, image.channels, num_filters, groups)
    kernel, pads = _back_geometry(this, image, output_size, filter_size, padding, strides, dilations)
    shape = [image.channels, num_filters // groups, *kernel]
    filters = this.weight(param_attr, shape, image.array.dtype)
    # As a plain convolution: the input spread out by the stride, the filters turned around, in and out exchanged.
    turned = jnp.flip(filters, tuple(range(2, 2 + dims))).reshape(groups, image.channels // groups, *shape[1:])
    result = jax.lax.conv_general_dilated(
        image.array,
        jnp.swapaxes(turned, 1, 2).reshape(num_filters, image.channels // groups, *kernel),
        (1,) * dims,
        pads,
        lhs_dilation=strides,
        rhs_dilation=dilations,
        dimension_numbers=(image.layout, "OIHW" if dims == 2 else "OIDHW", image.layout),
        feature_group_count=groups,
    )
    return _finish(this, image, result, bias_attr, act)


def _back_geometry(
    this: Layer, image: Image, output_size: Any, filter_size: Any, padding: Any, strides: Any, dilations: Any
) -> tuple[tuple[int, ...], Pairs]:
    dims = len(image.pixels)
    wanted = None if output_size is None else sizes_of("output_size", output_size, dims)
    if filter_size is None:
        if wanted is None:
            raise errors.ArgumentError(f"{this.name} needs filter_size or output_size, as in filter_size={[3] * dims}")
        pads = paddings(this, padding, image, (1,) * dims, strides)
        kernel = tuple(
            (out - (size - 1) * s + sum(p) - 1) // d + 1
            for out, size, s, p, d in zip(wanted, image.pixels, strides, pads, dilations, strict=True)
        )
    else:
        kernel = sizes_of("filter_size", filter_size, dims)
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
            "and "
            f"padding {pads} grow to {natural}, or up to stride - 1 more; found output_size={list(wanted)}"
        )
    pairs = [(span - 1 - p[0], span - 1 - p[1] + e) for span, p, e in zip(spans, pads, extra, strict=True)]
    return kernel, pairs


def _check_groups(this: Layer, channels: int, num_filters: int, groups: int | None) -> int:
    if not isinstance(num_filters, int) or num_filters < 1:
        raise errors.ArgumentError(f"{this.name}: num_filters={num_filters!r}; expected a positive integer")
    count = 1 if groups is None else groups
    if not isinstance(count, int) or count < 1 or channels % count or num_filters % count:
        raise errors.ShapeError(
            f"{this.name}: groups={groups} must divide the {channels} channels of the input and "
            f"num_filters={num_filters}; "
            f"groups={math.gcd(channels, num_filters)} would"
        )
    return count


def _finish(this: Layer, image: Image, result: Any, bias_attr: Any, act: Any) -> Any:
    result = this.output(result)
    bias = this.bias(bias_attr, [result.shape[image.channel_axis]], result.dtype)
    if bias is not None:
        shape = [-1 if i == image.channel_axis else 1 for i in range(result.ndim)]
        result = this.output(result + bias.reshape(shape))
    return this.activate(result, act)
