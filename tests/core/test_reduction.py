"""Choice of the reduction (mean, sum, ...) that combines the values of all minibatches to a value of the data set."""

import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import errors, layers


def rules(build, **feeds):
    """Build a program with three feeds; return its rules for combining outputs over minibatches, and the program."""

    def program():
        x, y = layers.data("x", shape=[4]), layers.data("y", shape=[1])
        return build(x, y, layers.data("s", shape=[2], lod_level=1))

    found = fluid.Program(program)
    return found.reductions, found


def weight(name):
    return layers.create_parameter([4], name=name)


KINDS = {
    "jnp.mean": (lambda x, y, s: jnp.mean(x), "mean"),
    "method": (lambda x, y, s: x.mean(), "mean"),
    "mean of each column": (lambda x, y, s: x.mean(0), "mean"),
    "a sum divided by a size": (lambda x, y, s: jnp.sum(x) / (x.shape[0] * 4), "mean"),
    "a sum times a share": (lambda x, y, s: jnp.sum(x) * (1.0 / x.shape[0]), "mean"),
    "means added": (lambda x, y, s: layers.mean(x) + 0.1 * layers.mean(y) - jnp.mean(x * 2) / 3, "mean"),
    "a mean and a constant": (lambda x, y, s: 1 - layers.mean(x), "mean"),
    "a mean and a penalty": (lambda x, y, s: layers.mean(x) + 0.1 * layers.reduce_sum(weight("w") ** 2), "mean"),
    "a mean scaled by a parameter": (lambda x, y, s: layers.reduce_sum(layers.mean(x) * weight("w")), "mean"),
    "means over the same steps": (lambda x, y, s: layers.mean(s) * 2 + layers.mean(s), "mean"),
    "a mean in another dtype": (lambda x, y, s: layers.cast(layers.mean(x), "float16"), "mean"),
    "a mean of shape [1]": (lambda x, y, s: layers.reshape(layers.mean(x), [1]), "mean"),
    "behind a layer that mixes while training": (lambda x, y, s: jnp.mean(layers.batch_norm(x)), "mean"),
    "behind dropout": (lambda x, y, s: jnp.sum(layers.dropout(x, 0.5)), "sum"),
    "jnp.sum": (lambda x, y, s: jnp.sum(x), "sum"),
    "reduce_sum": (lambda x, y, s: layers.reduce_sum(x), "sum"),
    "a sum over the batch only": (lambda x, y, s: layers.reduce_sum(x, dim=0), "sum"),
    "a count": (lambda x, y, s: jnp.sum(x > y), "sum"),
    "sums added": (lambda x, y, s: jnp.sum(x) - 2 * layers.reduce_sum(y) / 3.0, "sum"),
    "valid steps": (lambda x, y, s: jnp.sum(s.mask), "sum"),
    "the number of examples": (lambda x, y, s: jnp.asarray(x.shape[0]), "sum"),
    "a matrix of products": (lambda x, y, s: x.T @ x, "sum"),
    "reduce_max": (lambda x, y, s: layers.reduce_max(x), "max"),
    "jnp.max": (lambda x, y, s: jnp.max(jnp.abs(x - y)), "max"),
    "the log of a maximum": (lambda x, y, s: jnp.log(2.0 * jnp.max(x) + 1), "max"),
    "any": (lambda x, y, s: layers.reduce_any(x > 0), "max"),
    "reduce_min": (lambda x, y, s: layers.reduce_min(x), "min"),
    "a negated maximum": (lambda x, y, s: -jnp.max(x), "min"),
    "all": (lambda x, y, s: jnp.all(x > 0), "min"),
    "a parameter": (lambda x, y, s: weight("w"), "last"),
    "a penalty alone": (lambda x, y, s: layers.reduce_sum(weight("w") ** 2), "last"),
    "a constant": (lambda x, y, s: jnp.float32(3), "last"),
    "a mean of shares": (lambda x, y, s: jnp.sum(x / x.shape[0]), "mean"),
    "what the user declares": (lambda x, y, s: layers.metric(jnp.mean(jnp.cumsum(x, 0)), reduce="sum"), "sum"),
    "predictions": (lambda x, y, s: layers.fc(x, size=1), "rows"),
    "sequences": (lambda x, y, s: s, "rows"),
}


@pytest.mark.parametrize("case", KINDS)
def test_equations_determine_the_reduction(case):
    build, kind = KINDS[case]
    (found,), _ = rules(build)
    assert (found.kind, found.doubt) == (kind, None)


