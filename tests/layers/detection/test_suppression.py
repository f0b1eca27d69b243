"""Non-maximum suppression: compared with a loop that keeps or drops one box at a time."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.detection.reference import iou, results, some_boxes, suppress
from layers.run_program import feeds

import fluid
from fluid import errors, layers

COUNT, CLASSES = 8, 3


def best_first(scores, threshold, top):
    """Return the indices of boxes with a score above a threshold, best first, at most `top` of them."""
    order = sorted((i for i, score in enumerate(scores) if score > threshold), key=lambda i: -scores[i])
    return order if top == -1 else order[:top]


def kept(boxes, scores, threshold, top, keep, overlap, eta=1.0, pixel=0.0, background=0):
    """Return an image's rows `[label, score, *box]` after non-maximum suppression, and the indices of their boxes.

    `boxes` and `scores` have a list for each class.
    """
    found = []
    for label in range(len(scores)):
        if label != background:
            order = best_first(scores[label], threshold, top)
            found += [(label, i) for i in suppress(boxes[label], order, overlap, eta, pixel)]
    if keep != -1:
        found = sorted(sorted(found, key=lambda f: -scores[f[0]][f[1]])[:keep], key=lambda f: f[0])
    return [[label, scores[label][i], *boxes[label][i]] for label, i in found], [i for _, i in found]


def assert_rows(got, wants):
    """Check that the rows of the SequenceBatch `got` are close to `wants`, and that its padding is zero."""
    assert [len(row) for row in got.rows()] == [len(want) for want in wants]
    for row, want in zip(got.rows(), wants, strict=True):
        np.testing.assert_allclose(row, np.reshape(want, row.shape), rtol=1e-4, atol=1e-5)
    behind = np.asarray(got.data)[~np.asarray(got.mask)]
    assert not behind.any(), "what lies behind is zeros"


SETTINGS = {
    "threshold": st.sampled_from([0.0, 0.3, 0.6]),
    "top": st.sampled_from([-1, 3, 20]),
    "keep": st.sampled_from([-1, 1, 4, 50]),
    "overlap": st.sampled_from([0.0, 0.3, 0.7]),
    "eta": st.sampled_from([1.0, 0.8]),
    "background": st.sampled_from([0, 2, -1]),
    "pixels": st.booleans(),
    "seed": st.integers(0, 999),
}


@pytest.mark.sample(2)
@settings(max_examples=8)
@given(**SETTINGS)
def test_multiclass_nms(threshold, top, keep, overlap, eta, background, pixels, seed):
    boxes = some_boxes(seed, 2, COUNT, size=30.0 if pixels else 1.0)
    scores = np.random.default_rng(seed).uniform(0, 1, (2, CLASSES, COUNT)).astype("float32")
    feed = {"x": boxes, "s": scores}
    got = results(
        lambda: layers.multiclass_nms(
            *feeds(**feed), threshold, top, keep, overlap, not pixels, eta, background_label=background
        ),
        feed,
    )[0]
    wants = [
        kept([b.tolist()] * CLASSES, s.tolist(), threshold, top, keep, overlap, eta, float(pixels), background)[0]
        for b, s in zip(boxes, scores, strict=True)
    ]
    assert_rows(got, wants)


@pytest.mark.sample(2)
@settings(max_examples=5)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=2, max_size=2), keep=st.sampled_from([-1, 3]), seed=st.integers(0, 99)
)
def test_separate_boxes_per_class_match_a_loop(lengths, keep, seed):
    """Check suppression of boxes that differ by class; padding is ignored, although it has the best scores."""
    boxes, scores = some_boxes(seed, 2, 5, CLASSES), np.random.default_rng(seed).uniform(0, 1, (2, 5, CLASSES))
    scores[np.arange(5)[None] >= np.array(lengths)[:, None]] = 9
    feed = {
        name: fluid.SequenceBatch(v.astype("float32"), np.array(lengths, "int32"))
        for name, v in (("x", boxes), ("s", scores))
    }
    got = results(lambda: layers.multiclass_nms(*feeds(**feed), 0.2, 4, keep, 0.4), feed)[0]
    wants = []
    for own, chances in zip(feed["x"].rows(), feed["s"].rows(), strict=True):
        by_class = np.swapaxes(own, 0, 1).tolist(), np.swapaxes(chances, 0, 1).tolist()
        wants.append(kept(*by_class, 0.2, 4, keep, 0.4)[0])
    assert_rows(got, wants)


def decayed(boxes, scores, threshold, post, top, keep, sigma, pixel, background):
    """Compute the boxes that `matrix_nms` keeps in an image; if `sigma` is None, scores decay linearly."""
    found = []
    for label in range(len(scores)):
        order = best_first(scores[label], threshold, top) if label != background else []
        for place, i in enumerate(order):
            factor = 1.0
            for other, j in enumerate(order[:place]):
                o = iou(boxes[i], boxes[j], pixel)
                m = max((iou(boxes[j], boxes[k], pixel) for k in order[:other]), default=0.0)
                if sigma is not None:
                    factor = min(factor, np.exp((m**2 - o**2) * sigma))
                elif m < 1:
                    factor = min(factor, (1 - o) / (1 - m))
            if scores[label][i] * factor > post:
                found.append([label, scores[label][i] * factor, *boxes[i]])
    found.sort(key=lambda row: -row[1])
    return found if keep == -1 else found[:keep]


@pytest.mark.sample(2)
@settings(max_examples=8)
@given(
    post=st.sampled_from([0.0, 0.2]),
    sigma=st.sampled_from([None, 2.0, 0.5]),
    **{name: SETTINGS[name] for name in ("threshold", "top", "keep", "background", "pixels", "seed")},
)
def test_matrix_nms(post, sigma, threshold, top, keep, background, pixels, seed):
    boxes = some_boxes(seed, 2, COUNT, size=30.0 if pixels else 1.0)
    scores = np.random.default_rng(seed).uniform(0, 1, (2, CLASSES, COUNT)).astype("float32")
    feed = {"x": boxes, "s": scores}
    got = results(
        lambda: layers.matrix_nms(
            *feeds(**feed), threshold, post, top, keep, sigma is not None, sigma or 2.0, background, not pixels
        ),
        feed,
    )[0]
    wants = [
        decayed(b.tolist(), s.tolist(), threshold, post, top, keep, sigma, float(pixels), background)
        for b, s in zip(boxes, scores, strict=True)
    ]
    assert_rows(got, wants)


def test_matrix_nms_of_boxes_that_are_there_thrice():
    boxes, scores = np.repeat(some_boxes(0, 1, 1), 3, axis=1), np.float32([[[0.9, 0.8, 0.7]]])
    feed = {"x": boxes, "s": scores}
    got = results(lambda: layers.matrix_nms(*feeds(**feed), 0.1, 0.0, -1, -1, background_label=-1), feed)[0]
    assert_rows(got, [[[0, 0.9, *boxes[0, 0]]]])


@pytest.mark.parametrize("name", ["multiclass_nms", "matrix_nms"])
def test_nothing_left(name):
    """Check that non-maximum suppression drops boxes with the score NaN, and all boxes if all scores are low."""
    boxes = some_boxes(1, 2, 4)
    scores = np.full((2, 2, 4), 0.1, "float32")
    scores[1, 1, 2], scores[1, 1, 3] = 0.9, np.nan
    more = (0.0,) if name == "matrix_nms" else ()
    feed = {"x": boxes, "s": scores}
    got = results(lambda: getattr(layers, name)(*feeds(**feed), 0.5, *more, -1, 3), feed)[0]
    assert_rows(got, [[], [[1, 0.9, *boxes[1, 2]]]])


def test_no_gradient_comes_back():
    feed = {"x": some_boxes(1, 2, 4), "s": np.random.default_rng(0).uniform(0, 1, (2, 2, 4)).astype("float32")}
    program = fluid.Program(lambda: layers.multiclass_nms(*feeds(**feed), 0.1, -1, 3))
    slopes = jax.jit(jax.grad(lambda feed: program.apply({}, feed, key=None).outputs[0].data.sum()))(feed)
    assert not any(np.asarray(slope).any() for slope in slopes.values())


FEED = {"x": some_boxes(1, 2, 4), "s": np.zeros((2, 3, 4), "float32")}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, s: layers.multiclass_nms(x, s, 0.1, 0, 5), "nms_top_k=0"),
        (lambda x, s: layers.multiclass_nms(x, s, 0.1, 5, -2), "keep_top_k=-2"),
        (lambda x, s: layers.multiclass_nms(x, s[..., :2], 0.1, 5, 5), r"\[batch, classes, boxes\]"),
        (lambda x, s: layers.multiclass_nms(x, s[:, :1], 0.1, 5, 5), "no class but the background"),
        (lambda x, s: layers.matrix_nms(x[:, :2], s, 0.1, 0.1, 5, 5), "do not fit"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(**FEED)))
