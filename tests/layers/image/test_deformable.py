"""Deformable convolutions and temporal shifts: compared with loops in NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.detection.reference import results
from layers.run_program import check, feeds

import fluid
from fluid import errors, layers

HIGH, BROAD = 5, 6
IMAGE = np.random.default_rng(0).normal(size=(2, 4, HIGH, BROAD)).astype("float32")


def near(image, y, x):
    """Return the interpolated values of an image `[channels, height, width]` at `(y, x)`; pixels outside are 0."""
    down, across = (np.maximum(0, 1 - abs(v - np.arange(size))) for v, size in ((y, HIGH), (x, BROAD)))
    return image @ across @ down


@pytest.mark.sample(2)
@settings(max_examples=6)
@given(
    own=st.sampled_from([1, 2]),
    groups=st.sampled_from([1, 2]),
    setting=st.sampled_from([(3, 1, 1, 1), ([2, 3], 2, [0, 1], 1), (2, 1, 2, 2)]),
    modulated=st.booleans(),
)
def test_deformable_conv(own, groups, setting, modulated):
    kernel, stride, padding, dilation = setting
    (kh, kw), (ph, pw) = (v if isinstance(v, list) else [v, v] for v in (kernel, padding))
    high = (HIGH + 2 * ph - dilation * (kh - 1) - 1) // stride + 1
    broad = (BROAD + 2 * pw - dilation * (kw - 1) - 1) // stride + 1
    rng = np.random.default_rng(kh * own)
    feed = {"x": IMAGE, "o": rng.normal(size=(2, own * kh * kw * 2, high, broad)).astype("float32") * 2}
    if modulated:
        feed["m"] = rng.uniform(0, 1, (2, own * kh * kw, high, broad)).astype("float32")

    def program():
        x, offset, *mask = feeds(**feed)
        return layers.deformable_conv(
            x, offset, mask[0] if mask else None, 6, kernel, stride, padding, dilation, groups, own, bias_attr=False,
            modulated=modulated,
        )  # fmt: skip

    known = fluid.Program(program)
    filters = rng.normal(size=known.parameters["deformable_conv_0.w_0"].shape).astype("float32")
    got = known.apply({"deformable_conv_0.w_0": filters}, feed, key=None).outputs[0]
    offsets = feed["o"].reshape(2, own, kh, kw, 2, high, broad)
    weights = feed.get("m", np.ones((2, own * kh * kw, high, broad))).reshape(2, own, kh, kw, high, broad)
    want = np.zeros((2, 6, high, broad))
    for n, i, j, a, b, group in np.ndindex(2, high, broad, kh, kw, own):
        dy, dx = offsets[n, group, a, b, :, i, j]
        place = i * stride - ph + a * dilation + dy, j * stride - pw + b * dilation + dx
        read = near(IMAGE[n], *place) * weights[n, group, a, b, i, j]
        for c in range(group * 4 // own, (group + 1) * 4 // own):
            part = c // (4 // groups)
            outs = slice(part * 6 // groups, (part + 1) * 6 // groups)
            want[n, outs, i, j] += filters[outs, c % (4 // groups), a, b] * read[c]
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_zero_offsets_equal_a_convolution():
    offset, mask = np.zeros((2, 18, HIGH, BROAD), "float32"), np.ones((2, 9, HIGH, BROAD), "float32")
    feed = {"x": IMAGE, "o": offset, "m": mask}

    def program():
        x, o, m = feeds(**feed)
        same = {"param_attr": "filters", "bias_attr": "bias"}
        return layers.conv2d(x, 6, 3, padding=1, **same), layers.deformable_conv(x, o, m, 6, 3, padding=1, **same)

    plain, deformed = results(program, feed)
    np.testing.assert_allclose(deformed, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("frames", "ratio"), [(3, 0.25), (2, 0.5), (1, 0.25), (6, 0.0)])
def test_temporal_shift(frames, ratio):
    x = np.random.default_rng(0).normal(size=(6, 4, 2, 2)).astype("float32")
    want, count = np.zeros_like(x), int(4 * ratio)
    for n, c in np.ndindex(6, 4):
        source = n - 1 if c < count else n + 1 if c < 2 * count else n
        if source // frames == n // frames and source >= 0:
            want[n, c] = x[source, c]
    check(lambda x: layers.temporal_shift(x, frames, ratio), want, x=x)


FEED = {"x": IMAGE, "o": np.zeros((2, 18, HIGH, BROAD), "float32"), "m": np.ones((2, 9, HIGH, BROAD), "float32")}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, o, m: layers.deformable_conv(x, o, None, 6, 3, padding=1), "modulated=False"),
        (lambda x, o, m: layers.deformable_conv(x, o, m, 6, 3, padding=1, modulated=False), "mask=None"),
        (lambda x, o, m: layers.deformable_conv(x, o, m, 6, 3), "offset"),
        (lambda x, o, m: layers.deformable_conv(x, o, m[:, :4], 6, 3, padding=1), "num_filters=9"),
        (lambda x, o, m: layers.deformable_conv(x, o, m, 6, 3, padding=1, groups=3), "groups=3"),
        (lambda x, o, m: layers.deformable_conv(x, x, m, 6, 1, deformable_groups=3), "offset"),
        (lambda x, o, m: layers.temporal_shift(x, 0), "seg_num=0"),
        (lambda x, o, m: layers.temporal_shift(x, 2, 0.6), "from 0 to 0.5"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(**FEED)))


def test_videos_that_are_not_complete():
    x = np.zeros((5, 4, 2, 2), "float32")
    with pytest.raises(errors.ShapeError, match="feed a multiple of 3, such as 3"):
        results(lambda: layers.temporal_shift(*feeds(x=x), 3), {"x": x})
