"""Maximum pooling: equal to `lax.reduce_window`, with the gradient at the first of equal pixels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluid.layers.kernels.data_format import by_layout
from fluid.layers.kernels.pooling import largest, largest_of_tiles

# The forms of a kernel have equal results; one row in three runs, and all rows with FLUID_TEST_ALL=1.
pytestmark = pytest.mark.sample(3)

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


GEOMETRIES = {
    "overlap": ((3, 3), (2, 2), [(1, 1), (1, 1)]),
    "every pixel": ((3, 3), (1, 1), [(1, 1), (1, 1)]),
    "no two equal": ((2, 5), (3, 2), [(1, 0), (0, 4)]),
    "gaps": ((1, 2), (2, 3), [(0, 0), (0, 0)]),
    "one dimension": ((1, 3), (1, 2), [(0, 0), (1, 0)]),
    "windows over the edge": ((3, 3), (2, 2), [(2, 2), (0, 2)]),
    "padded tiles": ((2, 2), (2, 2), [(1, 1), (0, 1)]),
    "many cells": ((5, 5), (1, 2), [(2, 2), (2, 2)]),
    "volumes": ((2, 3, 3), (1, 2, 2), [(1, 0), (1, 1), (0, 1)]),
}
LAYOUTS = [(name, layout) for name in GEOMETRIES for layout in ("NHWC", "NCHW")]


def case(name, layout, dtype="float32"):
    """Return images with many equal pixels, and two forms of maximum pooling: `largest` and `lax.reduce_window`."""
    window, strides, pads = GEOMETRIES[name]
    pixels = [7, 9, 8][: len(window)]
    x = jnp.asarray(np.random.default_rng(1).integers(-3, 4, by_layout(layout, pixels, 3, 2)), dtype)
    sizes, steps = (by_layout(layout, each, 1, 1) for each in (window, strides))
    padding = by_layout(layout, pads, (0, 0), (0, 0))
    lowest = np.array(-np.inf, x.dtype)

    def plain(x):
        return jax.lax.reduce_window(x, lowest, jax.lax.max, sizes, steps, padding)

    return x, functools.partial(largest, window=window, strides=strides, pads=pads, layout=layout), plain


def seed_like(array):
    """Return an output gradient in the shape of `array`: random integers, whose sums are equal in any order."""
    return jnp.asarray(np.random.default_rng(2).integers(-9, 10, array.shape), array.dtype)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("name", "layout", "dtype"), [(*each, "float32") for each in LAYOUTS] + [("overlap", "NHWC", "bfloat16")]
)
def test_other_windows_have_the_derivatives_of_jax(name, layout, dtype):
    x, form, plain = case(name, layout, dtype)
    (found, back), (want, wanted) = (jax.vjp(f, x) for f in map(jax.jit, (form, plain)))
    np.testing.assert_array_equal(form(x).astype("float32"), want.astype("float32"))
    np.testing.assert_array_equal(found.astype("float32"), want.astype("float32"))
    seed = seed_like(want)
    np.testing.assert_array_equal(back(seed)[0].astype("float32"), wanted(seed)[0].astype("float32"))
    if jax.default_backend() == "cpu":
        assert "select_and_scatter" not in str(jax.make_jaxpr(jax.grad(lambda x: form(x).sum()))(x))
    # The forward derivative (jvp) of max pooling is the transpose of the gradient (vjp), so the two sums below are
    # equal. For each window, the jvp returns the slope of the largest pixel.
    slope = seed_like(x).astype("float32")
    forwards = jax.jvp(jax.jit(form), (x.astype("float32"),), (slope,))[1]
    pull = jax.vjp(jax.jit(plain), x.astype("float32"))[1]
    np.testing.assert_array_equal(
        (forwards * seed.astype("float32")).sum(), (pull(seed.astype("float32"))[0] * slope).sum()
    )


@pytest.mark.parametrize(("name", "layout"), [("overlap", "NHWC"), ("no two equal", "NCHW")])
def test_other_windows_have_second_derivatives_and_are_mapped(name, layout):
    x, form, plain = case(name, layout)
    x += 0.1
    form, plain = (lambda x, f=f: (f(x) ** 3).sum() for f in (form, plain))
    slope = seed_like(x)

    def along(f):
        return jax.jit(jax.grad(lambda x: jnp.vdot(jax.grad(f)(x), slope)))

    np.testing.assert_allclose(along(form)(x), along(plain)(x), rtol=1e-5)
    several = jnp.stack([x, -x, x[::-1]])
    wanted = jnp.stack([jax.grad(plain)(each) for each in several])
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(form)))(several), wanted, rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
@pytest.mark.parametrize("name", ["overlap", "every pixel"])
def test_non_finite_pixels_are_treated_as_in_jax(name, value):
    x, form, plain = case(name, "NHWC")
    x = x.at[0, :3, :4].set(value).at[1, 4, 5].set(value)
    (found, back), (want, wanted) = (jax.vjp(jax.jit(f), x) for f in (form, plain))
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(back(seed_like(want))[0], wanted(seed_like(want))[0])


@pytest.mark.parametrize("name", ["overlap", "volumes"])
def test_other_windows_are_exported_for_any_batch(name):
    x, form, plain = case(name, "NCHW")
    (batch,) = jax.export.symbolic_shape("b")
    gradient = jax.grad(lambda x: (form(x) ** 2).sum())
    exported = jax.export.export(jax.jit(gradient))(jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype))
    np.testing.assert_allclose(exported.call(x), jax.grad(lambda x: (plain(x) ** 2).sum())(x), rtol=1e-5)


def test_large_windows_use_the_gradient_of_jax():
    x = jnp.asarray(np.random.default_rng(3).normal(size=(2, 9, 9, 3)), "float32")
    for window, pads in (((9, 9), (0, 0)), ((8, 8), (4, 4))):
        gradient = jax.make_jaxpr(jax.grad(lambda x, w=window, p=pads: largest(x, w, (1, 1), [p] * 2, "NHWC").sum()))
        assert "select_and_scatter" in str(gradient(x))
