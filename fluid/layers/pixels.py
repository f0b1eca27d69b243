"""Moving pixels between places, channels and steps of sequences, and scaling channels."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, array_of, dense, describe, layer, sizes_of
from fluid.layers.embedding import check_ids
from fluid.layers.spatial import Image, image_of
from fluid.layers.steps import taken


@layer
def pixel_shuffle(x: Any, upscale_factor: int, name: str | None = None) -> Any:
    """Turn channels into pixels (Shi et al., 2016): images become larger, with fewer channels.

    Args:
      x: `[batch, channels, height, width]`.
      upscale_factor: `r`, by which height and width grow; its square divides the channels.
      name: instead of `pixel_shuffle_N`.

    Returns:
      `[batch, channels / r**2, height * r, width * r]`.

    Raises:
      ShapeError: the input is no batch of images, or its channels cannot be shared out.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.pixel_shuffle(fluid.layers.data("x", shape=[12, 4, 4]), upscale_factor=2)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 8, 8]
    """
    this = Layer("pixel_shuffle", name)
    image = image_of(this, x, 4, "NCHW")
    r = upscale_factor
    channels = _shared(this, image, "upscale_factor", r, r * r)
    high, wide = image.pixels
    parted = image.array.reshape(-1, channels, r, r, high, wide)
    return this.output(parted.transpose(0, 1, 4, 2, 5, 3).reshape(-1, channels, high * r, wide * r))


@layer
def space_to_depth(x: Any, blocksize: int, name: str | None = None) -> Any:
    """Turn pixels into channels: images become smaller, with more channels.

    The order is that of Fluid: channels are dealt out to the places of `blocksize` times larger images, and the memory
    of these is read in the new shape. Like any other order it is a permutation of the elements of each image.

    Args:
      x: `[batch, channels, height, width]`.
      blocksize: divides height and width; its square divides the channels.
      name: instead of `space_to_depth_N`.

    Returns:
      `[batch, channels * blocksize**2, height / blocksize, width / blocksize]`.

    Raises:
      ShapeError: the input is no batch of images, or cannot be divided so.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.space_to_depth(fluid.layers.data("x", shape=[4, 8, 8]), blocksize=2)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 16, 4, 4]
    """
    this = Layer("space_to_depth", name)
    image = image_of(this, x, 4, "NCHW")
    b = blocksize
    channels, (high, wide) = _shared(this, image, "blocksize", b, b * b), image.pixels
    if high % b or wide % b:
        raise errors.ShapeError(
            f"{this.name}: blocksize={b} does not divide the pixels of {describe(x)}; pad them: layers.pad2d(x, ...)"
        )
    dealt = image.array.reshape(-1, b, b, channels, high, wide).transpose(0, 3, 4, 1, 5, 2)
    return this.output(dealt.reshape(-1, image.channels * b * b, high // b, wide // b))


@layer
def shuffle_channel(x: Any, group: int, name: str | None = None) -> Any:
    """Deal the channels of several groups out in turns (Zhang et al., 2017).

    Args:
      x: `[batch, channels, height, width]`.
      group: how many groups; it divides the channels.
      name: instead of `shuffle_channel_N`.

    Returns:
      Same shape as `x`: the first channel of each group, then the second of each.

    Raises:
      ShapeError: the input is no batch of images, or `group` does not divide its channels.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.shuffle_channel(fluid.layers.data("x", shape=[6, 8, 8]), group=3)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 6, 8, 8]
    """
    this = Layer("shuffle_channel", name)
    image = image_of(this, x, 4, "NCHW")
    each = _shared(this, image, "group", group, group)
    parted = image.array.reshape(-1, group, each, *image.pixels)
    return this.output(jnp.swapaxes(parted, 1, 2).reshape(image.array.shape))


@layer
def unfold(
    x: Any, kernel_sizes: Any, strides: Any = 1, paddings: Any = 0, dilations: Any = 1, name: str | None = None
) -> Any:
    """The pixels under each place of a sliding window, as columns.

    Args:
      x: `[batch, channels, height, width]`.
      kernel_sizes: `k` or `[kh, kw]`: size of the window.
      strides: one or two integers.
      paddings: one, two, or four: `[top, left, bottom, right]`.
      dilations: one or two integers.
      name: instead of `unfold_N`.

    Returns:
      `[batch, channels * kh * kw, places]`.

    Raises:
      ArgumentError: a setting has the wrong number of integers.
      ShapeError: the input is no batch of images, or smaller than the window.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.unfold(fluid.layers.data("x", shape=[3, 8, 8]), kernel_sizes=[3, 3])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 27, 36]
    """
    this = Layer("unfold", name)
    image = image_of(this, x, 4, "NCHW")
    kernel, steps = sizes_of("kernel_sizes", kernel_sizes, 2), sizes_of("strides", strides, 2)
    apart = sizes_of("dilations", dilations, 2)
    pads = _paddings("paddings", paddings)
    patches = _patches(this, image, kernel, steps, pads, apart)
    return this.output(patches.reshape(*patches.shape[:2], -1))


@layer
def im2sequence(
    input: Any,
    filter_size: Any = 1,
    stride: Any = 1,
    padding: Any = 0,
    input_image_size: Any = None,
    out_stride: Any = 1,
    name: str | None = None,
) -> core.SequenceBatch:
    """The pixels under each place of a sliding window, as the steps of a sequence, row by row from the left.

    Args:
      input: `[batch, channels, height, width]`.
      filter_size: `k` or `[kh, kw]`: size of the window.
      stride: one or two integers.
      padding: one, two, or four: `[top, left, bottom, right]`.
      input_image_size: integers `[batch, 2]`: true height and width of each image, before it was made smaller by
        `out_stride`; what lies beyond is not visited.
      out_stride: one or two integers: how much smaller `input` is than these sizes.
      name: instead of `im2sequence_N`.

    Returns:
      A SequenceBatch `[batch, places, channels * kh * kw]`.

    Raises:
      ArgumentError: a setting has the wrong number of integers.
      ShapeError: the input is no batch of images, or smaller than the window.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.im2sequence(fluid.layers.data("x", shape=[3, 8, 8]), filter_size=[8, 1])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 8, 24]
    """
    this = Layer("im2sequence", name)
    image = image_of(this, input, 4, "NCHW")
    kernel, steps = sizes_of("filter_size", filter_size, 2), sizes_of("stride", stride, 2)
    pads = _paddings("padding", padding)
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
    seen = -(-sizes // jnp.array(sizes_of("out_stride", out_stride, 2)))
    counts = (seen + jnp.array([sum(p) - k for p, k in zip(pads, kernel, strict=True)])) // jnp.array(steps) + 1
    rows, columns = jnp.clip(counts, 0, jnp.array([down, across])).T
    # Each image has its own number of places in a row, so that a step stands at another place in each.
    row, column = jnp.divmod(jnp.arange(down * across), jnp.maximum(columns, 1)[:, None])
    return this.output(taken(places, row * across + column, rows * columns))


@layer
def affine_channel(
    x: Any, scale: Any = None, bias: Any = None, data_layout: str = "NCHW", name: str | None = None, act: Any = None
) -> Any:
    """Multiply each channel by one number and add another.

    Args:
      x: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      scale: `[channels]`; 1 by default.
      bias: `[channels]`; 0 by default.
      data_layout: "NCHW" or "NHWC".
      name: instead of `affine_channel_N`.
      act: name of an activation, or a function.

    Returns:
      Same shape as `x`.

    Raises:
      ShapeError: the input is no batch of images, or there is not one number for each channel.

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
    spread = [-1 if i == image.channel_axis else 1 for i in range(4)]
    result = image.array
    for argument, value in (("scale", scale), ("bias", bias)):
        if value is None:
            continue
        if dense(value).size != image.channels:
            raise errors.ShapeError(
                f"{this.name}: {argument} {describe(value)} for the {image.channels} channels of {describe(x)}; "
                f"expected [{image.channels}]"
            )
        each = dense(value).reshape(spread)
        result = result * each if argument == "scale" else result + each
    return this.finish(result, act)


