"""Rearrangements of pixels and channels: pixel shuffle, space to depth, channel shuffle, and temporal shift."""

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, describe, layer
from fluid.layers.image.spatial import divided_channels, image_of


@layer
def pixel_shuffle(x: core.Value, upscale_factor: int, name: str | None = None) -> jax.Array:
    """Rearrange channels to pixels (Shi et al., 2016): images become larger, with fewer channels.

    Args:
      x: `[batch, channels, height, width]`.
      upscale_factor: `r`, the factor by which height and width grow; its square divides the number of channels.
      name: name of the layer; by default `pixel_shuffle_N`.

    Returns:
      `[batch, channels / r**2, height * r, width * r]`.

    Raises:
      ArgumentError: `upscale_factor` is no positive integer.
      ShapeError: the input is no batch of images, or `r**2` does not divide its channels.

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
def space_to_depth(x: core.Value, blocksize: int, name: str | None = None) -> jax.Array:
    """Rearrange pixels to channels: images become smaller, with more channels.

    The order of the elements is Fluid's. Fluid first arranges them as images that are larger by the factor `blocksize`,
    with fewer channels, and then reads their memory in the new shape. The result is a permutation of the elements of
    each image.

    Args:
      x: `[batch, channels, height, width]`.
      blocksize: the factor by which height and width shrink. It divides both, and its square divides the number of
        channels.
      name: name of the layer; by default `space_to_depth_N`.

    Returns:
      `[batch, channels * blocksize**2, height / blocksize, width / blocksize]`.

    Raises:
      ArgumentError: `blocksize` is no positive integer.
      ShapeError: the input is no batch of images, or `blocksize` does not divide its sizes.

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
def shuffle_channel(x: core.Value, group: int, name: str | None = None) -> jax.Array:
    """Interleave the channels of several groups (ShuffleNet; Zhang et al., 2017).

    Args:
      x: `[batch, channels, height, width]`.
      group: the number of groups, which divides the number of channels.
      name: name of the layer; by default `shuffle_channel_N`.

    Returns:
      The same shape as `x`: the first channel of each group, then the second of each, and so on.

    Raises:
      ArgumentError: `group` is no positive integer.
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
    core.whole_number(this.name, "group", group)
    each = divided_channels(this, image, "group", group, group)
    parted = image.array.reshape(-1, group, each, *image.pixels)
    return this.output(jnp.swapaxes(parted, 1, 2).reshape(image.array.shape))


@layer
def temporal_shift(x: core.Value, seg_num: int, shift_ratio: float = 0.25, name: str | None = None) -> jax.Array:
    """Shift channels between neighbouring frames of videos (Lin et al., 2019).

    The first `shift_ratio * channels` channels come from the previous frame, the next `shift_ratio * channels` from the
    next frame, and the others stay. Frames before the first and after the last are 0.

    Args:
      x: the frames of all videos, one after another, `[batch * seg_num, channels, height, width]`.
      seg_num: the number of frames in each video.
      shift_ratio: the fraction of the channels to shift in each direction, at most 0.5.
      name: name of the layer; by default `temporal_shift_N`.

    Returns:
      The same shape as `x`.

    Raises:
      ArgumentError: `seg_num` is not positive, or `shift_ratio` is not between 0 and 0.5.
      ShapeError: the input is no batch of images, or their number is no multiple of `seg_num`.

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
