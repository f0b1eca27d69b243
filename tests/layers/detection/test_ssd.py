"""SSD layers: the loss, the head and the detections are compared with loops over prior boxes and pixels."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.detection.reference import decode, iou, results, some_boxes
from layers.detection.test_matching import match
from layers.detection.test_suppression import assert_rows, kept
from layers.run_program import feeds

import fluid
from fluid import errors, layers

PRIORS, CLASSES, SPREAD = 7, 3, [0.1, 0.1, 0.2, 0.2]
PRIOR = some_boxes(0, PRIORS, least=0.2)


def cross_entropy(logits, label):
    return math.log(sum(math.exp(v) for v in logits)) - logits[label]


def smooth_l1(differences):
    return sum(0.5 * d * d if abs(d) < 1 else abs(d) - 0.5 for d in differences)


def encode(box, prior):
    width, height = prior[2] - prior[0], prior[3] - prior[1]
    moves = [
        ((box[0] + box[2]) / 2 - (prior[0] + prior[2]) / 2) / width,
        ((box[1] + box[3]) / 2 - (prior[1] + prior[3]) / 2) / height,
        math.log((box[2] - box[0]) / width),
        math.log((box[3] - box[1]) / height),
    ]
    return [m / s for m, s in zip(moves, SPREAD, strict=True)]


def loss_of_image(offsets, logits, boxes, labels, background, threshold, ratio, near, weights):
    """Return the loss of an image, and the number of prior boxes that are matched with an object."""
    prior = PRIOR.tolist()
    overlap = np.array([[iou(b, p) for p in prior] for b in boxes]).reshape(len(boxes), PRIORS)
    rows = match(overlap, threshold)[0] if len(boxes) else [-1] * PRIORS
    wrong = [cross_entropy(l, labels[r] if r >= 0 else background) for l, r in zip(logits, rows, strict=True)]  # noqa: E741
    positives = [j for j in range(PRIORS) if rows[j] >= 0]
    able = [j for j in range(PRIORS) if rows[j] < 0 and max(overlap[:, j], default=0) < near]
    able.sort(key=lambda j: -wrong[j])
    chosen = able[: int(len(positives) * ratio)]
    moved = sum(smooth_l1(np.subtract(offsets[j], encode(boxes[rows[j]], prior[j]))) for j in positives)
    return weights[0] * moved + weights[1] * sum(wrong[j] for j in positives + chosen), len(positives)


def objects(lengths, seed):
    """Return a feed of random predictions, and of objects whose padding holds NaN boxes and invalid labels."""
    rng = np.random.default_rng(seed)
    boxes, labels = some_boxes(seed, 2, 3, least=0.2), rng.integers(0, CLASSES, (2, 3, 1))
    behind = np.arange(3)[None] >= np.array(lengths)[:, None]
    boxes[behind], labels[behind] = np.nan, 99
    return {
        "x": rng.normal(size=(2, PRIORS, 4)).astype("float32") * 2,
        "y": rng.normal(size=(2, PRIORS, CLASSES)).astype("float32") * 2,
        "b": fluid.SequenceBatch(boxes, np.array(lengths, "int32")),
        "k": fluid.SequenceBatch(labels, np.array(lengths, "int32")),
    }


@pytest.mark.sample(2)
@settings(max_examples=10)
@given(
    lengths=st.lists(st.integers(0, 3), min_size=2, max_size=2),
    seed=st.integers(0, 999),
    threshold=st.sampled_from([None, 0.5, 0.3]),
    ratio=st.sampled_from([3.0, 1.0, 0.5]),
    near=st.sampled_from([0.5, 0.2]),
    background=st.sampled_from([0, 2]),
    normalize=st.booleans(),
)
def test_ssd_loss(lengths, seed, threshold, ratio, near, background, normalize):
    feed, weights = objects(lengths, seed), (0.7, 1.5)
    kind = {"match_type": "bipartite"} if threshold is None else {"overlap_threshold": threshold}
    got = results(
        lambda: layers.ssd_loss(
            *feeds(**feed), PRIOR, SPREAD, background, neg_pos_ratio=ratio, neg_overlap=near,
            loc_loss_weight=weights[0], conf_loss_weight=weights[1], normalize=normalize, **kind,
        ),
        feed,
    )[0]  # fmt: skip
    found = [
        loss_of_image(x, y, b.tolist(), k[:, 0], background, threshold, ratio, near, weights)
        for x, y, b, k in zip(feed["x"], feed["y"], feed["b"].rows(), feed["k"].rows(), strict=True)
    ]
    total = max(sum(count for _, count in found), 1) if normalize else 1
    np.testing.assert_allclose(got[:, 0], [loss / total for loss, _ in found], rtol=1e-4, atol=1e-4)


def gradients(feed):
    """Return the gradients of the mean loss with respect to the predictions."""
    session = fluid.Session(lambda: layers.mean(layers.ssd_loss(*feeds(**feed), PRIOR, SPREAD)))
    return [np.asarray(v) for v in session.run(next(iter(session.programs)), feed, fetch=["x@GRAD", "y@GRAD"])]


def test_images_without_objects_train_nothing():
    for slope in gradients(objects([0, 0], 3)):
        assert not slope.any()
    for slope in gradients(objects([0, 2], 3)):
        assert not slope[0].any() and slope[1].any()


def test_feeds_without_objects_have_zero_loss():
    feed = objects([0, 0], 3)
    feed |= {name: fluid.SequenceBatch(feed[name].data[:, :0], feed[name].lengths) for name in ("b", "k")}
    assert results(lambda: layers.ssd_loss(*feeds(**feed), PRIOR, SPREAD), feed)[0].tolist() == [[0.0], [0.0]]


def test_an_invalid_class_makes_the_loss_nan():
    feed = objects([2, 1], 3)
    feed["k"].data[0, 0] = CLASSES
    found = results(lambda: layers.ssd_loss(*feeds(**feed), PRIOR, SPREAD, normalize=False), feed)[0]
    assert np.isnan(found[0]) and np.isfinite(found[1])
    program = fluid.Program(lambda: layers.ssd_loss(*feeds(**feed), PRIOR, SPREAD))
    assert program.feeds["k"].limits == (0, CLASSES, None)


@pytest.mark.sample(2)
@settings(max_examples=6)
@given(
    seed=st.integers(0, 999),
    background=st.sampled_from([0, 1, -1]),
    keep=st.sampled_from([-1, 3]),
    eta=st.sampled_from([1, 0.7]),
)
def test_detection_output(seed, background, keep, eta):
    """Compare rows, and the indices of their prior boxes, with loops that decode, apply softmax and suppress boxes."""
    rng = np.random.default_rng(seed)
    feed = {name: rng.normal(size=(2, PRIORS, k)).astype("float32") for name, k in (("x", 4), ("s", CLASSES))}
    rows, places = results(
        lambda: layers.detection_output(
            *feeds(**feed), PRIOR, SPREAD, background, 0.6, 5, keep, 0.2, eta, return_index=True
        ),
        feed,
    )
    wants, numbers = [], []
    for i in range(2):
        boxes = [decode(o, p, SPREAD) for o, p in zip(feed["x"][i], PRIOR.tolist(), strict=True)]
        chances = np.exp(feed["s"][i]) / np.exp(feed["s"][i]).sum(1, keepdims=True)
        want, number = kept([boxes] * CLASSES, chances.T.tolist(), 0.2, 5, keep, 0.6, eta, background=background)
        wants.append(want)
        numbers.append([n + i * PRIORS for n in number])
    assert_rows(rows, wants)
    assert [row[:, 0].tolist() for row in places.rows()] == numbers


PICTURE = np.zeros((2, 3, 60, 60), "float32")
MAPS = {
    name: np.random.default_rng(n).normal(size=(2, 4, n, n)).astype("float32")
    for name, n in (("a", 6), ("b", 3), ("c", 2))
}


def test_multi_box_head_predicts_around_each_pixel():
    """Check the order of offsets, logits and prior boxes: by feature map, then by pixel, then by box of the pixel."""
    feed = {"a": MAPS["a"], "b": MAPS["b"], "image": PICTURE}

    def program():
        a, b, image = feeds(**feed)
        return layers.multi_box_head([a, b], image, 60, 3, [[2.0], [3.0]], min_sizes=[10.0, 20.0], max_sizes=[[], 40.0])

    known = fluid.Program(program)
    arrays = {n: np.random.default_rng(1).normal(size=s.shape).astype("float32") for n, s in known.parameters.items()}
    offsets, logits, boxes, variances = known.apply(arrays, feed, key=None).outputs
    places = [("a", 3, (i, j)) for i, j in np.ndindex(6, 6)] + [("b", 4, (i, j)) for i, j in np.ndindex(3, 3)]
    number = 0
    for name, count, (i, j) in places:
        for box in range(count):
            pixel = feed[name][:, :, i, j]
            for k, (stem, found) in enumerate(
                (("0" if name == "a" else "2", offsets), ("1" if name == "a" else "3", logits))
            ):
                weight, bias = arrays[f"conv2d_{stem}.w_0"][:, :, 0, 0], arrays[f"conv2d_{stem}.b_0"]
                size = (4, 3)[k]
                own = slice(box * size, (box + 1) * size)
                np.testing.assert_allclose(found[:, number], pixel @ weight[own].T + bias[own], rtol=1e-4, atol=1e-4)
            middle = np.array([(j + 0.5) / len(feed[name][0, 0]), (i + 0.5) / len(feed[name][0, 0])])
            np.testing.assert_allclose((boxes[number, :2] + boxes[number, 2:]) / 2, middle, atol=1e-5)
            number += 1
    assert number == len(boxes) == len(variances) == offsets.shape[1]


def test_multi_box_head_makes_sizes_from_ratios():
    """Check the sizes of prior boxes in an SSD head: 10 and 20 percent of the image on the first feature map.

    On the later maps, the sizes grow in equal steps, from `min_ratio`.
    """
    feed = {**MAPS, "d": np.zeros((2, 4, 1, 1), "float32"), "image": PICTURE}

    def program():
        *maps, image = feeds(**feed)
        return layers.multi_box_head(maps, image, 60, 2, [[], [], [], []], min_ratio=20, max_ratio=90)[2]

    boxes = 60 * np.asarray(results(program, feed)[0])
    sides = (boxes[:, 2] - boxes[:, 0]).reshape(-1, 2)
    starts = np.cumsum([0, 36, 9, 4])
    # Each of the four feature maps has a smaller and a larger box size, in percent of the 60 pixels of the image.
    # The values are 10, 20; 20, 55; 55, 90; and 90, 125.
    wants = [(6, math.sqrt(6 * 12)), (12, math.sqrt(12 * 33)), (33, math.sqrt(33 * 54)), (54, math.sqrt(54 * 75))]
    np.testing.assert_allclose(sides[starts], wants, rtol=1e-4)


def head(image, maps, **settings):
    arguments = {"min_sizes": [8.0, 16.0], "max_sizes": [12.0, 24.0], **settings}
    return layers.multi_box_head(maps, image, 60, 3, arguments.pop("aspect_ratios", [[2.0], [2.0]]), **arguments)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda a, b, image: head(image, [a, b], min_sizes=None), "min_sizes=None; expected a list of 2"),
        (lambda a, b, image: head(image, [a, b], aspect_ratios=[[2.0]]), "aspect_ratios="),
        (lambda a, b, image: head(image, [a, b, b], min_sizes=None, max_sizes=None), "min_ratio=20, max_ratio=90"),
        (lambda a, b, image: head(image, [a, b], steps=[1.0]), "step_w="),
        (lambda a, b, image: head(image, [a, b], kernel_size=3), "pad=1 for kernel_size=3"),
        (lambda a, b, image: head(image, [a, b], stride=2), "use stride=1"),
        (lambda a, b, image: head(image, [a, a[:, 0]]), "3 dimensions"),
    ],
)
def test_bad_heads(build, message):
    feed = {"a": MAPS["a"], "b": MAPS["b"], "image": PICTURE}
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(**feed)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, y, b, k: layers.ssd_loss(x, y, b, k, PRIOR, mining_type="hard_example"), '"max_negative"'),
        (lambda x, y, b, k: layers.ssd_loss(x, y, b, k, PRIOR, match_type="all"), "per_prediction"),
        (lambda x, y, b, k: layers.ssd_loss(x, y, b, k, PRIOR[:3]), "3 prior boxes"),
        (lambda x, y, b, k: layers.ssd_loss(x, y, x, k, PRIOR), "as a sequence batch"),
        (lambda x, y, b, k: layers.ssd_loss(x, y, b, b, PRIOR), "integers"),
        (lambda x, y, b, k: layers.detection_output(x, y, PRIOR[:3], SPREAD), "3 prior boxes"),
        (lambda x, y, b, k: layers.detection_output(x, y[:, :2], PRIOR, SPREAD), "do not fit"),
    ],
)
def test_bad_arguments(build, message):
    feed = objects([2, 1], 0)
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(**feed)))
