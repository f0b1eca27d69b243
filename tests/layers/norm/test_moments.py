"""Means and variances of normalisations, which have names: they are fetched and overridden as any other value."""

import jax
import numpy as np
import pytest
from layers.run import output, run
from layers.table import real

import fluid
from fluid import errors, layers

X = real(4, 6, 3, 2)
MOMENTS = {
    "batch_norm": (layers.batch_norm, (0, 2, 3), [6]),
    "layer_norm": (layers.layer_norm, (1, 2, 3), [4]),
    "instance_norm": (layers.instance_norm, (2, 3), [24]),
}


def program(normalise):
    return lambda: normalise(layers.data("x", X.shape[1:]))


@pytest.mark.parametrize("name", MOMENTS)
def test_they_can_be_fetched_and_overridden(name):
    normalise, axes, shape = MOMENTS[name]
    mean, variance = X.mean(axes), X.var(axes)
    values = run(program(normalise), {"x": X}).values
    np.testing.assert_allclose(values[f"{name}_0.tmp_0"], mean.reshape(shape), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values[f"{name}_0.tmp_1"], variance.reshape(shape), rtol=1e-5, atol=1e-6)
    given = {f"{name}_0.tmp_0": np.full(shape, 2.0, "float32"), f"{name}_0.tmp_1": np.full(shape, 4.0, "float32")}
    found = output(program(normalise), {"x": X}, overrides=given)
    np.testing.assert_allclose(found, (X - 2) / np.sqrt(4 + 1e-5), rtol=1e-5, atol=1e-6)


def test_of_groups_too():
    def build():
        return layers.group_norm(layers.data("x", X.shape[1:]), groups=3)

    parts = X.reshape(4, 3, -1)
    values = run(build, {"x": X}).values
    np.testing.assert_allclose(values["group_norm_0.tmp_0"], parts.mean(2), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values["group_norm_0.tmp_1"], parts.var(2), rtol=1e-5, atol=1e-6)
    given = np.arange(12, dtype="float32").reshape(4, 3)
    found = output(build, {"x": X}, overrides={"group_norm_0.tmp_0": given})
    want = (parts - given[..., None]) / np.sqrt(parts.var(2, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, want.reshape(X.shape), rtol=1e-4, atol=1e-5)


def test_their_gradient_is_the_slope():
    """Each mean is subtracted from the elements of its example, which are divided by the deviation."""

    def build():
        return layers.reduce_sum(layers.layer_norm(layers.data("x", X.shape[1:]), scale=False, shift=False))

    p = fluid.Program(build)

    def total(moved):
        perturbations = {"layer_norm_0.tmp_0": moved}
        return p.apply({}, {"x": X}, key=jax.random.key(0), perturbations=perturbations).outputs[0]

    found = jax.grad(total)(np.zeros(4, "float32"))
    np.testing.assert_allclose(found, -36 / np.sqrt(X.var((1, 2, 3)) + 1e-5), rtol=1e-4)


@pytest.mark.parametrize(("channels", "advice"), [(6, 6), (64, 32), (37, 1), (96, 32)])
def test_the_advice_of_groups_divides_the_channels(channels, advice):
    with pytest.raises(errors.ShapeError, match=rf"use a divisor, as in groups={advice}\b"):
        fluid.Program(lambda: layers.group_norm(layers.data("x", [channels, 2, 2]), groups=35))


@pytest.mark.parametrize("groups", [0, -2, 1.5, True, None])
def test_groups_are_counted(groups):
    with pytest.raises(errors.ArgumentError, match="expected a whole number from 1 on, as in groups=1"):
        fluid.Program(lambda: layers.group_norm(layers.data("x", [4, 2, 2]), groups=groups))
