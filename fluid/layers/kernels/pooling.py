"""Max pooling: the maximum of the pixels under each window, and in each bin of image regions.

The layer `roi_pool` divides regions of images into bins. On a GPU or TPU, the layer makes a mask of each bin, and so
compares each bin with the whole image. On a CPU, the loop of `largest_of_bins` reads only the pixels of each bin, for
all channels at once, so its time grows with the area of the regions. The loop is slow if each iteration costs a kernel
launch, as on a GPU.

Milliseconds of 256 regions of at most 17 x 17 pixels in 7 x 7 bins, of two images of 256 x 50 x 50, by
`python benchmarks/survey.py roi_pool` (jax 0.10.2, two cores, 24 November 2026):

| pass | masks | loop |
|---|---|---|
| forward | 2,672 | 27 |
| forward and backward | 2,724 | 70 |
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.layers.kernels.data_format import by_layout, on_cpu

# `largest_of_tiles` is used only for windows of at most this number of pixels, because it compares them one by one.
_MOST_CELLS = 16
# `_largest_of_windows` is used only for windows of at most this number of pixels; it numbers the pixels by int8.
_MOST_OVERLAPPING_CELLS = 49

_Sizes = tuple[int, ...]
_Pads = tuple[tuple[int, int], ...]


def largest(
    x: jax.Array, window: Sequence[int], strides: Sequence[int], pads: Sequence[tuple[int, int]], layout: str
) -> jax.Array:
    """Compute the maximum of the pixels under each window (max pooling)."""
    if tuple(window) == tuple(strides) and not any(map(any, pads)) and math.prod(window) <= _MOST_CELLS:
        return largest_of_tiles(x, window, layout)
    sizes, steps = (by_layout(layout, each, 1, 1) for each in (window, strides))
    geometry = sizes, steps, tuple(map(tuple, by_layout(layout, pads, (0, 0), (0, 0))))
    if on_cpu() and jnp.issubdtype(x.dtype, jnp.floating) and _is_shared(x.shape, *geometry):
        return _largest_of_windows(*geometry, x)
    return _by_reduce_window(*geometry, x)


def _is_shared(shape: Sequence[int], sizes: _Sizes, steps: _Sizes, pads: _Pads) -> bool:
    """Return whether max pooling by comparisons of pixels is faster than `reduce_window` for the given windows.

    The conditions are that windows are small, and that at least one dimension has more than one window.
    """
    settings = list(zip(shape, sizes, steps, pads, strict=True))
    changed = [each for each in settings if each[1:] != (1, 1, (0, 0))]
    # Pooling by comparisons does not support dimensions of symbolic (unknown) size, as in an exported program.
    known = all(isinstance(n, int) for n, *_ in changed)
    return known and math.prod(sizes) <= _MOST_OVERLAPPING_CELLS and any(n + sum(p) >= k + s for n, k, s, p in changed)


def _by_reduce_window(sizes: _Sizes, steps: _Sizes, pads: _Pads, array: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(array, _lowest(array), jax.lax.max, sizes, steps, pads)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _largest_of_windows(sizes: _Sizes, steps: _Sizes, pads: _Pads, array: jax.Array) -> jax.Array:
    """Compute the maximum under each window of an array; windows may overlap.

    JAX's own gradient is a scatter, which XLA on a CPU compiles to a slow loop over pixels; the gradient of this
    function is not a scatter. For windows of 3 x 3 with step 2 and images of 112 x 112 x 64, JAX's gradient takes 190
    ms, and this one 11.7 ms. For step 1 and images of 28 x 28 x 192, they take 63 and 2.0 ms (`python
    benchmarks/survey.py "pool2d max 3"`, jax 0.10.2, two cores, 24 November 2026).
    """
    return functools.reduce(jnp.maximum, _cells(sizes, steps, pads, array))


@_largest_of_windows.defjvp
def _(
    sizes: _Sizes, steps: _Sizes, pads: _Pads, arrays: tuple[jax.Array], slopes: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Compute the maximum of each window, and the tangent of the first element that equals this maximum."""
    largest, *others = _cells(sizes, steps, pads, jax.lax.stop_gradient(arrays[0]))
    index = jnp.zeros(largest.shape, jnp.int8)
    for number, cell in enumerate(others, 1):
        before = largest >= cell
        index = jnp.where(before, index, np.int8(number))
        # If `largest` is NaN, the comparison is false, so the next element of the window replaces the NaN. JAX's
        # gradient of `reduce_window` treats NaN in this way too.
        largest = jnp.where(before, largest, cell)
    return _largest_of_windows(sizes, steps, pads, arrays[0]), _chosen(sizes, steps, pads, index, slopes[0])


