"""Pooling of images and volumes: the maximum or the mean of the pixels in each window."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core import Value
from fluid.layers.base import Layer, describe, layer, wide
from fluid.layers.checks import Sizes, sizes_of
from fluid.layers.image.spatial import (
    CHANNELS_FIRST,
    Image,
    Padding,
    Pairs,
    images_of,
    paddings,
)
from fluid.layers.kernels.data_format import as_computed, by_layout
from fluid.layers.kernels.pooling import largest
from fluid.layers.no_effect import no_effect


@layer
@no_effect(use_cudnn="XLA chooses the kernels", use_mkldnn="XLA chooses the kernels")
def pool2d(
    input: Value,
    pool_size: Sizes = -1,
    pool_type: str = "max",
    pool_stride: Sizes = 1,
    pool_padding: Padding = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = CHANNELS_FIRST,
    use_mkldnn: bool = False,
) -> jax.Array:
    """Apply 2D pooling to images: compute the maximum or the mean of the pixels in a sliding window.

    Args:
      input: `[batch, channels, height, width]`, or `[batch, height, width, channels]` with "NHWC". For a SequenceBatch
        of images, the result is a SequenceBatch too.
      pool_size: the size of the window, `k` or `[kh, kw]`.
      pool_type: "max" or "avg".
      pool_stride: one or two integers.
      pool_padding: an integer, `[h, w]`, `[top, bottom, left, right]`, "SAME" or "VALID".
      global_pooling: whether one window covers the whole image; size, stride and padding are then ignored.
      use_cudnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.
      ceil_mode: whether a last window may extend beyond the image, if the remaining pixels do not fill a window.
      name: name of the layer; by default `pool2d_N`.
      exclusive: whether a mean counts only the pixels inside the image, instead of all pixels of the window.
      data_format: "NCHW" or "NHWC".
      use_mkldnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.

    Returns:
      `[batch, channels, height', width']`; with "NHWC", the channels are the last dimension.

    Raises:
      ArgumentError: `pool_type` is unknown, or a size is not positive.
      ShapeError: the input is not a batch of images, or a window covers no pixel of the image.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 8, 8])
      ...     return fluid.layers.pool2d(image, pool_size=2, pool_stride=2)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 4, 4]
    """
    this = Layer("pool2d", name)
    image = images_of(this, input, 4, data_format)
    return _pool(
        this, image, pool_size, pool_type, pool_stride, pool_padding, global_pooling, ceil_mode, exclusive
    )  # fmt: skip


@layer
@no_effect(use_cudnn="XLA chooses the kernels", use_mkldnn="XLA chooses the kernels")
def pool3d(
    input: Value,
    pool_size: Sizes = -1,
    pool_type: str = "max",
    pool_stride: Sizes = 1,
    pool_padding: Padding = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCDHW",
    use_mkldnn: bool = False,
) -> jax.Array:
    """Apply 3D pooling to volumes: compute the maximum or the mean of the values in a sliding window.

    Args:
      input: `[batch, channels, depth, height, width]`, or with the channels last for "NDHWC".
      pool_size: one or three integers.
      pool_type: "max" or "avg".
      pool_stride: one or three integers.
      pool_padding: one integer; three integers, one for each dimension; six integers, before and after each dimension;
        "SAME" or "VALID".
      global_pooling: whether one window covers the whole volume; size, stride and padding are then ignored.
      use_cudnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.
      ceil_mode: whether a last window may extend beyond the volume, if the remaining values do not fill a window.
      name: name of the layer; by default `pool3d_N`.
      exclusive: whether a mean counts only the values inside the volume, instead of all values of the window.
      data_format: "NCDHW" or "NDHWC".
      use_mkldnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.

    Returns:
      `[batch, channels, depth', height', width']`; with "NDHWC", the channels are the last dimension.

    Raises:
      ArgumentError: `pool_type` is unknown, or a size is not positive.
      ShapeError: the input is not a batch of volumes, or a window covers no value of the volume.

    Example:
      >>> import fluid
      >>> def program():
      ...     scan = fluid.layers.data("scan", shape=[1, 4, 8, 8])
      ...     return fluid.layers.pool3d(scan, pool_type="avg", global_pooling=True)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1, 1, 1, 1]
    """
    this = Layer("pool3d", name)
    image = images_of(this, input, 5, data_format)
    return _pool(
        this, image, pool_size, pool_type, pool_stride, pool_padding, global_pooling, ceil_mode, exclusive
    )  # fmt: skip


@layer
def adaptive_pool2d(
    input: Value,
    pool_size: Sizes,
    pool_type: str = "max",
    require_index: bool = False,
    name: str | None = None,
    data_format: str = CHANNELS_FIRST,
) -> jax.Array:
    """Apply pooling to images with windows that yield a result of a given size.

    Along each dimension of `size` pixels, element `i` of the `n` elements of the result covers the pixels from
    `floor(i * size / n)` up to, but not including, `ceil((i + 1) * size / n)`.

    Args:
      input: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      pool_size: the size of the result, `n` or `[height', width']`.
      pool_type: "max" or "avg".
      require_index: not supported; only False is accepted.
      name: name of the layer; by default `adaptive_pool2d_N`.
      data_format: "NCHW" or "NHWC".

    Returns:
      `[batch, channels, height', width']`; with "NHWC", the channels are the last dimension.

    Raises:
      ArgumentError: `pool_type` is unknown, a size is not positive, or `require_index` is True.
      ShapeError: the input is not a batch of images, or the images are smaller than `pool_size`.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 9, 7])
      ...     return fluid.layers.adaptive_pool2d(image, pool_size=[3, 2], pool_type="avg")
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 3, 2]
    """
    return _adapt(Layer("adaptive_pool2d", name), input, 4, pool_size, pool_type, require_index, data_format)


@layer
def adaptive_pool3d(
    input: Value,
    pool_size: Sizes,
    pool_type: str = "max",
    require_index: bool = False,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> jax.Array:
    """Apply pooling to volumes with windows that yield a result of a given size; see `adaptive_pool2d`.

    Args:
      input: `[batch, channels, depth, height, width]`, or with the channels last for "NDHWC".
      pool_size: the size of the result, `n` or `[depth', height', width']`.
      pool_type: "max" or "avg".
      require_index: not supported; only False is accepted.
      name: name of the layer; by default `adaptive_pool3d_N`.
      data_format: "NCDHW" or "NDHWC".

    Returns:
      `[batch, channels, depth', height', width']`; with "NDHWC", the channels are the last dimension.

    Raises:
      ArgumentError: `pool_type` is unknown, a size is not positive, or `require_index` is True.
      ShapeError: the input is not a batch of volumes, or the volumes are smaller than `pool_size`.

    Example:
      >>> import fluid
      >>> def program():
      ...     scan = fluid.layers.data("scan", shape=[1, 4, 9, 7])
      ...     return fluid.layers.adaptive_pool3d(scan, pool_size=[2, 3, 2], pool_type="avg")
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1, 2, 3, 2]
    """
    return _adapt(Layer("adaptive_pool3d", name), input, 5, pool_size, pool_type, require_index, data_format)


def _adapt(this: Layer, input: Any, ndim: int, size: Any, kind: str, require_index: bool, data_format: str) -> Any:
    """Apply adaptive pooling to images (`ndim=4`) or volumes (`ndim=5`); see `adaptive_pool2d`."""
    _check_kind(this, kind)
    if require_index:
        raise errors.ArgumentError(
            f"{this.name}: require_index=True is not possible; only the pooled values are returned"
        )
    image = images_of(this, input, ndim, data_format)
    cells = sizes_of(this, "pool_size", size, ndim - 2)
    if any(n > size for n, size in zip(cells, image.pixels, strict=True)):
        raise errors.ShapeError(
            f"{this.name}: {describe(input)} cannot be pooled to {list(cells)} cells; ask for fewer cells"
        )
    result = wide(image.array)
    reduce = jnp.max if kind == "max" else jnp.mean
    for axis, pixels, n in zip(image.axes, image.pixels, cells, strict=True):
        bounds = [(i * pixels // n, -(-(i + 1) * pixels // n)) for i in range(n)]
        parts = [jax.lax.slice_in_dim(result, low, high, axis=axis) for low, high in bounds]
        result = jnp.concatenate([reduce(p, axis=axis, keepdims=True) for p in parts], axis=axis)
    return this.output(image.back(result.astype(image.array.dtype)))


def _pool(
    this: Layer, image: Image, size: Any, kind: str, stride: Any, padding: Any, whole: bool, ceil: bool, exclusive: bool
) -> Any:
    """Apply pooling to images or volumes, and record the result as output of the layer; see `pool2d`."""
    _check_kind(this, kind)
    dims = len(image.pixels)
    if whole:
        window = image.pixels
        strides = (1,) * dims
        pads = [(0, 0)] * dims
    else:
        window = sizes_of(this, "pool_size", size, dims)
        strides = sizes_of(this, "pool_stride", stride, dims)
        pads = _to_last_window(this, image, window, strides, paddings(this, padding, image, window, strides), ceil)
    x, axis, as_written = as_computed(image.array, image.channel_axis)
    layout = image.layout if axis == image.channel_axis else "NHWC"
    geometry = (window, strides, pads, layout)
    result = largest(x, *geometry) if kind == "max" else _mean(x, *geometry, exclusive)
    return this.output(image.back(as_written(result)))


def _mean(x: Any, window: Any, strides: Any, pads: Pairs, layout: str, exclusive: bool) -> jax.Array:
    """Compute the mean of the pixels in each window; `exclusive` counts only the pixels inside the image."""
    sizes = (by_layout(layout, window, 1, 1), by_layout(layout, strides, 1, 1), by_layout(layout, pads, (0, 0), (0, 0)))
    cells = wide(x)
    zero = np.array(0, cells.dtype)
    total = jax.lax.reduce_window(cells, zero, jax.lax.add, *sizes)
    if not exclusive:
        return (total / math.prod(window)).astype(x.dtype)
    inside = jnp.ones([1 if axis in "NC" else size for axis, size in zip(layout, x.shape, strict=True)], cells.dtype)
    return (total / jax.lax.reduce_window(inside, zero, jax.lax.add, *sizes)).astype(x.dtype)


def _to_last_window(this: Layer, image: Image, window: Any, strides: Any, pads: Pairs, ceil: bool) -> Pairs:
    """Return padding (before, after) for each spatial dimension, extended up to the end of the last window."""
    reached = []
    for size, k, s, (before, after) in zip(image.pixels, window, strides, pads, strict=True):
        rest = size + before + after - k
        # `rest` is the number of pixels after the first window; it is negative if the padded image is smaller than the
        # window. Fluid divides `rest` by the stride `s` in C++, where the division rounds towards 0. So Fluid computes
        # one window for some images that are smaller than the window: by less than `s` pixels, or with `ceil` by less
        # than `2 * s - 1` pixels.
        alone = this.frame.as_fluid and 0 < -rest < (2 * s - 1 if ceil else s)
        # `last` is the index of the first pixel of the last window.
        last = 0 if alone else (-(-rest // s) if ceil else rest // s) * s
        if (rest < 0 and not alone) or before >= k or last >= size + before:
            raise errors.ShapeError(
                f"{this.name}: a window of {list(window)} with stride {list(strides)} and padding {pads} does not fit "
                f"images of {list(image.pixels)} pixels; each window must cover some of them, as with "
                f"pool_size={min(k, size)}, pool_padding=0"
            )
        reached.append((before, max(after, last + k - size - before)))
    return reached


def _check_kind(this: Layer, kind: str) -> None:
    if kind not in ("max", "avg"):
        raise errors.ArgumentError(f'{this.name}: pool_type={kind!r}; expected "max" or "avg"')
