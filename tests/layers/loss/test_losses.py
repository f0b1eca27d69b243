"""Edge cases of losses: extreme logits, ignored and invalid labels, and weights of means."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.run_program import check, feeds, output, run

import fluid
from fluid import errors, layers

EXTREME = np.array([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4]], "float32")
LABEL = np.array([[1], [0]])


def classifier(soft=False, ignore=-100):
    def program():
        x, label = layers.data("x", [3]), layers.data("label", [1], "int64")
        p = layers.softmax(x)
        loss = layers.cross_entropy(p, layers.one_hot(label, 3) if soft else label, soft, ignore)
        return layers.mean(loss), loss, p

    return program


@pytest.mark.parametrize("soft", [False, True])
def test_cross_entropy_of_softmax_uses_the_logits(soft):
    mean, loss, p = run(classifier(soft), {"x": EXTREME, "label": LABEL}).outputs
    np.testing.assert_allclose(loss, [[2e4], [2e4 + np.log(2)]], rtol=1e-6)
    np.testing.assert_allclose(mean, 2e4 + np.log(2) / 2, rtol=1e-6)
    np.testing.assert_allclose(p, [[1, 0, 0], [0, 0.5, 0.5]])


def test_gradient_of_extreme_logits_is_finite():
    def loss(x):
        return run(classifier(), {"x": x, "label": LABEL}).outputs[0]

    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(EXTREME)), [[0.5, -0.5, 0], [-0.5, 0.25, 0.25]])


def test_act_softmax_keeps_the_logits_too():
    def program():
        x, label = layers.data("x", [3]), layers.data("label", [1], "int64")
        weight = fluid.ParamAttr(initializer=fluid.initializer.NumpyArray(np.eye(3)))
        return layers.cross_entropy(layers.fc(x, 3, param_attr=weight, act="softmax"), label)

    np.testing.assert_allclose(output(program, {"x": EXTREME, "label": LABEL}), [[2e4], [2e4 + np.log(2)]], rtol=1e-6)


def test_overridden_probabilities_are_used():
    p = np.array([[0.2, 0.5, 0.3], [0.1, 0.2, 0.7]], "float32")
    applied = run(classifier(), {"x": EXTREME, "label": LABEL}, overrides={"softmax_0.tmp_0": p})
    np.testing.assert_allclose(applied.outputs[1], -np.log([[0.5], [0.1]]), rtol=1e-6)
    np.testing.assert_array_equal(applied.outputs[2], p)


def test_gradient_with_respect_to_probabilities():
    x = np.array([[0.1, -0.3, 0.7], [1.0, 0.0, -1.0]], "float32")
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)

    def loss(change):
        return run(classifier(), {"x": x, "label": LABEL}, perturbations={"softmax_0.tmp_0": change}).outputs[0]

    want = np.zeros_like(p)
    want[[0, 1], LABEL[:, 0]] = -1 / p[[0, 1], LABEL[:, 0]] / 2
    np.testing.assert_allclose(jax.grad(loss)(jnp.zeros_like(p)), want, rtol=1e-5)


def test_identity_does_not_lose_the_logits():
    def program():
        x, label = layers.data("x", [3]), layers.data("label", [1], "int64")
        return layers.cross_entropy(layers.identity(layers.softmax(x), name="p"), label)

    assert output(program, {"x": EXTREME, "label": LABEL})[0, 0] == 2e4
    given = np.full([2, 3], 1 / 3, "float32")
    np.testing.assert_allclose(
        output(program, {"x": EXTREME, "label": LABEL}, overrides={"p": given}), np.log([[3.0], [3.0]]), rtol=1e-6
    )


def test_cross_entropy_of_other_axis_softmax_warns():
    x = np.array([[[1.0, 2.0], [3.0, 5.0]]], "float32")
    label = np.array([[[0], [1]]])
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    want = -np.log(p[0, [0, 1], [0, 1]])[None, :, None]
    with pytest.warns(errors.FluidWarning, match="along axis 1"):
        check(lambda x, y: layers.cross_entropy(layers.softmax(x, axis=1), y), want, x=x, label=label)


def test_zero_probability_has_finite_loss_and_gradient():
    p, label = jnp.array([[0.0, 1.0], [0.5, 0.5]]), np.array([[0], [1]])

    def loss(p):
        return jnp.sum(run(lambda: layers.cross_entropy(*feeds(p=p, label=label)), {"p": p, "label": label}).outputs[0])

    assert loss(p) == 1e20
    np.testing.assert_allclose(jax.grad(loss)(p), [[0, 0], [0, -2]])


def test_nan_probability_has_nan_loss():
    p = np.array([[np.nan, 0.5]], "float32")
    got = output(lambda: layers.cross_entropy(*feeds(p=p, y=np.array([[0]]))), {"p": p, "y": np.array([[0]])})
    assert np.isnan(got).all()


@pytest.mark.parametrize("ignore", [-100, 2, -1])
def test_ignored_rows_cost_nothing(ignore):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    label = np.array([[0], [ignore], [1], [ignore]])

    def loss(x):
        applied = run(classifier(ignore=ignore), {"x": x, "label": label}, parts=True, mode="test")
        return applied.outputs[0], (applied.outputs[1], applied.parts[0].weight)

    gradient, (rows, weight) = jax.grad(loss, has_aux=True)(jnp.asarray(x))
    logs = x - np.log(np.exp(x).sum(1, keepdims=True))
    np.testing.assert_allclose(rows[:, 0], [-logs[0, 0], 0, -logs[2, 1], 0], rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(gradient)[1::2], np.zeros([2, 3]))
    assert weight == 4
    program = fluid.Program(classifier(ignore=ignore))
    assert program.feeds["label"].limits == (0, 3, ignore)


def test_a_class_out_of_range_shows():
    label = np.array([[3], [0]])
    x = np.zeros([2, 3], "float32")
    for build in (layers.cross_entropy, layers.softmax_with_cross_entropy):
        got = output(lambda build=build: build(*feeds(x=x + 0.2, label=label)), {"x": x + 0.2, "label": label})
        assert np.isnan(got[0, 0]) and np.isfinite(got[1, 0])


def test_labels_without_trailing_dimension_are_accepted():
    x, label = np.eye(3, dtype="float32") * 0.5 + 0.1, np.array([0, 1, 1])
    want = -np.log(x[[0, 1, 2], label])[:, None]
    check(layers.cross_entropy, want, x=x, label=label)


@pytest.mark.parametrize(
    "build", [layers.cross_entropy, layers.softmax_with_cross_entropy, layers.bpr_loss, layers.accuracy]
)
def test_float_labels_are_refused(build):
    with pytest.raises(errors.ArgumentTypeError, match='dtype="int64"') as caught:
        fluid.Program(lambda: build(layers.data("x", [3]), layers.data("label", [1])))
    assert isinstance(caught.value, TypeError)


def test_sequences_and_arrays_are_not_mixed():
    def program():
        x = layers.data("x", [3], lod_level=1)
        return layers.cross_entropy(x, layers.data("label", [1], "int64"))

    with pytest.raises(errors.ShapeError, match="sequence_pool"):
        fluid.Program(program)


def test_weight_of_a_mean_is_its_element_count():
    batch = fluid.SequenceBatch.from_rows([[[1.0], [2.0], [3.0]], [[6.0]]], "float32")
    batch = fluid.SequenceBatch(jnp.asarray(batch.data), jnp.asarray(batch.lengths))

    def program():
        x, s = layers.data("x", [2, 3]), layers.data("s", [1], lod_level=1)
        once = layers.mean(x)
        guesses = layers.accuracy(layers.reshape(x, [-1, 3]), layers.reshape(layers.argmax(x, axis=2), [-1, 1]))
        return once, layers.mean(once), layers.mean(s), layers.reduce_mean(x), guesses

    applied = run(program, {"x": np.ones([5, 2, 3], "float32"), "s": batch}, parts=True, mode="test")
    assert [float(part.weight) for part in applied.parts] == [5, 5, 4, 5, 10]
    assert float(applied.outputs[2]) == 3.0


def test_a_mean_of_no_steps_is_zero():
    empty = fluid.SequenceBatch(jnp.full([2, 3, 1], 7.0), jnp.zeros([2], jnp.int32))
    applied = run(lambda: layers.mean(layers.data("s", [1], lod_level=1)), {"s": empty}, parts=True, mode="test")
    assert float(applied.outputs[0]) == 0 and float(applied.parts[0].weight) == 0


def test_accuracy_counts_the_best_guesses():
    scores = np.array([[0.1, 0.9, 0.0], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.3, 0.4, 0.3]], "float32")
    label = np.array([[1], [1], [2], [0]])
    check(layers.accuracy, 0.5, x=scores, label=label)
    check(lambda x, y: layers.accuracy(x, y, k=2), 1.0, x=scores, label=label)


def test_sigmoid_cross_entropy_is_stable():
    x, label = np.array([[-1e4, 1e4, 0.0]], "float32"), np.array([[1.0, 1.0, 1.0]], "float32")
    check(layers.sigmoid_cross_entropy_with_logits, [[1e4, 0, np.log(2)]], x=x, label=label)


def test_sigmoid_cross_entropy_has_gradient_at_zero_logits():
    feed = {"x": np.zeros((1, 3), "float32"), "label": np.array([[0, 0.5, 1]], "float32")}

    def loss(x):
        return run(lambda: layers.sigmoid_cross_entropy_with_logits(*feeds(**feed)), feed | {"x": x}).outputs[0].sum()

    got = jax.grad(loss)(feed["x"])
    np.testing.assert_allclose(got, [[0.5, 0, -0.5]])


def test_bpr_loss_is_the_mean_over_other_classes():
    x, label = np.random.default_rng(2).normal(size=(4, 5)).astype("float32"), np.array([[0], [4], [2], [2]])
    want = [
        [np.mean([np.log1p(np.exp(x[i, j] - x[i, label[i, 0]])) for j in range(5) if j != label[i, 0]])]
        for i in range(4)
    ]
    check(layers.bpr_loss, want, x=x, label=label)


@pytest.mark.parametrize("bounds", [(15.0, -15.0), (2.0, -2.0)])
def test_student_logits_beyond_bounds_have_no_gradient(bounds):
    up, low = bounds
    x = np.linspace(-30, 30, 41, dtype="float32")[:, None]
    label = np.resize(np.array([-2, -1, 0.3, 1.6], "float32"), x.shape)
    program = fluid.Program(lambda: layers.teacher_student_sigmoid_loss(*feeds(x=x, label=label), up, low))
    softplus = np.logaddexp(0, x.astype("float64"))
    clicked = (label == -1) | (label >= 1)
    taught, teacher = label >= 0, np.where(label >= 1, label - 1, label)
    want = softplus - clicked * x + taught * (softplus - teacher * x)
    chance = 1 / (1 + np.exp(-x.astype("float64")))
    slope = np.where((low < x) & (x < up), chance - clicked + taught * (chance - teacher), 0)

    def cost(x):
        return program.apply({}, {"x": x, "label": label}, key=None).outputs[0]

    np.testing.assert_allclose(cost(x), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: cost(x).sum())(x), slope, rtol=1e-4, atol=1e-6)
