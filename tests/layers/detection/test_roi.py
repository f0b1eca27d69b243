"""Pooling of regions: compared with loops that read each bin pixel by pixel."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.detection.reference import results
from layers.run_program import feeds

import fluid
from fluid import errors, layers

HIGH, BROAD = 6, 8
MAPS = np.random.default_rng(0).normal(size=(2, 4, HIGH, BROAD)).astype("float32")
# Some regions are inside the image, cross its edges or are outside; others have no area or reversed corners.
REGIONS = np.float32(
    [
        [
            [1.3, 0.8, 6.2, 4.9],
            [-3.0, -2.0, 3.4, 9.0],
            [0.0, 0.0, 7.0, 5.0],
            [20.0, 3.0, 25.0, 4.0],
            [2.5, 2.5, 2.5, 2.5],
        ],
        [
            [5.2, 1.1, 13.7, 3.0],
            [6.0, 4.0, 2.0, 1.0],
            [0.4, 3.6, 3.1, 12.9],
            [-9.0, -9.0, -5.0, -6.0],
            [0.2, 0.1, 0.9, 5.8],
        ],
    ]
)
ROUNDED = st.sampled_from([(1, 1), (2, 3), (3, 2), (4, 5)])


def rounded(value):
    return math.copysign(math.floor(abs(value) + 0.5), value)


def spans(first, last, bins):
    """Return the first and last coordinates of `bins` bins of equal size between `first` and `last`."""
    size = (last - first) / bins
    return [(first + k * size, first + (k + 1) * size) for k in range(bins)]


def by_bins(pool, boxes):
    """Pool each bin (a rectangular part) of all image regions; return `[regions, channels, rows, columns]`.

    `boxes` lists the vertical and the horizontal spans of the bins of each region. `pool(p, q, vertical, horizontal)`
    returns the result `[channels]` for the bin in row `p` and column `q`.
    """
    rows = [
        [[pool(p, q, down[p], across[q]) for q in range(len(across))] for p in range(len(down))]
        for down, across in boxes
    ]
    return np.moveaxis(np.array(rows), -1, 1)


def pixels(span, size):
    """Return the indices of the pixels that a span touches, in an image with `size` pixels."""
    return [i for i in range(size) if math.floor(span[0] + 1e-9) <= i < math.ceil(span[1] - 1e-9)]


def bilinear(image, y, x):
    """Return the values `[channels]` of an image `[channels, height, width]` at `(y, x)`, by bilinear interpolation."""
    down, across = (np.maximum(0, 1 - abs(v - np.arange(size))) for v, size in ((y, HIGH), (x, BROAD)))
    return image @ across @ down


def found(build, x=MAPS, regions=REGIONS):
    feed = {"x": x, "r": regions}
    return np.asarray(results(lambda: build(*feeds(**feed)), feed)[0])


@settings(max_examples=5)
@given(pooled=ROUNDED, scale=st.sampled_from([1.0, 0.5]))
def test_roi_pool(pooled, scale):
    got = found(lambda x, r: layers.roi_pool(x, r, *pooled, scale))
    for image, regions, result in zip(MAPS, REGIONS.tolist(), got, strict=True):
        boxes = []
        for region in regions:
            x1, y1, x2, y2 = (rounded(v * scale) for v in region)
            boxes.append((spans(y1, max(y2 + 1, y1 + 1), pooled[0]), spans(x1, max(x2 + 1, x1 + 1), pooled[1])))

        def largest(p, q, down, across, image=image):
            cells = [image[:, i, j] for i in pixels(down, HIGH) for j in pixels(across, BROAD)]
            return np.max(cells, axis=0) if cells else np.zeros(4)

        np.testing.assert_allclose(result, by_bins(largest, boxes), rtol=1e-6)


@settings(max_examples=6)
@given(pooled=ROUNDED, scale=st.sampled_from([1.0, 0.5, 3.0]), ratio=st.sampled_from([-1, 1, 3]))
def test_roi_align(pooled, scale, ratio):
    """Compare each bin with the mean of equidistant interpolated points; edge pixels repeat up to one pixel outside."""
    got = found(lambda x, r: layers.roi_align(x, r, *pooled, scale, ratio))
    for image, regions, result in zip(MAPS, REGIONS.tolist(), got, strict=True):
        boxes = []
        for region in regions:
            x1, y1, x2, y2 = (float(np.float32(v) * np.float32(scale)) for v in region)
            boxes.append((spans(y1, max(y2, y1 + 1), pooled[0]), spans(x1, max(x2, x1 + 1), pooled[1])))

        def places(span):
            count = math.ceil(span[1] - span[0] - 1e-6) if ratio == -1 else ratio
            return [span[0] + (k + 0.5) * (span[1] - span[0]) / count for k in range(count)]

        def mean(p, q, down, across, image=image):
            values = [
                bilinear(image, min(max(y, 0), HIGH - 1), min(max(x, 0), BROAD - 1))
                if -1 <= y <= HIGH and -1 <= x <= BROAD
                else np.zeros(4)
                for y in places(down)
                for x in places(across)
            ]
            return np.mean(values, axis=0)

        np.testing.assert_allclose(result, by_bins(mean, boxes), rtol=1e-4, atol=1e-5)


@settings(max_examples=6)
@given(pooled=st.sampled_from([(1, 1), (2, 2), (1, 4), (4, 1)]), scale=st.sampled_from([1.0, 0.5]))
def test_psroi_pool(pooled, scale):
    channels = 4 // (pooled[0] * pooled[1])
    got = found(lambda x, r: layers.psroi_pool(x, r, channels, scale, *pooled))
    for image, regions, result in zip(MAPS, REGIONS.tolist(), got, strict=True):
        boxes = []
        for region in regions:
            x1, y1, x2, y2 = (rounded(v) for v in region)
            ends = [(a * scale, max((b + 1) * scale, a * scale + 0.1)) for a, b in ((y1, y2), (x1, x2))]
            boxes.append(tuple(spans(*end, bins) for end, bins in zip(ends, pooled, strict=True)))

        def mean(p, q, down, across, image=image):
            own = image.reshape(channels, *pooled, HIGH, BROAD)[:, p, q]
            cells = [own[:, i, j] for i in pixels(down, HIGH) for j in pixels(across, BROAD)]
            return np.mean(cells, axis=0) if cells else np.zeros(channels)

        np.testing.assert_allclose(result, by_bins(mean, boxes), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pooled", [(1, 1), (2, 3)])
def test_prroi_pool(pooled):
    """Check that each bin of a region is the mean of the interpolated image, approximated by 60 x 60 points."""
    got = found(lambda x, r: layers.prroi_pool(x, r, 0.5, *pooled))
    fine = 60
    for image, regions, result in zip(MAPS, REGIONS.tolist(), got, strict=True):
        for r, region in enumerate(regions):
            x1, y1, x2, y2 = (v / 2 for v in region)
            for p, q in np.ndindex(pooled):
                if x2 <= x1 or y2 <= y1:
                    assert not result[r, :, p, q].any()
                    continue
                ways = [
                    low + (k + (np.arange(fine) + 0.5) / fine) * (high - low) / bins
                    for low, high, k, bins in ((y1, y2, p, pooled[0]), (x1, x2, q, pooled[1]))
                ]
                near = [
                    np.maximum(0, 1 - abs(way[:, None] - np.arange(size))).mean(0)
                    for way, size in zip(ways, (HIGH, BROAD), strict=True)
                ]
                want = np.einsum("i,j,cij->c", *near, image)
                np.testing.assert_allclose(result[r, :, p, q], want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["roi_pool", "roi_align", "prroi_pool"])
def test_sequences_of_regions(name):
    """Check that regions as sequences have the results of regions as arrays, and images without regions have none."""
    lengths = [3, 0]
    rois = fluid.SequenceBatch(REGIONS, np.array(lengths, "int32"))
    build = getattr(layers, name)
    arguments = {"pooled_height": 2, "pooled_width": 2}
    got = results(lambda: build(*feeds(x=MAPS, r=rois), **arguments), {"x": MAPS, "r": rois})[0]
    whole = found(lambda x, r: build(x, r, **arguments))
    assert [len(row) for row in got.rows()] == lengths
    np.testing.assert_allclose(got.rows()[0], whole[0, :3], rtol=1e-5, atol=1e-6)
    none = found(lambda x, r: build(x, r, **arguments), regions=REGIONS[:, :0])
    assert none.shape == (2, 0, 4, 2, 2)


def test_more_regions_than_are_pooled_at_once():
    many = np.tile(REGIONS, (1, 9, 1))
    got, once = (found(lambda x, r: layers.roi_align(x, r, 2, 2), regions=r) for r in (many, REGIONS))
    np.testing.assert_allclose(got, np.tile(once, (1, 9, 1, 1, 1)), rtol=1e-6)


@pytest.mark.parametrize("name", ["roi_pool", "roi_align", "psroi_pool"])
def test_regions_receive_no_gradient(name):
    arguments = {"output_channels": 1, "spatial_scale": 1.0} if name == "psroi_pool" else {}
    feed = {"x": MAPS, "r": REGIONS}
    program = fluid.Program(lambda: getattr(layers, name)(*feeds(**feed), pooled_height=2, pooled_width=2, **arguments))
    slopes = jax.jit(jax.grad(lambda feed: program.apply({}, feed, key=None).outputs[0].sum()))(feed)
    assert np.asarray(slopes["x"]).any() and not np.asarray(slopes["r"]).any()


def test_roi_pool_gradient_goes_to_the_largest_pixel():
    flat = np.zeros((1, 1, 3, 3), "float32")
    flat[0, 0, 1, 2] = 5
    feed = {"x": flat, "r": np.float32([[[0, 0, 2, 2]]])}
    program = fluid.Program(lambda: layers.roi_pool(*feeds(**feed)))
    slope = jax.jit(jax.grad(lambda feed: 3 * program.apply({}, feed, key=None).outputs[0].sum()))(feed)["x"]
    assert np.asarray(slope).ravel().tolist() == [0, 0, 0, 0, 0, 3, 0, 0, 0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, r: layers.roi_pool(x, r, 0), "pooled_height=0"),
        (lambda x, r: layers.roi_pool(x, r, rois_lod=np.array([2, 3])), "rois_lod= is not supported"),
        (lambda x, r: layers.roi_pool(x, r, rois_num=np.array([2, 3])), "rois_num= is not supported; give rois as"),
        (lambda x, r: layers.roi_align(x, r, rois_num=np.array([2, 3])), "rois_num= is not supported; give rois as"),
        (lambda x, r: layers.roi_align(x, r[:, 0]), "the regions of each image"),
        (lambda x, r: layers.roi_align(x[:, 0], r), "dimensions"),
        (lambda x, r: layers.roi_align(x, r, sampling_ratio=0), "sampling_ratio=0"),
        (lambda x, r: layers.psroi_pool(x, r, 2, 1.0, 3, 3), "num_filters=18"),
        (lambda x, r: layers.prroi_pool(x, r, batch_roi_nums=np.array([2, 3])), "batch_roi_nums= is not supported"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(x=MAPS, r=REGIONS)))
