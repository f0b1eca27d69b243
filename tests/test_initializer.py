"""Initializers: moments and limits, also of large tables, which are drawn in blocks."""

import jax
import numpy as np
import pytest

from fluid import errors, initializer
from fluid.initializer import Normal, TruncatedNormal, Uniform

KEY = jax.random.key(0)
LARGE = (2_300_000, 2)  # large arrays are drawn in blocks: here four, and a shorter fifth block


@pytest.mark.parametrize("shape", [(300, 200), LARGE])
def test_random_initializers_have_the_requested_moments(shape):
    uniform = np.asarray(initializer.Uniform(-0.3, 0.7)(KEY, shape, "float32"))
    assert uniform.shape == shape and -0.3 <= uniform.min() < -0.29 and 0.69 < uniform.max() < 0.7
    assert uniform.mean() == pytest.approx(0.2, abs=0.01) and uniform.std() == pytest.approx(12**-0.5, abs=0.01)
    normal = np.asarray(initializer.Normal(0.1, 0.5)(KEY, shape, "float32"))
    assert normal.mean() == pytest.approx(0.1, abs=0.01) and normal.std() == pytest.approx(0.5, abs=0.01)
    cut = np.asarray(initializer.TruncatedNormal(0.2, 0.4)(KEY, shape, "float32"))
    assert abs(cut - 0.2).max() <= 0.8 and cut.std() == pytest.approx(0.88 * 0.4, abs=0.01)


def test_a_diagonal_that_is_not_drawn():
    plain = np.array(initializer.Uniform()(KEY, (3, 4), "float32"))
    got = np.asarray(initializer.Uniform(diag_num=2, diag_step=4, diag_val=7.0)(KEY, (3, 4), "float32"))
    plain[0, 0] = plain[1, 1] = 7.0
    np.testing.assert_array_equal(got, plain)
    with pytest.raises(errors.ArgumentError, match=r"an array \[3, 4\] has no element 15"):
        initializer.Uniform(diag_num=4, diag_step=4)(KEY, (3, 4), "float32")
    with pytest.raises(errors.ArgumentError, match="diag_num=-1"):
        initializer.Uniform(diag_num=-1)


def test_blocks_of_a_large_table_differ():
    table = np.asarray(initializer.Normal()(KEY, LARGE, "float32"))
    assert len(np.unique(table[:, 0])) > 0.99 * len(np.unique(table.astype("float64")[:, 0])) > 1_500_000
    rows = 1 << 19
    for start in range(rows, LARGE[0] - rows, rows):
        assert not np.array_equal(table[:rows], table[start : start + rows])
    assert (table[-rows:] != 0).all()


def test_equal_keys_draw_equally_and_seed_overrides_keys():
    draw = initializer.Xavier()
    assert np.array_equal(draw(KEY, (4, 4), "float32"), draw(KEY, (4, 4), "float32"))
    other = jax.random.key(1)
    assert not np.array_equal(draw(KEY, (4, 4), "float32"), draw(other, (4, 4), "float32"))
    fixed = initializer.Xavier(seed=7)
    assert np.array_equal(fixed(KEY, (4, 4), "float32"), fixed(other, (4, 4), "float32"))


@pytest.mark.parametrize(
    "shape, fans", [((12,), (12, 12)), ((6, 10), (6, 10)), ((8, 3, 5, 5), (75, 200)), ((), (1, 1))]
)
def test_fans_follow_from_the_shape(shape, fans):
    assert initializer.fans(shape) == fans


def test_given_arrays_and_kernels_must_fit():
    with pytest.raises(errors.ShapeError, match="NumpyArray"):
        initializer.NumpyArray(np.ones(3))(KEY, (4,), "float32")
    with pytest.raises(errors.ShapeError, match="size, size"):
        initializer.Bilinear()(KEY, (1, 1, 3, 4), "float32")


def test_bilinear_upsampling_keeps_a_constant():
    kernel = initializer.Bilinear()(KEY, (1, 1, 4, 4), "float32")[0, 0]
    # For a constant image, each output pixel of a transposed convolution of stride 2 sums every other row and column of
    # the kernel.
    for i in (0, 1):
        for j in (0, 1):
            assert kernel[i::2, j::2].sum() == pytest.approx(1.0)


@pytest.mark.parametrize("make", [Normal, TruncatedNormal, Uniform])
def test_a_small_number_alone_is_warned_of(make):
    with pytest.warns(errors.FluidWarning, match=rf"{make.__name__}\(0.02\).* the default of .*, 0.02\)"):
        make(0.02)


def test_numbers_that_are_given_are_not_warned_of():
    assert Normal(0.02, 1.0) == Normal(loc=0.02, scale=1) and Normal() == Normal(0.0, 1.0)  # pytest fails if this warns
    assert (
        Normal(5.0).scale == 1.0
        and Uniform(0.0).high == 1.0
        and repr(Uniform()).startswith("Uniform(low=-1.0, high=1.0")
    )
    Uniform(0.9, 1.0)


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(errors.ArgumentError, match=r"Uniform\(-0.05, 0.05\)"):
        Uniform(0.05, -0.05)
