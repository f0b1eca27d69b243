"""Pooling: the maximum or the mean of the pixels under a window."""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fluid.layers.kernels.layout import by_layout

_MOST_CELLS = 16  # of the largest window whose cells are compared one by one


def largest(
    x: jax.Array, window: Sequence[int], strides: Sequence[int], pads: Sequence[tuple[int, int]], layout: str
) -> jax.Array:
    """Compute the maximum under each window.

    Args:
      x: images.
      window: the size of the window in each dimension of pixels.
      strides: one for each dimension of pixels.
      pads: a pair (before, after) for each dimension of pixels.
      layout: of the images, for example "NHWC".

    Returns:
      Images in the same layout.
    """
    if tuple(window) == tuple(strides) and not any(map(any, pads)) and math.prod(window) <= _MOST_CELLS:
        return largest_of_tiles(x, window, layout)
    sizes, steps = (by_layout(layout, each, 1, 1) for each in (window, strides))
    return jax.lax.reduce_window(x, _lowest(x), jax.lax.max, sizes, steps, by_layout(layout, pads, (0, 0), (0, 0)))


def largest_of_tiles(x: jax.Array, window: Sequence[int], layout: str) -> jax.Array:
    """Compute the maximum of each adjacent, non-overlapping window.

    The result equals `lax.reduce_window`. The gradient differs from JAX's, a scatter that XLA compiles to a slow loop:
    2 x 2 cells of 24 x 24 x 20 pixels, batch 64, take 8.9 ms with it and 1.1 with this one (`benchmarks/KERNELS.md`).
    """
    tile = by_layout(layout, window, 1, 1)
    whole = (slice(None) if k == 1 else slice(size // k * k) for size, k in zip(x.shape, tile, strict=True))
    return _largest(tile, x[tuple(whole)])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _largest(tile: tuple[int, ...], array: jax.Array) -> jax.Array:
    """Compute the maximum of each tile of an array; each size of the array is a multiple of the tile's."""
    return jax.lax.reduce_window(array, _lowest(array), jax.lax.max, tile, tile, "VALID")


def _largest_of_cells(tile: tuple[int, ...], array: jax.Array) -> jax.Array:
    """Compute `_largest` by a reshape and a maximum, which XLA fuses with adjacent operations in training."""
    split = [part for size, k in zip(array.shape, tile, strict=True) for part in (size // k, k)]
    return array.reshape(split).max(tuple(range(1, len(split), 2)))


@_largest.defjvp
def _(tile: tuple[int, ...], arrays: tuple[jax.Array], slopes: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Compute the derivative, which follows the first of equal elements."""

    def larger(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        before = (first[0] >= second[0]) | jnp.isnan(first[0])
        return jnp.where(before, first[0], second[0]), jnp.where(before, first[1], second[1])

    places = [tuple(slice(o, None, k) for o, k in zip(place, tile, strict=True)) for place in np.ndindex(*tile)]
    cells = [(arrays[0][place], slopes[0][place]) for place in places]
    return _largest_of_cells(tile, arrays[0]), functools.reduce(larger, cells)[1]


def _lowest(array: jax.Array) -> np.ndarray:
    """Return the lowest value of the dtype of an array."""
    lowest = -np.inf if jnp.issubdtype(array.dtype, jnp.floating) else jnp.iinfo(array.dtype).min
    return np.array(lowest, array.dtype)
