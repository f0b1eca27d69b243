"""Mean average precision: compared with detections counted one at a time, and with scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.detection.reference import iou, some_boxes
from sklearn.metrics import average_precision_score

import fluid
from fluid import errors, layers
from fluid.metrics import DetectionMAP

CLASSES = 3


def images(count, seed):
    """Generate `(found, labels, boxes, difficult)` for each image; detections are near objects, or anywhere."""
    rng = np.random.default_rng(seed)
    result = []
    for i in range(count):
        objects, detections = rng.integers(0, 5), rng.integers(0, 7)
        boxes = some_boxes([seed, i], objects)
        near = (
            boxes[rng.integers(0, objects, detections)] + rng.normal(size=(detections, 4)) * 0.03 if objects else None
        )
        far = some_boxes([seed, i, 1], detections)
        at = far if near is None else np.where(rng.uniform(size=(detections, 1)) < 0.7, near, far)
        scores = rng.permutation(1000)[:detections] / 1000 + i / 1e6
        labels = rng.integers(0, CLASSES, (detections, 1))
        found = np.concatenate([labels, scores[:, None], at], axis=1)
        result.append((found, rng.integers(0, CLASSES, (objects, 1)), boxes, rng.integers(0, 2, (objects, 1))))
    return result


def counted(rows, label, overlap, difficult_too):
    """Return, for one class, the scores of detections, a list of their correctness, and the number of objects."""
    scores, right, positives = [], [], 0
    for found, labels, boxes, difficult in rows:
        own = [k for k in range(len(labels)) if labels[k, 0] == label]
        skip = {k for k in own if difficult[k, 0] and not difficult_too}
        positives += len(own) - len(skip)
        taken = set()
        for row in sorted((row for row in found.tolist() if row[0] == label), key=lambda row: -row[1]):
            best = max(own, key=lambda k: iou(row[2:], boxes[k].tolist()), default=None)
            hit = best is not None and iou(row[2:], boxes[best].tolist()) > overlap
            if hit and best in skip:
                continue
            scores.append(row[1])
            right.append(hit and best not in taken)
            taken |= {best} if hit else set()
    return scores, right, positives


def fed(metric, rows, size, marked):
    for start in range(0, len(rows), size):
        found, labels, boxes, difficult = zip(*rows[start : start + size], strict=True)
        metric.update(found, labels, boxes, *([difficult] if marked else []))
    return metric.eval()


@settings(max_examples=25)
@given(
    seed=st.integers(0, 9999),
    overlap=st.sampled_from([0.5, 0.3]),
    difficult_too=st.booleans(),
    background=st.sampled_from([0, -1]),
    size=st.sampled_from([1, 3, 8]),
)
def test_integral_against_scikit_learn(seed, overlap, difficult_too, background, size):
    rows, precisions = images(8, seed), []
    for label in range(CLASSES):
        scores, right, positives = counted(rows, label, overlap, difficult_too)
        if positives and label != background:
            # The score of scikit-learn leaves out objects without a detection. These objects reduce the recall by the
            # factor `share`, and so the area under the curve of precision and recall.
            share = sum(right) / positives
            precisions.append(average_precision_score(right, scores) * share if any(right) else 0.0)
    metric = DetectionMAP("found", CLASSES, background, overlap, difficult_too)
    assert fed(metric, rows, size, True) == pytest.approx(np.mean(precisions) if precisions else 0.0)


@settings(max_examples=10)
@given(seed=st.integers(0, 9999))
def test_eleven_points(seed):
    rows, precisions = images(6, seed), []
    for label in range(1, CLASSES):
        scores, right, positives = counted(rows, label, 0.5, True)
        hits = np.cumsum([r for _, r in sorted(zip(scores, right, strict=True), key=lambda pair: -pair[0])])
        curve = [(hit / (n + 1), hit / positives) for n, hit in enumerate(hits)] if positives else []
        if positives:
            best = [max((p for p, recall in curve if recall >= k / 10), default=0.0) for k in range(11)]
            precisions.append(sum(best) / 11)
    found = fed(DetectionMAP(ap_version="11point"), rows, 2, False)
    assert found == pytest.approx(np.mean(precisions) if precisions else 0.0)


def test_perfect_and_empty_detections_score_1_and_0():
    """Check the score of perfect detections, of no detections, and of detections in another image."""
    rows = images(6, 3)
    perfect = [
        (np.concatenate([labels, np.full((len(labels), 1), 0.9), boxes], axis=1), labels, boxes, None)
        for _, labels, boxes, _ in rows
    ]
    assert fed(DetectionMAP(background_label=-1), perfect, 4, False) == 1.0
    nothing = [(np.zeros((0, 6)), *row[1:]) for row in perfect]
    assert fed(DetectionMAP(), nothing, 4, False) == 0.0
    moved = [(row[0], *other[1:]) for row, other in zip(perfect, [*perfect[1:], perfect[0]], strict=True)]
    assert fed(DetectionMAP(background_label=-1), moved, 4, False) < 0.3


def test_streamed_map_is_independent_of_batch_size():
    """Update the metric from sequence batches of a program; check that the batch size does not matter."""

    def program():
        found = layers.data("found", shape=[6], lod_level=1)
        labels = layers.data("labels", shape=[1], dtype="int64", lod_level=1)
        layers.data("boxes", shape=[4], lod_level=1)
        layers.identity(found, name="again")
        return layers.mean(layers.fc(layers.sequence_pool(layers.cast(labels, "float32"), "sum"), 1))

    rows = [row for row in images(9, 5) if len(row[0]) and len(row[1])]
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    metric = DetectionMAP(class_num=CLASSES)
    inputs = {"input": "again", "gt_label": "labels", "gt_box": "boxes"}
    want = fed(metric, rows, 1, False)
    reader = [(found.astype("float32"), labels, boxes) for found, labels, boxes, _ in rows]
    for size in (1, 4):
        found = trainer.test(fluid.reader.batch(reader, size), metrics={"map": metric.of(**inputs)})
        assert found["map"] == pytest.approx(want, abs=1e-6) and want > 0


def test_reset_forgets_all_detections():
    metric = DetectionMAP()
    rows = images(4, 1)
    once = fed(metric, rows, 4, False)
    metric.reset()
    with pytest.raises(errors.ArgumentError, match="update first"):
        metric.eval()
    assert fed(metric, rows, 4, False) == once


BOX = [[0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (lambda metric: metric.update([[[1, 0.5, 0, 0, 1]]], [[[1]]], [BOX]), "6 numbers in each row"),
        (lambda metric: metric.update([[]], [[[1]]], [BOX, BOX]), r"\[1, 1, 2\] images"),
        (lambda metric: metric.update([[]], [[[1], [2]]], [BOX]), "2 labels, 1 boxes"),
        (lambda metric: metric.update([[]], [[[3]]], [BOX]), "class_num=3"),
        (lambda metric: metric.update([[[-1, 0.5, 0, 0, 1, 1]]], [[[1]]], [BOX]), "classes from -1"),
    ],
)
def test_wrong_updates_raise_argument_errors(update, message):
    with pytest.raises(errors.ArgumentError, match=message):
        update(DetectionMAP(class_num=3))


def test_unknown_settings_are_refused():
    with pytest.raises(errors.ArgumentError, match="11point"):
        DetectionMAP(ap_version="7point")
    with pytest.raises(errors.ArgumentTypeError, match=r"\.of\("):
        DetectionMAP(np.zeros((3, 6)))
