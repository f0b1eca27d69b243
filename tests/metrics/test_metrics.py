"""Metrics: compared with scikit-learn and by hand, alone and streamed over the minibatches of `Trainer.test`."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, precision_score, recall_score, roc_auc_score

import fluid
from fluid import errors, metrics

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, size=500)
PREDS = np.clip(LABELS * 0.2 + RNG.uniform(size=500) * 0.8, 0, 1)


def fed(metric, size):
    for start in range(0, 500, size):
        metric.update(preds=PREDS[start : start + size], labels=LABELS[start : start + size])
    return metric.eval()


@pytest.mark.parametrize("size", [1, 7, 500])
def test_against_scikit_learn(size):
    assert fed(metrics.Precision(), size) == pytest.approx(precision_score(LABELS, PREDS >= 0.5))
    assert fed(metrics.Recall(), size) == pytest.approx(recall_score(LABELS, PREDS >= 0.5))
    assert fed(metrics.Auc(num_thresholds=10**6), size) == pytest.approx(roc_auc_score(LABELS, PREDS), abs=1e-5)


@pytest.mark.parametrize("size", [1, 7, 500])
def test_accuracy_of_predictions_against_scikit_learn(size):
    assert fed(metrics.Accuracy(), size) == pytest.approx(accuracy_score(LABELS, PREDS >= 0.5))
    scores, labels = RNG.normal(size=(500, 5)), RNG.integers(0, 5, size=(500, 1))
    accuracy = metrics.Accuracy()
    for start in range(0, 500, size):
        accuracy.update(preds=scores[start : start + size], labels=labels[start : start + size])
    assert accuracy.eval() == pytest.approx(accuracy_score(labels[:, 0], scores.argmax(1)))


def test_accuracy_of_many_small_minibatches_is_exact():
    accuracy = metrics.Accuracy()
    for label in [0, 1, 1] * 100:
        accuracy.update(preds=[0.1, 0.1, 0.9], labels=[label, 1 - label, 1])
    assert accuracy.eval() == 600 / 900


@pytest.mark.parametrize(
    "given",
    [
        {"preds": [[0.1, 0.9]], "labels": [2]},
        {"preds": [[0.1, 0.9]], "labels": [0, 1]},
        {"preds": [3.0], "labels": [1]},
        {"preds": 0.5, "labels": [1]},
        {"preds": [[[0.5, 0.5]]], "labels": [1, 0]},
        {"preds": [[0.1, 0.9]], "labels": [[1, 0]]},
        {"preds": [0.5]},
        {"value": 0.5, "preds": [0.5], "labels": [1]},
        {"value": 1.0, "weight": -1},
    ],
)
def test_accuracy_refuses_without_a_change(given):
    accuracy = metrics.Accuracy()
    accuracy.update(value=0.5, weight=2)
    with pytest.raises(errors.ArgumentError, match=r"Accuracy.update"):
        accuracy.update(**given)
    assert accuracy.eval() == 0.5


@pytest.mark.parametrize("metric", [metrics.Precision, metrics.Recall, metrics.Auc])
def test_predictions_that_are_no_probabilities_are_refused(metric):
    with pytest.raises(errors.ArgumentError, match=f"{metric.__name__}.update: preds are probabilities, found -2.0 to"):
        metric().update(preds=[-2.0, 3.0], labels=[0, 1])


@pytest.mark.parametrize("metric", [metrics.Precision, metrics.Recall, metrics.Auc, metrics.EditDistance])
@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 2), (4, 1, 1), ()])
def test_shapes_without_a_meaning_are_refused(metric, shape):
    refused = r"update: found (preds|labels|distances) of shape .*\[batch, 1\].*=\[0, 1, 1\]"
    values = np.full(shape, 0.5)
    size = values.size
    with pytest.raises(errors.ArgumentError, match=refused):
        metric().update(values, size if metric is metrics.EditDistance else np.ones(size))
    if metric is not metrics.EditDistance:
        with pytest.raises(errors.ArgumentError, match=refused):
            metric().update(np.full(size, 0.5), np.ones(shape))


def test_without_data_shares_are_0_as_in_fluid():
    for metric in (metrics.Precision(), metrics.Recall(), metrics.Auc()):
        assert metric.eval() == 0.0
    assert metrics.ChunkEvaluator().eval() == (0.0, 0.0, 0.0)
    for metric in (metrics.Accuracy(), metrics.EditDistance(), metrics.DetectionMAP()):
        with pytest.raises(errors.ArgumentError, match="call update first"):
            metric.eval()


def test_bound_copy_shares_no_list_with_the_given_metric():
    class Seen(metrics.MetricBase):
        def __init__(self):
            self.rows = []
            super().__init__()

        def reset(self):
            self.rows.clear()

        def update(self, values):
            self.rows.extend(values)

        def eval(self):
            return len(self.rows)

    seen = Seen()
    seen.update([1, 2])
    bound = seen.of(values="x")
    bound.update([3])
    assert (seen.eval(), bound.eval()) == (2, 1)


def test_auc_of_two_columns_uses_the_second():
    both = metrics.Auc()
    both.update(preds=np.stack([1 - PREDS, PREDS], axis=1), labels=LABELS[:, None])
    assert both.eval() == pytest.approx(roc_auc_score(LABELS, PREDS), abs=1e-2)


def test_composite_and_reset():
    both = metrics.CompositeMetric()
    both.add_metric(metrics.Precision())
    both.add_metric(metrics.Recall())
    assert fed(both, 100) == [fed(metrics.Precision(), 500), fed(metrics.Recall(), 500)]
    both.reset()
    assert both.eval() == [0.0, 0.0]
    both.add_metric(metrics.Accuracy())
    assert fed(both, 100)[2] == pytest.approx(fed(metrics.Accuracy(), 500))


@pytest.mark.parametrize("batch_size", [1, 33, 500])
def test_streamed_metrics_are_independent_of_batch_size(batch_size):
    def program():
        x, label = fluid.layers.data("x", shape=[1]), fluid.layers.data("label", shape=[1], dtype="int64")
        logit = fluid.layers.fc(x, 1, param_attr=fluid.initializer.Constant(2.0))
        score = fluid.layers.identity(fluid.layers.sigmoid(logit), name="score")
        return fluid.layers.mean(fluid.layers.log_loss(score, fluid.layers.cast(label, "float32")))

    x = RNG.normal(size=(500, 1)).astype("float32")
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    reader = fluid.reader.arrays({"x": x, "label": LABELS}, batch_size=batch_size)
    inputs = {"preds": "score", "labels": "label"}
    found = trainer.test(
        reader, metrics={"auc": metrics.Auc(num_thresholds=10**6).of(**inputs), "recall": metrics.Recall().of(**inputs)}
    )
    assert found["auc"] == pytest.approx(roc_auc_score(LABELS, x[:, 0]), abs=1e-4)
    assert found["recall"] == pytest.approx(recall_score(LABELS, x[:, 0] >= 0))


def test_wrong_arguments_raise_argument_errors():
    with pytest.raises(errors.ArgumentError, match="0 or 1"):
        metrics.Precision().update(preds=[0.5], labels=[2])
    with pytest.raises(errors.ArgumentError, match="2 labels"):
        metrics.Recall().update(preds=[0.5], labels=[1, 1])
    with pytest.raises(errors.ArgumentError, match="probabilities"):
        metrics.Auc().update(preds=[1.5], labels=[1])
    with pytest.raises(errors.ArgumentError, match="ROC"):
        metrics.Auc(curve="PR")
    with pytest.raises(errors.ArgumentError, match="update first"):
        metrics.Accuracy().eval()
    with pytest.raises(errors.ArgumentError, match="weight"):
        metrics.Accuracy().update(value=1.0, weight=-1)
    with pytest.raises(errors.ArgumentTypeError, match="add_metric"):
        metrics.CompositeMetric().add_metric(0.5)
    with pytest.raises(errors.ArgumentTypeError, match=r"\.of\("):
        metrics.names_of({"auc": metrics.Auc()})


@pytest.mark.parametrize(
    "kind", ["Accuracy", "Precision", "Recall", "Auc", "ChunkEvaluator", "EditDistance", "CompositeMetric"]
)
def test_an_unused_metric_has_a_repr_and_hint(kind):
    metric = getattr(metrics, kind)()
    assert repr(metric) == f"{kind}()"
    assert repr(metric.of(preds="p", labels="y")) == f"{kind}().of(preds='p', labels='y')"
    with pytest.raises(errors.ArgumentTypeError, match=rf"metrics\['a'\] is {kind}\(\); .*Auc\(\)\.of\("):
        metrics.names_of({"a": metric})


def test_bound_composites_leave_the_given_metrics_unchanged():
    precision, both = metrics.Precision(), metrics.CompositeMetric()
    both.add_metric(precision)
    both.update(preds=[0.9, 0.8], labels=[1, 0])
    bound = both.of(preds="p", labels="y")
    assert bound.eval() == [0.0] and precision.eval() == 0.5
    bound.update(preds=[0.9], labels=[1])
    assert bound.eval() == [1.0] and precision.eval() == 0.5
    both.reset()
    assert precision.eval() == 0.0
    both.update(preds=[0.9], labels=[1])
    assert precision.eval() == 1.0


def test_the_parts_of_a_composite_metric():
    class Both(metrics.Precision):
        parts = ("low", "high")

    inner, outer = metrics.CompositeMetric("inner"), metrics.CompositeMetric()
    inner.add_metric(metrics.Recall())
    for metric in (metrics.Precision(), Both("pair"), inner):
        outer.add_metric(metric)
    assert list(outer.parts) == ["Precision", "pair_low", "pair_high", "inner_Recall"]
    assert list(inner.parts) == ["Recall"] and list(metrics.CompositeMetric().parts) == []


@pytest.mark.parametrize("metric", [metrics.ChunkEvaluator(), metrics.EditDistance()], ids=repr)
def test_composite_metrics_take_predictions_and_labels(metric):
    both = metrics.CompositeMetric()
    with pytest.raises(errors.ArgumentTypeError, match=rf"{metric.name}\(\) with update\(.*Recall\(\)"):
        both.add_metric(metric)
    assert both.eval() == []


@pytest.mark.parametrize("count", [0, -1, 2.0, True])
def test_thresholds_that_make_no_sense(count):
    with pytest.raises(errors.ArgumentError, match=r"Auc\(num_thresholds=.*whole number from 1 on"):
        metrics.Auc(num_thresholds=count)


@pytest.mark.parametrize("count", [1, 4, 200])
def test_thresholds_of_layer_and_metric_agree(count):
    def program():
        p = fluid.layers.data("p", shape=[1])
        label = fluid.layers.data("label", shape=[1], dtype="int64")
        return fluid.layers.auc(p, label, num_thresholds=count)[0]

    preds = RNG.integers(0, 33, size=(500, 1)).astype("float32") / 32
    metric = metrics.Auc(num_thresholds=count)
    metric.update(preds=preds, labels=LABELS)
    session = fluid.Session(program)
    (area,) = session.run("program", feed={"p": preds, "label": LABELS[:, None]})
    bins = (preds[:, 0] * count).astype(int)
    assert metric.eval() == pytest.approx(roc_auc_score(LABELS, bins), abs=1e-12)
    assert float(area) == pytest.approx(metric.eval(), abs=1e-5)
