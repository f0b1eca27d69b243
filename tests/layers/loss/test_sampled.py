"""Losses over a few sampled classes: compared with explicit sums."""

import jax
import numpy as np
import pytest
from layers.layer_table import real, whole
from layers.run_program import check, feeds, run

import fluid
from fluid import errors, layers
from fluid.layers.loss import sampled

X, LABEL = real(5, 4), whole(6, 5, 1)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def parameters(program, **arrays):
    """Return values for all parameters of a program: the given values, and random values for the rest."""
    known = fluid.Program(program).parameters
    return {name: arrays.get(name, real(*spec.shape, salt=name)) for name, spec in known.items()}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighed", [False, True])
def test_nce_matches_the_formula(sparse, weighed):
    # The sampler draws only class 2, so the loss is known.
    odds = np.eye(6)[2]
    weight = np.arange(1.0, 6.0, dtype="float32")[:, None]

    def program():
        x, label, w = feeds(x=X, label=LABEL, w=weight)
        return layers.nce(x, label, 6, w if weighed else None, num_neg_samples=3, sampler="custom_dist",
                          custom_dist=odds, is_sparse=sparse)  # fmt: skip

    arrays = parameters(program)
    w, b = arrays["nce_0.w_0"], arrays["nce_0.b_0"][:, 0]
    assert w.shape == (6, 4) and arrays["nce_0.b_0"].shape == (6, 1)
    got = run(program, {"x": X, "label": LABEL, "w": weight}, arrays=arrays).outputs[0]
    want = []
    for row, (right,) in zip(X, LABEL, strict=True):
        o = sigmoid(row @ w[right] + b[right])
        noise = sigmoid(row @ w[2] + b[2])
        want.append(-np.log(o / (o + 3 * odds[right])) - 3 * np.log(3 / (noise + 3)))
    want = np.array(want)[:, None] / (3 + 1) * (weight if weighed else 1)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_the_slope_of_nce():
    """Check the gradient of the biases by the formula, with class 2 drawn ten times, the default number."""
    odds = 0.8 * np.eye(6)[2]
    program = fluid.Program(lambda: layers.nce(*feeds(x=X, label=LABEL), 6, sampler="custom_dist", custom_dist=odds))
    arrays = {"nce_0.w_0": real(6, 4), "nce_0.b_0": real(6, 1)}

    def total(arrays):
        return program.apply(arrays, {"x": X, "label": LABEL}, key=jax.random.key(0)).outputs[0].sum()

    want = np.zeros(6)
    for row, (right,) in zip(X, LABEL, strict=True):
        for place, sign, times in ((right, -1, 1), (2, 1, 10)):
            o, b = sigmoid(row @ arrays["nce_0.w_0"][place] + arrays["nce_0.b_0"][place, 0]), 10 * odds[place]
            share = b / (o + b) if sign < 0 else o / (o + b)
            want[place] += times * sign * share * (1 - o) / 11
    np.testing.assert_allclose(jax.grad(total)(arrays)["nce_0.b_0"][:, 0], want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sampler", ["uniform", "log_uniform"])
def test_nce_draws_as_its_sampler_says(sampler):
    odds = np.full(50, 0.02) if sampler == "uniform" else sampled._log_uniform(50)
    np.testing.assert_allclose(odds.sum(), 1)
    zeros = {"nce_0.w_0": np.zeros((50, 4), "float32")}
    label = np.array([[7]])

    def program():
        return layers.nce(*feeds(x=X[:1], label=label), 50, num_neg_samples=4000, sampler=sampler, bias_attr=False)

    cost = float(run(program, {"x": X[:1], "label": label}, arrays=zeros).outputs[0][0, 0])
    rates = 4000 * odds
    # All scores are 0, so the cost is the cost of the true class plus 4000 times the mean cost of a noise class.
    want = -np.log(0.5 / (0.5 + rates[7])) - 4000 * np.sum(odds * np.log(rates / (0.5 + rates)))
    assert cost == pytest.approx(want / 4001, rel=2e-2)


def frequencies(odds, count=200_000):
    drawn = np.asarray(jax.jit(lambda odds: sampled._draw(jax.random.key(0), odds, (count // 4, 4)))(odds))
    assert drawn.shape == (count // 4, 4) and np.issubdtype(drawn.dtype, np.integer)
    return np.bincount(drawn.ravel(), minlength=len(odds)) / count


@pytest.mark.parametrize("kind", ["log_uniform", "any", "zeros at both ends", "counts"])
def test_classes_are_drawn_as_often_as_their_probabilities(kind):
    odds = {
        "log_uniform": np.float32(sampled._log_uniform(40)),
        "any": np.random.default_rng(0).dirichlet(np.ones(40)).astype("float32"),
        "zeros at both ends": np.float32([0, 0, 0.3, 0, 0.1, 0.4, 0, 0]),  # the sum is 0.8: weights need no sum of 1
        "counts": np.int32([5, 0, 3, 2]),
    }[kind]
    found, want = frequencies(odds), odds / odds.sum()
    assert not found[odds == 0].any()
    some = want > 0
    # The sum has a chi-square distribution. Its mean is about the number of classes, and its variance twice the mean.
    assert 200_000 * np.sum((found - want)[some] ** 2 / want[some]) < some.sum() + 5 * np.sqrt(2 * some.sum())


def test_rare_classes_after_frequent_classes_are_drawn():
    """Check that rare classes after a frequent class are drawn.

    A running sum in float32 would not grow after the first class, because each rare weight is below its rounding error.
    """
    odds = np.full(2**20, 2.0**-26, "float32")
    odds[0] = 1 - 2.0**-6
    found = frequencies(odds)
    assert found[1:].sum() == pytest.approx(2.0**-6, rel=0.1) and (found[1:] > 0).sum() > 2500
    halves = found[1 : 2**19].sum(), found[2**19 :].sum()
    assert halves[0] == pytest.approx(halves[1], rel=0.15)


@pytest.mark.parametrize("wrong", [np.nan, -1, np.inf])
def test_a_class_with_a_wrong_probability_shows(wrong):
    assert frequencies(np.float32([1, 2, wrong, 4]), 100)[2] == 1


def test_nce_draws_from_probabilities_that_are_fed():
    odds = np.float32([0.5, 0, 0.25, 0, 0.25, 0])

    def program():
        x, label = feeds(x=X[:1], label=LABEL[:1])
        given = layers.data("odds", shape=[6], append_batch_size=False)
        return layers.nce(x, label, 6, num_neg_samples=4000, sampler="custom_dist", custom_dist=given, bias_attr=False)

    zeros = {"nce_0.w_0": np.zeros((6, 4), "float32")}
    label = np.array([[2]])
    cost = float(run(program, {"x": X[:1], "label": label, "odds": odds}, arrays=zeros).outputs[0][0, 0])
    rates = 4000 * odds[odds > 0]
    want = -np.log(0.5 / (0.5 + 1000)) - 4000 * np.sum(odds[odds > 0] * np.log(rates / (0.5 + rates)))
    assert cost == pytest.approx(want / 4001, rel=2e-2)


def test_draws_change_each_step_without_a_seed():
    def draw(key, seed):
        def program():
            return layers.nce(*feeds(x=X, label=LABEL), 6, num_neg_samples=2, seed=seed)

        return np.asarray(run(program, {"x": X, "label": LABEL}, key=key).outputs[0])

    assert not np.array_equal(draw(0, 0), draw(1, 0))
    assert np.array_equal(draw(0, 5), draw(1, 5))


@pytest.mark.parametrize("classes", [2, 3, 6, 8, 9])
def test_hsigmoid_follows_a_complete_tree(classes):
    label = whole(classes, 5, 1)

    def program():
        return layers.hsigmoid(*feeds(x=X, label=label), classes)

    arrays = parameters(program)
    w, b = arrays["hierarchical_sigmoid_0.w_0"], arrays["hierarchical_sigmoid_0.b_0"][:, 0]
    longest = max(len(way(k, classes)) for k in range(classes))
    want = []
    for row, (k,) in zip(X, label, strict=True):
        costs = [np.log1p(np.exp(row @ w[f] + b[f])) - bit * (row @ w[f] + b[f]) for f, bit in way(k, classes)]
        want.append([sum(costs) + (longest - len(costs)) * np.log(2)])
    np.testing.assert_allclose(run(program, {"x": X, "label": label}, arrays=arrays).outputs[0], want, rtol=1e-5)


def way(k, classes):
    """Return the path from leaf `k` of a binary tree to the root, as pairs `(fork, branch)`.

    The branch is 0 for the first branch of the fork, and 1 for the second branch.
    """
    node, forks = k + classes, []
    while node > 1:
        forks.append((node // 2 - 1, node % 2))
        node //= 2
    return forks


@pytest.mark.parametrize("layer", ["nce", "hsigmoid"])
def test_sparse_training_equals_dense(layer):
    ends = []
    for sparse in (False, True):

        def program(sparse=sparse):
            x, label = feeds(x=X, label=LABEL)
            loss = layers.mean(getattr(layers, layer)(x, label, 6, seed=3, is_sparse=sparse) if layer == "nce" else
                               layers.hsigmoid(x, label, 6, is_sparse=sparse))  # fmt: skip
            fluid.optimizer.Adagrad(0.1).minimize(loss)
            return loss

        session = fluid.Session(program)
        assert len(session.programs["program"].lookups) == 2 * sparse
        for _ in range(3):
            session.run(program, {"x": X, "label": LABEL})
        ends.append({name: np.asarray(v) for name, v in session.scope.items()})
    for name, want in ends[0].items():
        np.testing.assert_allclose(ends[1][name], want, rtol=1e-5, atol=1e-6)


def test_sampled_softmax_with_given_samples():
    label, samples = np.array([[1], [2]]), np.array([[1, 0, 2], [2, 0, 2]])
    logits, odds = real(2, 4), np.array([[0.5, 0.25, 0.125], [0.3, 0.2, 0.1]], "float32")
    # The last sampled class of the second row is the true class of this row, so the loss leaves out this sample.
    rows = [[0.5, 0.25, 0.125], [0.3, 0.2]]
    want = []
    for row, classes, p in zip(logits, samples, rows, strict=True):
        scores = np.exp(row[classes[: len(p)]] - np.log(p))
        want.append([-np.log(scores[0] / scores.sum())])
    check(
        lambda x, label, s, p: layers.sampled_softmax_with_cross_entropy(
            x, label, 2, use_customized_samples=True, customized_samples=s, customized_probabilities=p),
        want, x=logits, label=label, s=samples, p=odds)  # fmt: skip


def test_samples_that_are_any_true_class_are_left_out():
    label, samples = np.array([[1, 3], [2, 0]]), np.array([[1, 3, 3, 2], [2, 0, 1, 0]])
    logits, odds = real(2, 4), np.full((2, 4), 0.5, "float32")
    kept = [[1, 3, 2], [2, 0, 1]]
    shares = [np.exp(row[classes]) / np.exp(row[classes]).sum() for row, classes in zip(logits, kept, strict=True)]
    check(
        lambda x, label, s, p: layers.sampled_softmax_with_cross_entropy(
            x, label, 2, num_true=2, use_customized_samples=True, customized_samples=s, customized_probabilities=p),
        [[-np.log(share[:2]).mean()] for share in shares], x=logits, label=label, s=samples, p=odds)  # fmt: skip


def test_distinct_draws_match_their_expected_counts():
    def draw(key):
        return sampled._draw_without_repetition(key, 5, 20)

    drawn, expected = jax.vmap(draw)(jax.random.split(jax.random.key(0), 4000))
    assert all(len(set(row)) == 5 for row in np.asarray(drawn)[:200].tolist())
    found = np.bincount(np.asarray(drawn).ravel(), minlength=20) / 4000
    np.testing.assert_allclose(np.asarray(expected).mean(0), found, atol=0.03)


def test_sampled_softmax_learns_the_classes():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 30, [256, 1])
    x = (np.eye(30)[label[:, 0]] + rng.normal(0, 0.1, [256, 30])).astype("float32")

    def program():
        x_, label_ = feeds(x=x, label=label)
        logits = layers.fc(x_, size=30)
        loss = layers.mean(layers.sampled_softmax_with_cross_entropy(logits, label_, 8))
        fluid.optimizer.Adam(0.05).minimize(loss)
        return loss, layers.accuracy(logits, label_)

    session = fluid.Session(program)
    for _ in range(60):
        results = session.run(program, {"x": x, "label": label})
    assert float(results[1]) > 0.95


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, label: layers.nce(x, label, 6, sampler="zipf"), "log_uniform"),
        (lambda x, label: layers.nce(x, label, 6, sampler="custom_dist"), "custom_dist="),
        (lambda x, label: layers.hsigmoid(x, label, 1), r"num_classes=1\): expected a whole number from 2 on"),
        (lambda x, label: layers.hsigmoid(x, label, 4, is_custom=True), "path_table="),
        (lambda x, label: layers.hsigmoid(x, label, 4, path_table=label, path_code=x, is_custom=True), "integers"),
        (
            lambda x, label: layers.sampled_softmax_with_cross_entropy(x, label, 9),
            r"num_samples=9\): expected a whole number from 1 to 4",
        ),
        (
            lambda x, label: layers.sampled_softmax_with_cross_entropy(x, label, 2, use_customized_samples=True),
            "customized_samples=",
        ),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(x=X, label=LABEL)))


def test_label_feeds_are_limited_to_classes():
    program = fluid.Program(lambda: layers.nce(*feeds(x=X, label=LABEL), 6))
    assert program.feeds["label"].limits == (0, 6, None)