def _paddings(argument: str, given: Any) -> list[tuple[int, int]]:
    """Read one integer, two, or `[top, left, bottom, right]` as what lies before and behind each dimension."""
    sizes = list(given) if isinstance(given, list | tuple) and len(given) == 4 else [*sizes_of(argument, given, 2)] * 2
    top, left, bottom, right = (int(p) for p in sizes)
    return [(top, bottom), (left, right)]


def _patches(this: Layer, image: Image, kernel: Any, steps: Any, pads: Any, apart: Any) -> Any:
    """The pixels under each place of a window: `[batch, channels * kh * kw, down, across]`."""
    windows = [d * (k - 1) + 1 for d, k in zip(apart, kernel, strict=True)]
    if any(size + sum(p) < window for size, p, window in zip(image.pixels, pads, windows, strict=True)):
        raise errors.ShapeError(
            f"{this.name}: {describe(image.array)} padded by {pads} is smaller than a window of {windows}; use a "
            f"smaller window, or more padding"
        )
    # Pixels are only moved, by a convolution that picks them: they must come through unrounded.
    return jax.lax.conv_general_dilated_patches(
        image.array,
        kernel,
        steps,
        pads,
        rhs_dilation=apart,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
        precision=jax.lax.Precision.HIGHEST,
    )


def _shared(this: Layer, image: Image, argument: str, value: Any, parts: int) -> int:
    """How many channels are left when they are shared out among so many parts."""
    if not isinstance(value, int) or value < 1 or image.channels % parts:
        raise errors.ShapeError(
            f"{this.name}: {argument}={value!r} for {image.channels} channels; they must be a multiple of {parts}, "
            f"as from layers.conv2d(x, num_filters={parts}, filter_size=3)"
        )
    return image.channels // parts
