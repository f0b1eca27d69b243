"""Overlap, encoding and clipping of boxes: compared with loops over single boxes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.detection.reference import decode, iou, results, some_boxes
from layers.run_program import check, feeds, output

import fluid
from fluid import errors, layers

SPREAD = [0.1, 0.2, 0.3, 0.4]


def apart(a, b):
    """Return two arrays of boxes: some pairs of boxes touch, some contain each other, and some are disjoint."""
    extra = [
        [0.1, 0.1, 0.5, 0.5],
        [0.5, 0.1, 0.9, 0.5],
        [0.2, 0.2, 0.3, 0.3],
        [0.1, 0.1, 0.1, 0.1],
        [0.9, 0.9, 0.2, 0.2],
    ]
    return np.concatenate([some_boxes(a, 4), np.float32(extra)]), np.concatenate([some_boxes(b, 3), np.float32(extra)])


@settings(max_examples=10)
@given(seed=st.integers(0, 999), pixels=st.booleans())
def test_iou_similarity(seed, pixels):
    x, y = apart(seed, seed + 1)
    scale = np.float32(50 if pixels else 1)
    want = [[iou(a, b, float(pixels)) for b in (y * scale).tolist()] for a in (x * scale).tolist()]
    build = lambda x: layers.iou_similarity(x, y * scale, box_normalized=not pixels)  # noqa: E731
    check(build, want, x=x * scale)


def test_iou_is_symmetric_and_1_with_itself():
    x = some_boxes(3, 6)
    found = output(lambda: layers.iou_similarity(*feeds(x=x), x), {"x": x})
    np.testing.assert_allclose(found, found.T, rtol=1e-6)
    np.testing.assert_allclose(np.diag(found), 1, rtol=1e-6)


@settings(max_examples=10)
@given(seed=st.integers(0, 999), pixels=st.booleans())
def test_box_coder(seed, pixels):
    """Check the encoded offsets of each box from each prior box by the formula, and that decoding is the inverse."""
    pixel, scale = float(pixels), np.float32(40 if pixels else 1)
    prior, boxes = some_boxes(seed, 5) * scale, some_boxes(seed + 1, 3) * scale
    want = np.zeros((3, 5, 4))
    for i, j in np.ndindex(3, 5):
        box, near = boxes[i].astype(float), prior[j].astype(float)
        width, height = near[2] - near[0] + pixel, near[3] - near[1] + pixel
        want[i, j] = [
            ((box[0] + box[2]) / 2 - near[0] - width / 2) / width,
            ((box[1] + box[3]) / 2 - near[1] - height / 2) / height,
            math.log((box[2] - box[0] + pixel) / width),
            math.log((box[3] - box[1] + pixel) / height),
        ] / np.array(SPREAD)
    check(lambda x: layers.box_coder(prior, SPREAD, x, box_normalized=not pixels), want, rtol=1e-3, atol=1e-3, x=boxes)
    back = output(
        lambda: layers.box_coder(prior, SPREAD, *feeds(x=np.float32(want)), "decode_center_size", not pixels),
        {"x": np.float32(want)},
    )
    # For boxes in pixels, the formula of decoding places the centre half a pixel too far left and up. So the decoded
    # boxes are shifted from the original boxes.
    np.testing.assert_allclose(back, np.broadcast_to(boxes[:, None] - pixel / 2, back.shape), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("variance", ["none", "four", "each"])
def test_box_coder_decodes_along_an_axis(axis, variance):
    prior, offsets = some_boxes(1, 2 if axis else 5), np.random.default_rng(2).normal(size=(2, 5, 4)).astype("float32")
    factors = {"none": None, "four": SPREAD, "each": 0.1 + some_boxes(3, len(prior))}[variance]
    rows = np.broadcast_to(np.float32(1 if factors is None else factors), prior.shape)
    want = [
        [decode(offsets[i, j], prior[i if axis else j], rows[i if axis else j]) for j in range(5)] for i in range(2)
    ]
    feed = {"x": offsets, **({"prior": prior, "factors": np.array(rows)} if axis else {})}

    def build(x, own=prior, each=None):
        return layers.box_coder(
            own, each if variance == "each" and axis else factors, x, "decode_center_size", axis=axis
        )

    check(build, want, rtol=1e-4, **feed)


def test_only_empty_boxes_have_infinite_offsets():
    boxes = fluid.SequenceBatch(np.float32([[[0.1, 0.1, 0.1, 0.4], [0, 0, 0, 0]]]), np.array([1], "int32"))
    found = results(lambda: layers.box_coder(some_boxes(0, 2), None, *feeds(x=boxes)), {"x": boxes})[0]
    assert np.isneginf(found.data[0, 0, :, 2]).all() and np.isfinite(found.data[0, 1]).all()


def assigned(limit, **feed):
    prior, *others = feeds(**feed)
    return layers.box_decoder_and_assign(prior, SPREAD, *others, limit)


def test_box_decoder_and_assign():
    rng = np.random.default_rng(4)
    prior, offsets = some_boxes(5, 6) * 50, rng.normal(size=(6, 3, 4)).astype("float32") * 3
    scores = rng.dirichlet([1, 1, 1], 6).astype("float32")
    limit = 0.7
    boxes = np.zeros((6, 3, 4))
    for i, k in np.ndindex(6, 3):
        moves = offsets[i, k] * SPREAD
        moves[2:] = np.minimum(moves[2:], limit)
        boxes[i, k] = decode(moves, prior[i].astype(float), [1] * 4, 1.0)
    feed = {"prior": prior, "x": offsets.reshape(6, -1), "s": scores}
    found = results(lambda: assigned(limit, **feed), feed)
    np.testing.assert_allclose(found[0], boxes.reshape(6, -1), rtol=1e-4, atol=1e-3)
    best = 1 + scores[:, 1:].argmax(axis=1)
    np.testing.assert_allclose(found[1], boxes[np.arange(6), best], rtol=1e-4, atol=1e-3)


def test_box_decoder_with_background_only_keeps_regions():
    prior, offsets = some_boxes(5, 3), np.ones((3, 4), "float32")
    feed = {"prior": prior, "x": offsets, "s": np.ones((3, 1), "float32")}
    found = results(lambda: assigned(1.0, **feed), feed)[1]
    np.testing.assert_array_equal(found, prior)


def test_box_clip():
    rng = np.random.default_rng(6)
    boxes = rng.uniform(-20, 60, (2, 3, 4)).astype("float32")
    # The second image has the sizes 21 / 2 and 25 / 2, which are rounded away from zero to 11 and 13.
    info = np.float32([[30, 45, 1.5], [21, 25, 2.0]])
    last = np.array([[29, 19, 29, 19], [12, 10, 12, 10]])[:, None]
    check(layers.box_clip, np.clip(boxes, 0, last), boxes=boxes, info=info)


def test_polygon_box_transform():
    x = np.random.default_rng(7).normal(size=(2, 4, 3, 5)).astype("float32")
    want = np.empty_like(x)
    for n, c, i, j in np.ndindex(x.shape):
        want[n, c, i, j] = 4 * (i if c % 2 else j) - x[n, c, i, j]
    check(layers.polygon_box_transform, want, x=x)


BOXES = {"x": some_boxes(0, 3)}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: layers.iou_similarity(x, x[:, :3]), "x1, y1, x2, y2"),
        (lambda x: layers.box_coder(x, SPREAD, x, "encode"), "'encode_center_size' or 'decode_center_size'"),
        (lambda x: layers.box_coder(x, SPREAD, x[:, None], "decode_center_size", axis=2), "expected 0 or 1"),
        (lambda x: layers.box_coder(x, [0.1, 0.2], x), "expected four numbers"),
        (lambda x: layers.box_coder(x, SPREAD, x, "decode_center_size"), r"\[batch, priors, 4\]"),
        (lambda x: layers.box_decoder_and_assign(x, SPREAD, x, x[:, :3], 1.0), r"\[boxes, classes \* 4\]"),
        (lambda x: layers.box_clip(x, x), "height, width and scale"),
        (lambda x: layers.polygon_box_transform(x), "x and y of each corner"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(**BOXES)))
