"""Pooling of regions of feature maps to a fixed size, for two-stage detectors."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, describe, layer, like
from fluid.layers.detection.region import regions
from fluid.layers.functional import activation
from fluid.layers.kernels.platform import on_cpu
from fluid.layers.kernels.regions import largest_of_bins

# Coordinates are clipped to this limit before their conversion to integers, which could overflow.
_FAR = 2.0**20


@layer
def roi_pool(
    input: core.Value,
    rois: core.Value,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    rois_lod: core.Value | None = None,
    name: str | None = None,
    rois_num: core.Value | None = None,
) -> Any:
    """Divide each region into bins, and compute the maximum of each bin: RoI max pooling (Girshick, 2015).

    Regions are rounded to whole pixels of the feature map, and bins are enlarged to whole pixels.

    Args:
      input: feature maps `[batch, channels, height, width]`.
      rois: regions in pixels of the image, which include their last pixel: a SequenceBatch or an array,
        `[batch, regions, 4]`. They have no gradient.
      pooled_height: the number of bins from top to bottom.
      pooled_width: the number of bins from left to right.
      spatial_scale: the size of the feature map divided by the size of the image.
      rois_lod: not supported; a SequenceBatch has the number of regions in each image.
      name: name of the layer; by default `roi_pool_N`.
      rois_num: not supported, like `rois_lod`.

    Returns:
      `[batch, regions, channels, pooled_height, pooled_width]`, a SequenceBatch if `rois` is one. Bins outside of
      the feature map are 0.

    Raises:
      ArgumentError: a size is not positive, or `rois_lod` or `rois_num` was given.
      ShapeError: the input does not have four dimensions, or does not fit `rois`.

    Example:
      >>> import fluid
      >>> def program():
      ...     features = fluid.layers.data("features", shape=[1, 2, 4])
      ...     rois = fluid.layers.data("rois", shape=[4], lod_level=1)
      ...     return fluid.layers.roi_pool(features, rois, pooled_height=1, pooled_width=2)
      >>> feed = {"features": [[[[1, 2, 3, 4], [5, 6, 7, 8]]]], "rois": [[[0, 0, 3, 0], [0, 0, 3, 1]]]}
      >>> fluid.Session(program).run(program, feed)[0].rows()[0].tolist()
      [[[[2.0, 4.0]]], [[[6.0, 8.0]]]]
    """
    this = Layer("roi_pool", name)
    pooled = (pooled_height, pooled_width)
    given = regions(this, input, rois, pooled, spatial_scale, rois_lod=rois_lod, rois_num=rois_num)

    def spans(box: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        x1, y1, x2, y2 = jnp.moveaxis(
            jnp.clip(activation("round")(box * given.scale), -_FAR, _FAR).astype(jnp.int32), -1, 0
        )
        return [
            _span(start, jnp.maximum(end - start + 1, 1), bins, size)
            for start, end, bins, size in zip((y1, x1), (y2, x2), given.pooled, given.pixels, strict=True)
        ]

    def pool(features: jax.Array, box: jax.Array) -> jax.Array:
        down, across = map(_covered, spans(box), given.pixels)
        return _largest(features, down, across)

    if not on_cpu(alone=True):
        return given.each(pool)
    results = largest_of_bins(given.features, *spans(given.boxes))
    return this.output(like(rois, results.astype(jnp.asarray(input).dtype)))


@layer
def roi_align(
    input: core.Value,
    rois: core.Value,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    name: str | None = None,
    rois_lod: core.Value | None = None,
    rois_num: core.Value | None = None,
) -> Any:
    """Average each bin of each region by bilinear interpolation: RoI align (He et al., 2017).

    The layer divides each region into bins, and interpolates the feature map at equally spaced points in each bin.
    Points less than one pixel outside of the feature map get the value of its edge, points further outside are 0.

    Args:
      input: feature maps `[batch, channels, height, width]`.
      rois: regions in pixels of the image: a SequenceBatch or an array, `[batch, regions, 4]`. They have no gradient.
        On the feature map they are at least one pixel wide and high.
      pooled_height: the number of bins from top to bottom.
      pooled_width: the number of bins from left to right.
      spatial_scale: the size of the feature map divided by the size of the image.
      sampling_ratio: the number of points in each bin in each direction; -1 for the width or height of the bin in
        pixels, rounded up.
      name: name of the layer; by default `roi_align_N`.
      rois_lod: not supported; a SequenceBatch has the number of regions in each image.
      rois_num: not supported, like `rois_lod`.

    Returns:
      `[batch, regions, channels, pooled_height, pooled_width]`, a SequenceBatch if `rois` is one.

    Raises:
      ArgumentError: a size is not positive, or `rois_lod` or `rois_num` was given.
      ShapeError: the input does not have four dimensions, or does not fit `rois`.

    Example:
      >>> import fluid
      >>> def program():
      ...     features = fluid.layers.data("features", shape=[1, 2, 4])
      ...     rois = fluid.layers.data("rois", shape=[4], lod_level=1)
      ...     return fluid.layers.roi_align(features, rois, pooled_height=1, pooled_width=2, sampling_ratio=1)
      >>> feed = {"features": [[[[1, 2, 3, 4], [5, 6, 7, 8]]]], "rois": [[[0, 0, 2, 1]]]}
      >>> fluid.Session(program).run(program, feed)[0].rows()[0].tolist()
      [[[[3.5, 4.5]]]]
    """
    this = Layer("roi_align", name)
    pooled = (pooled_height, pooled_width)
    given = regions(this, input, rois, pooled, spatial_scale, rois_lod=rois_lod, rois_num=rois_num)
    samples = None if sampling_ratio == -1 else core.whole_number(this.name, "sampling_ratio", sampling_ratio)

    def pool(features: jax.Array, box: jax.Array) -> jax.Array:
        x1, y1, x2, y2 = jax.lax.stop_gradient(box) * given.scale
        down, across = (
            _sampled(start, jnp.maximum(end - start, 1), bins, size, samples)
            for start, end, bins, size in zip((y1, x1), (y2, x2), given.pooled, given.pixels, strict=True)
        )
        return _weighted(features, down, across)

    return given.each(pool)


@layer
def psroi_pool(
    input: core.Value,
    rois: core.Value,
    output_channels: int,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    name: str | None = None,
) -> Any:
    """Average each bin of each region over its own channels: position-sensitive RoI pooling (Dai et al., 2016).

    Args:
      input: feature maps `[batch, output_channels * pooled_height * pooled_width, height, width]`.
      rois: regions in pixels of the image, which include their last pixel: a SequenceBatch or an array,
        `[batch, regions, 4]`. They have no gradient.
      output_channels: the number of channels of the result.
      spatial_scale: the size of the feature map divided by the size of the image.
      pooled_height: the number of bins from top to bottom.
      pooled_width: the number of bins from left to right.
      name: name of the layer; by default `psroi_pool_N`.

    Returns:
      `[batch, regions, output_channels, pooled_height, pooled_width]`, a SequenceBatch if `rois` is one. Bins
      outside of the feature map are 0.

    Raises:
      ArgumentError: a size is not positive.
      ShapeError: the input has another number of channels or dimensions, or does not fit `rois`.

    Example:
      >>> import fluid
      >>> def program():
      ...     features = fluid.layers.data("features", shape=[2, 1, 4])
      ...     rois = fluid.layers.data("rois", shape=[4], lod_level=1)
      ...     return fluid.layers.psroi_pool(features, rois, 1, 1.0, pooled_height=1, pooled_width=2)
      >>> feed = {"features": [[[[1, 2, 3, 4]], [[5, 6, 7, 8]]]], "rois": [[[0, 0, 3, 0]]]}
      >>> fluid.Session(program).run(program, feed)[0].rows()[0].tolist()
      [[[[1.5, 7.5]]]]
    """
    this = Layer("psroi_pool", name)
    given = regions(this, input, rois, (pooled_height, pooled_width), spatial_scale)
    channels = core.whole_number(this.name, "output_channels", output_channels)
    if given.features.shape[1] != channels * pooled_height * pooled_width:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} for output_channels={channels} and {pooled_height} x {pooled_width} "
            f"bins; expected a channel for each, as from "
            f"layers.conv2d(x, num_filters={channels * pooled_height * pooled_width}, filter_size=1)"
        )

    def pool(features: jax.Array, box: jax.Array) -> jax.Array:
        x1, y1, x2, y2 = activation("round")(jax.lax.stop_gradient(box))
        down, across = (
            _touched(start * given.scale, (end + 1) * given.scale, bins, size)
            for start, end, bins, size in zip((y1, x1), (y2, x2), given.pooled, given.pixels, strict=True)
        )
        own = features.reshape(channels, *given.pooled, *given.pixels)
        total = jnp.einsum("ph,qw,cpqhw->cpq", down.astype(own.dtype), across.astype(own.dtype), own)
        pixels = jnp.sum(down, axis=1)[:, None] * jnp.sum(across, axis=1)
        return total / jnp.maximum(pixels, 1)

    return given.each(pool)


@layer
def prroi_pool(
    input: core.Value,
    rois: core.Value,
    spatial_scale: float = 1.0,
    pooled_height: int = 1,
    pooled_width: int = 1,
    batch_roi_nums: core.Value | None = None,
    name: str | None = None,
) -> Any:
    """Average the interpolated feature map over each bin of each region: precise RoI pooling (Jiang et al., 2018).

    The feature map is interpolated bilinearly, and is 0 outside. The mean is an integral, divided by the area of the
    bin. Regions are not rounded, and have a gradient.

    Args:
      input: feature maps `[batch, channels, height, width]`.
      rois: regions in pixels of the image: a SequenceBatch or an array, `[batch, regions, 4]`.
      spatial_scale: the size of the feature map divided by the size of the image.
      pooled_height: the number of bins from top to bottom.
      pooled_width: the number of bins from left to right.
      batch_roi_nums: not supported; a SequenceBatch has the number of regions in each image.
      name: name of the layer; by default `prroi_pool_N`.

    Returns:
      `[batch, regions, channels, pooled_height, pooled_width]`, a SequenceBatch if `rois` is one; 0 for a region
      without an area.

    Raises:
      ArgumentError: a size is not positive, or `batch_roi_nums` was given.
      ShapeError: the input does not have four dimensions, or does not fit `rois`.

    Example:
      >>> import fluid
      >>> def program():
      ...     features = fluid.layers.data("features", shape=[1, 2, 4])
      ...     rois = fluid.layers.data("rois", shape=[4], lod_level=1)
      ...     return fluid.layers.prroi_pool(features, rois, pooled_height=1, pooled_width=2)
      >>> feed = {"features": [[[[1, 2, 3, 4], [5, 6, 7, 8]]]], "rois": [[[0, 0, 2, 1]]]}
      >>> fluid.Session(program).run(program, feed)[0].rows()[0].tolist()
      [[[[3.5, 4.5]]]]
    """
    this = Layer("prroi_pool", name)
    pooled = (pooled_height, pooled_width)
    given = regions(this, input, rois, pooled, spatial_scale, batch_roi_nums=batch_roi_nums)

    @jax.checkpoint  # the values kept for the gradient of a region are large, and cheap to recompute
    def pool(features: jax.Array, box: jax.Array) -> jax.Array:
        x1, y1, x2, y2 = box * given.scale
        down, across = (
            _integrated(start, end, bins, size)
            for start, end, bins, size in zip((y1, x1), (y2, x2), given.pooled, given.pixels, strict=True)
        )
        return _weighted(features, down, across)

    return given.each(pool)


def _weighted(features: jax.Array, down: jax.Array, across: jax.Array) -> jax.Array:
    """Compute sums `[channels, p, q]` of a feature map, weighted by rows `[p, height]` and columns `[q, width]`."""
    return jnp.einsum("ph,chq->cpq", down, jnp.einsum("qw,chw->chq", across, features))


def _span(start: jax.Array, length: jax.Array, bins: int, size: int) -> tuple[jax.Array, jax.Array]:
    """Return the first pixel of each bin and the pixel after its last one, for bins of `length` pixels in total.

    Args:
      start: the first pixel of the first bin, integers `[...]`.
      length: the number of pixels of all bins, integers `[...]`.
      bins: the number of bins.
      size: the height or width of the feature map.

    Returns:
      Integers `[..., bins]` from 0 to `size` each.
    """
    number = jnp.arange(bins)
    start, length = start[..., None], length[..., None]
    first, end = number * length // bins, -(-(number + 1) * length // bins)
    return jnp.clip(start + first, 0, size), jnp.clip(start + end, 0, size)


def _covered(span: tuple[jax.Array, jax.Array], size: int) -> jax.Array:
    """Return the mask `[bins, size]` of the pixels in each bin; `span` is the result of `_span` for one region."""
    first, end = span
    pixel = jnp.arange(size)
    return (pixel >= first[:, None]) & (pixel < end[:, None])


def _touched(start: jax.Array, end: jax.Array, bins: int, size: int) -> jax.Array:
    """Return the mask `[bins, size]` of the pixels that overlap each bin, for bins of equal width from start to end."""
    width = jnp.maximum(end - start, 0.1) / bins
    number = jnp.arange(bins)
    pixel = jnp.arange(size)
    first, last = jnp.floor(number * width + start), jnp.ceil((number + 1) * width + start)
    return (pixel >= first[:, None]) & (pixel < last[:, None])


def _largest(features: jax.Array, down: jax.Array, across: jax.Array) -> jax.Array:
    """Compute the maximum of each bin, `[channels, p, q]`, 0 for bins without pixels.

    Args:
      features: `[channels, height, width]`.
      down: the rows of each bin, bool `[p, height]`.
      across: the columns of each bin, bool `[q, width]`.
    """
    values = jax.lax.stop_gradient(features)
    columns = [jnp.argmax(jnp.where(mask, values, -jnp.inf), axis=2) for mask in across]
    # If all pixels of a bin are -inf, argmax returns pixel 0, which may be outside of the bin.
    column = jnp.maximum(jnp.stack(columns, axis=2), jnp.argmax(across, axis=1))
    best = jnp.where(across.any(1), jnp.take_along_axis(values, column, axis=2), -jnp.inf)
    row = jnp.stack([jnp.argmax(jnp.where(mask[:, None], best, -jnp.inf), axis=1) for mask in down], axis=1)
    row = jnp.maximum(row, jnp.argmax(down, axis=1)[:, None])
    places = row * features.shape[2] + jnp.take_along_axis(column, row, axis=1)
    picked = jnp.take_along_axis(features.reshape(len(features), -1), places.reshape(len(features), -1), axis=1)
    return jnp.where(down.any(1)[:, None] & across.any(1), picked.reshape(places.shape), 0)


def _sampled(start: jax.Array, length: jax.Array, bins: int, size: int, samples: int | None) -> jax.Array:
    """Compute the weight of each pixel in the mean of each bin over equally spaced points, `[bins, size]`.

    Args:
      start: the start of the first bin.
      length: the total length of all bins.
      bins: the number of bins.
      size: the height or width of the feature map.
      samples: the number of points in each bin; None for the length of a bin in pixels, rounded up.
    """
    width = length / bins
    pixel = jnp.arange(size)
    count = jnp.ceil(width) if samples is None else jnp.asarray(samples, width.dtype)
    first = start + jnp.arange(bins) * width + width / count / 2
    if samples is None:
        # The points of a bin are more than half a pixel apart, so at most five of them are near a pixel.
        step = jnp.where(count > 1, width / count, 1)
        number = jnp.floor((pixel - 1 - first[:, None]) / step)[..., None] + jnp.arange(6)
    else:
        step = width / count
        number = jnp.broadcast_to(jnp.arange(samples), (bins, size, samples))
    place = first[:, None, None] + number * step
    near = jnp.maximum(1 - jnp.abs(jnp.clip(place, 0, size - 1) - pixel[:, None]), 0)
    counted = (number >= 0) & (number < count) & (place >= -1) & (place <= size)
    return jnp.sum(jnp.where(counted, near, 0), axis=2) / count


def _integrated(start: jax.Array, end: jax.Array, bins: int, size: int) -> jax.Array:
    """Compute the weight `[bins, size]` of each pixel in the mean of each bin, an integral over interpolated pixels."""
    width = jnp.maximum(end - start, 0) / bins
    edges = start + jnp.arange(bins + 1) * width
    # The integral, up to each edge, of the triangle kernel that interpolates each pixel.
    away = jnp.clip(edges[:, None] - jnp.arange(size), -1, 1)
    up_to = away - away * jnp.abs(away) / 2
    return (up_to[1:] - up_to[:-1]) / jnp.where(width > 0, width, 1)
