"""Spectral normalisation: compared with singular values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.layer_table import real

import fluid
from fluid import layers

WEIGHT = real(3, 4, 2)


def program(dim=0, **arguments):
    def build():
        weight = layers.create_parameter(WEIGHT.shape, name="w")
        return layers.spectral_norm(weight, dim=dim, **arguments)

    return build


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_many_iterations_divide_by_the_largest_singular_value(dim):
    session = fluid.Session(program(dim, power_iters=100))
    session.scope["w"] = WEIGHT
    matrix = np.moveaxis(WEIGHT, dim, 0).reshape(WEIGHT.shape[dim], -1)
    want = WEIGHT / np.linalg.svd(matrix, compute_uv=False)[0]
    np.testing.assert_allclose(session.run("build", {})[0], want, rtol=1e-4)


def test_training_steps_converge_to_the_spectral_norm():
    session = fluid.Session(program())
    session.scope["w"] = WEIGHT
    u = np.asarray(session.scope["spectral_norm_0.w_0"])
    first = np.asarray(session.run("build", {}, mode="test")[0])
    assert np.array_equal(session.scope["spectral_norm_0.w_0"], u), "testing changes no state"
    for _ in range(100):
        session.run("build", {}, mode="train")
    want = WEIGHT / np.linalg.svd(WEIGHT.reshape(3, -1), compute_uv=False)[0]
    last = np.asarray(session.run("build", {}, mode="test")[0])
    assert np.abs(first - want).max() > 1e-3
    np.testing.assert_allclose(last, want, rtol=1e-4)


def test_gradient_matches_weight_divided_by_spectral_norm():
    """Check that the gradient is correct at convergence, though the layer treats the singular vectors as constants."""
    found = fluid.Program(program(power_iters=200))
    arrays = found.init(jax.random.key(0))
    towards = jnp.asarray(real(3, 4, 2, salt=1))

    def got(weight):
        return jnp.sum(towards * found.apply(arrays | {"w": weight}, {}, key=jax.random.key(0)).outputs[0])

    def want(weight):
        return jnp.sum(towards * weight / jnp.linalg.svd(weight.reshape(3, -1), compute_uv=False)[0])

    weight = jnp.asarray(WEIGHT)
    np.testing.assert_allclose(jax.grad(got)(weight), jax.grad(want)(weight), rtol=1e-3, atol=1e-5)


def test_zeros_do_not_stay_in_the_vectors():
    with fluid.Session(program()) as session:
        session.scope["w"] = np.zeros_like(WEIGHT)
        assert not np.asarray(session.run("build", {}, mode="train")[0]).any(), "zeros are divided by 1"
        session.scope["w"] = WEIGHT
        for _ in range(100):
            session.run("build", {}, mode="train")
        want = WEIGHT / np.linalg.svd(WEIGHT.reshape(3, -1), compute_uv=False)[0]
        np.testing.assert_allclose(session.run("build", {}, mode="test")[0], want, rtol=1e-4)
