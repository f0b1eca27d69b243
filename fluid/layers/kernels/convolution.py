"""Convolutions: `plain_convolution`, which is XLA's own operation, and implementations that are faster on a CPU.

XLA on a CPU computes some gradients of convolutions much slower than the convolutions themselves. It also computes
grouped convolutions slower than dense convolutions with equally many channels. The implementations in this module
compute the same numbers faster. `benchmarks/KERNELS.md` has the figures of each implementation, and of implementations
that were tried and dropped.

Milliseconds of grouped convolutions of images of 14 x 14 x 128, batch 8, and filters of 3 x 3, forward and backward, by
`python benchmarks/kernels.py grouped --rounds 5` (jax 0.10.2, two cores, 24 November 2026):

| groups | `plain_convolution` | blocks of channels | shifted images | one dense convolution |
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
from fluid.layers.kernels.data_format import as_computed, by_layout, on_cpu

# `by_rows` computes only convolutions whose filters have at least this number of rows.
_MANY_ROWS = 5
# `by_rows`, a convolution of images, computes the gradient of the filters as another convolution if the images have at
# most this number of channels.
_FEW_CHANNELS = 4
# Each block in `blocks_of_channels` has at least this number of channels. Blocks of 16 channels take as long as blocks
# of 32 channels, and blocks of 64 channels take up to twice as long (jaxlib 0.10.2, two cores).
_BLOCK_CHANNELS = 32
# `blocks_of_channels` computes at most this number of blocks, because XLA compiles each 3 x 3 block with its gradients
# in about 0.2 s.
_MOST_BLOCKS = 16
# `shifted_images` computes only filters with at most this number of cells, 7 x 7. XLA compiles a 7 x 7 filter with its
# gradients in 1.5 s.
_MOST_CELLS = 49


class Geometry(NamedTuple):
    """The geometry of a convolution, with one entry for each spatial dimension.

    Attributes:
      strides: the distance between neighbouring windows.
      pads: pairs (before, after); a negative number crops.
      dilations: the distance between neighbouring cells (positions) of a filter.
      spread: the distance between neighbouring pixels of the input, for transposed convolutions: `lhs_dilation` in XLA.
      layout: the order of the dimensions of the images, for example "NHWC".
    """

    strides: Sequence[int]
    pads: Sequence[tuple[int, int]]
    dilations: Sequence[int]
    spread: Sequence[int]
    layout: str


_VALID = Geometry((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), "NHWC")

# The type of a function that convolves images with filters `[filters, channels, *window]`, without groups.
Dense = Callable[[jax.Array, jax.Array, Geometry], jax.Array]


def plain_convolution(x: jax.Array, filters: jax.Array, geometry: Geometry, groups: int = 1) -> jax.Array:
    """Compute a convolution with XLA's own operation, the reference for the faster implementations.

    Args:
      filters: `[filters, channels / groups, *window]`, of the dtype of `x`.
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


def convolution(x: jax.Array, filters: jax.Array, geometry: Geometry, groups: int, training: bool) -> jax.Array:
    """Compute a convolution with the fastest implementation for its shapes on this platform.

    Args:
      filters: `[filters, channels / groups, *window]`, of the dtype of `x`.
    """
    axis = geometry.layout.index("C")
    fits = on_cpu() and jnp.issubdtype(x.dtype, jnp.floating)
    # At inference, use `plain_convolution` for filters of size 1 x 1 x 1: for them, `volumes_by_depth` is not faster.
    if x.ndim == 5 and groups == 1 and fits and not core.axes_here() and (training or filters[0, 0].size > 1):
        volumes = volumes_by_depth(jnp.moveaxis(x, axis, -1), filters, geometry._replace(layout="NDHWC"), training)
        return jnp.moveaxis(volumes, -1, axis)
    images, axis, as_written = as_computed(x, axis, move=True)
    if axis != geometry.layout.index("C"):
        geometry = geometry._replace(layout="NHWC")
    dense: Dense = plain_convolution
    if training and fits:
        images = computed_once(images)
        if _grows(filters, geometry):
            dense = growing_convolution
        # Do not use `product_of_pixels` and `by_rows` on a mesh: each matrix product that sums over a sharded batch
        # would need a separate all-reduce between devices.
        if geometry.layout == "NHWC" and not any(map(any, geometry.pads)) and not core.axes_here():
            window, steps = filters.shape[2:], {*geometry.strides, *geometry.dilations}
            if window == (1, 1):
                dense = product_of_pixels
            elif groups == 1 and window[0] >= _MANY_ROWS and steps == {1}:
                return as_written(by_rows(images, filters))
    return as_written(grouped_convolution(images, filters, geometry, groups, dense))


