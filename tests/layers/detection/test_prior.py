"""Prior boxes and anchors: compared with boxes computed one at a time."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.detection.reference import results
from layers.run_program import feeds

import fluid
from fluid import errors, layers

FEATURES, PICTURE = np.zeros((2, 3, 3, 4), "float32"), np.zeros((2, 3, 24, 40), "float32")
FEED = {"x": FEATURES, "image": PICTURE}
SIZES = st.lists(st.floats(2, 20), min_size=1, max_size=3)
RATIOS = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 1.7]), min_size=1, max_size=3)


def made(build):
    """Return the boxes and variances that the layer built by `build` computes."""
    boxes, variances = results(lambda: build(*feeds(**FEED)), FEED)
    return np.asarray(boxes), np.asarray(variances)


def check(got, want, variance=(0.1, 0.1, 0.2, 0.2)):
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got[1], np.broadcast_to(np.float32(variance), got[0].shape))


def over_the_grid(around, steps, offset):
    """Return prior boxes `[height, width, n, 4]` of a grid of 3 x 4 points, in fractions of a 40 x 24 image.

    `around(x, y)` lists the boxes with the centre (x, y), in pixels.
    """
    across, down = steps
    return [
        [[np.array(box) / [40, 24, 40, 24] for box in around((j + offset) * across, (i + offset) * down)]
         for j in range(4)] for i in range(3)
    ]  # fmt: skip


def box(x, y, width, height):
    return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]


@settings(max_examples=12)
@given(
    small=SIZES,
    with_large=st.booleans(),
    ratios=RATIOS,
    flip=st.booleans(),
    clip=st.booleans(),
    early=st.booleans(),
    steps=st.sampled_from([(0.0, 0.0), (8.0, 6.0), (0.0, 6.0)]),
    offset=st.sampled_from([0.5, 0.25]),
)
def test_prior_box(small, with_large, ratios, flip, clip, early, steps, offset):
    large = [2 * size for size in small] if with_large else None
    shapes = []
    for size in small:
        ones, squares = [(size, size)], [(size * math.sqrt(2), size * math.sqrt(2))] if with_large else []
        known, others = [1.0], []
        for ratio in ratios:
            if all(abs(ratio - k) > 1e-6 for k in known):
                each = [ratio, 1 / ratio] if flip else [ratio]
                known += each
                others += [(size * math.sqrt(r), size / math.sqrt(r)) for r in each]
        shapes += ones + (squares + others if early else others + squares)
    fitting = (10.0, 8.0) if 0 in steps else steps
    want = over_the_grid(lambda x, y: [box(x, y, *shape) for shape in shapes], fitting, offset)
    want = np.clip(want, 0, 1) if clip else want
    got = made(lambda x, image: layers.prior_box(
        x, image, small, large, ratios, [0.1, 0.2, 0.3, 0.4], flip, clip, list(steps), offset,
        min_max_aspect_ratios_order=early))  # fmt: skip
    check(got, want, (0.1, 0.2, 0.3, 0.4))


@settings(max_examples=8)
@given(
    pairs=st.lists(st.tuples(st.integers(1, 4), st.floats(2, 20)), min_size=1, max_size=2),
    ratios=RATIOS,
    clip=st.booleans(),
    steps=st.sampled_from([(0.0, 0.0), (9.0, 6.0)]),
    flat=st.booleans(),
)
def test_density_prior_box(pairs, ratios, clip, steps, flat):
    fitting = (10.0, 8.0) if 0 in steps else steps
    step = int(sum(fitting) / 2)

    def around(x, y):
        for density, size in pairs:
            apart = step // density
            for ratio in ratios:
                for i in range(density):
                    for j in range(density):
                        middle = x - step / 2 + apart / 2 + j * apart, y - step / 2 + apart / 2 + i * apart
                        yield box(*middle, size * math.sqrt(ratio), size / math.sqrt(ratio))

    want = np.array(over_the_grid(around, fitting, 0.5))
    want = np.concatenate([np.maximum(want[..., :2], 0), np.minimum(want[..., 2:], 1)], axis=-1)
    want = np.clip(want, 0, 1) if clip else want
    densities, sizes = zip(*pairs, strict=True)
    got = made(lambda x, image: layers.density_prior_box(
        x, image, list(densities), list(sizes), ratios, clip=clip, steps=list(steps), flatten_to_2d=flat))  # fmt: skip
    check(got, want.reshape(-1, 4) if flat else want)


@settings(max_examples=8)
@given(sizes=SIZES, ratios=RATIOS, offset=st.sampled_from([0.5, 0.0, 0.3]))
def test_anchor_generator(sizes, ratios, offset):
    across, down = 16.0, 12.0
    want = np.zeros((3, 4, len(sizes) * len(ratios), 4))
    for i, j in np.ndindex(3, 4):
        x, y = j * across + offset * (across - 1), i * down + offset * (down - 1)
        shapes = []
        for ratio in ratios:
            width = math.floor(math.sqrt(across * down / ratio) + 0.5)
            height = math.floor(width * ratio + 0.5)
            shapes += [(width * size / across, height * size / down) for size in sizes]
        want[i, j] = [box(x, y, width - 1, height - 1) for width, height in shapes]
    got = made(lambda x, image: layers.anchor_generator(x, sizes, ratios, stride=[across, down], offset=offset))
    check(got, want)


def test_numbers_may_stand_alone():
    one = made(lambda x, image: layers.prior_box(x, image, 6.0, aspect_ratios=2.0))
    check(one, made(lambda x, image: layers.prior_box(x, image, [6.0], aspect_ratios=[2.0]))[0])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, image: layers.prior_box(x, image, []), "min_sizes="),
        (lambda x, image: layers.prior_box(x, image, [3.0, -1.0]), "positive"),
        (lambda x, image: layers.prior_box(x, image, [3.0], [4.0, 5.0]), r"max_sizes=\[6.0\]"),
        (lambda x, image: layers.prior_box(x, image, [3.0], steps=[1.0]), "for width and height"),
        (lambda x, image: layers.prior_box(x, image, [3.0], variance=[0.1]), "4 positive numbers"),
        (lambda x, image: layers.density_prior_box(x, image, [1], [2.0, 3.0], [1.0]), "1 densities for 2"),
        (lambda x, image: layers.density_prior_box(x, image, None, [2.0], [1.0]), "densities=None"),
        (lambda x, image: layers.anchor_generator(x, [8.0], [1.0]), "stride=None"),
        (lambda x, image: layers.anchor_generator(x, [8.0], [1.0], stride=[4.0]), "expected 2 positive"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(errors.ArgumentError, match=message):
        fluid.Program(lambda: build(*feeds(**FEED)))
