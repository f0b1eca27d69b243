"""Layers that rearrange pixels: shuffles of channels and blocks, padding, and patches from a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, describe, layer
from fluid.layers.checks import Sizes, check_ids, sizes_of
from fluid.layers.image.spatial import CHANNELS_FIRST, Image, Pairs, divided_channels, image_of
from fluid.layers.sequence.step_selection import taken


@layer
def pixel_shuffle(x: Value, upscale_factor: int, name: str | None = None) -> jax.Array:
    """Rearrange channels to pixels (Shi et al., 2016), so that images become larger, with fewer channels.

    Args:
      x: `[batch, channels, height, width]`.
      upscale_factor: the factor `r` by which height and width grow; `r**2` must divide the number of channels.
      name: name of the layer; by default `pixel_shuffle_N`.

    Returns:
      `[batch, channels / r**2, height * r, width * r]`.

    Raises:
      ArgumentError: `upscale_factor` is not a positive integer.
      ShapeError: the input is not a batch of images, or `r**2` does not divide its number of channels.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.pixel_shuffle(fluid.layers.data("x", shape=[12, 4, 4]), upscale_factor=2)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 8, 8]
    """
    this = Layer("pixel_shuffle", name)
    image = image_of(this, x, 4, "NCHW")
    r = core.whole_number(this.name, "upscale_factor", upscale_factor)
    channels = divided_channels(this, image, "upscale_factor", r, r * r)
    high, wide = image.pixels
    parted = image.array.reshape(-1, channels, r, r, high, wide)
    return this.output(parted.transpose(0, 1, 4, 2, 5, 3).reshape(-1, channels, high * r, wide * r))


@layer
def space_to_depth(x: Value, blocksize: int, name: str | None = None) -> jax.Array:
    """Rearrange pixels to channels, so that images become smaller, with more channels.

    The elements have the order of Fluid's layer. Fluid first rearranges each image to a larger image with fewer
    channels, similar to `pixel_shuffle`, and then reshapes it. So the result is a permutation of the elements of each
    image.

    Args:
      x: `[batch, channels, height, width]`.
      blocksize: the factor by which height and width shrink. It must divide height and width, and its square must
        divide the number of channels.
      name: name of the layer; by default `space_to_depth_N`.

    Returns:
      `[batch, channels * blocksize**2, height / blocksize, width / blocksize]`.

    Raises:
      ArgumentError: `blocksize` is not a positive integer.
      ShapeError: the input is not a batch of images, `blocksize` does not divide height and width, or `blocksize**2`
        does not divide the number of channels.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.space_to_depth(fluid.layers.data("x", shape=[4, 8, 8]), blocksize=2)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 16, 4, 4]
    """
    this = Layer("space_to_depth", name)
    image = image_of(this, x, 4, "NCHW")
    b = core.whole_number(this.name, "blocksize", blocksize)
    channels = divided_channels(this, image, "blocksize", b, b * b)
    high, wide = image.pixels
    if high % b or wide % b:
        raise errors.ShapeError(
            f"{this.name}: blocksize={b} does not divide the pixels of {describe(x)}; pad them: layers.pad2d(x, ...)"
        )
    arranged = image.array.reshape(-1, b, b, channels, high, wide).transpose(0, 3, 4, 1, 5, 2)
    return this.output(arranged.reshape(-1, image.channels * b * b, high // b, wide // b))


@layer
def shuffle_channel(x: Value, group: int, name: str | None = None) -> jax.Array:
    """Interleave the channels of several groups, as in ShuffleNet (Zhang et al., 2017).

    Args:
      x: `[batch, channels, height, width]`.
      group: the number of groups, which must divide the number of channels.
      name: name of the layer; by default `shuffle_channel_N`.

    Returns:
      An array in the shape of `x`: the first channel of each group, then the second channel of each group, and so on.

    Raises:
      ArgumentError: `group` is not a positive integer.
      ShapeError: the input is not a batch of images, or `group` does not divide its number of channels.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.shuffle_channel(fluid.layers.data("x", shape=[6, 8, 8]), group=3)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 6, 8, 8]
    """
    this = Layer("shuffle_channel", name)
    image = image_of(this, x, 4, "NCHW")
    core.whole_number(this.name, "group", group)
    each = divided_channels(this, image, "group", group, group)
    parted = image.array.reshape(-1, group, each, *image.pixels)
    return this.output(jnp.swapaxes(parted, 1, 2).reshape(image.array.shape))


@layer
def temporal_shift(x: Value, seg_num: int, shift_ratio: float = 0.25, name: str | None = None) -> jax.Array:
    """Shift channels between neighbouring frames of videos (Lin et al., 2019).

    In each frame of the result, the first `shift_ratio * channels` channels come from the previous frame, and the next
    `shift_ratio * channels` channels from the next frame. The other channels do not change. Frames before the first
    frame and after the last frame of a video count as 0.

    Args:
      x: the frames of all videos, one after another, `[batch * seg_num, channels, height, width]`.
      seg_num: the number of frames in each video.
      shift_ratio: the fraction of the channels to shift in each direction, at most 0.5.
      name: name of the layer; by default `temporal_shift_N`.

    Returns:
      An array in the shape of `x`.

    Raises:
      ArgumentError: `seg_num` is not positive, or `shift_ratio` is not between 0 and 0.5.
      ShapeError: the input is not a batch of images, or the number of images is not a multiple of `seg_num`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.temporal_shift(fluid.layers.data("x", shape=[8, 4, 4]), seg_num=3)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 8, 4, 4]
    """
    this = Layer("temporal_shift", name)
    image = image_of(this, x, 4, "NCHW")
    frames = core.whole_number(this.name, "seg_num", seg_num)
    count = image.array.shape[0]
    if not 0 <= shift_ratio <= 0.5:
        raise errors.ArgumentError(f"{this.name}: shift_ratio={shift_ratio!r}; expected a share from 0 to 0.5")
    if isinstance(count, int) and count % frames and count != this.frame.placeholder_batch:
        raise errors.ShapeError(
            f"{this.name}: {count} images cannot be divided into videos of seg_num={frames} frames; feed a multiple of "
            f"{frames}, such as {count - count % frames or frames}"
        )
    number = jnp.arange(count)[:, None, None, None] % frames
    first, second = (int(image.channels * share) for share in (shift_ratio, 2 * shift_ratio))
    before = jnp.where(number > 0, jnp.roll(image.array[:, :first], 1, axis=0), 0)
    behind = jnp.where(number < frames - 1, jnp.roll(image.array[:, first:second], -1, axis=0), 0)
    return this.output(jnp.concatenate([before, behind, image.array[:, second:]], axis=1))


_MODES = ("constant", "reflect", "edge")


@layer
def pad2d(
    input: Value,
    paddings: Sequence[int] = (0, 0, 0, 0),
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = CHANNELS_FIRST,
    name: str | None = None,
) -> jax.Array:
    """Pad images with new pixels on all four sides.

    Args:
      input: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      paddings: the numbers of new pixels, `[top, bottom, left, right]`.
      mode: "constant" pads with `pad_value`; "edge" repeats the pixel at the edge; "reflect" mirrors the image, without
        a repetition of the pixel at the edge.
      pad_value: the value of the new pixels for "constant".
      data_format: "NCHW" or "NHWC".
      name: name of the layer; by default `pad2d_N`.

    Returns:
      `[batch, channels, height + top + bottom, width + left + right]`; with "NHWC", the channels are last.

    Raises:
      ArgumentError: `mode` is unknown, or `paddings` does not have four non-negative numbers.
      ShapeError: the input is not a batch of images, or an image is too small for "reflect".

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 8, 8])
      ...     return fluid.layers.pad2d(image, paddings=[1, 1, 2, 2], mode="reflect")
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 10, 12]
    """
    this = Layer("pad2d", name)
    image = image_of(this, input, 4, data_format)
    if mode not in _MODES:
        raise errors.ArgumentError(f"{this.name}: mode={mode!r}; expected {', '.join(map(repr, _MODES))}")
    widths = [int(p) for p in paddings]
    if len(widths) != 4 or min(widths) < 0:
        raise errors.ArgumentError(
            f"{this.name}: paddings={list(paddings)}; expected [top, bottom, left, right], as in paddings=[1, 1, 1, 1]"
        )
    pairs = [(0, 0)] * 4
    for axis, pixels, pair in zip(image.axes, image.pixels, (widths[:2], widths[2:]), strict=True):
        if mode == "reflect" and max(pair) >= pixels:
            raise errors.ShapeError(
                f"{this.name}: {max(pair)} pixels cannot be mirrored from {pixels} of {describe(input)}; pad less, "
                f"or use mode='edge'"
            )
        pairs[axis] = (pair[0], pair[1])
    values = {"constant_values": np.array(pad_value, image.array.dtype)} if mode == "constant" else {}
    return this.output(jnp.pad(image.array, pairs, mode=mode, **values))


@layer
def unfold(
    x: Value,
    kernel_sizes: Sizes,
    strides: Sizes = 1,
    paddings: Sizes = 0,
    dilations: Sizes = 1,
    name: str | None = None,
) -> jax.Array:
    """Extract patches of pixels with a sliding window, one column for each position of the window (im2col).

    Args:
      x: `[batch, channels, height, width]`.
      kernel_sizes: the size of the window, `k` or `[kh, kw]`.
      strides: one or two integers.
      paddings: one integer; two integers, `[height, width]`; or four integers, `[top, left, bottom, right]`.
      dilations: one or two integers.
      name: name of the layer; by default `unfold_N`.

    Returns:
      `[batch, channels * kh * kw, positions]`, where `positions` is the number of positions of the window.

    Raises:
      ArgumentError: an argument has the wrong number of integers.
      ShapeError: the input is not a batch of images, or an image is smaller than the window.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.unfold(fluid.layers.data("x", shape=[3, 8, 8]), kernel_sizes=[3, 3])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 27, 36]
    """
    this = Layer("unfold", name)
    image = image_of(this, x, 4, "NCHW")
    kernel = sizes_of(this, "kernel_sizes", kernel_sizes, 2)
    steps = sizes_of(this, "strides", strides, 2)
    apart = sizes_of(this, "dilations", dilations, 2)
    patches = _patches(this, image, kernel, steps, _paddings(this, "paddings", paddings), apart)
    return this.output(patches.reshape(*patches.shape[:2], -1))


@layer
def im2sequence(
    input: Value,
    filter_size: Sizes = 1,
    stride: Sizes = 1,
    padding: Sizes = 0,
    input_image_size: Value | None = None,
    out_stride: Sizes = 1,
    name: str | None = None,
) -> core.SequenceBatch:
    """Extract patches of pixels with a sliding window, as sequences with one step for each position of the window.

    Args:
      input: `[batch, channels, height, width]`.
      filter_size: the size of the window, `k` or `[kh, kw]`.
      stride: one or two integers.
      padding: one integer; two integers, `[height, width]`; or four integers, `[top, left, bottom, right]`.
      input_image_size: integers `[batch, 2]`: the height and width that each image had before earlier layers shrank it
        by the factor `out_stride`. Windows beyond the shrunk size are left out.
      out_stride: the factor by which earlier layers shrank the images, one or two integers.
      name: name of the layer; by default `im2sequence_N`.

    Returns:
      A SequenceBatch `[batch, positions, channels * kh * kw]`, whose steps are ordered row by row.

    Raises:
      ArgumentError: an argument has the wrong number of integers.
      ShapeError: the input is not a batch of images, or an image is smaller than the window.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.im2sequence(fluid.layers.data("x", shape=[3, 8, 8]), filter_size=[8, 1])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 8, 24]
    """
    this = Layer("im2sequence", name)
    image = image_of(this, input, 4, "NCHW")
    kernel = sizes_of(this, "filter_size", filter_size, 2)
    steps = sizes_of(this, "stride", stride, 2)
    pads = _paddings(this, "padding", padding)
    patches = _patches(this, image, kernel, steps, pads, (1, 1))
    batch, width, down, across = patches.shape
    places = core.SequenceBatch(
        jnp.moveaxis(patches.reshape(batch, width, -1), 1, 2), jnp.full([batch], down * across, jnp.int32)
    )
    if input_image_size is None:
        return this.output(places)
    sizes = check_ids(this.name, array_of(this, input_image_size))
    if sizes.shape != (batch, 2):
        raise errors.ShapeError(
            f"{this.name}: input_image_size {describe(input_image_size)} for {describe(input)}; expected the height "
            f'and width of each image, [batch, 2], as from layers.data("size", shape=[2], dtype="int64")'
        )
    seen = -(-sizes // jnp.array(sizes_of(this, "out_stride", out_stride, 2)))
    counts = (seen + jnp.array([sum(p) - k for p, k in zip(pads, kernel, strict=True)])) // jnp.array(steps) + 1
    rows, columns = jnp.clip(counts, 0, jnp.array([down, across])).T
    # Images of different sizes have different numbers of windows in a row. So the row and the column of the window in
    # step `i` of a sequence depend on the image.
    row, column = jnp.divmod(jnp.arange(down * across), jnp.maximum(columns, 1)[:, None])
    return this.output(taken(places, row * across + column, rows * columns))


def _paddings(this: Layer, argument: str, given: Any) -> Pairs:
    """Convert the user's padding to pairs (before, after) for height and width.

    Args:
      given: one integer; two integers, `[height, width]`; or four integers, `[top, left, bottom, right]`.
    """
    if isinstance(given, list | tuple) and len(given) == 4:
        top, left, bottom, right = sizes_of(this, argument, given, 4, least=0)
    else:
        top, left = bottom, right = sizes_of(this, argument, given, 2, least=0)
    return [(top, bottom), (left, right)]


def _patches(this: Layer, image: Image, kernel: Any, steps: Any, pads: Any, apart: Any) -> Any:
    """Extract the pixels in each position of a sliding window.

    Returns:
      `[batch, channels * kh * kw, rows, columns]`, for `rows * columns` positions of the window.
    """
    windows = [d * (k - 1) + 1 for d, k in zip(apart, kernel, strict=True)]
    if any(size + sum(p) < window for size, p, window in zip(image.pixels, pads, windows, strict=True)):
        raise errors.ShapeError(
            f"{this.name}: {describe(image.array)} padded by {pads} is smaller than a window of {windows}; use a "
            f"smaller window, or more padding"
        )
    padded = jnp.pad(image.array, [(0, 0), (0, 0), *pads])
    counts = [
        (size + sum(p) - window) // step + 1
        for size, p, window, step in zip(image.pixels, pads, windows, steps, strict=True)
    ]
    # Slices replace `lax.conv_general_dilated_patches`, a grouped convolution that XLA on a CPU compiles to slow loops.
    # With the gradient, windows of 3 x 3 on images of 28 x 28 x 64 take 219 ms as a convolution, and 5.8 ms as slices
    # (`python benchmarks/survey.py im2sequence`, jax 0.10.2, two cores, 24 November 2026). For adjacent windows without
    # overlap, a reshape replaces the slices, because slices of large windows would take seconds to compile.
    if tuple(steps) == tuple(kernel) and tuple(apart) == (1, 1):
        height, width = (n * k for n, k in zip(counts, kernel, strict=True))
        cells = padded[:, :, :height, :width].reshape(*padded.shape[:2], counts[0], kernel[0], counts[1], kernel[1])
        patches = cells.transpose(0, 1, 3, 5, 2, 4)
    else:
        rows, columns = (
            [slice(o * d, o * d + (n - 1) * step + 1, step) for o in range(k)]
            for k, d, n, step in zip(kernel, apart, counts, steps, strict=True)
        )
        patches = jnp.stack([padded[:, :, row, column] for row in rows for column in columns], axis=2)
    return patches.reshape(patches.shape[0], padded.shape[1] * kernel[0] * kernel[1], *counts)
