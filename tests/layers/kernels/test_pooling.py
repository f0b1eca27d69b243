"""The maximum of adjacent windows equals `lax.reduce_window`, and its gradient goes to the first of equal pixels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluid.layers.kernels.layout import by_layout
from fluid.layers.kernels.pooling import largest, largest_of_tiles

IMAGES = np.random.default_rng(0).normal(size=(2, 5, 7, 3)).astype("float32")


def by_window(x, window, layout):
    sizes = by_layout(layout, window, 1, 1)
    return jax.lax.reduce_window(x, -np.inf, jax.lax.max, sizes, sizes, "VALID")


@pytest.mark.parametrize("window", [(1, 1), (2, 2), (2, 3), (4, 4)])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_tiles_equal_windows(window, layout):
    x = jnp.asarray(IMAGES if layout == "NHWC" else IMAGES.transpose(0, 3, 1, 2))
    found, back = jax.vjp(lambda x: largest_of_tiles(x, window, layout), x)
    want, wanted = jax.vjp(lambda x: by_window(x, window, layout), x)
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(back(jnp.cos(want))[0], wanted(jnp.cos(want))[0])
    np.testing.assert_array_equal(largest(x, window, window, [(0, 0)] * 2, layout), want)


def test_the_first_of_equal_pixels_gets_the_gradient():
    x = jnp.array([[1.0, 1, 2, 0], [1, 1, 2, 2]])[None, :, :, None]
    gradient = jax.grad(lambda x: largest_of_tiles(x, (2, 2), "NHWC").sum())(x)
    assert gradient[0, :, :, 0].tolist() == [[1, 0, 1, 0], [0, 0, 0, 0]]


def test_a_nan_is_the_largest():
    x = jnp.asarray(IMAGES).at[0, 1, 1, 1].set(jnp.nan)
    found = largest_of_tiles(x, (2, 2), "NHWC")
    assert np.argwhere(np.isnan(found)).tolist() == [[0, 0, 0, 1]]


def test_integers_have_a_maximum():
    x = jnp.arange(-16, 0).reshape(1, 4, 4, 1)
    assert largest(x, (3, 3), (1, 1), [(1, 1)] * 2, "NHWC")[0, 0, 0, 0] == -11
