"""True derivatives where PaddlePaddle's gradients differ: compared with formulas in NumPy.

`docs/from-fluid-differences.md` lists the differences. `norm/test_spectral.py` tests `spectral_norm`.
"""

import jax
import numpy as np
import pytest
from layers.layer_table import real, rng, whole
from layers.run_program import feeds

import fluid
from fluid import layers

IMAGE, LOGITS, LABEL = real(2, 3, 4, 6), real(3, 5, 2), whole(5, 3, 1, 2)


def slope(build, *arrays):
    """Return the gradient of a weighted sum of a layer's result with respect to its first input, and the weights."""
    feed = {f"x{i}": array for i, array in enumerate(arrays)}
    program = fluid.Program(lambda: build(*feeds(**feed)))
    weight = rng("weight").normal(size=jax.eval_shape(lambda: of(program, feed)).shape).astype("float32")
    return np.asarray(jax.grad(lambda x: (of(program, feed | {"x0": x}) * weight).sum())(feed["x0"])), weight


def of(program, feed):
    arrays = program.init(jax.random.key(0))
    return program.apply(arrays, feed, key=jax.random.key(0), mode="train").outputs[0]


def test_clip_by_norm():
    x = real(4, 3)
    got, w = slope(lambda x: layers.clip_by_norm(x, 0.8), x)
    norm = np.linalg.norm(x)
    np.testing.assert_allclose(got, 0.8 / norm * (w - x * np.sum(x * w) / norm**2), rtol=1e-4, atol=1e-6)
    got, w = slope(lambda x: layers.clip_by_norm(x, 80.0), x)
    np.testing.assert_allclose(got, w, rtol=1e-6)


def test_group_norm_with_the_channels_last():
    got, w = slope(lambda x: layers.group_norm(x, 3, data_layout="NHWC"), IMAGE)
    x, weight = (v.reshape(2, 12, 3, 2).astype("float64") for v in (IMAGE, w))
    centred = x - x.mean((1, 3), keepdims=True)
    deviation = np.sqrt((centred**2).mean((1, 3), keepdims=True) + 1e-5)
    normal = centred / deviation
    along = weight.mean((1, 3), keepdims=True) + normal * (weight * normal).mean((1, 3), keepdims=True)
    np.testing.assert_allclose(got, ((weight - along) / deviation).reshape(IMAGE.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ignored", [-100, 0, 3])
def test_softmax_with_cross_entropy_along_another_axis(ignored):
    got, w = slope(lambda x, y: layers.softmax_with_cross_entropy(x, y, ignore_index=ignored, axis=1), LOGITS, LABEL)
    exponentials = np.exp(LOGITS)
    right = np.arange(5)[None, :, None] == LABEL
    want = (exponentials / exponentials.sum(1, keepdims=True) - right) * w * (ignored != LABEL)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_hard_swish():
    x = np.linspace(-6, 9, 32, dtype="float32")[:, None]
    got, w = slope(lambda x: layers.hard_swish(x, threshold=5.0, scale=4.0, offset=2.0), x)
    want = np.where(x < -2, 0, np.where(x < 3, (2 * x + 2) / 4, 5 / 4))
    np.testing.assert_allclose(got, w * want, rtol=1e-4, atol=1e-6)


def test_soft_relu():
    x = np.linspace(-3, 3, 32, dtype="float32")[:, None]
    got, w = slope(lambda x: layers.soft_relu(x, threshold=1.5), x)
    np.testing.assert_allclose(got, w * np.where(np.abs(x) < 1.5, 1 / (1 + np.exp(-x)), 0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("result", [0, 1], ids=["hidden", "cells"])
@pytest.mark.parametrize("size", [5, 8])
def test_dynamic_lstm(size, result):
    x = fluid.create_lod_tensor(real(7, 4 * size), [[4, 3]]).batch()

    def loss():
        steps = layers.data("x", [4 * size], lod_level=1)
        return layers.reduce_sum(layers.square(layers.dynamic_lstm(steps, 4 * size)[result]))

    program = fluid.Program(loss)
    arrays = program.init(jax.random.key(0))

    def at(weight):
        given = arrays | {"lstm_0.w_0": weight}
        return program.apply(given, {"x": x}, key=jax.random.key(0), mode="train").outputs[0].sum()

    weight = np.asarray(arrays["lstm_0.w_0"])
    gradient = np.asarray(jax.grad(at)(weight))
    for gate in range(4):
        step = np.zeros_like(weight)
        step[:, gate * size : (gate + 1) * size] = 1e-2
        np.testing.assert_allclose((gradient * step).sum(), (at(weight + step) - at(weight - step)) / 2, rtol=2e-2)
