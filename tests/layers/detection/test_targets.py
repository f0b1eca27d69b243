"""Training targets of two-stage detectors and RetinaNet: compared with loops over anchors and objects."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.detection.reference import decode, iou, results, some_boxes, suppress
from layers.detection.test_suppression import assert_rows
from layers.run_program import feeds

import fluid
from fluid import errors, layers

ANCHORS, OBJECTS = 12, 3
BOXES = some_boxes(0, ANCHORS, size=60.0, least=0.2) - np.float32(4)  # some anchors extend beyond the image
INFO = np.float32([[50, 52, 2.0], [44, 40, 1.0]])
LENGTHS = st.lists(st.integers(0, OBJECTS), min_size=2, max_size=2)


def offsets_of(box, prior, weights=(1, 1, 1, 1)):
    """Return the offsets of a pixel box from a prior box, divided by `weights`."""
    sizes = [[b[2] - b[0] + 1, b[3] - b[1] + 1] for b in (box, prior)]
    moves = [(box[k] + sizes[0][k] / 2 - prior[k] - sizes[1][k] / 2) / sizes[1][k] for k in (0, 1)]
    moves += [math.log(sizes[0][k] / sizes[1][k]) for k in (0, 1)]
    return [m / w for m, w in zip(moves, weights, strict=True)]


def feed_of(lengths, seed, classes=1):
    """Return a feed of random predictions and objects; padding has NaN boxes, and some objects are crowds."""
    rng = np.random.default_rng(seed)
    behind = np.arange(OBJECTS)[None] >= np.array(lengths)[:, None]
    boxes, crowd = some_boxes(seed, 2, OBJECTS, size=30.0, least=0.2), rng.integers(0, 4, (2, OBJECTS, 1)) == 0
    kinds, crowd = 1 + rng.integers(0, max(classes, 1), (2, OBJECTS, 1)), crowd.astype("int32")
    boxes[behind], crowd[behind], kinds[behind] = np.nan, 0, 99
    ragged = {
        name: fluid.SequenceBatch(v, np.array(lengths, "int32"))
        for name, v in (("b", boxes), ("c", crowd), ("k", kinds))
    }
    return {
        "x": rng.normal(size=(2, ANCHORS, 4)).astype("float32"),
        "y": rng.normal(size=(2, ANCHORS, classes)).astype("float32"),
        **ragged,
        "i": INFO,
    }


def objects_of(feed, image):
    """Return `(box, class)` of each object of an image, without the objects that are marked as crowds.

    The boxes are in pixels of the input of the net.
    """
    rows = zip(*(feed[name].rows()[image] for name in "bck"), strict=True)
    return [((box * INFO[image, 2]).tolist(), kind[0]) for box, crowd, kind in rows if not crowd[0]]


def owners(boxes, able, objects):
    """Return `(object, overlap, nearest)` for each box.

    `object` is the index of the object with the largest overlap. `nearest` is True if, for some object, no other box
    has a larger overlap.
    """
    overlap = [[iou(b, o, 1.0) if ok else 0.0 for b, ok in zip(boxes, able, strict=True)] for o, _ in objects]
    found = []
    for j in range(len(boxes)):
        column = [row[j] for row in overlap]
        near = any(row[j] > 0 and row[j] >= max(row) - 1e-5 for row in overlap)
        found.append((column.index(max(column)) if column else 0, max(column, default=0.0), near))
    return found


@pytest.mark.sample(2)
@settings(max_examples=8)
@given(
    lengths=LENGTHS,
    seed=st.integers(0, 999),
    count=st.sampled_from([4, 8, 30]),
    far=st.sampled_from([0.0, 5.0, -1.0]),
    high=st.sampled_from([0.7, 0.4]),
    low=st.sampled_from([0.3, 0.1]),
)
def test_rpn_target_assign(lengths, seed, count, far, high, low):
    feed = feed_of(lengths, seed)

    def program():
        x, y, b, c, _, i = feeds(**feed)
        return layers.rpn_target_assign(x, y, BOXES, None, b, c, i, count, far, 0.5, high, low, use_random=False)

    wants = [[] for _ in range(5)]
    for image in range(2):
        height, width, _ = INFO[image]
        boxes, objects = BOXES.tolist(), objects_of(feed, image)
        able = [
            far < 0 or (b[0] >= -far and b[1] >= -far and b[2] < width + far and b[3] < height + far) for b in boxes
        ]
        found = owners(boxes, able, objects)
        positive = [j for j in range(ANCHORS) if able[j] and (found[j][2] or found[j][1] >= high)]
        negative = [j for j in range(ANCHORS) if able[j] and j not in positive and found[j][1] < low]
        positive = positive[: count // 2]
        negative = negative[: count - len(positive)]
        targets = [offsets_of(objects[found[j][0]][0], boxes[j]) for j in positive]
        parts = (
            feed["y"][image][positive + negative], feed["x"][image][positive],
            [[1]] * len(positive) + [[0]] * len(negative), targets, [[1.0] * 4] * len(positive),
        )  # fmt: skip
        for want, part in zip(wants, parts, strict=True):
            want.append(part)
    for got, want in zip(results(program, feed), wants, strict=True):
        assert_rows(got, want)


def test_anchors_are_drawn():
    """Check that the requested number of anchors is drawn: equal random keys draw equal anchors, other keys others."""
    feed = feed_of([2, 1], 0)

    def program():
        x, y, b, c, _, i = feeds(**feed)
        chosen, _, labels, *_ = layers.rpn_target_assign(x, y, BOXES, None, b, c, i, 3, -1.0)
        return chosen, labels

    known = fluid.Program(program)
    draw = jax.jit(lambda key: known.apply({}, feed, key=key, mode="train").outputs)
    drawn = [draw(jax.random.key(k)) for k in range(8)]
    assert all(chosen.lengths.tolist() == [3, 3] for chosen, _ in drawn)
    assert all(0 < np.sum(labels.data[i]) <= 1 for _, labels in drawn for i in range(2))
    assert len({np.asarray(chosen.data).tobytes() for chosen, _ in drawn}) > 4
    np.testing.assert_array_equal(draw(jax.random.key(3))[0].data, drawn[3][0].data)


@pytest.mark.sample(2)
@settings(max_examples=8)
@given(
    lengths=LENGTHS,
    regions=LENGTHS,
    seed=st.integers(0, 999),
    count=st.sampled_from([4, 30]),
    fraction=st.sampled_from([0.25, 0.5]),
    agnostic=st.booleans(),
)
def test_generate_proposal_labels(lengths, regions, seed, count, fraction, agnostic):
    classes, weights = 3, [0.1, 0.1, 0.2, 0.2]
    feed = feed_of(lengths, seed, classes - 1)
    feed["r"] = fluid.SequenceBatch(some_boxes(seed + 1, 2, OBJECTS, size=50.0), np.array(regions, "int32"))

    def program():
        _, _, b, c, k, i, r = feeds(**feed)
        return layers.generate_proposal_labels(
            r, k, c, b, i, count, fraction, 0.4, 0.3, 0.05, weights, classes, False, agnostic
        )

    slots, wants = 2 if agnostic else classes, [[] for _ in range(5)]
    for image in range(2):
        objects = objects_of(feed, image)
        boxes = [box for box, _ in objects] + feed["r"].rows()[image].tolist()
        found = owners(boxes, [True] * len(boxes), objects)
        positive = [j for j in range(len(boxes)) if found[j][1] >= 0.4][: int(count * fraction)]
        negative = [j for j in range(len(boxes)) if 0.05 <= found[j][1] < 0.3][: count - len(positive)]
        rows = []
        for j in positive + negative:
            label = objects[found[j][0]][1] if j in positive else 0
            targets, here = np.zeros((slots, 4)), np.zeros((slots, 4))
            if label:
                slot = 1 if agnostic else label
                targets[slot], here[slot] = offsets_of(objects[found[j][0]][0], boxes[j], weights), 1
            rows.append((boxes[j], [label], targets.ravel(), here.ravel(), here.ravel()))
        for k, want in enumerate(wants):
            want.append([row[k] for row in rows])
    for got, want in zip(results(program, feed), wants, strict=True):
        assert_rows(got, want)


@pytest.mark.sample(2)
@settings(max_examples=6)
@given(lengths=LENGTHS, seed=st.integers(0, 999), high=st.sampled_from([0.5, 0.3]), low=st.sampled_from([0.4, 0.1]))
def test_retinanet_target_assign(lengths, seed, high, low):
    low, feed = min(low, high), feed_of(lengths, seed, 2)

    def program():
        x, y, b, c, k, i = feeds(**feed)
        return layers.retinanet_target_assign(x, y, BOXES, None, b, k, c, i, 2, high, low)

    wants, numbers = [[] for _ in range(5)], []
    for image in range(2):
        boxes, objects = BOXES.tolist(), objects_of(feed, image)
        found = owners(boxes, [True] * ANCHORS, objects)
        positive = [j for j in range(ANCHORS) if found[j][2] or found[j][1] >= high]
        negative = [j for j in range(ANCHORS) if j not in positive and found[j][1] < low]
        own = [objects[found[j][0]] for j in positive]
        parts = (
            feed["y"][image][positive + negative], feed["x"][image][positive],
            [[kind] for _, kind in own] + [[0]] * len(negative),
            [offsets_of(box, boxes[j]) for j, (box, _) in zip(positive, own, strict=True)], [[1.0] * 4] * len(positive),
        )  # fmt: skip
        for want, part in zip(wants, parts, strict=True):
            want.append(part)
        numbers.append([len(positive) + 1])
    *got, count = results(program, feed)
    for one, want in zip(got, wants, strict=True):
        assert_rows(one, want)
    assert count.tolist() == numbers


@pytest.mark.sample(2)
@settings(max_examples=8)
@given(
    seed=st.integers(0, 999),
    top=st.sampled_from([3, 1000]),
    keep=st.sampled_from([-1, 4]),
    threshold=st.sampled_from([0.3, 0.7]),
    eta=st.sampled_from([1.0, 0.8]),
)
def test_retinanet_detection_output(seed, top, keep, threshold, eta):
    rng, classes = np.random.default_rng(seed), 2
    counts = (6, 3)
    anchors = [some_boxes(n, n, size=40.0, least=0.2) for n in counts]
    feed = {f"x{n}": rng.normal(size=(2, n, 4)).astype("float32") * 0.3 for n in counts}
    feed |= {f"y{n}": rng.uniform(0, 1, (2, n, classes)).astype("float32") for n in counts} | {"i": INFO}

    def program():
        first, second, *scores, i = feeds(**feed)
        return layers.retinanet_detection_output([first, second], scores, anchors, i, 0.5, top, keep, threshold, eta)

    wants = []
    for image in range(2):
        height, width, scale = INFO[image].tolist()
        every = []
        for n, around in zip(counts, anchors, strict=True):
            scores = feed[f"y{n}"][image]
            level = sorted(((scores[i, k], i, k) for i, k in np.ndindex(n, classes)), key=lambda row: -row[0])
            for score, i, k in level[:top]:
                if score > 0.5 or n == counts[-1]:
                    box = np.array(decode(feed[f"x{n}"][image, i].tolist(), around[i].tolist(), [1] * 4, 1.0)) / scale
                    last = [math.floor(side / scale + 0.5) - 1 for side in (width, height)] * 2
                    every.append((score, k, np.clip(box, 0, last).tolist()))
        every.sort(key=lambda row: -row[0])
        rows = []
        for k in range(classes):
            own = [row for row in every if row[1] == k]
            left = suppress([box for _, _, box in own], range(len(own)), threshold, eta, 1.0)
            rows += [[k + 1, own[i][0], *own[i][2]] for i in left]
        rows.sort(key=lambda row: -row[1])
        wants.append(rows if keep == -1 else rows[:keep])
    assert_rows(results(program, feed)[0], wants)


def rpn(x, y, b, c, i, **settings):
    return layers.rpn_target_assign(x, y, BOXES, None, b, c, i, **settings)


def second(b, c, k, i, **settings):
    return layers.generate_proposal_labels(b, k, c, b, i, **{"class_nums": 3, **settings})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, y, b, c, k, i: rpn(x, x, b, c, i), r"\[batch, 12, 1\]"),
        (lambda x, y, b, c, k, i: rpn(x, y, x, c, i), "as a sequence batch"),
        (lambda x, y, b, c, k, i: rpn(x, y, b, b, i), "integers"),
        (lambda x, y, b, c, k, i: rpn(x, y, b, c, i, rpn_batch_size_per_im=0), "rpn_batch_size_per_im=0"),
        (lambda x, y, b, c, k, i: second(b, c, k, i, class_nums=None), "class_nums=None"),
        (lambda x, y, b, c, k, i: second(b, c, k, i, is_cascade_rcnn=True), "not supported"),
        (lambda x, y, b, c, k, i: second(b, layers.sequence_pad(c, 0)[0], k, i), "one number for each box"),
        (lambda x, y, b, c, k, i: layers.retinanet_target_assign(x, y, BOXES, None, b, k, c, i, 3), r"12, 3\]"),
        (lambda x, y, b, c, k, i: layers.retinanet_detection_output([x], [y, y], [BOXES], i), "2 scores"),
        (lambda x, y, b, c, k, i: layers.retinanet_detection_output([x], [y], [BOXES[:3]], i), "3 anchors"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(**feed_of([2, 1], 0))))