def _cells(sizes: _Sizes, steps: _Sizes, pads: _Pads, array: jax.Array) -> list[jax.Array]:
    """Return a list of arrays, one for each cell (position in a pooling window), row by row.

    The array of a cell holds the elements at this cell in all windows.
    """
    padded = jax.lax.pad(array, _lowest(array), [(*pair, 0) for pair in pads])
    counts = [(n - k) // s + 1 if k > 1 or s > 1 else n for n, k, s in zip(padded.shape, sizes, steps, strict=True)]
    return [
        padded[tuple(slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(place, counts, steps, strict=True))]
        for place in np.ndindex(*sizes)
    ]


def _chosen(sizes: _Sizes, steps: _Sizes, pads: _Pads, index: jax.Array, array: jax.Array) -> jax.Array:
    """Select one pixel of `array` for each pooling window, such as the largest; `index` gives its cell in the window.

    A cell is a position in the window. Pixels belong to one phase if their indices leave equal remainders when divided
    by the steps. All pixels of a phase are under the same cells of their windows. So the gradient of a phase is a sum
    of masked slices. The gradient of padding is a slice, and the gradient of a slice is padding, which costs much
    more than a slice. Therefore this function pads, so that its gradient slices.
    """
    rank = range(array.ndim)
    moving = [axis for axis in rank if sizes[axis] > 1 or steps[axis] > 1 or any(pads[axis])]
    # Pooling windows may overlap: a pixel of a window may also be in up to `reach` earlier windows. `reach` is a dict
    # from axis to number.
    reach = {axis: -(-sizes[axis] // steps[axis]) - 1 for axis in moving}
    # A phase consists of the pixels whose indices have equal remainders modulo the step. `length` is a dict from axis
    # to number: the number of pixels in one phase.
    length = {axis: -(-(array.shape[axis] + pads[axis][0]) // steps[axis]) for axis in moving}
    spare = {axis: max(length[axis] - index.shape[axis], 0) for axis in moving}
    whole = {axis: reach[axis] + index.shape[axis] + spare[axis] for axis in moving}

    zero = np.zeros((), array.dtype)
    phases: dict[tuple[int, ...], Any] = {(): array}
    # Split the last axis first, because a split inserts a dimension, which would change the numbers of later axes.
    for axis in reversed(moving):
        end = length[axis] * steps[axis] - pads[axis][0] - array.shape[axis]
        border = [(pads[axis][0], end, 0) if i == axis else (0, 0, 0) for i in rank]
        split: dict[tuple[int, ...], Any] = {}
        for place, part in phases.items():
            shape = part.shape[:axis] + (length[axis], steps[axis]) + part.shape[axis + 1 :]
            parts = jax.lax.split(jax.lax.pad(part, zero, border).reshape(shape), (1,) * steps[axis], axis + 1)
            split |= {(phase, *place): jnp.squeeze(p, axis + 1) for phase, p in enumerate(parts)}
        phases = split

    indices = jax.lax.pad(
        index, np.int8(-1), [(reach[axis], spare[axis], 0) if axis in moving else (0, 0, 0) for axis in rank]
    )
    total: Any = 0
    for number, place in enumerate(np.ndindex(*(sizes[axis] for axis in moving))):
        offsets: dict[int, int] = dict(zip(moving, place, strict=True))
        remainders = tuple(offset % steps[axis] for axis, offset in offsets.items())
        start = {axis: reach[axis] - offset // steps[axis] for axis, offset in offsets.items()}
        under = tuple(slice(start[i], start[i] + length[i]) if i in moving else slice(None) for i in rank)
        read = jnp.where(indices[under] == number, phases[remainders], zero)
        edge = [(start[i], whole[i] - start[i] - length[i], 0) if i in moving else (0, 0, 0) for i in rank]
        total += jax.lax.pad(read, zero, edge)
    inner = (slice(reach[i], reach[i] + index.shape[i]) if i in moving else slice(None) for i in rank)
    return total[tuple(inner)]


def largest_of_tiles(x: jax.Array, window: Sequence[int], layout: str) -> jax.Array:
    """Compute the maximum under each window, for adjacent windows that do not overlap.

    The result equals `lax.reduce_window`. JAX's own gradient is a scatter, which XLA compiles to a slow loop; the
    gradient of this function is not a scatter. For windows of 2 x 2 on images of 24 x 24 x 20, batch 64, JAX's gradient
    takes 8.9 ms, and this one 1.1 ms (`benchmarks/KERNELS.md`).
    """
    tile = by_layout(layout, window, 1, 1)
    whole = (slice(None) if k == 1 else slice(size // k * k) for size, k in zip(x.shape, tile, strict=True))
    return _largest(tile, x[tuple(whole)])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _largest(tile: tuple[int, ...], array: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(array, _lowest(array), jax.lax.max, tile, tile, "VALID")


def _largest_of_cells(tile: tuple[int, ...], array: jax.Array) -> jax.Array:
    split = [part for size, k in zip(array.shape, tile, strict=True) for part in (size // k, k)]
    return array.reshape(split).max(tuple(range(1, len(split), 2)))


@_largest.defjvp
def _(tile: tuple[int, ...], arrays: tuple[jax.Array], slopes: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Compute the maximum of each tile (window) of an array, and its tangent for the derivative.

    The tangent of a maximum is the tangent of the first of the largest elements of the tile.
    """

    def larger(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        before = (first[0] >= second[0]) | jnp.isnan(first[0])
        return jnp.where(before, first[0], second[0]), jnp.where(before, first[1], second[1])

    # Use `lax.slice`, because strided indexing becomes a gather if the batch size is symbolic, as in an exported
    # training step (jax 0.10.2).
    read = lambda each, place: jax.lax.slice(each, place, each.shape, tile)  # noqa: E731
    cells = [(read(arrays[0], place), read(slopes[0], place)) for place in np.ndindex(*tile)]
    return _largest_of_cells(tile, arrays[0]), functools.reduce(larger, cells)[1]


def _lowest(array: jax.Array) -> np.ndarray:
    lowest = -np.inf if jnp.issubdtype(array.dtype, jnp.floating) else jnp.iinfo(array.dtype).min
    return np.array(lowest, array.dtype)


def largest_of_bins(x: jax.Array, down: tuple[jax.Array, jax.Array], across: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Compute the maximum pixel in each bin of each region; a NaN counts as the maximum.

    Each region is divided into a grid of `p` rows and `q` columns of bins. If several pixels are equal, the first in
    row order gets the gradient.

    Args:
      x: images `[batch, channels, height, width]`.
      down: the first row of each bin, and the row after its last row: two arrays of integers `[batch, regions, p]` from
        0 to `height`.
      across: the first column of each bin, and the column after its last column: two arrays of integers `[batch,
        regions, q]` from 0 to `width`.

    Returns:
      `[batch, regions, channels, p, q]`; 0 for bins without pixels.
    """
    batch, channels, height, width = x.shape
    images = jnp.moveaxis(x, 1, -1)
    places = _places(jax.lax.stop_gradient(images), down, across)
    _, regions, p, q, _ = places.shape
    pixels = images.reshape(batch, height * width, channels)
    picked = jnp.take_along_axis(pixels, places.reshape(batch, regions * p * q, channels), axis=1)
    filled = (down[1] > down[0])[..., :, None] & (across[1] > across[0])[..., None, :]
    largest = jnp.where(filled[..., None], picked.reshape(places.shape), 0)
    return jnp.moveaxis(largest, -1, 2)


# A loop visits the pixels of each bin (part of a region). `sequential_vmap` computes one example after the other. With
# the usual `vmap`, each loop would run for the largest bin of all examples, with a `select` in each iteration.
@jax.custom_batching.sequential_vmap
def _places(images: jax.Array, down: tuple[jax.Array, jax.Array], across: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Return the index of the largest pixel of each bin, `row * width + column`: `[batch, regions, p, q, channels]`.

    Args:
      images: `[batch, height, width, channels]`.
      down: the first row of each bin, and the row after its last row: two arrays `[batch, regions, p]`.
      across: the first column of each bin, and the column after its last column: two arrays `[batch, regions, q]`.
    """
    _, _, width, channels = images.shape
    p, q = down[0].shape[2], across[0].shape[2]

    def of_bin(image: jax.Array, top: Any, bottom: Any, left: Any, right: Any) -> jax.Array:
        rows, columns = jnp.maximum(bottom - top, 0), jnp.maximum(right - left, 0)

        def compare(k: jax.Array, best: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            value, place = best
            row, column = top + k // columns, left + k % columns
            at = (row * width + column).astype(jnp.int32)
            pixel = jax.lax.dynamic_slice(image, (row, column, 0), (1, 1, channels)).reshape(channels)
            # A NaN pixel counts as larger than any maximum. If the maximum is NaN, `value == value` is false, so the
            # maximum stays NaN.
            larger = ~(pixel <= value) & (value == value)
            return jnp.where(larger, pixel, value), jnp.where(larger, at, place)

        # The search for the largest pixel of a bin starts with the value -inf and the index of the first pixel. A bin
        # that holds only -inf keeps this index.
        first = jnp.broadcast_to((top * width + left).astype(jnp.int32), channels)
        lowest = jnp.full(channels, -jnp.inf, image.dtype)
        return jax.lax.fori_loop(0, rows * columns, compare, (lowest, first))[1]

    def of_region(image: jax.Array, top: Any, bottom: Any, left: Any, right: Any) -> jax.Array:
        def numbered(cell: jax.Array) -> jax.Array:
            i, j = cell // q, cell % q
            return of_bin(image, top[i], bottom[i], left[j], right[j])

        return jax.lax.map(numbered, jnp.arange(p * q)).reshape(p, q, channels)

    def of_image(given: Any) -> jax.Array:
        image, spans = given
        return jax.lax.map(lambda one: of_region(image, *one), spans)

    return jax.lax.map(of_image, (images, (*down, *across)))
