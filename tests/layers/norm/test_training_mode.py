"""Layers with a training mode: dropout and batch_norm."""

import jax
import numpy as np
import pytest
from layers.run_program import output, run

import fluid
from fluid import errors, layers

ONES = np.ones([200, 50], "float32")


def dropped(probability=0.25, **settings):
    return lambda: layers.dropout(layers.data("x", [50]), probability, **settings)


@pytest.mark.parametrize(
    "implementation, kept, tested", [("downgrade_in_infer", 1, 0.75), ("upscale_in_train", 4 / 3, 1)]
)
def test_dropout_keeps_the_expected_value(implementation, kept, tested):
    program = dropped(dropout_implementation=implementation)
    trained = output(program, {"x": ONES})
    np.testing.assert_allclose(np.unique(trained), [0, kept], rtol=1e-6)
    assert abs((trained > 0).mean() - 0.75) < 0.02
    np.testing.assert_allclose(output(program, {"x": ONES}, mode="test"), np.full_like(ONES, tested))
    forced = dropped(dropout_implementation=implementation, is_test=True)
    np.testing.assert_allclose(output(forced, {"x": ONES}), np.full_like(ONES, tested))


@pytest.mark.parametrize("far", [0.0, 10.0, 1e3])
@pytest.mark.parametrize("shape", [[4, 8, 8], [4]])
def test_batch_norm_is_exact_far_from_zero(shape, far):
    """Check that outputs of `batch_norm` are exact if the data have a large mean and an outlier in the first row."""
    x = np.random.default_rng(0).normal(far, 1, [64, *shape]).astype("float32")
    x[0, :2] += 5
    found = output(lambda: layers.batch_norm(layers.data("x", shape)), {"x": x})
    axes = tuple(i for i in range(x.ndim) if i != 1)
    exact = x.astype("float64")
    exact = exact - exact.mean(axes, keepdims=True)
    exact /= np.sqrt(exact.var(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6 * max(far, 5))


@pytest.mark.parametrize("mode", ["train", "frozen"])
@pytest.mark.parametrize("far", [0.0, 10.0, 1e3])
def test_batch_norm_gradients_are_exact_for_large_means(far, mode):
    """Compare the gradients of images, scale and bias with the closed form in float64."""
    rng = np.random.default_rng(0)
    x = rng.normal(far, 1, [64, 4, 8, 8]).astype("float32")
    weights = rng.normal(size=x.shape).astype("float32")
    program = fluid.Program(lambda: layers.batch_norm(layers.data("x", [4, 8, 8]), is_test=mode == "frozen"))
    axes = (0, 2, 3)
    exact = x.astype("float64")
    mean, variance = exact.mean(axes, keepdims=True), exact.var(axes, keepdims=True)
    values = [np.ones(4), np.zeros(4), mean.ravel(), variance.ravel()]
    arrays = {
        f"batch_norm_0.{n}": v.astype("float32") for n, v in zip(("w_0", "b_0", "w_1", "w_2"), values, strict=True)
    }
    scale, bias = "batch_norm_0.w_0", "batch_norm_0.b_0"

    def loss(x, some):
        found = program.apply({**arrays, **some}, {"x": x}, key=None, mode="train").outputs[0]
        return (found * weights).sum()

    by_x, by_name = jax.grad(loss, (0, 1))(x, {scale: arrays[scale], bias: arrays[bias]})
    root = np.sqrt(variance + 1e-5)
    normal = (exact - mean) / root
    slope = weights.astype("float64")
    if mode == "train":
        slope = slope - slope.mean(axes, keepdims=True) - normal * (slope * normal).mean(axes, keepdims=True)
    np.testing.assert_allclose(by_x, slope / root, atol=1e-6 * max(far, 5))
    np.testing.assert_allclose(by_name[bias], weights.sum(axes), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(by_name[scale], (weights * normal).sum(axes), rtol=1e-4, atol=1e-4 * max(far, 10))


@pytest.mark.parametrize("far", [0.0, 10.0, 1e3])
def test_batch_norm_inference_is_exact_for_large_means(far):
    x = np.random.default_rng(0).normal(far, 1, [64, 4, 8, 8]).astype("float32")
    program = fluid.Program(lambda: layers.batch_norm(layers.data("x", [4, 8, 8])))
    arrays = {f"batch_norm_0.{n}": np.full(4, v, "float32") for n, v in zip(("w_0", "b_0"), (1.5, 0.3), strict=True)}
    moving = {f"batch_norm_0.{n}": np.full(4, v, "float32") for n, v in zip(("w_1", "w_2"), (far, 0.9), strict=True)}
    found = program.apply({**arrays, **moving}, {"x": x}, key=None, mode="test").outputs[0]
    exact = 1.5 * (x.astype("float64") - far) / np.sqrt(np.float32(0.9).astype("float64") + 1e-5) + np.float32(0.3)
    # The distance between neighbouring float32 numbers is up to 2**-23 of their value.
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=4 * max(far, 5) * 2.0**-23)


def test_dropout_masks_depend_on_key_and_name():
    first, again = output(dropped(), {"x": ONES}), output(dropped(), {"x": ONES})
    np.testing.assert_array_equal(first, again)
    assert (first != output(dropped(), {"x": ONES}, key=1)).any()
    assert (first != output(dropped(name="other"), {"x": ONES})).any()

    def two():
        x = layers.data("x", [50])
        return layers.dropout(x, 0.25), layers.dropout(x, 0.25)

    one, other = run(two, {"x": ONES}).outputs
    np.testing.assert_array_equal(one, first)  # the second dropout layer does not change the mask of the first
    assert (np.asarray(other) != first).any()


def test_dropout_with_a_seed_never_changes():
    a, b = (output(dropped(seed=7), {"x": ONES}, key=key) for key in (0, 1))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("implementation", ["downgrade_in_infer", "upscale_in_train"])
@pytest.mark.filterwarnings("ignore:.*dropout_prob=1 drops every number")
def test_dropout_of_all_or_nothing(implementation):
    for probability, want in ((0.0, ONES), (1.0, 0 * ONES), (0, ONES), (1, 0 * ONES)):
        program = dropped(probability, dropout_implementation=implementation)
        np.testing.assert_array_equal(output(program, {"x": ONES}), want)


@pytest.mark.parametrize("probability", [-0.1, 1.5, "half", True])
def test_dropout_needs_a_probability(probability):
    with pytest.raises(errors.ArgumentError, match="dropout_prob=0.5"):
        fluid.Program(dropped(probability))


def normalised(**settings):
    return lambda: layers.batch_norm(layers.data("x", [3, 2, 2]), **settings)


def test_batch_norm_moves_its_averages_in_training_only():
    x = np.random.default_rng(0).normal(2, 3, size=(8, 3, 2, 2)).astype("float32")
    trained = run(normalised(momentum=0.8), {"x": x})
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    np.testing.assert_allclose(trained.states["batch_norm_0.w_1"], 0.2 * mean, rtol=1e-5)
    np.testing.assert_allclose(trained.states["batch_norm_0.w_2"], 0.8 + 0.2 * variance, rtol=1e-5)
    shape = [1, 3, 1, 1]
    want = (x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + 1e-5)
    np.testing.assert_allclose(trained.outputs[0], want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(trained.values["batch_norm_0.tmp_0"], mean, rtol=1e-5)

    moving = {"batch_norm_0.w_1": np.array([1, 2, 3.0]), "batch_norm_0.w_2": np.array([4, 9, 1.0])}
    want = (x - np.reshape([1, 2, 3], shape)) / np.sqrt(np.reshape([4, 9, 1], shape) + 1e-5)
    for settings, mode in ((dict(), "test"), (dict(is_test=True), "train"), (dict(use_global_stats=True), "train")):
        tested = run(normalised(**settings), {"x": x}, mode=mode, arrays=moving)
        np.testing.assert_allclose(tested.outputs[0], want, rtol=1e-4, atol=1e-5)
        for name, value in moving.items():
            np.testing.assert_array_equal(tested.states[name], value.astype("float32"))


def test_batch_norm_of_large_values_is_exact():
    x = (1e4 + np.random.default_rng(0).normal(size=(64, 3, 2, 2))).astype("float32")
    got = output(normalised(), {"x": x})
    np.testing.assert_allclose(got.std((0, 2, 3)), 1, rtol=1e-3)
    np.testing.assert_allclose(got.mean((0, 2, 3)), 0, atol=1e-2)


def test_bfloat16_batch_norm_keeps_float32_averages():
    def program():
        return layers.batch_norm(layers.data("x", [3], "bfloat16"))

    p = fluid.Program(program)
    assert {spec.dtype for spec in (p.parameters | p.states).values()} == {"float32"}
    assert p.outputs[0].dtype == "bfloat16"


def test_batch_norm_without_scale_and_bias():
    p = fluid.Program(normalised(param_attr=False, bias_attr=False))
    assert not p.parameters and list(p.states) == ["batch_norm_0.w_0", "batch_norm_0.w_1"]


def test_batch_norm_shares_its_averages_by_name():
    def program():
        x = layers.data("x", [3])
        once = layers.batch_norm(x, moving_mean_name="m", moving_variance_name="v", momentum=0.5)
        return layers.batch_norm(2 * x, moving_mean_name="m", moving_variance_name="v", momentum=0.5), once

    x = np.random.default_rng(0).normal(1, size=(6, 3)).astype("float32")
    np.testing.assert_allclose(run(program, {"x": x}).states["m"], 1.25 * x.mean(0), rtol=1e-5)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: layers.prelu(layers.data("x", [3]), "some"), "'channel'"),
        (lambda: layers.group_norm(layers.data("x", [6, 2, 2]), 4), "divisor, as in groups=6"),
        (lambda: layers.batch_norm(layers.data("x", [3]), data_layout="HWCN"), "'NCHW' or 'NHWC'"),
    ],
)
def test_mistakes_are_explained(build, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(build)


@pytest.mark.parametrize("scale", [None, False])
def test_batch_norm_of_empty_sequences_changes_no_average(scale):
    moving = {n: np.array([1.5, 2.5], "float32") for n in ("batch_norm_0.w_1", "batch_norm_0.w_2")}
    if scale is False:
        moving = {"batch_norm_0.w_0": moving["batch_norm_0.w_1"], "batch_norm_0.w_1": moving["batch_norm_0.w_2"]}

    def program():
        words = layers.data("words", [2], lod_level=1)
        return layers.reduce_mean(layers.sequence_pool(layers.batch_norm(words, param_attr=scale), "sum"))

    empty = fluid.SequenceBatch(np.ones((3, 4, 2), "float32"), np.zeros(3, "int32"))
    trained = run(program, {"words": empty}, arrays=moving)
    for name, value in moving.items():
        np.testing.assert_allclose(trained.states[name], value, rtol=1e-6)


def test_training_continues_after_a_minibatch_of_empty_sequences():
    def program():
        words = layers.data("words", [2], lod_level=1)
        pooled = layers.sequence_pool(layers.batch_norm(layers.fc(words, 3)), "sum")
        return layers.reduce_mean(layers.square(layers.fc(pooled, 1) - 1.0))

    full = [([[1.0, 2.0], [3.0, -4.0]],), ([[0.5, 0.25]],)]
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    trainer.train([full, [([],), ([],)], full], num_epochs=2)
    assert all(np.isfinite(v).all() for v in trainer.params.values())
