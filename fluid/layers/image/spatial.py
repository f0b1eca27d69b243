"""Helpers for image layers: check layouts, convert padding, and divide channels into groups."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, as_rows, dense, describe, is_sequence, like, row_dims
from fluid.layers.kernels.data_format import plus_bias

# The type of the argument `padding`; the function `paddings` documents its values.
Padding = int | str | Sequence[int] | Sequence[Sequence[int]]
# The type of converted padding: a pair (before, after) for each spatial dimension.
Pairs = list[tuple[int, int]]

_LAYOUTS = {3: ("NCW", "NWC"), 4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}

# The default layout of image layers. A layer warns if the user gives no layout, and the input seems to be "NHWC".
CHANNELS_FIRST = core.default("NCHW")


class Image(NamedTuple):
    """A batch of images, volumes or signals, with its layout.

    Attributes:
      array: `[batch, channels, *pixels]` or `[batch, *pixels, channels]`.
      layout: the layout, such as "NCHW".
      channel_axis: the index of the channel dimension: 1 or the last.
      channels: the number of channels.
      pixels: the sizes of the spatial dimensions, such as (height, width).
      axes: the indices of the spatial dimensions.
      back: a function that converts a result `[batch, ...]` to a SequenceBatch if the user's input is one.
    """

    array: Any
    layout: str
    channel_axis: int
    channels: int
    pixels: tuple[int, ...]
    axes: tuple[int, ...]
    back: Callable[[Any], Any] = lambda result: result


def images_of(this: Layer, value: Any, ndim: int, layout: str) -> Image:
    """Check images or a sequence batch of images, and return all images as one batch; see `image_of`.

    The method `back` of the returned Image converts a result of a layer to a sequence batch, if the input is one.
    """
    if not is_sequence(value):
        return image_of(this, value, ndim, layout)
    (rows,), back = as_rows(this, value)
    return image_of(this, rows, ndim, layout)._replace(back=back)


def image_of(this: Layer, value: Any, ndim: int, layout: str, argument: str = "data_format") -> Image:
    """Check the dimensions and the layout of images, volumes or signals, and return them as an `Image`.

    Raises:
      ArgumentError: `layout` is not a layout for `ndim` dimensions.
      ShapeError: the input does not have `ndim` dimensions.
    """
    first, last = _LAYOUTS[ndim]
    if layout not in (first, last):
        raise errors.ArgumentError(f"{this.name}: {argument}={layout!r}; expected {first!r} or {last!r}")
    array = array_of(this, value)
    if array.ndim != ndim:
        sizes = ["batch", "channels", "depth", "height", "width"]
        sizes[2 : 7 - ndim] = []
        raise errors.ShapeError(
            f"{this.name}: input {describe(value)} has {array.ndim} dimensions; expected {ndim}, [{', '.join(sizes)}] "
            f"for {first!r}, as in layers.data(..., shape={[1, *[28] * (ndim - 2)]}), or "
            f"layers.reshape(x, {[-1, 1, *[28] * (ndim - 2)]})"
        )
    if seems_channels_last(this, array, layout):
        height, width, channels = array.shape[1:]
        core.doubt_reading(
            f"{this.name} takes {describe(array)} for images [batch, channels, height, width] of {height} channels and "
            f"{width} x {channels} pixels; {argument}='NHWC' if these are {channels} channels of {height} x {width} "
            f"pixels, or layers.transpose(x, [0, 3, 1, 2]) once; {argument}='NCHW' if not"
        )
    channel_axis = 1 if layout == first else ndim - 1
    axes = tuple(i for i in range(1, ndim) if i != channel_axis)
    return Image(array, layout, channel_axis, array.shape[channel_axis], tuple(array.shape[i] for i in axes), axes)


def seems_channels_last(this: Layer, array: Any, layout: str) -> bool:
    """Return True if the user gives no layout, and images look like `[batch, height, width, channels]`."""
    if not core.is_default(layout):
        return False
    height, width, channels = array.shape[1:]
    square = height == width and channels in (1, 3, 4)
    colour = channels in (3, 4) and width > 4 and this.frame.fact(array, "feed") is not None
    return height > 4 and (square or colour)


def paddings(this: Layer, given: Any, image: Image, windows: tuple[int, ...], strides: tuple[int, ...]) -> Pairs:
    """Convert the user's padding to one pair (before, after) for each spatial dimension.

    Args:
      given: the user's padding: one integer; one integer for each spatial dimension; two integers for each spatial
        dimension, before and after; one pair for each dimension of the array, with zeros for batch and channels; "SAME"
        for a result of `ceil(size / stride)` pixels; or "VALID" for no padding.

    Raises:
      ArgumentError: `given` is none of the listed values.
    """
    count = len(image.pixels)
    if isinstance(given, str):
        if given.upper() == "VALID":
            return [(0, 0)] * count
        if given.upper() == "SAME":
            return [_same(*sizes) for sizes in zip(image.pixels, windows, strides, strict=True)]
        raise errors.ArgumentError(f'{this.name}: padding {given!r}; expected numbers, "SAME" or "VALID"')
    if isinstance(given, int | np.integer):
        return [(int(given), int(given))] * count
    values = list(given)
    if len(values) == count + 2 and all(isinstance(v, list | tuple) and len(v) == 2 for v in values):
        outer = [values[0], values[image.channel_axis]]
        if any(int(p) for pair in outer for p in pair):
            raise errors.ArgumentError(
                f"{this.name}: padding {given!r} pads the batch or the channels; they take [0, 0]"
            )
        return [(int(values[i][0]), int(values[i][1])) for i in image.axes]
    if all(isinstance(v, int | np.integer) for v in values):
        if len(values) == count:
            return [(int(v), int(v)) for v in values]
        if len(values) == 2 * count:
            return [(int(a), int(b)) for a, b in zip(values[::2], values[1::2], strict=True)]
    raise errors.ArgumentError(
        f"{this.name}: padding {given!r}; expected one integer, {count} of them, {2 * count} of them "
        f'(before and after for each dimension), "SAME" or "VALID", as in padding={[1] * count}'
    )


def _same(size: int, window: int, stride: int) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def check_groups(this: Layer, channels: int, num_filters: int, groups: int | None) -> int:
    """Check the number of groups of a convolution, and return it; None stands for 1.

    Raises:
      ArgumentError: `num_filters` or `groups` is not a positive integer.
      ShapeError: `groups` does not divide `channels` and `num_filters`.
    """
    core.whole_number(this.name, "num_filters", num_filters)
    count = 1 if groups is None else core.whole_number(this.name, "groups", groups)
    if channels % count or num_filters % count:
        raise errors.ShapeError(
            f"{this.name}: groups={groups} must divide the {channels} channels of the input and "
            f"num_filters={num_filters}; groups={math.gcd(channels, num_filters)} would"
        )
    return count


def kind_without_cudnn(kind: str, value: Any, layout: str, groups: int | None, num_filters: Any) -> str:
    """Return the prefix of the automatic names of an image convolution with `use_cudnn=False`.

    As in Fluid, the prefix of a depthwise convolution without cuDNN is longer: `depthwise_conv2d_0.w_0` instead of
    `conv2d_0.w_0`.
    """
    shape = getattr(value, "shape", ())[row_dims(value) - 1 :]
    if not groups or len(shape) != 4 or shape[1 if layout == "NCHW" else 3] != groups:
        return kind
    return f"depthwise_{kind}" if num_filters == groups or kind == "conv2d" and num_filters % groups == 0 else kind


def finish_convolution(this: Layer, image: Image, result: Any, bias_attr: Any, act: Any) -> Any:
    """Add a bias to the result of a convolution, apply an activation, and record each result as output of the layer."""
    recorded = this.output(image.back(result))
    bias = this.bias(bias_attr, [result.shape[image.channel_axis]], result.dtype)
    if bias is not None:
        axis = image.channel_axis + row_dims(recorded) - 1
        recorded = this.output(like(recorded, plus_bias(dense(recorded), bias, axis)))
    return this.activate(recorded, act)


def divided_channels(this: Layer, image: Image, argument: str, value: Any, parts: int) -> int:
    """Check that `parts` divides the number of channels, and return the number of channels in each part.

    Raises:
      ShapeError: `parts` does not divide the channels.
    """
    if image.channels % parts:
        raise errors.ShapeError(
            f"{this.name}: {argument}={value!r} for {image.channels} channels; they must be a multiple of {parts}, "
            f"as from layers.conv2d(x, num_filters={parts}, filter_size=3)"
        )
    return image.channels // parts
