"""Normalisations of the last axis: compared with loops in NumPy, and in half precision."""

import ml_dtypes
import numpy as np
import pytest
from layers.run_program import output

import fluid
from fluid import errors, layers

X = np.random.default_rng(0).normal(size=(2, 3, 4, 6)).astype("float32") * 3 + 1
SCALE, SHIFT = np.linspace(0.5, 2, 6, dtype="float32"), np.linspace(-1, 1, 6, dtype="float32")


def layer_normal(row, epsilon):
    return (row - row.mean()) / np.sqrt(row.var() + epsilon)


def rms_normal(row, epsilon):
    return row / np.sqrt((row**2).mean() + epsilon)


KINDS = {"feature_norm": (layers.feature_norm, layer_normal, 1e-5), "rms_norm": (layers.rms_norm, rms_normal, 1e-6)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ndim", [2, 3, 4])
@pytest.mark.parametrize("epsilon", [None, 0.5])
def test_normalised_rows_match_numpy(kind, ndim, epsilon):
    layer, by_hand, default = KINDS[kind]
    x = X.reshape(-1, *X.shape[5 - ndim :])
    settings = {} if epsilon is None else {"epsilon": epsilon}
    arrays = {f"{kind}_0.w_0": SCALE} | ({f"{kind}_0.b_0": SHIFT} if kind == "feature_norm" else {})
    want = np.array([by_hand(row, epsilon or default) for row in x.reshape(-1, 6)]).reshape(x.shape) * SCALE
    want = want + SHIFT if kind == "feature_norm" else want

    def program():
        return layer(layers.data("x", x.shape[1:]), **settings)

    assert {n: p.shape for n, p in fluid.Program(program).parameters.items()} == dict.fromkeys(arrays, (6,))
    np.testing.assert_allclose(output(program, {"x": x}, arrays=arrays), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_without_parameters(kind):
    layer, by_hand, default = KINDS[kind]
    settings = {"param_attr": False} | ({"bias_attr": False} if kind == "feature_norm" else {})

    def program():
        return layer(layers.data("x", X.shape[1:]), **settings)

    assert not fluid.Program(program).parameters
    want = np.array([by_hand(row, default) for row in X.reshape(-1, 6)]).reshape(X.shape)
    np.testing.assert_allclose(output(program, {"x": X}), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_of_half_precision_are_of_float32(kind):
    """Check inputs whose squares overflow float16, and whose sum bfloat16 would round to a multiple of 2048."""
    layer, by_hand, default = KINDS[kind]
    for dtype in ("float16", ml_dtypes.bfloat16):
        x = (np.arange(512).reshape(1, 1, 512) + 300).astype(dtype)

        def program(dtype=dtype):
            return layers.cast(layer(layers.data("x", [1, 512], np.dtype(dtype).name)), "float32")

        want = by_hand(x[0, 0].astype("float64"), default)
        np.testing.assert_allclose(output(program, {"x": x})[0, 0], want, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_without_features(kind):
    with pytest.raises(errors.ShapeError, match=r"float32\[batch\] has no features; expected \[batch, ..., features\]"):
        fluid.Program(lambda: KINDS[kind][0](layers.data("x", [])))
