"""Random numbers drawn on the host: each equals the number of `jax.random` to the bit."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_counts import counted
from hypothesis import given, settings
from hypothesis import strategies as st

import fluid
from fluid import initializer
from fluid._util import host_random

seeds = st.integers(0, 2**32 - 1)
few = settings(deadline=None, max_examples=25)


def same(first, second):
    return np.array_equal(jax.random.key_data(first), jax.random.key_data(second))


@few
@given(seed=seeds, number=seeds)
def test_fold_in_equals_jax(seed, number):
    key = jax.random.key(seed)
    assert same(host_random.fold_in(key, number), jax.random.fold_in(key, number))


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_the_key_of_a_seed(seed):
    assert same(host_random.root_key(seed), jax.random.key(seed))
    with jax.default_prng_impl("rbg"):
        assert same(host_random.root_key(seed), jax.random.key(seed))


@few
@given(seed=seeds, count=st.sampled_from([1, 2, 3, 100, 4097]))
def test_random_bits_equal_jax(seed, count):
    key = jax.random.key(seed)
    np.testing.assert_array_equal(host_random.bits_of(host_random.key_data(key), count), jax.random.bits(key, (count,)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("seed", [0, 5, 2**31])
def test_random_fractions_equal_jax(seed, dtype):
    key = jax.random.key(seed)
    found = host_random.fractions_of(host_random.key_data(key), 4097, dtype)
    wanted = np.asarray(jax.random.uniform(key, (4097,), dtype))
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.astype("float32"), wanted.astype("float32"))


@few
@given(seed=seeds, low=st.floats(-10, 10, width=32), width=st.floats(2**-10, 10, width=32))
def test_numbers_between_bounds_are_rounded_once(seed, low, width):
    """Check that a random number between two bounds is rounded once: it is the float32 nearest to the exact number."""
    low, high = np.float32(low), np.float32(low) + np.float32(width)
    words = host_random.key_data(jax.random.key(seed))
    found = host_random.between(words, 200, low, high)
    if found is None:
        assert abs(low) > 2**4 * (high - low) or abs(low) < 2**-27 * (high - low)
        return
    assert found.dtype == np.float32 and found.min() >= low and found.max() <= high
    drawn = host_random.fractions_of(words, 200, "float32")
    for number, fraction in zip(found, drawn, strict=True):
        exact = Fraction(float(fraction)) * Fraction(float(high - low)) + Fraction(float(low))
        off = abs(Fraction(float(number)) - exact)
        assert all(off <= abs(Fraction(float(np.nextafter(number, np.float32(end)))) - exact) for end in (-99, 99))


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(
    "low, high", [(5.0, 5.01), (1e-12, 1.0), (0.0, 1e-30), (0.0, 3.0), (-2.0, -2.0), (-np.inf, 1.0)]
)
def test_bounds_of_all_sizes(low, high):
    key = jax.random.key(3)
    found = initializer.Uniform(low, high)(key, (9, 5), jnp.dtype("float32"))
    np.testing.assert_array_equal(found, np.asarray(jax.random.uniform(key, (9, 5), "float32", low, high)))


DRAWN = {
    "uniform": initializer.Uniform(-0.3, 0.31),
    "normal": initializer.Normal(0.1, 0.7),
    "truncated": initializer.TruncatedNormal(-1.0, 2.0),
    "xavier": initializer.Xavier(),
    "msra": initializer.MSRA(uniform=False),
}


@pytest.mark.sample(3)
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(2,), (7,), (20, 1, 3, 3), (180, 10), (257, 9), (300, 200), (0, 3)])
def test_host_initial_values_equal_compiled_values(name, dtype, shape, monkeypatch):
    key = jax.random.key(5)
    found = DRAWN[name](key, shape, jnp.dtype(dtype))
    assert found.shape == shape and found.dtype == jnp.dtype(dtype)
    monkeypatch.setattr(host_random, "key_data", lambda key: None)
    drawn = DRAWN[name](key, shape, jnp.dtype(dtype))
    assert isinstance(found, np.ndarray) and isinstance(drawn, jax.Array)
    np.testing.assert_array_equal(found.astype("float32"), np.asarray(drawn).astype("float32"))


def test_known_key_in_traced_function_equals_jax():
    key = jax.random.key(3)
    folded = jax.jit(lambda: jax.random.key_data(host_random.fold_in(key, 9)))()
    np.testing.assert_array_equal(folded, jax.random.key_data(jax.random.fold_in(key, 9)))


def test_other_generators_are_left_to_jax():
    key = jax.random.key(0, impl="rbg")
    assert host_random.key_data(key) is None
    assert same(host_random.fold_in(key, 3), jax.random.fold_in(key, 3))
    assert DRAWN["normal"](key, (2, 3), jnp.dtype("float32")).shape == (2, 3)


def test_a_trainer_compiles_no_program_for_each_shape():
    def program(widths, init):
        x = fluid.layers.data("x", shape=[3])
        for width in widths:
            x = fluid.layers.fc(x, size=width, param_attr=init)
        return fluid.layers.mean(x)

    normal = initializer.Normal()
    fluid.Session(lambda: program([4], normal))
    with counted() as compiled:
        fluid.Session(lambda: program(range(5, 15), normal))
        fluid.Session(lambda: program([4, 17], initializer.Xavier()))
    assert compiled == []
