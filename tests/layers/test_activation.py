"""Activations as names, functions and layers: tests of values and slopes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.run_program import check, run

import fluid
from fluid import errors, layers

X = np.arange(24, dtype="float32").reshape(2, 3, 4)


def test_softmax_of_sequences_counts_its_axis_by_steps():
    given = {"s": fluid.SequenceBatch(jnp.asarray(X), jnp.array([3, 1]))}
    for axis in (1, -1):
        got = run(lambda axis=axis: layers.softmax(layers.data("s", [4], lod_level=1), axis=axis), given).outputs[0]
        np.testing.assert_allclose(got.data.sum(-1), np.ones([2, 3]), rtol=1e-6)


def test_activations_by_name_and_by_function():
    total = fluid.initializer.Constant(1.0)
    check(lambda x: layers.fc(x, 1, param_attr=total, act=jnp.cos), np.cos(X[0].sum(1))[:, None], x=X[0])
    with pytest.raises(errors.ArgumentError, match="Did you mean 'relu'"):
        fluid.Program(lambda: layers.fc(layers.data("x", [3]), 1, act="rellu"))


def test_activation_layers_match_activation_functions():
    x = np.random.default_rng(0).uniform(0.1, 0.9, (3, 4)).astype("float32")
    for name, function in layers.functional.ACTIVATIONS.items():
        check(lambda v, name=name: getattr(layers, name)(v), np.asarray(function(jnp.asarray(x))), x=x)


def test_abs_of_zero_has_slope_zero():
    x = np.array([[-2.0, 0.0, 3.0]], "float32")
    got = jax.grad(lambda x: run(lambda: layers.abs(layers.data("x", shape=[3])), {"x": x}).outputs[0].sum())(x)
    np.testing.assert_array_equal(got, [[-1, 0, 1]])
