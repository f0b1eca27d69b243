"""Arithmetic of integers: compared with Fluid's formulas in NumPy; quotients round towards zero, as in C."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.run_program import feeds, output

import fluid
from fluid import errors, layers

WHOLE = st.integers(-1000, 1000)
DIVISOR = WHOLE.filter(bool)


def quotient(x, y):
    return np.trunc(x / y).astype("int32")


WANTED = {
    "elementwise_div": quotient,
    "elementwise_floordiv": quotient,
    "elementwise_mod": lambda x, y: x - quotient(x, y) * y,
}


@pytest.mark.parametrize("name", WANTED)
@settings(max_examples=20)
@given(x=st.lists(WHOLE, min_size=6, max_size=6), y=st.lists(DIVISOR, min_size=3, max_size=3))
def test_quotients_and_remainders(name, x, y):
    x = np.reshape(x, (2, 3))
    got = output(lambda: getattr(layers, name)(feeds(x=x)[0], np.array(y)), {"x": x})
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, WANTED[name](x, np.array(y)))


@pytest.mark.parametrize("name", WANTED)
def test_a_column_and_a_number_are_repeated(name):
    x, y = np.array([[[7, -7], [8, -8], [-9, 9]]]), np.array([2, -3, -2])
    got = output(lambda: getattr(layers, name)(feeds(x=x)[0], y, axis=1), {"x": x})
    np.testing.assert_array_equal(got, WANTED[name](x, y[:, None]))
    got = output(lambda: getattr(layers, name)(feeds(x=x)[0], -2), {"x": x})
    np.testing.assert_array_equal(got, WANTED[name](x, -2))


def test_floats_beside_integers_stay_floats():
    x, y = np.array([[7.5, -7.5]], "float32"), np.array([[2, 2]])
    for name, want in (("div", x / y), ("floordiv", np.floor(x / y)), ("mod", x - np.floor(x / y) * y)):
        got = output(lambda name=name: getattr(layers, f"elementwise_{name}")(*feeds(x=x, y=y)), {"x": x, "y": y})
        np.testing.assert_allclose(got, want)


@settings(max_examples=20)
@given(x=st.lists(WHOLE, min_size=4, max_size=4), factor=st.floats(-9, 9), bias=st.floats(-9, 9), last=st.booleans())
def test_scale_cuts_its_numbers_first(x, factor, bias, last):
    x = np.reshape(x, (4, 1))
    whole, more = int(np.trunc(factor)), int(np.trunc(bias))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FluidWarning)
        got = output(lambda: layers.scale(feeds(x=x)[0], factor, bias, last), {"x": x})
        by_value = output(lambda: layers.scale(feeds(x=x)[0], np.array([factor]), np.array(bias), last), {"x": x})
        more_by_one = output(lambda: layers.increment(feeds(x=x)[0], bias, in_place=False), {"x": x})
    np.testing.assert_array_equal(got, whole * x + more if last else whole * (x + more))
    np.testing.assert_array_equal(by_value, got)
    np.testing.assert_array_equal(more_by_one, x + more)


def test_fractions_lost_to_integers_warn():
    def scaled(factor, bias, dtype):
        return fluid.Program(lambda: layers.scale(layers.data("x", [3], dtype=dtype), factor, bias))

    with pytest.warns(
        errors.FluidWarning, match=r"scale=0.5 is cut to 0 beside int32.*layers.cast.*test_integers"
    ) as told:
        scaled(0.5, 1.0, "int64")
    assert all(warning.filename == __file__ for warning in told)
    with pytest.warns(errors.FluidWarning, match=r"bias=-1.5 is cut to -1"):
        scaled(2.0, -1.5, "int64")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled(2.0, -1.0, "int64")
        scaled(0.5, 1.5, "float32")
