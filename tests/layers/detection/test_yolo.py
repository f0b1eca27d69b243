"""YOLOv3: compared with loops over cells, anchors and objects."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.detection.reference import iou, results
from layers.run_program import feeds, output

import fluid
from fluid import errors, layers

ANCHORS, RATIO, CLASSES, HIGH, BROAD = [10, 13, 16, 30, 33, 23], 16, 3, 3, 4


def sigmoid(v):
    return 1 / (1 + math.exp(-v))


def entropy(logit, target):
    return max(logit, 0) - logit * target + math.log1p(math.exp(-abs(logit)))


def box_at(cell, i, j, anchor, scale):
    """Return the centre and the size of the box that a cell predicts, in fractions of the image."""
    x = (j + sigmoid(cell[0]) * scale - (scale - 1) / 2) / BROAD
    y = (i + sigmoid(cell[1]) * scale - (scale - 1) / 2) / HIGH
    width, height = ANCHORS[2 * anchor] / (RATIO * BROAD), ANCHORS[2 * anchor + 1] / (RATIO * HIGH)
    return x, y, math.exp(cell[2]) * width, math.exp(cell[3]) * height


def corners(x, y, width, height):
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def loss_of_image(x, boxes, labels, scores, mask, ignore, smooth, scale):
    cells = x.reshape(len(mask), 5 + CLASSES, HIGH, BROAD).astype(float)
    there = [k for k, box in enumerate(boxes) if box[2] >= 1e-6 and box[3] >= 1e-6]
    wanted, total = np.zeros((len(mask), HIGH, BROAD)), 0.0
    for a, i, j in np.ndindex(wanted.shape):
        own = corners(*box_at(cells[a, :, i, j], i, j, mask[a], scale))
        if max((iou(own, corners(*boxes[k])) for k in there), default=0) > ignore:
            wanted[a, i, j] = -1
    for k in there:
        bx, by, width, height = boxes[k]
        shapes = [(w / (RATIO * BROAD), h / (RATIO * HIGH)) for w, h in zip(ANCHORS[::2], ANCHORS[1::2], strict=True)]
        alike = [iou(corners(0, 0, width, height), corners(0, 0, *shape)) for shape in shapes]
        best = alike.index(max(alike))
        if best not in mask:
            continue
        a, i, j = mask.index(best), int(by * HIGH), int(bx * BROAD)
        cell = cells[a, :, i, j]
        place = entropy(cell[0], bx * BROAD - j) + entropy(cell[1], by * HIGH - i)
        size = abs(cell[2] - math.log(width / shapes[best][0])) + abs(cell[3] - math.log(height / shapes[best][1]))
        doubt = min(1 / CLASSES, 1 / 40) if smooth else 0
        kinds = sum(entropy(cell[5 + c], 1 - doubt if c == labels[k] else doubt) for c in range(CLASSES))
        total += scores[k] * ((place + size) * (2 - width * height) + kinds)
        wanted[a, i, j] = scores[k]
    for a, i, j in np.ndindex(wanted.shape):
        score = wanted[a, i, j]
        total += entropy(cells[a, 4, i, j], 1) * score if score > 0 else entropy(cells[a, 4, i, j], 0) * (score == 0)
    return total


def feed_of(seed, mask, scored):
    rng = np.random.default_rng(seed)
    boxes = rng.uniform(0.05, 0.95, (2, 5, 4)).astype("float32")
    boxes[:, :, 2:] = rng.uniform(0.05, 0.6, (2, 5, 2))
    boxes[0, 1] = boxes[0, 0]  # equal boxes, so both objects are in the same cell of the grid
    boxes[1, 3:, 2:] = 0
    feed = {
        "x": rng.normal(size=(2, len(mask) * (5 + CLASSES), HIGH, BROAD)).astype("float32"),
        "b": boxes,
        "k": rng.integers(0, CLASSES, (2, 5)),
    }
    return {**feed, "s": rng.uniform(0.2, 1, (2, 5)).astype("float32")} if scored else feed


@pytest.mark.sample(2)
@settings(max_examples=6)
@given(
    seed=st.integers(0, 999),
    mask=st.sampled_from([[0, 1, 2], [1], [2, 0]]),
    ignore=st.sampled_from([0.7, 0.2]),
    smooth=st.booleans(),
    scored=st.booleans(),
    scale=st.sampled_from([1.0, 1.2]),
)
def test_yolov3_loss(seed, mask, ignore, smooth, scored, scale):
    feed = feed_of(seed, mask, scored)

    def program():
        x, b, k, *s = feeds(**feed)
        score = s[0] if s else None
        return layers.yolov3_loss(x, b, k, ANCHORS, mask, CLASSES, ignore, RATIO, score, smooth, scale_x_y=scale)

    scores = feed.get("s", np.ones((2, 5)))
    want = [
        loss_of_image(feed["x"][i], feed["b"][i].tolist(), feed["k"][i], scores[i], mask, ignore, smooth, scale)
        for i in range(2)
    ]
    np.testing.assert_allclose(output(program, feed), want, rtol=1e-4)


def test_images_without_objects_have_the_loss_of_objectness():
    feed = feed_of(0, [0, 1], False)
    feed["b"][:] = 0
    got = output(lambda: layers.yolov3_loss(*feeds(**feed), ANCHORS, [0, 1], CLASSES, 0.7, RATIO), feed)
    logits = feed["x"].reshape(2, 2, -1, HIGH, BROAD)[:, :, 4]
    np.testing.assert_allclose(got, np.logaddexp(0, logits).sum((1, 2, 3)), rtol=1e-5)


def test_objects_may_be_sequences():
    feed = feed_of(1, [0, 1, 2], False)
    dense = output(lambda: layers.yolov3_loss(*feeds(**feed), ANCHORS, [0, 1, 2], CLASSES, 0.7, RATIO), feed)
    feed["b"][1, 3:], feed["k"][1, 3:] = np.nan, 99
    lengths = np.array([5, 3], "int32")
    feed |= {"b": fluid.SequenceBatch(feed["b"], lengths), "k": fluid.SequenceBatch(feed["k"][..., None], lengths)}
    ragged = output(lambda: layers.yolov3_loss(*feeds(**feed), ANCHORS, [0, 1, 2], CLASSES, 0.7, RATIO), feed)
    np.testing.assert_allclose(ragged, dense, rtol=1e-6)


@settings(max_examples=5)
@given(
    seed=st.integers(0, 999),
    threshold=st.sampled_from([0.0, 0.5]),
    clip=st.booleans(),
    scale=st.sampled_from([1.0, 1.1]),
)
def test_yolo_box(seed, threshold, clip, scale):
    x = np.random.default_rng(seed).normal(size=(2, 3 * (5 + CLASSES), HIGH, BROAD)).astype("float32")
    sizes = np.array([[60, 90], [40, 30]])
    feed = {"x": x, "n": sizes}
    got = results(
        lambda: layers.yolo_box(*feeds(**feed), ANCHORS, CLASSES, threshold, RATIO, clip, scale_x_y=scale), feed
    )
    for image in range(2):
        high, broad = sizes[image]
        cells = x[image].reshape(3, 5 + CLASSES, HIGH, BROAD).astype(float)
        boxes, chances = [], []
        for a, i, j in np.ndindex(3, HIGH, BROAD):
            cell = cells[a, :, i, j]
            own = np.array(corners(*box_at(cell, i, j, a, scale))) * [broad, high, broad, high]
            own = np.clip(own, 0, [broad - 1, high - 1] * 2) if clip else own
            certain = sigmoid(cell[4])
            boxes.append(own if certain >= threshold else np.zeros(4))
            chances.append([certain * sigmoid(v) if certain >= threshold else 0 for v in cell[5:]])
        np.testing.assert_allclose(got[0][image], boxes, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got[1][image], chances, rtol=1e-5, atol=1e-6)


def loss(x, b, k, anchors=ANCHORS, mask=(0, 1), classes=CLASSES, **settings):
    return layers.yolov3_loss(x, b, k, anchors, list(mask), classes, 0.7, RATIO, **settings)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, b, k: loss(x, b, k, mask=[0, 3]), "anchor_mask="),
        (lambda x, b, k: loss(x, b, k, mask=[1, 1]), "different indices"),
        (lambda x, b, k: loss(x, b, k, mask=[0]), "num_filters=8"),
        (lambda x, b, k: loss(x, b, k, anchors=[10, 13, 16]), "width and height of each"),
        (lambda x, b, k: loss(x, b, k, classes=0), "class_num=0"),
        (lambda x, b, k: loss(x, b, k[:, :2]), r"\[batch, objects\]"),
        (lambda x, b, k: loss(x, b, layers.cast(k, "float32")), "integers"),
        (lambda x, b, k: loss(x, b, k, gt_score=b), "gt_score"),
        (lambda x, b, k: layers.yolo_box(x, k, ANCHORS[:4], CLASSES, 0.1, RATIO), "height and width of each image"),
    ],
)
def test_bad_arguments(build, message):
    feed = feed_of(0, [0, 1], False)
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(**feed)))


def test_class_feeds_are_limited_to_valid_classes():
    feed = feed_of(0, [0, 1], False)
    assert fluid.Program(lambda: loss(*feeds(**feed))).feeds["k"].limits == (0, CLASSES, None)
