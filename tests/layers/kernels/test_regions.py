"""Maxima of bins (parts of regions of an image) by loops over pixels: compared with NumPy and with masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluid.layers.detection import roi
from fluid.layers.kernels.pooling import largest_of_bins

HIGH, BROAD = 6, 8
# The bins have several pixels, a single pixel, no pixels, or the pixels of the whole image.
DOWN = (
    np.array([[[0, 2, 5], [0, 0, 6]], [[3, 3, 1], [0, 5, 6]]]),
    np.array([[[2, 5, 6], [6, 0, 6]], [[4, 3, 3], [6, 6, 6]]]),
)
ACROSS = np.array([[[0, 3], [0, 8]], [[2, 7], [0, 4]]]), np.array([[[4, 8], [8, 8]], [[3, 8], [8, 4]]])


def images(kind):
    rng = np.random.default_rng(0)
    if kind == "ties":
        return rng.integers(0, 3, [2, 3, HIGH, BROAD]).astype("float32")
    x = rng.normal(size=(2, 3, HIGH, BROAD)).astype("float32")
    chance = rng.uniform(size=x.shape)
    if kind == "nan":
        return np.where(chance < 0.1, np.float32(np.nan), np.where(chance < 0.2, np.float32(np.inf), x))
    if kind == "lowest":
        return np.where(chance < 0.9, np.float32(-np.inf), x)
    return x


def by_hand(x, slopes):
    """Compute the maximum of each bin (a part of a region of an image) in NumPy, and the gradient of the images.

    The gradient adds the slope of each bin to the pixel with the first maximum of the bin.
    """
    largest, gradient = np.zeros((2, 2, 3, 3, 2), "float32"), np.zeros_like(x)
    for b, r, c, i, j in np.ndindex(largest.shape):
        (top, bottom), (left, right) = (tuple(edge[b, r, k] for edge in way) for way, k in ((DOWN, i), (ACROSS, j)))
        window = x[b, c, top:bottom, left:right]
        if window.size:
            place = np.argmax(window)  # NumPy's argmax returns the first NaN, if there is a NaN
            row, column = divmod(place, right - left)
            largest[b, r, c, i, j] = window.flat[place]
            gradient[b, c, top + row, left + column] += slopes[b, r, c, i, j]
    return largest, gradient


def by_loop(x):
    return largest_of_bins(x, tuple(map(jnp.asarray, DOWN)), tuple(map(jnp.asarray, ACROSS)))


def by_masks(x):
    def one(x, top, bottom, left, right):
        return roi._largest(x, roi._covered((top, bottom), HIGH), roi._covered((left, right), BROAD))

    return jax.vmap(jax.vmap(one, (None, 0, 0, 0, 0)))(x, *map(jnp.asarray, (*DOWN, *ACROSS)))


@pytest.mark.parametrize("kind", ["normal", "ties", "nan", "lowest"])
@pytest.mark.parametrize("form", [by_loop, by_masks])
def test_the_largest_pixels_and_their_gradient(form, kind):
    x = images(kind)
    slopes = np.random.default_rng(1).normal(size=(2, 2, 3, 3, 2)).astype("float32")
    found, back = jax.vjp(jax.jit(form), x)
    largest, gradient = by_hand(x, slopes)
    np.testing.assert_array_equal(found, largest)
    np.testing.assert_allclose(back(slopes)[0], gradient, rtol=1e-6, atol=1e-6)


def test_examples_under_vmap_equal_single_ones():
    many = np.stack([images("normal"), images("ties")])

    def total(x):
        return jnp.sum(jnp.cos(by_loop(x)))

    found = jax.jit(jax.vmap(jax.value_and_grad(total)))(many)
    for i, one in enumerate(many):
        value, gradient = jax.value_and_grad(total)(one)
        np.testing.assert_allclose(found[0][i], value, rtol=1e-6)
        np.testing.assert_allclose(found[1][i], gradient, rtol=1e-6)


def test_no_regions_and_no_images():
    none = np.zeros((2, 0, 3), "int32")
    assert largest_of_bins(jnp.asarray(images("normal")), (none, none), (none, none)).shape == (2, 0, 3, 3, 3)
    none = np.zeros((0, 4, 3), "int32")
    assert largest_of_bins(jnp.zeros((0, 3, HIGH, BROAD)), (none, none), (none, none)).shape == (0, 4, 3, 3, 3)
