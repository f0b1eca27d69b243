"""RoI pooling: layers that pool regions of feature maps to a fixed size, for two-stage object detectors.

The function `regions` checks the arguments of these layers. `Regions.each` applies a pooling function to each region.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, describe, layer, like, wide
from fluid.layers.detection.box import exact
from fluid.layers.functional import activation
from fluid.layers.image.spatial import image_of
from fluid.layers.kernels.data_format import on_cpu
from fluid.layers.kernels.pooling import largest_of_bins

# The number of regions that are pooled at once; the memory of intermediate results is proportional to this number.
_AT_ONCE = 16


class Regions(NamedTuple):
    """The checked arguments of a RoI pooling layer: feature maps, regions, and the size of the pooled regions.

    Attributes:
      this: the layer.
      features: the feature maps, `[batch, channels, height, width]`, in float32 or wider.
      boxes: the regions, `[batch, regions, 4]`, in pixels of the image.
      scale: the size of the feature map divided by the size of the image.
      pooled: height and width of a pooled region.
      given: the user's arguments `input` and `rois`, before conversion.
    """

    this: Layer
    features: jax.Array
    boxes: jax.Array
    scale: float
    pooled: tuple[int, int]
    given: tuple[Value, Value]

    @property
    def pixels(self) -> tuple[int, int]:
        """The height and width of the feature maps in pixels."""
        return self.features.shape[2], self.features.shape[3]

    def each(self, pool: Callable[[jax.Array, jax.Array], jax.Array]) -> Any:
        """Pool each region, and record the results as an output of the layer.

        Args:
          pool: a function from a feature map `[channels, height, width]` and a box `[4]` to the pooled region
            `[channels', pooled height, pooled width]`.

        Returns:
          `[batch, regions, channels', pooled height, pooled width]`, a SequenceBatch if the user's regions are one.
        """
        count = self.boxes.shape[1]
        chunks = -(-count // _AT_ONCE)
        # Regions are pooled in chunks of `_AT_ONCE` regions. Copies of the last region fill the last chunk, so that all
        # chunks have equal size. Then an exported program, which does not know the number of regions, adds numbers in
        # the same order as any other program.
        filled = jnp.arange(chunks * _AT_ONCE)

        def image(features: jax.Array, boxes: jax.Array) -> jax.Array:
            parts = jnp.take(boxes, filled, axis=0, mode="clip").reshape(chunks, _AT_ONCE, 4)
            pooled = jax.lax.map(jax.vmap(lambda box: pool(features, box)), parts)
            return jnp.take(
                pooled.reshape(chunks * _AT_ONCE, *pooled.shape[2:]), jnp.arange(count), axis=0, mode="clip"
            )

        results = jax.vmap(image)(self.features, self.boxes)
        features, rois = self.given
        return self.this.output(like(rois, results.astype(jnp.asarray(features).dtype)))


def regions(
    this: Layer,
    input: Value,
    rois: Value,
    pooled: tuple[int, int],
    scale: float,
    **counts: Any,
) -> Regions:
    """Check the arguments of a RoI pooling layer, and return them as `Regions`.

    Args:
      input: feature maps `[batch, channels, height, width]`.
      rois: a SequenceBatch or an array, `[batch, regions, 4]`.

    Raises:
      ArgumentError: a size is not positive, or one of `counts` is not None.
      ShapeError: the input does not have four dimensions, or does not fit `rois`.
    """
    features = wide(image_of(this, input, 4, "NCHW").array)
    boxes = exact(rois)
    given = next((argument for argument, value in counts.items() if value is not None), None)
    if given is not None:
        raise errors.ArgumentError(
            f"{this.name}: {given}= is not supported; give rois as a sequence batch, which has their number in "
            f'each image, as from layers.data("rois", shape=[4], lod_level=1)'
        )
    if boxes.ndim != 3 or boxes.shape[2] != 4 or boxes.shape[0] != features.shape[0]:
        raise errors.ShapeError(
            f"{this.name}: rois {describe(rois)} for feature maps {describe(input)}; expected the regions of each "
            f'image, [batch, regions, 4], as from layers.data("rois", shape=[4], lod_level=1)'
        )
    names = ("pooled_height", "pooled_width")
    high, broad = (core.whole_number(this.name, *pair) for pair in zip(names, pooled, strict=True))
    return Regions(this, features, boxes, float(scale), (high, broad), (input, rois))


# Coordinates are clipped to the range from `-_FAR` to `_FAR`, so that their conversion to integers does not overflow.
_FAR = 2.0**20


@layer
def roi_pool(
    input: Value,
    rois: Value,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    rois_lod: Value | None = None,
    name: str | None = None,
    rois_num: Value | None = None,
) -> Any:
    """Apply RoI max pooling (Girshick, 2015): divide each region into bins, and compute the maximum of each bin.

    Regions are rounded to whole pixels of the feature map, and bins are enlarged to whole pixels.

    Args:
      input: feature maps `[batch, channels, height, width]`.
      rois: regions in pixels of the image, whose width is `x2 - x1 + 1`: a SequenceBatch or an array,
        `[batch, regions, 4]`. They have no gradient.
      pooled_height: the number of bins from top to bottom.
      pooled_width: the number of bins from left to right.
      spatial_scale: the size of the feature map divided by the size of the image.
      rois_lod: not supported; use a SequenceBatch as `rois`, which has the number of regions in each image.
      name: name of the layer; by default `roi_pool_N`.
      rois_num: not supported; use a SequenceBatch as `rois`.

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
    input: Value,
    rois: Value,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    name: str | None = None,
    rois_lod: Value | None = None,
    rois_num: Value | None = None,
) -> Any:
    """Apply RoI align (He et al., 2017): average interpolated values of the feature map in each bin of each region.

    The layer divides each region into bins, and interpolates the feature map bilinearly at equally spaced points in
    each bin. Points at most one pixel outside of the feature map get the value of its edge. Points further outside are
    0.

    Args:
      input: feature maps `[batch, channels, height, width]`.
      rois: regions in pixels of the image: a SequenceBatch or an array, `[batch, regions, 4]`. They have no gradient.
        A width or height of less than one pixel of the feature map is enlarged to one pixel.
      pooled_height: the number of bins from top to bottom.
      pooled_width: the number of bins from left to right.
      spatial_scale: the size of the feature map divided by the size of the image.
      sampling_ratio: the number of points in each bin in each direction; -1 for the width or height of the bin in
        pixels, rounded up.
      name: name of the layer; by default `roi_align_N`.
      rois_lod: not supported; use a SequenceBatch as `rois`, which has the number of regions in each image.
      rois_num: not supported; use a SequenceBatch as `rois`.

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
    input: Value,
    rois: Value,
    output_channels: int,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    name: str | None = None,
) -> Any:
    """Apply position-sensitive RoI pooling (Dai et al., 2016): average each bin of each region over its own channels.

    The bin at position `(p, q)` of output channel `c` reads only input channel
    `(c * pooled_height + p) * pooled_width + q`.

    Args:
      input: feature maps `[batch, output_channels * pooled_height * pooled_width, height, width]`.
      rois: regions in pixels of the image, whose width is `x2 - x1 + 1`: a SequenceBatch or an array,
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
    input: Value,
    rois: Value,
    spatial_scale: float = 1.0,
    pooled_height: int = 1,
    pooled_width: int = 1,
    batch_roi_nums: Value | None = None,
    name: str | None = None,
) -> Any:
    """Apply precise RoI pooling (Jiang et al., 2018): average the interpolated feature map over each bin exactly.

    The feature map is interpolated bilinearly, and is 0 outside of its bounds. The mean is an exact integral over the
    bin, divided by the area of the bin. Regions are not rounded, and have a gradient.

    Args:
      input: feature maps `[batch, channels, height, width]`.
      rois: regions in pixels of the image: a SequenceBatch or an array, `[batch, regions, 4]`.
      spatial_scale: the size of the feature map divided by the size of the image.
      pooled_height: the number of bins from top to bottom.
      pooled_width: the number of bins from left to right.
      batch_roi_nums: not supported; use a SequenceBatch as `rois`, which has the number of regions in each image.
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

    # `jax.checkpoint` recomputes the intermediate values for the gradient, because they are large, but cheap to
    # compute.
    @jax.checkpoint
    def pool(features: jax.Array, box: jax.Array) -> jax.Array:
        x1, y1, x2, y2 = box * given.scale
        down, across = (
            _integrated(start, end, bins, size)
            for start, end, bins, size in zip((y1, x1), (y2, x2), given.pooled, given.pixels, strict=True)
        )
        return _weighted(features, down, across)

    return given.each(pool)


def _weighted(features: jax.Array, down: jax.Array, across: jax.Array) -> jax.Array:
    """Compute weighted sums of a feature map, one for each bin.

    Args:
      features: `[channels, height, width]`.
      down: the weights of the rows, `[p, height]`.
      across: the weights of the columns, `[q, width]`.

    Returns:
      `[channels, p, q]`.
    """
    return jnp.einsum("ph,chq->cpq", down, jnp.einsum("qw,chw->chq", across, features))


def _span(start: jax.Array, length: jax.Array, bins: int, size: int) -> tuple[jax.Array, jax.Array]:
    """Divide a range of pixels into bins, and return the bounds of each bin.

    Args:
      start: the index of the first pixel of the range, integers `[...]`.
      length: the number of pixels in the range, integers `[...]`.

    Returns:
      The index of the first pixel of each bin, and the index after its last pixel, clipped to the range from 0 to
      `size`: integers `[..., bins]` each.
    """
    number = jnp.arange(bins)
    start, length = start[..., None], length[..., None]
    first, end = number * length // bins, -(-(number + 1) * length // bins)
    return jnp.clip(start + first, 0, size), jnp.clip(start + end, 0, size)


def _covered(span: tuple[jax.Array, jax.Array], size: int) -> jax.Array:
    """Return a mask `[bins, size]` of the pixels in each bin (part) of a region, along its height or width.

    The argument `span`, the result of `_span`, has the first pixel of each bin, and the pixel after its last one.
    """
    first, end = span
    pixel = jnp.arange(size)
    return (pixel >= first[:, None]) & (pixel < end[:, None])


def _touched(start: jax.Array, end: jax.Array, bins: int, size: int) -> jax.Array:
    """Divide the range from `start` to `end` into equal bins, and return a mask of the pixels that overlap each bin.

    Returns:
      bool `[bins, size]`.
    """
    width = jnp.maximum(end - start, 0.1) / bins
    number = jnp.arange(bins)
    pixel = jnp.arange(size)
    first, last = jnp.floor(number * width + start), jnp.ceil((number + 1) * width + start)
    return (pixel >= first[:, None]) & (pixel < last[:, None])


def _largest(features: jax.Array, down: jax.Array, across: jax.Array) -> jax.Array:
    """Compute the maximum of each bin, `[channels, p, q]`; it is 0 for bins without pixels.

    Args:
      features: `[channels, height, width]`.
      down: bool `[p, height]`: the rows of the feature map that belong to each row of bins.
      across: bool `[q, width]`: the columns of the feature map that belong to each column of bins.
    """
    values = jax.lax.stop_gradient(features)
    columns = [jnp.argmax(jnp.where(mask, values, -jnp.inf), axis=2) for mask in across]
    # If all pixels of a bin are -inf, argmax returns column 0, which may be outside of the bin. The maximum with the
    # first column of the bin corrects this.
    column = jnp.maximum(jnp.stack(columns, axis=2), jnp.argmax(across, axis=1))
    best = jnp.where(across.any(1), jnp.take_along_axis(values, column, axis=2), -jnp.inf)
    row = jnp.stack([jnp.argmax(jnp.where(mask[:, None], best, -jnp.inf), axis=1) for mask in down], axis=1)
    row = jnp.maximum(row, jnp.argmax(down, axis=1)[:, None])
    places = row * features.shape[2] + jnp.take_along_axis(column, row, axis=1)
    picked = jnp.take_along_axis(features.reshape(len(features), -1), places.reshape(len(features), -1), axis=1)
    return jnp.where(down.any(1)[:, None] & across.any(1), picked.reshape(places.shape), 0)


def _sampled(start: jax.Array, length: jax.Array, bins: int, size: int, samples: int | None) -> jax.Array:
    """Compute the weights of the pixels in RoI align along one dimension: each bin averages interpolated points.

    Returns:
      The weight of each pixel in the mean of each bin, `[bins, size]`.
    """
    width = length / bins
    pixel = jnp.arange(size)
    count = jnp.ceil(width) if samples is None else jnp.asarray(samples, width.dtype)
    first = start + jnp.arange(bins) * width + width / count / 2
    if samples is None:
        # Neighbouring sampling points of a bin are more than half a pixel apart. A point reads only pixels at a
        # distance of at most one pixel. So for each pixel, six points need to be considered.
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
    """Compute the weights of the pixels in precise RoI pooling along one dimension: each bin averages by an integral.

    Returns:
      The weight of each pixel in the mean of each bin, `[bins, size]`.
    """
    width = jnp.maximum(end - start, 0) / bins
    edges = start + jnp.arange(bins + 1) * width
    # A bin is the range between two neighbouring `edges`. In linear interpolation, the weight of a pixel falls from 1
    # at the pixel to 0 at a distance of one pixel. `up_to` is the integral of this weight from the pixel to each edge.
    away = jnp.clip(edges[:, None] - jnp.arange(size), -1, 1)
    up_to = away - away * jnp.abs(away) / 2
    return (up_to[1:] - up_to[:-1]) / jnp.where(width > 0, width, 1)
