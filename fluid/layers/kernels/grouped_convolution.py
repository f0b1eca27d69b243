"""Grouped and depthwise convolutions on a CPU.

XLA for CPUs computes the gradients of grouped convolutions slowly. Two other forms of the same sum are faster, and JAX
differentiates and batches both without further rules. Milliseconds of a CPU for images of 14 x 14 x 128, batch 8, and
filters of 3 x 3, forward and backward, by `python benchmarks/kernels.py grouped --rounds 5` (jax 0.10.2, two cores,
24 November 2026):

| groups | plain form | blocks of channels | shifted images | one dense convolution |
|---|---|---|---|---|
| 4 | 127.3 | 4.1 | | 14.2 |
| 32 | 929.2 | 4.2 | | 14.4 |
| 128 | 15.6 | 4.1 | 1.8 | 14.5 |
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core

# With jaxlib 0.10.2 on two cores, blocks of 16 channels take as long as blocks of 32, and blocks of 64 up to twice.
_BLOCK_CHANNELS = 32  # at least, in each dense convolution
_MOST_BLOCKS = 16  # XLA compiles one block of 3 x 3 cells and its gradients in about 0.2 s
_MOST_CELLS = 49  # of a depthwise filter, as in 7 x 7: XLA compiles them and their gradients in about 1.5 s


class Geometry(NamedTuple):
    """The geometry of a convolution, with one entry for each dimension of pixels.

    Attributes:
      strides: the distance between neighbouring windows.
      pads: pairs (before, after); a negative number crops.
      dilations: the distance between neighbouring cells of a filter.
      spread: the distance between neighbouring pixels of the input, for transposed convolutions.
      layout: of the images, for example "NHWC".
    """

    strides: Sequence[int]
    pads: Sequence[tuple[int, int]]
    dilations: Sequence[int]
    spread: Sequence[int]
    layout: str


# A convolution of images with filters `[filters, channels, *window]` in one group.
Dense = Callable[[jax.Array, jax.Array, Geometry], jax.Array]


def plain_convolution(x: jax.Array, filters: jax.Array, geometry: Geometry, groups: int = 1) -> jax.Array:
    """Compute a convolution in the form of XLA: the reference for all other forms.

    Args:
      x: images in the layout of `geometry`, with `channels` channels.
      filters: `[filters, channels / groups, *window]`, of the dtype of `x`.
      geometry: strides, padding, dilations and layout.
      groups: the number of groups of channels; divides `channels` and `filters`.

    Returns:
      Images in the same layout, with one channel for each filter.
    """
    return jax.lax.conv_general_dilated(
        x,
        filters,
        geometry.strides,
        geometry.pads,
        lhs_dilation=geometry.spread,
        rhs_dilation=geometry.dilations,
        dimension_numbers=(geometry.layout, "OI" + geometry.layout.strip("N").replace("C", ""), geometry.layout),
        feature_group_count=groups,
    )


def grouped_convolution(
    x: jax.Array,
    filters: jax.Array,
    geometry: Geometry,
    groups: int,
    dense: Dense = plain_convolution,
) -> jax.Array:
    """Compute a convolution in groups of channels, in the fastest form for its shapes on this platform.

    On a CPU, one filter for each channel becomes a sum of shifted images; more filters become dense convolutions of
    blocks of channels, except for spread images. `benchmarks/KERNELS.md` has the figures. A NaN or an infinity of one
    channel can reach the other groups of its block, because zeros of a filter multiply it.

    Args:
      x: images in the layout of `geometry`, with `channels` channels.
      filters: `[filters, channels / groups, *window]`, of the dtype of `x`.
      geometry: strides, padding, dilations and layout.
      groups: the number of groups of channels; divides `channels` and `filters`.
      dense: computes a convolution with one group.

    Returns:
      The images that `plain_convolution` returns, up to rounding.

    Example:
      >>> geometry = Geometry((1, 1), [(1, 1), (1, 1)], (1, 1), (1, 1), "NHWC")
      >>> x, filters = jnp.ones((2, 4, 4, 6)), jnp.ones((6, 3, 3, 3))
      >>> grouped_convolution(x, filters, geometry, groups=2).shape
      (2, 4, 4, 6)
    """
    if groups == 1:
        return dense(x, filters, geometry)
    fits = x.dtype == filters.dtype and jnp.issubdtype(x.dtype, jnp.floating)
    if jax.default_backend() != "cpu" or not fits or core.inspecting():
        return plain_convolution(x, filters, geometry, groups)
    channels = x.shape[geometry.layout.index("C")]
    if groups == channels == len(filters) and math.prod(filters.shape[2:]) <= _MOST_CELLS:
        return shifted_images(x, filters, geometry)
    # For spread images XLA has no fast dense form: 64 channels of 14 x 14 spread by 2, batch 8, filters of 4 x 4, in
    # 8 groups take 24 ms, and blocks 54 (jax 0.10.2, forward and backward).
    if max(geometry.spread) > 1:
        return plain_convolution(x, filters, geometry, groups)
    return blocks_of_channels(x, filters, geometry, groups, dense)


def shifted_images(x: jax.Array, filters: jax.Array, geometry: Geometry) -> jax.Array:
    """Compute a depthwise convolution as a sum of shifted images, each times one number of each filter.

    The images of one row of a filter are added first, then the rows. In three blocks of a depthwise convolution, batch
    normalisation and a convolution of one pixel, one sum over all cells took 28 ms, and this sum 12 (jax 0.10.2).
    """
    sum_dtype = jnp.promote_types(x.dtype, jnp.float32)
    padding = [(*pad, spread - 1) for pad, spread in zip(geometry.pads, geometry.spread, strict=True)]
    zero, none = jnp.zeros((), sum_dtype), (0, 0, 0)
    padded = jax.lax.pad(x.astype(sum_dtype), zero, _by_layout(geometry, padding, none, none))
    window = filters.shape[2:]
    sizes = [size for size, axis in zip(padded.shape, geometry.layout, strict=True) if axis not in "NC"]

    def under(cell: tuple[int | None, ...], images: jax.Array) -> jax.Array:
        """Return the pixels under one cell of the filters, in each dimension in which `cell` has an index."""
        slices = [
            slice(None) if i is None else slice(i * dilation, size - (cells - 1 - i) * dilation, stride)
            for i, size, cells, dilation, stride in zip(
                cell, sizes, window, geometry.dilations, geometry.strides, strict=True
            )
        ]
        return images[_by_layout(geometry, slices, slice(None), slice(None))]

    def row(before: tuple[int, ...]) -> jax.Array:
        """Return the sum over one row of cells, of which `before` are the first indices."""
        products = []
        for column in range(window[-1]):
            weights = filters[(slice(None), 0, *before, column)].astype(sum_dtype)
            weights = weights.reshape(_by_layout(geometry, [1] * len(window), 1, -1))
            products.append(under((*[None] * len(before), column), padded) * weights)
        return under((*before, None), functools.reduce(operator.add, products))

    rows = map(row, itertools.product(*map(range, window[:-1])))
    return functools.reduce(operator.add, rows).astype(x.dtype)


def _by_layout(geometry: Geometry, pixels: Sequence[Any], batch: Any, channels: Any) -> tuple[Any, ...]:
    """Return one setting for each dimension of the images, in the order of the layout."""
    settings = list(pixels)
    settings.insert(geometry.layout.index("C") - 1, channels)
    return batch, *settings


def blocks_of_channels(
    x: jax.Array,
    filters: jax.Array,
    geometry: Geometry,
    groups: int,
    dense: Dense = plain_convolution,
) -> jax.Array:
    """Compute a grouped convolution as dense convolutions of blocks of channels, side by side.

    Each block holds one group, or several groups whose filters lie on the diagonal of one dense filter.
    """
    axis = geometry.layout.index("C")
    blocks = _number_of_blocks(x.shape[axis], groups)
    results = [
        dense(images, _block_diagonal(own, groups // blocks), geometry)
        for images, own in zip(jnp.split(x, blocks, axis), jnp.split(filters, blocks), strict=True)
    ]
    return jnp.concatenate(results, axis)


def _number_of_blocks(channels: int, groups: int) -> int:
    """Return the largest divisor of `groups` with enough channels in each block, and with few blocks to compile."""
    most = min(groups, _MOST_BLOCKS, max(1, channels // _BLOCK_CHANNELS))
    return max(blocks for blocks in range(1, most + 1) if groups % blocks == 0)


def _block_diagonal(filters: jax.Array, groups: int) -> jax.Array:
    """Return dense filters `[filters, groups * channels, *window]`, zero outside the channels of their group."""
    count, channels, *window = filters.shape
    own = filters.reshape(groups, count // groups, 1, channels, *window)
    diagonal = jnp.eye(groups, dtype=bool).reshape(groups, 1, groups, 1, *[1] * len(window))
    return jnp.where(diagonal, own, jnp.zeros((), filters.dtype)).reshape(count, groups * channels, *window)