def grouped_convolution(
    x: jax.Array,
    filters: jax.Array,
    geometry: Geometry,
    groups: int,
    dense: Dense = plain_convolution,
) -> jax.Array:
    """Compute a convolution in groups of channels, with the fastest implementation for its shapes on this platform.

    On a CPU, a convolution with one small filter for each channel becomes a sum of shifted images. Any other grouped
    convolution becomes one dense convolution for each block of channels, unless `geometry.spread` inserts zeros between
    the pixels. `benchmarks/KERNELS.md` has the figures. A NaN or an infinity in one channel can reach the other groups
    of its block, because the block's filter multiplies it by 0.

    Args:
      filters: `[filters, channels / groups, *window]`, of the dtype of `x`.

    Example:
      >>> geometry = Geometry((1, 1), [(1, 1), (1, 1)], (1, 1), (1, 1), "NHWC")
      >>> x, filters = jnp.ones((2, 4, 4, 6)), jnp.ones((6, 3, 3, 3))
      >>> grouped_convolution(x, filters, geometry, groups=2).shape
      (2, 4, 4, 6)
    """
    fits = x.dtype == filters.dtype and jnp.issubdtype(x.dtype, jnp.floating)
    if groups == 1:
        spreads = max(geometry.spread) > 1 and _grows(filters, geometry)
        return (growing_convolution if spreads and fits and on_cpu() else dense)(x, filters, geometry)
    if not on_cpu() or not fits:
        return plain_convolution(x, filters, geometry, groups)
    channels = x.shape[geometry.layout.index("C")]
    if groups == channels == len(filters) and math.prod(filters.shape[2:]) <= _MOST_CELLS:
        return shifted_images(x, filters, geometry)
    # A spread above 1 inserts zeros between the pixels. Then `blocks_of_channels` is slower than `plain_convolution`:
    # it takes 54 ms instead of 24 ms, forward and backward, with jax 0.10.2. This figure is for 64 channels of 14 x 14
    # pixels, spread 2, batch 8, filters of 4 x 4, and 8 groups.
    if max(geometry.spread) > 1:
        return plain_convolution(x, filters, geometry, groups)
    return blocks_of_channels(x, filters, geometry, groups, dense)


