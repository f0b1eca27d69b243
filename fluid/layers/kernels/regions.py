"""Pooling of regions of images on a CPU: the largest pixel of each bin, read pixel by pixel.

The plain form makes a mask of each bin, and so compares each bin of each region with the whole image. Here a loop reads
the pixels of each bin alone, for all channels at once, so the time grows with the area of the regions. The loop is slow
where each iteration costs a kernel launch, as on a GPU.

Milliseconds of 256 regions of at most 17 x 17 pixels in 7 x 7 bins, of two images of 256 x 50 x 50, by
`python benchmarks/survey.py roi_pool` (jax 0.10.2, two cores, 24 November 2026):

| pass | masks | loop |
|---|---|---|
| forward | 2,672 | 27 |
| forward and backward | 2,724 | 70 |
"""

from typing import Any

import jax
import jax.numpy as jnp


def largest_of_bins(x: jax.Array, down: tuple[jax.Array, jax.Array], across: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Compute the maximum of each bin of each region; a NaN is the largest.

    The gradient goes to the first of equal pixels, row by row.

    Args:
      x: images `[batch, channels, height, width]`.
      down: the first row of each bin, and the row after its last, integers `[batch, regions, p]` from 0 to `height`.
      across: the same for columns, `[batch, regions, q]`.

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


# Under the usual `vmap`, each loop would run for the pixels of the largest bin of all examples, and select the results
# in each iteration.
@jax.custom_batching.sequential_vmap
def _places(images: jax.Array, down: tuple[jax.Array, jax.Array], across: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Return the indices of the largest pixels, integers `[batch, regions, p, q, channels]`, as `row * width + column`.

    Args:
      images: `[batch, height, width, channels]`.
      down: as in `largest_of_bins`.
      across: as in `largest_of_bins`.
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
            larger = ~(pixel <= value) & (value == value)  # the first NaN stays
            return jnp.where(larger, pixel, value), jnp.where(larger, at, place)

        # No pixel of -inf is larger than this start, so a bin of such pixels keeps the index of its first pixel.
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
