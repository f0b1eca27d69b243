"""Named means and variances of normalisations: fetched and overridden like any other value."""

import jax
import numpy as np
import pytest
from layers.layer_table import real
from layers.run_program import output, run

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


@pytest.mark.sample(3)
@pytest.mark.parametrize("convolved", [False, True])
@pytest.mark.parametrize("shape", [(4, 6, 3, 2), (2, 6, 3, 2, 2), (2, 6, 1, 1)])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_of_groups_with_the_channels_last(shape, groups, convolved):
    """Compare `group_norm` of channels-last images with a formula: results, gradients, and an overridden mean."""
    # A group with a single number has no variance, and the convolution is two-dimensional.
    if (groups == 6 and shape[2:] == (1, 1)) or (convolved and len(shape) != 4):
        return
    images = real(*shape) + 2
    given = {"x": images if convolved else np.moveaxis(images, 1, -1)}

    def build(normalise, layout):
        x = layers.data("x", given["x"].shape[1:])
        hidden = layers.conv2d(x, 6, 1, bias_attr=False) if convolved else x
        return normalise(hidden, layout)

    def by_layer(x, layout):
        return layers.group_norm(x, groups, param_attr="s", bias_attr="b", data_layout=layout, act="tanh")

    program = fluid.Program(lambda: build(by_layer, "NCHW" if convolved else "NHWC"))
    parameters = {n: real(*s.shape, salt=1) for n, s in program.parameters.items()}
    overridden = {"group_norm_0.tmp_0": real(shape[0], groups, salt=2)}

    def by_formula(x, mean=None):
        if convolved:
            x = jax.numpy.einsum("ncij,oc->noij", x, parameters["conv2d_0.w_0"][:, :, 0, 0])
        else:
            x = jax.numpy.moveaxis(x, -1, 1)
        parts = x.reshape(shape[0], groups, -1)
        variance = parts.var(2, keepdims=True)
        centre = parts.mean(2, keepdims=True) if mean is None else mean[..., None]
        normal = ((parts - centre) / jax.numpy.sqrt(variance + 1e-5)).reshape(shape)
        scale, bias = (parameters[n].reshape(-1, *[1] * (len(shape) - 2)) for n in ("s", "b"))
        result = jax.numpy.tanh(normal * scale + bias)
        return result if convolved else jax.numpy.moveaxis(result, 1, -1)

    def applied(x, **overrides):
        return program.apply(parameters, {"x": x}, key=jax.random.key(0), mode="train", **overrides).outputs[0]

    (found, back), (want, wanted) = (jax.vjp(jax.jit(f), given["x"]) for f in (applied, by_formula))
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
    seed = real(*want.shape, salt=3)
    np.testing.assert_allclose(back(seed)[0], wanted(seed)[0], rtol=1e-3, atol=1e-3)
    moved = applied(given["x"], overrides=overridden)
    np.testing.assert_allclose(moved, by_formula(given["x"], overridden["group_norm_0.tmp_0"]), rtol=1e-3, atol=1e-3)


def test_their_gradient_is_the_slope():
    """Check the derivative of the summed `layer_norm` by the mean of an example with 36 elements: -36 / deviation."""

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
