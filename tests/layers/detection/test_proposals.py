"""Region proposals and their pyramid levels: compared with anchors that are moved and suppressed one at a time."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.detection.reference import area, decode, results, some_boxes, suppress
from layers.detection.test_suppression import assert_rows
from layers.run_program import feeds

import fluid
from fluid import errors, layers

HIGH, BROAD, COUNT = 3, 4, 2
ANCHORS = some_boxes(0, HIGH, BROAD, COUNT, size=40.0)
VARIANCES = np.full_like(ANCHORS, 0.5)
INFO = np.float32([[30, 40, 2.0], [25, 25, 1.0]])


def predicted(seed):
    rng = np.random.default_rng(seed)
    return {
        "s": rng.uniform(0, 1, (2, COUNT, HIGH, BROAD)).astype("float32"),
        "d": rng.normal(size=(2, COUNT * 4, HIGH, BROAD)).astype("float32"),
    }


def proposed(scores, offsets, info, before, after, threshold, least, eta):
    """Return the proposed regions of an image and their scores, computed one anchor at a time."""
    high, broad, scale = info.tolist()
    every = []
    for i, j, a in np.ndindex(HIGH, BROAD, COUNT):
        moves = offsets[4 * a : 4 * a + 4, i, j] * VARIANCES[i, j, a]
        moves[2:] = np.minimum(moves[2:], math.log(1000 / 16))
        box = decode(moves.tolist(), ANCHORS[i, j, a].tolist(), [1] * 4, 1.0)
        every.append((scores[a, i, j], np.clip(box, 0, [broad - 1, high - 1] * 2).tolist()))
    every.sort(key=lambda pair: -pair[0])
    every = every[:before] if before else every
    least = max(least, 1.0)
    left = []
    for score, box in every:
        size = [box[2] - box[0], box[3] - box[1]]
        middle = [box[0] + (size[0] + 1) / 2, box[1] + (size[1] + 1) / 2]
        if min(size) / scale + 1 >= least and middle[0] <= broad and middle[1] <= high:
            left.append((score, box))
    if threshold > 0:
        chosen = suppress([box for _, box in left], range(len(left)), threshold, eta, 1.0)
        left = [left[k] for k in (chosen[:after] if after else chosen)]
    return [box for _, box in left], [[score] for score, _ in left]


@pytest.mark.sample(2)
@settings(max_examples=6)
@given(
    seed=st.integers(0, 999),
    before=st.sampled_from([0, 10, 6000]),
    after=st.sampled_from([0, 3, 1000]),
    threshold=st.sampled_from([0.3, 0.7, 0.0]),
    least=st.sampled_from([0.1, 5.0]),
    eta=st.sampled_from([1.0, 0.8]),
)
def test_generate_proposals(seed, before, after, threshold, least, eta):
    feed, arguments = predicted(seed), (before, after, threshold, least, eta)
    got = results(lambda: generated(feed, *arguments), feed | {"i": INFO})
    wants = [proposed(*image, *arguments) for image in zip(feed["s"], feed["d"], INFO, strict=True)]
    assert_rows(got[0], [boxes for boxes, _ in wants])
    assert_rows(got[1], [scores for _, scores in wants])
    assert got[2].tolist() == [len(boxes) for boxes, _ in wants]


def generated(feed, *arguments):
    scores, deltas, info = feeds(**feed, i=INFO)
    return layers.generate_proposals(scores, deltas, info, ANCHORS, VARIANCES, *arguments, return_rois_num=True)


def test_too_small_regions_are_all_removed():
    feed = predicted(0)
    rois, scores = results(
        lambda: layers.generate_proposals(*feeds(**feed), np.float32([[30, 40, 1]]), ANCHORS, VARIANCES, min_size=99.0),
        feed,
    )
    assert rois.lengths.tolist() == scores.lengths.tolist() == [0, 0]
    assert np.isfinite(rois.data).all()


def test_proposals_carry_no_gradient():
    feed = predicted(1) | {"i": INFO}
    program = fluid.Program(lambda: generated(predicted(1), 0, 5, 0.5, 0.1, 1.0))
    slopes = jax.jit(jax.grad(lambda feed: program.apply({}, feed, key=None).outputs[0].data.sum()))(feed)
    assert not any(np.asarray(slope).any() for slope in slopes.values())


def regions(lengths, seed, size=300.0):
    return fluid.SequenceBatch(some_boxes(seed, len(lengths), 5, size=size), np.array(lengths, "int32"))


@pytest.mark.sample(2)
@settings(max_examples=6)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    levels=st.sampled_from([(2, 5), (3, 3), (2, 4)]),
    scale=st.sampled_from([30, 80]),
    seed=st.integers(0, 999),
)
def test_distribute_fpn_proposals(lengths, levels, scale, seed):
    rois = regions(lengths, seed)
    *found, restore = results(
        lambda: _listed(layers.distribute_fpn_proposals(*feeds(r=rois), *levels, 4, scale)), {"r": rois}
    )
    wants = {level: [[] for _ in lengths] for level in range(levels[0], levels[1] + 1)}
    for image, rows in enumerate(rois.rows()):
        for box in rows.tolist():
            level = math.floor(4 + math.log2(math.sqrt(area(box, 1.0)) / scale + 1e-6))
            wants[min(max(level, levels[0]), levels[1])][image].append(box)
    for got, want in zip(found, wants.values(), strict=True):
        assert_rows(got, want)
    # For each input box, `restore` holds its position among all output boxes, ordered by level and then by image.
    rows = [box for want in wants.values() for image in want for box in image]
    for boxes, places in zip(rois.rows(), restore.rows(), strict=True):
        np.testing.assert_allclose(boxes, np.reshape([rows[k] for k in places[:, 0]], boxes.shape), rtol=1e-6)


def _listed(result):
    levels, restore = result
    return [*levels, restore]


@settings(max_examples=5)
@given(
    first=st.lists(st.integers(0, 5), min_size=2, max_size=2),
    second=st.lists(st.integers(0, 5), min_size=2, max_size=2),
    most=st.sampled_from([1, 4, 100]),
    seed=st.integers(0, 999),
)
def test_collect_fpn_proposals(first, second, most, seed):
    rng = np.random.default_rng(seed)
    feed = {"a": regions(first, seed), "b": regions(second, seed + 1)}
    for name, lengths in (("c", first), ("d", second)):
        feed[name] = fluid.SequenceBatch(rng.uniform(-1, 1, (2, 5, 1)).astype("float32"), np.array(lengths, "int32"))

    def program():
        a, b, c, d = feeds(**feed)
        return layers.collect_fpn_proposals([a, b], [c, d], 2, 3, most)

    wants = []
    for a, b, c, d in zip(*(feed[name].rows() for name in "abcd"), strict=True):
        scored = sorted(zip([*c[:, 0], *d[:, 0]], [*a.tolist(), *b.tolist()], strict=True), key=lambda pair: -pair[0])
        wants.append([box for _, box in scored[:most]])
    assert_rows(results(program, feed)[0], wants)


ROIS, SCORES = regions([2, 3], 0), fluid.SequenceBatch(np.zeros((2, 5, 1), "float32"), np.array([2, 3], "int32"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s, d, r, c: layers.generate_proposals(s, s, INFO, ANCHORS, VARIANCES), "do not fit"),
        (
            lambda s, d, r, c: layers.generate_proposals(s, d, INFO[:, :2], ANCHORS, VARIANCES),
            "height, width and scale",
        ),
        (lambda s, d, r, c: layers.generate_proposals(s, d, INFO[:1], ANCHORS, VARIANCES, -1), "pre_nms_top_n=-1"),
        (lambda s, d, r, c: layers.distribute_fpn_proposals(d, 2, 5, 4, 224), "as a sequence batch"),
        (lambda s, d, r, c: layers.distribute_fpn_proposals(r, 5, 2, 4, 224), "max_level=2"),
        (lambda s, d, r, c: layers.distribute_fpn_proposals(r, 2, 5, 4, 0), "refer_scale=0"),
        (lambda s, d, r, c: layers.distribute_fpn_proposals(r, 2, 5, 4, "224"), "refer_scale='224'"),
        (lambda s, d, r, c: layers.collect_fpn_proposals([r], [c], 2, 3, 10), "2 levels"),
        (lambda s, d, r, c: layers.collect_fpn_proposals([r], [r], 2, 2, 10), r"\[batch, regions, 1\]"),
        (lambda s, d, r, c: layers.collect_fpn_proposals([r], [c], 2, 2, 0), "post_nms_top_n=0"),
    ],
)
def test_bad_arguments(build, message):
    feed = {**predicted(0), "r": ROIS, "c": SCORES}
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(**feed)))
