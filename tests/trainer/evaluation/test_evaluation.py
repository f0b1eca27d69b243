"""Results of `trainer.test`: for any minibatch sizes, they equal the results of NumPy on the whole data set."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from compile_counts import counted
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

import fluid
from fluid import errors, layers
from fluid.core import Contribution, Reduction
from fluid.trainer.evaluation.total import Total

RNG = np.random.default_rng(0)
ROWS = 60
X = RNG.normal(size=(ROWS, 3)).astype("float32")
Y = RNG.integers(0, 2, [ROWS, 1])
WORDS = [RNG.normal(size=(length, 2)).astype("float32") for length in RNG.integers(0, 6, ROWS)]
WEIGHT = np.array([[0.5], [-1.0], [2.0]], "float32")
SCORE = 1 / (1 + np.exp(-X.astype("float64") @ WEIGHT))
ERROR = SCORE - Y
STEPS = np.concatenate(WORDS).astype("float64")
# Scores are rounded to multiples of 1/EDGES. So each score has a separate bin in `layers.auc`, and the AUC is exact.
EDGES = 1024


def r2(error, y):
    """Return R2, the share of the variance of `y` that the predictions explain, from `error = prediction - y`."""
    return 1 - (error**2).sum() / ((y - y.mean()) ** 2).sum()


def measures():
    x, y = layers.data("x", shape=[3]), layers.data("y", shape=[1], dtype="int64")
    words = layers.data("words", shape=[2], lod_level=1)
    score = layers.fc(x, size=1, act="sigmoid", param_attr=fluid.initializer.NumpyArray(WEIGHT), bias_attr=False)
    error = score - layers.cast(y, "float32")
    loss = layers.mean(layers.square(error))
    binned = jnp.round(score * EDGES) / EDGES
    roc, last, _ = layers.auc(binned, y, num_thresholds=EDGES)
    precision, *_ = layers.auc(binned, y, curve="PR", num_thresholds=EDGES)
    found = layers.cast(score > 0.5, "int64")
    iou, wrong, right = layers.mean_iou(found, y, num_classes=2)
    return {
        "loss": loss,
        "sum": layers.reduce_sum(error),
        "columns": layers.reduce_sum(x, dim=0),
        "means": layers.reduce_mean(x, dim=0),
        "max": layers.reduce_max(error),
        "min": layers.reduce_min(error),
        "any": layers.reduce_any(error > 0.999),
        "rmse": layers.metric(loss, reduce=jnp.sqrt),
        "r2": layers.metric([error, layers.cast(y, "float32")], reduce=r2),
        "ratio": layers.metric([jnp.sum(error**2), jnp.sum(jnp.abs(error))], reduce=lambda a, b: a / b),
        "share": layers.metric(jnp.sum(error * x) / jnp.sum(x**2), reduce="mean", weight=jnp.sum(x**2)),
        "both": loss + 0.5 * layers.mean(x) - 1,
        "words": layers.mean(words),
        "longest": layers.metric(jnp.max(words.lengths), reduce="max"),
        "hits": jnp.sum(found),
        "weights": layers.reduce_sum(layers.create_parameter([3], name="w", attr=fluid.initializer.Constant(2.0))),
        "roc": roc,
        "roc of the last": last,
        "pr": precision,
        "iou": iou,
        "wrong": wrong,
        "right": right,
        "score": score,
    }


@functools.cache
def wanted():
    found = SCORE > 0.5
    hit = (found == Y).ravel()
    right = np.array([(hit & (Y.ravel() == k)).sum() for k in (0, 1)])
    wrong = np.array([(~hit & ((Y.ravel() == k) | (found.ravel() == k))).sum() for k in (0, 1)])
    binned = np.round(SCORE.astype("float32") * EDGES) / EDGES
    squares = (X.astype("float64") ** 2).sum()
    return {
        "loss": np.mean(ERROR**2),
        "sum": ERROR.sum(),
        "columns": X.sum(0, dtype="float64"),
        "means": X.mean(0, dtype="float64"),
        "max": ERROR.max(),
        "min": ERROR.min(),
        "any": (ERROR > 0.999).any(),
        "rmse": np.sqrt(np.mean(ERROR**2)),
        "r2": 1 - np.mean(ERROR**2) / np.var(Y),
        "ratio": (ERROR**2).sum() / np.abs(ERROR).sum(),
        "share": (ERROR * X).sum() / squares,
        "both": np.mean(ERROR**2) + 0.5 * X.mean(dtype="float64") - 1,
        "words": STEPS.mean(),
        "longest": max(map(len, WORDS)),
        "hits": found.sum(),
        "weights": 6.0,
        "roc": roc_auc_score(Y, binned),
        "roc of the last": roc_auc_score(Y, binned),
        "pr": average_precision_score(Y, binned),
        "iou": np.mean(right / (right + wrong)),
        "wrong": wrong,
        "right": right,
        "score": SCORE,
    }


def cut(sizes):
    """Return a reader of all rows, in minibatches of the sizes `sizes`; after the last size, the first one follows."""

    def reader():
        start, i = 0, 0
        while start < ROWS:
            end = start + sizes[i % len(sizes)]
            yield [(x, y, words) for x, y, words in zip(X[start:end], Y[start:end], WORDS[start:end], strict=True)]
            start, i = end, i + 1

    return reader


@pytest.fixture(scope="module")
def trainer():
    return fluid.Trainer(measures, fluid.optimizer.SGD(0.1), max_compilations=4)


@settings(max_examples=12)
@given(st.lists(st.sampled_from([1, 7, 20, ROWS]), min_size=1, max_size=4))
def test_results_do_not_depend_on_the_batch_size(trainer, sizes):
    found = trainer.test(cut(sizes))
    for name, want in wanted().items():
        np.testing.assert_allclose(found[name], want, rtol=2e-6, atol=2e-6, err_msg=name)


def test_results_are_scalars_of_64_bits(trainer):
    found = trainer.test(cut([7]))
    assert all(type(found[name]) is np.float64 for name in ("loss", "sum", "max", "rmse", "roc", "both", "weights"))
    assert type(found["hits"]) is np.int64 and found["columns"].dtype == np.float64 and found["wrong"].dtype == np.int64
    assert f"{found['loss']:.3f}" == f"{wanted()['loss']:.3f}"


def root_program():
    loss = layers.mean(layers.square(layers.fc(layers.data("x", shape=[3]), size=1)))
    return loss, layers.sqrt(loss)


def test_unknown_arithmetic_on_means_warns_once_with_fix():
    trainer = fluid.Trainer(root_program, fluid.optimizer.SGD(0.1))
    reader = fluid.reader.arrays((X,), batch_size=20)
    line = f"{__file__}:{root_program.__code__.co_firstlineno + 2} in root_program"
    with pytest.warns(errors.FluidWarning) as caught:
        first = trainer.test(reader)
    (warning,) = caught
    assert str(warning.message).startswith(line) and "layers.metric(mean, reduce=jnp.sqrt)" in str(warning.message)
    assert "'output_1'" in str(warning.message) and warning.filename == __file__
    assert trainer.test(reader)[1] == first[1]  # pytest turns a second warning into an error


def test_history_of_unknown_arithmetic_warns_once_when_read():
    trainer = fluid.Trainer(root_program, fluid.optimizer.SGD(0.1))
    reader = fluid.reader.arrays((X,), batch_size=20)
    history = trainer.train(reader)
    with pytest.warns(errors.FluidWarning, match="'output_1' .* so that tests and the history") as caught:
        history["output_1"]
    (warning,) = caught
    assert warning.filename == __file__
    assert len(trainer.train(reader, 2)["output_1"]) == 2 and trainer.test(reader)  # a second warning is an error


def test_reduce_last_returns_the_last_minibatch_value():
    def program():
        x = layers.data("x", shape=[3])
        return layers.mean(layers.fc(x, size=1)), layers.metric(layers.reduce_sum(x), reduce="last")

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    found = trainer.test(fluid.reader.arrays((X,), batch_size=50))
    assert found[1] == pytest.approx(X[50:].sum(), rel=1e-5)


def test_loss_of_shape_1_is_averaged():
    def program():
        return layers.reshape(layers.mean(layers.fc(layers.data("x", shape=[3]), size=1)), [1])

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.0))
    found = [trainer.test(fluid.reader.arrays((X,), batch_size=size))[0] for size in (7, ROWS)]
    assert found[0].shape == (1,) and found[0] == pytest.approx(found[1], rel=1e-6)


def test_metrics_join_the_outputs_in_a_single_pass():
    def program():
        x, y = layers.data("x", shape=[3]), layers.data("y", shape=[1], dtype="int64")
        score = layers.identity(layers.fc(x, size=2, act="softmax"), name="score")
        return layers.mean(layers.cross_entropy(score, y)), layers.accuracy(score, y)

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    passes, rows = [], fluid.reader.arrays({"x": X, "y": Y}, batch_size=25)

    def reader():
        passes.append(None)
        yield from rows()

    auc = fluid.metrics.Auc().of(preds="score", labels="y")
    plain = trainer.test(reader)
    with counted() as compiled:
        both = trainer.test(reader, metrics={"auc": auc})
    assert both.names == ["loss", "output_1", "auc"] and len(passes) == 2
    assert list(both)[:2] == list(plain)
    chances = trainer.session.run("program", {"x": X, "y": Y}, fetch=["score"], mode="test")[0]
    assert both["auc"] == pytest.approx(roc_auc_score(Y, np.asarray(chances)[:, 1]), abs=1e-3)
    assert len(compiled) <= 2  # one compilation for each of the two minibatch sizes
    with pytest.raises(errors.ArgumentError, match="'loss' has the name of an output .*exact_loss"):
        trainer.test(reader, metrics={"loss": auc})


def test_a_mean_of_nothing_is_no_number():
    total = Total(Reduction("mean"))
    total.add(Contribution(np.float32(0), 0))
    assert np.isnan(total.result())


def test_a_sum_of_many_numbers_is_rounded_once():
    total, numbers = Total(Reduction("sum")), np.float32([1e8, 1, -1e8, 1e-8] * 50)
    for number in numbers:
        total.add(Contribution(number))
    assert total.result() == 50 + 50 * float(np.float32(1e-8))