def _grows(filters: jax.Array, geometry: Geometry) -> bool:
    """Return whether `growing_convolution` is faster than `plain_convolution` in training on a CPU.

    The condition is that padding or spread (zeros between the pixels) makes the result larger than the images.
    """
    # Return True only for two spatial dimensions. For volumes of 8 x 14 x 14 x 32 with zeros between the voxels
    # (spread 2), `growing_convolution` is not faster than `plain_convolution`.
    return (
        len(geometry.strides) == 2
        and set(geometry.strides) == {1}
        and any(
            spread > 1 or sum(pad) > (cells - 1) * dilation
            for cells, pad, dilation, spread in zip(
                filters.shape[2:], geometry.pads, geometry.dilations, geometry.spread, strict=True
            )
        )
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def growing_convolution(x: jax.Array, filters: jax.Array, geometry: Geometry) -> jax.Array:
    """Compute a convolution larger than its images, with a gradient of the filters that is fast on a CPU.

    The gradient of the filters is itself a convolution, of the images with the cotangents of the result. In
    `plain_convolution`, the cotangents act as a filter that moves over the images, and this filter is larger than the
    images. In this function, the images act as the filter, and move over the cotangents. For this, the function
    transposes a strided convolution of the cotangents. In forward mode (`jax.jvp`), a tangent of the filters takes
    seven to twelve times as long as with `plain_convolution`.

    Milliseconds of transposed convolutions with stride 2, forward and backward, by
    `python benchmarks/survey.py conv2d_transpose` (jax 0.10.2, two cores, 24 November 2026):

    | filter, images, output channels | `plain_convolution` | `growing_convolution` |
    |---|---|---|
    | 4 x 4, 128 x 16 x 16, 64 | 299 | 22 |
    | 2 x 2, 128 x 28 x 28, 64 | 128 | 18 |

    Args:
      filters: `[filters, channels, *window]`, of the dtype of `x`.
    """
    return plain_convolution(x, filters, geometry)


@growing_convolution.defjvp
def _(
    geometry: Geometry, primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    x, filters = primals
    spans = [(cells - 1) * step for cells, step in zip(filters.shape[2:], geometry.dilations, strict=True)]
    pads = [(span - before, span - after) for span, (before, after) in zip(spans, geometry.pads, strict=True)]
    strided = geometry._replace(strides=geometry.spread, pads=pads, spread=geometry.strides)

    def gradient(slope: jax.Array) -> jax.Array:
        """Return the gradient of a convolution's filters for `slope`, the cotangents of the convolution's result."""

        def transposed(filters: jax.Array) -> jax.Array:
            turned = jnp.flip(filters, tuple(range(2, filters.ndim)))
            return plain_convolution(slope, jnp.swapaxes(turned, 0, 1), strided)

        return jax.linear_transpose(transposed, filters)(x)[0]

    result = growing_convolution(x, filters, geometry)
    # `by_filters` is the part of the result's tangent that the tangent of the filters causes. The transpose of
    # `gradient` computes `by_filters`. In reverse mode, JAX transposes this operation again, and so runs `gradient`
    # itself.
    (by_filters,) = jax.linear_transpose(gradient, result)(tangents[1])
    return result, growing_convolution(tangents[0], filters, geometry) + by_filters


def shifted_images(x: jax.Array, filters: jax.Array, geometry: Geometry) -> jax.Array:
    """Compute a depthwise convolution as a sum of shifted images, each multiplied by one number of each filter.

    The function first sums the shifted images of each filter row, and then sums the rows. Three blocks, each of a
    depthwise convolution, batch normalisation and a 1 x 1 convolution, take 12 ms with this order of sums. They took 28
    ms with one sum over all cells of the filter (jax 0.10.2).
    """
    sum_dtype = jnp.promote_types(x.dtype, jnp.float32)
    padding = [(*pad, spread - 1) for pad, spread in zip(geometry.pads, geometry.spread, strict=True)]
    zero, none = jnp.zeros((), sum_dtype), (0, 0, 0)
    padded = jax.lax.pad(x.astype(sum_dtype), zero, by_layout(geometry.layout, padding, none, none))
    window = filters.shape[2:]
    sizes = [size for size, axis in zip(padded.shape, geometry.layout, strict=True) if axis not in "NC"]

    def under(cell: tuple[int | None, ...], images: jax.Array) -> jax.Array:
        """Return the pixels of `images` that one number of the filter multiplies, one pixel for each window.

        `cell` is the position of this number in the filter, one index for each spatial dimension. None leaves a
        dimension of the images unsliced.
        """
        slices = [
            slice(None) if i is None else slice(i * dilation, size - (cells - 1 - i) * dilation, stride)
            for i, size, cells, dilation, stride in zip(
                cell, sizes, window, geometry.dilations, geometry.strides, strict=True
            )
        ]
        return images[by_layout(geometry.layout, slices, slice(None), slice(None))]

    def row(before: tuple[int, ...]) -> jax.Array:
        """Multiply shifted images by the numbers in one row of the filter, and return the sum of the products.

        `before` is the index of the row in all spatial dimensions except the last.
        """
        products = []
        for column in range(window[-1]):
            weights = filters[(slice(None), 0, *before, column)].astype(sum_dtype)
            weights = weights.reshape(by_layout(geometry.layout, [1] * len(window), -1, 1))
            products.append(under((*[None] * len(before), column), padded) * weights)
        return under((*before, None), functools.reduce(operator.add, products))

    rows = map(row, itertools.product(*map(range, window[:-1])))
    return functools.reduce(operator.add, rows).astype(x.dtype)


def volumes_by_depth(x: jax.Array, filters: jax.Array, geometry: Geometry, training: bool) -> jax.Array:
    """Compute a 3-D convolution as a 2-D convolution, with slices of the depth concatenated along the channels.

    XLA on a CPU has fast convolutions in 2-D only. With `plain_convolution`, filters of 3 x 3 x 3 on 16 x 56 x 56
    voxels, from 16 to 32 channels, take 77 ms, and 340 ms with the gradient. With this function, they take 36 and 114
    ms (`python benchmarks/survey.py conv3d`, jax 0.10.2, two cores, 24 November 2026).

    Args:
      x: `[batch, depth, height, width, channels]`.
      filters: `[filters, channels, *window]`, of the dtype of `x`.
    """
    (cells, *window), (pad, *pads) = filters.shape[2:], geometry.pads
    (stride, *strides), (dilation, *dilations) = geometry.strides, geometry.dilations
    none = (0, 0, 0)
    padded = jax.lax.pad(x, jnp.zeros((), x.dtype), (none, (*pad, 0), none, none, none))
    depth = (padded.shape[1] - (cells - 1) * dilation - 1) // stride + 1
    starts = range(0, cells * dilation, dilation)
    slices = [padded[:, i : i + (depth - 1) * stride + 1 : stride] for i in starts]
    images = jnp.concatenate(slices, axis=-1).reshape(x.shape[0] * depth, *x.shape[2:4], -1)
    flat = filters.swapaxes(1, 2).reshape(len(filters), images.shape[-1], *window)
    flat_geometry = Geometry(strides, pads, dilations, (1, 1), "NHWC")
    result = convolution(images, flat, flat_geometry, 1, training)
    return result.reshape(x.shape[0], depth, *result.shape[1:])


def blocks_of_channels(
    x: jax.Array,
    filters: jax.Array,
    geometry: Geometry,
    groups: int,
    dense: Dense = plain_convolution,
) -> jax.Array:
    """Compute a grouped convolution as one dense convolution for each block of channels.

    Each block holds one or more groups. The filters of its groups become the diagonal blocks of one dense filter.
    """
    axis = geometry.layout.index("C")
    blocks = _number_of_blocks(x.shape[axis], groups)
    results = [
        dense(images, _block_diagonal(own, groups // blocks), geometry)
        for images, own in zip(jnp.split(x, blocks, axis), jnp.split(filters, blocks), strict=True)
    ]
    return jnp.concatenate(results, axis)


def _number_of_blocks(channels: int, groups: int) -> int:
    """Return the number of blocks into which `blocks_of_channels` divides the channels of a grouped convolution.

    The number divides `groups`. It is the largest number for which there are at most `_MOST_BLOCKS` blocks, and each
    block has at least `_BLOCK_CHANNELS` channels. If there is no such number, the result is 1.
    """
    most = min(groups, _MOST_BLOCKS, max(1, channels // _BLOCK_CHANNELS))
    return max(blocks for blocks in range(1, most + 1) if groups % blocks == 0)


def _block_diagonal(filters: jax.Array, groups: int) -> jax.Array:
    """Convert the filters of a grouped convolution to equivalent filters of a convolution without groups.

    The filters of `groups` groups, `[filters, channels, *window]`, become `[filters, groups * channels, *window]`, with
    zeros for the channels of other groups.
    """
    count, channels, *window = filters.shape
    own = filters.reshape(groups, count // groups, 1, channels, *window)
    diagonal = jnp.eye(groups, dtype=bool).reshape(groups, 1, groups, 1, *[1] * len(window))
    return jnp.where(diagonal, own, jnp.zeros((), filters.dtype)).reshape(count, groups * channels, *window)


@jax.custom_jvp
def computed_once(array: jax.Array) -> jax.Array:
    """Return an equal array that XLA computes once, for a convolution and for the gradient of its filters.

    The gradient needs a copy of the input of the convolution in another order. XLA on a CPU fuses this copy with the
    computation of the input, and so repeats all operations since the preceding convolution. XLA does not fuse an
    operation that reads a large array several times. The `select` in this function does so, and changes no number. Five
    residual blocks of 32 x 32 x 16, batch 32, take 145 ms with this function, and 181 ms without it (jax 0.10.2,
    `benchmarks/KERNELS.md`). The test `test_the_input_of_a_convolution_is_computed_once` fails once XLA no longer
    repeats the operations; then this function can go.
    """
    return jax.lax.select(array != array, -array, array)


@computed_once.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return computed_once(*primals), tangents[0]


def product_of_pixels(x: jax.Array, filters: jax.Array, geometry: Geometry) -> jax.Array:
    """Convolve images `[batch, height, width, channels]` with 1 x 1 filters, as one matrix product."""
    chosen = x[:, :: geometry.strides[0], :: geometry.strides[1]]
    product = chosen.reshape(-1, x.shape[3]) @ filters[:, :, 0, 0].T
    return product.reshape(*chosen.shape[:3], -1)


@jax.custom_vjp
def by_rows(x: jax.Array, filters: jax.Array) -> jax.Array:
    """Convolve images `[batch, height, width, channels]` without padding, with a gradient by rows of the filter.

    For filters of `r` rows, the gradient of the images convolves the cotangents with `r` one-row filters, and adds the
    results at `r` offsets. The gradient of the filters is `r` matrix products. For 5 x 5 filters on 12 x 12 x 20
    images, 50 output channels and batch 64, `plain_convolution` takes 20 ms, and this function 12 ms (jax 0.10.2,
    `python benchmarks/kernels.py "convolution 5"`). Remove this function once the row "XLA" of that benchmark is as
    fast.
    """
    return plain_convolution(x, filters, _VALID)


def _forward(x: jax.Array, filters: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return by_rows(x, filters), (x, filters)


def _backward(saved: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, filters = saved
    slope = computed_once(slope)
    if x.shape[-1] <= _FEW_CHANNELS:
        (filter_gradient,) = jax.linear_transpose(lambda filters: plain_convolution(x, filters, _VALID), filters)(slope)
    else:
        filter_gradient = _filter_gradient(x, filters.shape, slope)
    return _image_gradient(filters, slope), filter_gradient


by_rows.defvjp(_forward, _backward)


def _image_gradient(filters: jax.Array, slope: jax.Array) -> Any:
    """Return the gradient of `by_rows` for its images, `[batch, height, width, channels]`.

    Args:
      filters: `[filters, channels, rows, columns]`.
      slope: cotangents of the result, `[batch, height', width', filters]`.
    """
    count, channels, rows, columns = filters.shape
    batch, high, wide, _ = slope.shape
    flat = filters[:, :, :, ::-1].transpose(3, 0, 2, 1).reshape(1, columns, count, rows * channels)
    by_row = jax.lax.conv_general_dilated(
        slope,
        flat,
        (1, 1),
        [(0, 0), (columns - 1, columns - 1)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    ).reshape(batch, high, wide + columns - 1, rows, channels)
    none = (0, 0, 0)
    zero = jnp.zeros((), slope.dtype)
    return sum(jax.lax.pad(by_row[:, :, :, i], zero, (none, (i, rows - 1 - i, 0), none, none)) for i in range(rows))


def _filter_gradient(x: jax.Array, shape: tuple[int, ...], slope: jax.Array) -> jax.Array:
    """Return the gradient of the convolution `by_rows` for its filters, `[filters, channels, rows, columns]`.

    Args:
      x: the images, `[batch, height, width, channels]`.
      slope: cotangents of the result, `[batch, height', width', filters]`.
    """
    count, channels, rows, columns = shape
    _, high, wide, _ = slope.shape
    side_by_side = computed_once(jnp.concatenate([x[:, :, j : j + wide] for j in range(columns)], axis=-1))
    flat = slope.reshape(-1, count).T
    products = [flat @ side_by_side[:, i : i + high].reshape(-1, columns * channels) for i in range(rows)]
    return jnp.stack([p.reshape(count, columns, channels) for p in products]).transpose(1, 3, 0, 2)