DOUBTFUL = {
    "the root of a mean": lambda x, y, s: jnp.sqrt(layers.mean(x)),
    "a product of means": lambda x, y, s: layers.mean(x) * layers.mean(y),
    "means over different things": lambda x, y, s: layers.mean(x) + layers.mean(s),
    "a variance": lambda x, y, s: jnp.var(x),
    "distances from the mean": lambda x, y, s: jnp.mean((x - x.mean(0)) ** 2),
    "a mean over pairs": lambda x, y, s: jnp.mean(x @ x.T),
    "a mean of sums so far": lambda x, y, s: jnp.mean(jnp.cumsum(x, axis=0)),
    "a quotient of sums": lambda x, y, s: jnp.sum(x) / jnp.sum(y),
    "a sum and a constant": lambda x, y, s: jnp.sum(x) + 1.0,
    "a maximum of unknown sign": lambda x, y, s: jnp.sum(jnp.max(x) * weight("w")),
    "a maximum times a negative number": lambda x, y, s: -2 * jnp.max(x),
    "the first example": lambda x, y, s: x[0, 0],
    "a recorded mean of mixed rows": lambda x, y, s: layers.reduce_mean(layers.square(x - layers.reduce_mean(x))),
    "a recorded mean of sums so far": lambda x, y, s: layers.mean(layers.cumsum(x, axis=0)),
    "a recorded mean of differences of rows": lambda x, y, s: layers.mean(layers.square(x[1:] - x[:-1])),
    "pairs within the minibatch": lambda x, y, s: layers.npair_loss(x, 2 * x, layers.cast(y[:, 0], "int64")),
    "in-batch contrast": lambda x, y, s: layers.mean(
        layers.softmax_with_cross_entropy(layers.matmul(x, x, transpose_y=True), jnp.arange(x.shape[0])[:, None])
    ),
    "a mean over padding": lambda x, y, s: layers.mean(jnp.sum(s.data, axis=1) / s.data.shape[1]),
    "predictions that depend on other rows": lambda x, y, s: layers.fc(x, size=1) - layers.reduce_max(x),
    "arithmetic on what only layers know": lambda x, y, s: 2 * layers.metric(layers.mean(x), reduce=jnp.sqrt),
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_ambiguous_equations_leave_a_doubt_with_line(case):
    (found,), _ = rules(DOUBTFUL[case])
    assert found.kind in ("mean", "rows") and f"{__file__}:" in found.doubt


def test_arithmetic_on_means_over_steps_weighs_like_these():
    (found,), program = rules(lambda x, y, s: layers.mean(s) * 2 + layers.mean(s))
    assert found.weight == "mean_0.tmp_0"
    feed = {
        "x": np.zeros([2, 4]),
        "y": np.zeros([2, 1]),
        "s": fluid.SequenceBatch.from_rows([[[1.0, 1]] * 3, [[2.0, 2]]]),
    }
    (part,) = program.apply({}, feed, key=None, mode="test", parts=True).parts
    assert float(part.weight) == 4


def test_fixed_batch_program_uses_only_layer_notes():
    def program():
        x = layers.data("x", shape=[8, 4], append_batch_size=False)
        return layers.mean(x), jnp.sum(layers.reshape(x, [8, 2, 2]))

    noted, other = fluid.Program(program).reductions
    assert (noted.kind, noted.doubt) == ("mean", None)
    assert other.doubt is not None


def test_notes_of_layers_complete_the_equations():
    def program():
        x, label = layers.data("x", shape=[4]), layers.data("label", shape=[1], dtype="int64")
        p = layers.fc(x, size=2, act="softmax")
        area, *_ = layers.auc(p, label)
        return layers.mean(layers.cross_entropy(p, label)), layers.accuracy(p, label), area, p

    found = fluid.Program(program)
    assert found.outputs[-1].shape == (None, 2)
    assert [rule.kind for rule in found.reductions] == ["mean", "mean", "function", "rows"]


def test_reductions_repeat_no_prints_of_the_program(capsys):
    def program():
        x = layers.data("x", shape=[4])
        print("traced", x.shape)
        return jnp.sum(x)

    found = fluid.Program(program)
    capsys.readouterr()
    assert found.reductions[0].kind == "sum"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: layers.metric(layers.mean(x), "median"), errors.ArgumentError, "'median'; expected 'mean', 'sum'"),
        (lambda x: layers.metric(x, "sum"), errors.ShapeError, "has rows of its own; reduce them first: layers.mean"),
        (lambda x: layers.metric(layers.mean(x), "sum", weight=layers.mean(x)), errors.ArgumentError, "reduce='sum'"),
        (lambda x: layers.metric(layers.mean(x), "mean", weight=x), errors.ArgumentError, "weight= is a scalar"),
    ],
)
def test_metrics_that_make_no_sense(call, error, match):
    with pytest.raises(error, match=match):
        fluid.Program(lambda: call(layers.data("x", shape=[4])))


def test_metric_keeps_the_reduction_of_its_value():
    (loss, worst), program = rules(lambda x, y, s: (loss := layers.mean(x), layers.metric(loss, reduce="max")))
    assert (loss.kind, worst.kind) == ("mean", "max")
    assert "metric_0.tmp_0" in program.values


def test_error_of_the_analysis_is_not_hidden(monkeypatch):
    """Check that a mistake in the analysis of rows is an error, and not a guess."""
    program = fluid.Program(lambda: layers.mean(layers.data("x", shape=[4])))
    monkeypatch.setattr("fluid.core.reduction.Reading.of", lambda *traces: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        program.reductions  # noqa: B018
    with pytest.raises(ZeroDivisionError):
        program.mixing()


def test_program_that_refuses_test_mode_is_trained():
    """Check that an error of the user's function in test mode ends a test, but not a training and its history."""

    def program():
        assert layers.is_training(), "this program is for training"
        return {"loss": layers.mean(layers.square(layers.fc(layers.data("x", shape=[4]), 1) - 1))}

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    rows = fluid.reader.arrays((np.ones((6, 4), "float32"),), batch_size=4)
    assert len(trainer.train(rows, 2)["loss"]) == 2
    with pytest.raises(AssertionError, match="for training"):
        trainer.test(rows)
