"""Metric layers: compared with scikit-learn and with counts by hand."""

import numpy as np
import pytest
from layers.run_program import feeds, run
from sklearn import metrics

import fluid
from fluid import errors, layers

RNG = np.random.default_rng(0)
LABEL = RNG.integers(0, 2, [60, 1])
# The probabilities are at the centres of ten bins, so `auc` loses nothing when it sorts them into bins.
CHANCE = np.clip((RNG.integers(0, 10, [60, 1]) + 2 * LABEL) / 10 + 0.05, 0, 0.95).astype("float32")
FEED = {"p": np.concatenate([1 - CHANCE, CHANCE], axis=1), "label": LABEL}


def areas(**arguments):
    """Return a program function with the results of `auc`: two areas under a curve, and the counts of each bin.

    The first area is over all steps, and the second area is over recent steps.
    """

    def program():
        whole, last, counts = layers.auc(*feeds(**FEED), num_thresholds=10, **arguments)
        return whole, last, *counts

    return program


@pytest.mark.parametrize(("curve", "score"), [("ROC", "roc_auc_score"), ("PR", "average_precision_score")])
def test_area_under_the_curve(curve, score):
    outputs = run(areas(curve=curve), FEED).outputs
    want = getattr(metrics, score)(LABEL[:, 0], CHANCE[:, 0])
    assert float(outputs[0]) == pytest.approx(want, abs=1e-5) and float(outputs[1]) == pytest.approx(want, abs=1e-5)
    positives, negatives = np.asarray(outputs[2]), np.asarray(outputs[3])
    assert positives.sum() == LABEL.sum() and negatives.sum() == 60 - LABEL.sum()


@pytest.mark.parametrize("thresholds", [1, 7, 200, 4095])
def test_auc_thresholds_match_the_metric(thresholds):
    p = RNG.uniform(size=[500, 1]).astype("float32")
    label = (RNG.uniform(size=[500, 1]) < p).astype("int64")

    def program():
        area, _, counts = layers.auc(*feeds(p=p, label=label), num_thresholds=thresholds)
        return area, *counts

    area, *counts = run(program, {"p": p, "label": label}).outputs
    metric = fluid.metrics.Auc(num_thresholds=thresholds)
    metric.update(preds=p, labels=label)
    assert float(area) == pytest.approx(metric.eval(), abs=1e-5)
    assert [v.shape for v in counts] == [(thresholds + 1,)] * 4


def test_auc_thresholds_are_equally_spaced():
    p = np.array([[0.0], [0.2], [0.26], [0.49], [0.5], [0.99], [1.0]], "float32")
    feed = {"p": p, "label": np.ones([7, 1], "int64")}
    counts = run(lambda: layers.auc(*feeds(**feed), num_thresholds=4)[2], feed).outputs
    assert np.asarray(counts[0]).tolist() == [2, 2, 1, 1, 1], "below 0.25, 0.5, 0.75, 1, and 1 itself"


def area_of(*parts):
    return metrics.roc_auc_score(LABEL[np.r_[parts], 0], CHANCE[np.r_[parts], 0])


@pytest.mark.parametrize(("steps", "last"), [(1, np.s_[40:60]), (2, np.s_[20:60]), (0, np.s_[0:60])])
def test_area_over_steps(steps, last):
    session = fluid.Session(areas(slide_steps=steps))
    for start in (0, 20, 40):
        part = {name: v[start : start + 20] for name, v in FEED.items()}
        whole, recent, *_ = session.run("program", part, mode="train")
    assert float(whole) == pytest.approx(area_of(np.s_[0:60]), abs=1e-5)
    assert float(recent) == pytest.approx(area_of(last), abs=1e-5)


def test_testing_leaves_the_counts_alone():
    session = fluid.Session(areas())
    session.run("program", {name: v[:20] for name, v in FEED.items()}, mode="train")
    tested = session.run("program", {name: v[20:] for name, v in FEED.items()}, mode="test")
    assert float(tested[0]) == pytest.approx(area_of(np.s_[20:60]), abs=1e-5)
    whole, *_ = session.run("program", {name: v[20:] for name, v in FEED.items()}, mode="train")
    assert float(whole) == pytest.approx(area_of(np.s_[0:60]), abs=1e-5)


def test_auc_of_a_single_class_is_finite():
    only = {"p": FEED["p"], "label": np.ones_like(LABEL)}
    assert np.isfinite([np.asarray(v) for v in run(areas(), only).outputs[:2]]).all()


@pytest.mark.parametrize("name", ["precision", "recall"])
@pytest.mark.parametrize("batch", [60, 25, 7])
def test_precision_and_recall_are_exact_over_batches(name, batch):
    def program():
        p, label = feeds(**FEED)
        measured = getattr(layers, name)(p, label, threshold=0.6)
        return layers.mean(layers.fc(p, size=1)), measured

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.0))
    got = trainer.test(fluid.reader.arrays(FEED, batch_size=batch))[1]
    want = getattr(metrics, f"{name}_score")(LABEL[:, 0], CHANCE[:, 0] >= 0.6)
    assert float(got) == pytest.approx(want, abs=1e-6)


def test_precision_and_recall_of_nothing():
    feed = {"p": np.zeros([4, 1], "float32"), "label": np.zeros([4, 1], "int64")}
    outputs = run(lambda: [f(*feeds(**feed)) for f in (layers.precision, layers.recall)], feed).outputs
    assert [float(v) for v in outputs] == [0, 0]


def test_mean_intersection_over_union():
    feed = {"guess": RNG.integers(0, 3, [4, 5]), "truth": RNG.integers(0, 3, [4, 5])}
    mean, wrong, correct = run(lambda: layers.mean_iou(*feeds(**feed), 4), feed).outputs
    guess, truth = feed["guess"].ravel(), feed["truth"].ravel()
    # The fourth class does not occur, so the mean leaves it out.
    want = metrics.jaccard_score(truth, guess, average=None)
    assert float(mean) == pytest.approx(want.mean(), abs=1e-6)
    assert correct.tolist() == [int(((guess == k) & (truth == k)).sum()) for k in range(4)]
    assert wrong.tolist() == [int(((guess == k) ^ (truth == k)).sum()) for k in range(4)]


def test_bad_arguments():
    for arguments, message in (
        ({"curve": "DET"}, "curve='DET'; expected 'ROC' or 'PR'"),
        ({"num_thresholds": 0}, r"num_thresholds=0\): expected a whole number from 1 on"),
        ({"slide_steps": -1}, r"slide_steps=-1\): expected a whole number from 0 on"),
    ):
        with pytest.raises(errors.ArgumentError, match=message):
            fluid.Program(lambda arguments=arguments: layers.auc(*feeds(**FEED), **arguments)[:2])
