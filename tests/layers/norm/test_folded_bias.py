"""Batch norm in test mode: the bias of the preceding convolution is folded into the norm, with equal results."""

import jax
import numpy as np
import pytest
from layers.layer_table import real

import fluid
from fluid import layers

IMAGES = {"NCHW": real(2, 3, 8, 8), "NHWC": real(2, 8, 8, 3)}


def net(layout, channels=4, norm_layout=None, **settings):
    def program():
        x = layers.data("x", IMAGES[layout].shape[1:])
        bias = fluid.ParamAttr(initializer=fluid.initializer.Normal(3.0, 1.0))
        hidden = layers.conv2d(x, channels, 5, bias_attr=bias, data_format=layout, **settings)
        return layers.batch_norm(hidden, data_layout=norm_layout or layout)

    return program


def moved(program):
    """Return the arrays of a program, with random values for batch normalisation, as if the program were trained."""
    rng = np.random.default_rng(1)
    arrays = fluid.Session(program).scope
    return {
        n: np.asarray(a) if "conv2d" in n else rng.uniform(0.5, 2, a.shape).astype("float32")
        for n, a in sorted(arrays.items())
    }


def normalised(x, arrays, axis):
    """Return `x`, the output of a convolution with its bias, normalised in float64 by the arrays of `batch_norm_0`."""
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    scale, bias, mean, variance = (
        arrays[f"batch_norm_0.{n}"].astype("float64").reshape(shape) for n in ("w_0", "b_0", "w_1", "w_2")
    )
    return (x.astype("float64") - mean) / np.sqrt(variance + 1e-5) * scale + bias


@pytest.mark.parametrize("layout", IMAGES)
@pytest.mark.parametrize("name", ["conv2d_0.tmp_0", "conv2d_0.tmp_1"])
def test_computed_and_overridden_values_are_normalised_exactly(layout, name):
    program, axis = net(layout), layout.index("C")
    arrays = moved(program)
    inferencer = fluid.Inferencer(program, params=arrays)
    feed = {"x": IMAGES[layout]}
    computed = inferencer.infer(feed, fetch="conv2d_0.tmp_1")[0]
    np.testing.assert_allclose(inferencer.infer(feed)[0], normalised(computed, arrays, axis), rtol=1e-5, atol=1e-5)

    given = real(*computed.shape) + 1
    channels = [-1 if i == axis else 1 for i in range(4)]
    total = given + arrays["conv2d_0.b_0"].reshape(channels) if name.endswith("0") else given
    found = inferencer.infer({**feed, name: given})[0]
    np.testing.assert_allclose(found, normalised(total, arrays, axis), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout, other", [("NCHW", "NHWC"), ("NHWC", "NCHW")])
def test_norm_of_another_axis_keeps_the_convolution_bias(layout, other):
    # The images have four channels and 4 x 4 pixels, so batch normalisation accepts each of these axes.
    program = net(layout, norm_layout=other)
    arrays = moved(program)
    inferencer = fluid.Inferencer(program, params=arrays)
    computed, found = inferencer.infer({"x": IMAGES[layout]}, fetch=["conv2d_0.tmp_1", "batch_norm_0.tmp_2"])
    np.testing.assert_allclose(found, normalised(computed, arrays, other.index("C")), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", IMAGES)
def test_an_activation_between_them_stays_there(layout):
    program = net(layout, act="relu")
    arrays = moved(program)
    inferencer = fluid.Inferencer(program, params=arrays)
    computed, found = inferencer.infer({"x": IMAGES[layout]}, fetch=["conv2d_0.tmp_2", "batch_norm_0.tmp_2"])
    assert computed.min() >= 0
    np.testing.assert_allclose(found, normalised(computed, arrays, layout.index("C")), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", IMAGES)
def test_the_slope_of_the_convolution_is_the_factor(layout):
    program = net(layout)
    arrays = moved(program)
    inferencer = fluid.Inferencer(lambda: layers.reduce_sum(program()), params=arrays)
    (slope,) = inferencer.infer({"x": IMAGES[layout]}, fetch="conv2d_0.tmp_1@GRAD")
    factor = arrays["batch_norm_0.w_0"] / np.sqrt(arrays["batch_norm_0.w_2"] + 1e-5)
    shape = [-1 if i == layout.index("C") else 1 for i in range(4)]
    np.testing.assert_allclose(slope, np.broadcast_to(factor.reshape(shape), slope.shape), rtol=1e-5)


@pytest.mark.parametrize("layout", IMAGES)
def test_folded_bias_costs_flops_per_channel_only(layout):
    def operations(**settings):
        def function():
            x = layers.data("x", IMAGES[layout].shape[1:])
            return layers.batch_norm(layers.conv2d(x, 4, 5, data_format=layout, **settings), data_layout=layout)

        program = fluid.Program(function)
        arrays = program.init(jax.random.key(0))
        answer = jax.jit(lambda arrays, x: program.apply(arrays, {"x": x}, key=None, mode="test").outputs[0])
        return answer.lower(arrays, IMAGES[layout]).compile().cost_analysis()["flops"]

    assert 0 <= operations() - operations(bias_attr=False) <= 4 * 2
