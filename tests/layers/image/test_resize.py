"""Layers that resize, sample, unfold or rearrange images: compared with NumPy and scipy, also with channels last."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.layer_table import real
from layers.run_program import check, feeds, output, run
from scipy import ndimage

import fluid
from fluid import errors, layers, nets

IMAGE, VOLUME = real(2, 3, 5, 4), real(1, 2, 3, 4, 2)


def places(pixels, size, corners, mode):
    """Return the coordinates of the new pixels if an image axis of `pixels` pixels is resized to `size` pixels."""
    k = np.arange(size)
    if corners:
        return k * (pixels - 1) / max(size - 1, 1)
    return np.maximum((k + 0.5) * pixels / size - 0.5, 0) if mode == 0 else k * pixels / size


def interpolated(x, sizes, corners=True, mode=1):
    """Return images resized to `sizes`: scipy interpolates each channel of each image."""
    grid = np.meshgrid(
        *(places(p, s, corners, mode) for p, s in zip(x.shape[2:], sizes, strict=True)), indexing="ij"
    )  # fmt: skip
    flat = x.reshape(-1, *x.shape[2:])
    found = [ndimage.map_coordinates(channel, grid, order=1, mode="nearest") for channel in flat]
    return np.array(found).reshape(*x.shape[:2], *sizes)


@pytest.mark.parametrize("sizes", [[9, 7], [3, 2], [5, 4], [1, 8]])
@pytest.mark.parametrize(("corners", "mode"), [(True, 1), (False, 1), (False, 0)])
def test_resize_bilinear(sizes, corners, mode):
    check(
        lambda x: layers.resize_bilinear(x, sizes, align_corners=corners, align_mode=mode),
        interpolated(IMAGE, sizes, corners, mode), x=IMAGE,
    )  # fmt: skip


@pytest.mark.parametrize(("corners", "mode"), [(True, 1), (False, 0)])
def test_resize_trilinear(corners, mode):
    check(
        lambda x: layers.image_resize(x, [5, 3, 4], resample="trilinear", align_corners=corners, align_mode=mode),
        interpolated(VOLUME, [5, 3, 4], corners, mode), x=VOLUME,
    )  # fmt: skip


@pytest.mark.parametrize("sizes", [[9, 7], [3, 2]])
@pytest.mark.parametrize("corners", [True, False])
def test_resize_nearest(sizes, corners):
    rows, columns = (places(p, s, corners, 1) for p, s in zip(IMAGE.shape[2:], sizes, strict=True))
    rows, columns = (np.floor(v + 0.5 if corners else v).astype(int) for v in (rows, columns))
    check(lambda x: layers.resize_nearest(x, sizes, align_corners=corners), IMAGE[:, :, rows][..., columns], x=IMAGE)


@pytest.mark.parametrize(("corners", "mode"), [(True, 1), (False, 0), (False, 1)])
def test_resize_linear(corners, mode):
    signal = real(2, 3, 5)
    want = interpolated(signal[:, :, None], [1, 8], corners, mode)[:, :, 0]
    check(lambda x: layers.resize_linear(x, [8], align_corners=corners, align_mode=mode), want, x=signal)
    last = signal.transpose(0, 2, 1)
    check(lambda x: layers.interpolate(x, [8], None, None, "LINEAR", None, corners, mode, "NWC"),
          want.transpose(0, 2, 1), x=last)  # fmt: skip


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("sizes", [[6, 8], [3, 2], [4, 5]])
def test_bicubic_resize_matches_the_cubic_kernel(sizes, corners):
    image = real(1, 2, 4, 5)

    def kernel(d):
        d = abs(d)
        if d <= 1:
            return 1.25 * d**3 - 2.25 * d**2 + 1
        return -0.75 * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0

    def matrix(pixels, size):
        found = np.zeros((size, pixels))
        for k in range(size):
            place = k * (pixels - 1) / (size - 1) if corners else (k + 0.5) * pixels / size - 0.5
            for near in range(int(np.floor(place)) - 1, int(np.floor(place)) + 3):
                found[k, min(max(near, 0), pixels - 1)] += kernel(place - near)
        return found

    want = np.einsum("ih,nchw,jw->ncij", matrix(4, sizes[0]), image, matrix(5, sizes[1]))
    check(lambda x: layers.interpolate(x, sizes, resample="BICUBIC", align_corners=corners), want, x=image, atol=1e-5)
    check(lambda x: layers.image_resize(x, sizes, resample="bicubic", align_corners=corners), want, x=image, atol=1e-5)


def test_shorter_side():
    assert output(lambda: layers.image_resize_short(*feeds(x=IMAGE), 8), {"x": IMAGE}).shape == (2, 3, 10, 8)
    assert output(lambda: layers.image_resize(*feeds(x=IMAGE), scale=1.5), {"x": IMAGE}).shape == (2, 3, 7, 6)


def test_grid_sampler():
    grid = np.random.default_rng(0).uniform(-1.4, 1.4, (2, 6, 7, 2)).astype("float32")
    want = [
        [
            ndimage.map_coordinates(
                channel, [(g[..., 1] + 1) / 2 * 4, (g[..., 0] + 1) / 2 * 3], order=1, mode="grid-constant"
            )
            for channel in image
        ]
        for image, g in zip(IMAGE, grid, strict=True)
    ]
    check(layers.grid_sampler, want, x=IMAGE, grid=grid)


def test_places_that_are_no_numbers_are_not_read():
    grid = np.array([[np.inf, 0.0], [-1e30, 0.0], [0.5, np.nan]], "float32").reshape(1, 1, 3, 2)
    got = output(lambda: layers.grid_sampler(*feeds(x=IMAGE[:1], grid=grid)), {"x": IMAGE[:1], "grid": grid})
    assert got.shape == (1, 3, 1, 3) and got[0, 0, 0, 1] == 0


def test_identity_affine_grid_returns_the_image():
    theta = np.broadcast_to(np.eye(2, 3, dtype="float32"), (2, 2, 3))
    check(lambda x, t: layers.grid_sampler(x, layers.affine_grid(t, [2, 3, 5, 4])), IMAGE, x=IMAGE, t=theta)


def test_affine_grid():
    theta = real(2, 2, 3)
    want = np.empty((2, 3, 4, 2))
    for n in range(2):
        for i, y in enumerate(np.linspace(-1, 1, 3)):
            for j, x in enumerate(np.linspace(-1, 1, 4)):
                want[n, i, j] = theta[n] @ [x, y, 1]
    check(lambda t: layers.affine_grid(t, [-1, 5, 3, 4]), want, t=theta)


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), ([2, 1], [1, 0], 1), (1, [1, 0, 2, 1], [1, 2])])
def test_unfold_matches_numpy_windows(stride, padding, dilation):
    strides, apart = np.broadcast_to(stride, 2), np.broadcast_to(dilation, 2)
    top, left, bottom, right = padding if np.size(padding) == 4 else [*np.broadcast_to(padding, 2)] * 2
    x = np.pad(IMAGE, [(0, 0), (0, 0), (top, bottom), (left, right)])
    kernel = [2, 2]
    spans = [d * (k - 1) + 1 for d, k in zip(apart, kernel, strict=True)]
    rows = range(0, x.shape[2] - spans[0] + 1, strides[0])
    columns = range(0, x.shape[3] - spans[1] + 1, strides[1])
    want = np.array([
        x[:, :, i : i + spans[0] : apart[0], j : j + spans[1] : apart[1]].reshape(2, -1) for i in rows for j in columns
    ]).transpose(1, 2, 0)  # fmt: skip
    check(lambda x: layers.unfold(x, kernel, stride, padding, dilation), want, x=IMAGE)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        ([3, 3], 1, 1, 1),
        ([3, 2], [2, 3], [1, 0, 2, 1], [1, 2]),
        ([2, 3], [2, 3], 0, 1),
        ([2, 2], 2, [0, 1, 1, 0], 1),
        ([2, 2], 2, 0, 2),
        ([1, 1], 2, 0, 1),
    ],
)
def test_window_layers_and_gradients_match_convolution_patches(kernel, stride, padding, dilation):
    image = jnp.asarray(real(2, 3, 7, 8))
    top, left, bottom, right = padding if np.size(padding) == 4 else [*np.broadcast_to(padding, 2)] * 2
    strides, apart = (tuple(map(int, np.broadcast_to(v, 2))) for v in (stride, dilation))

    def of(build):
        program = fluid.Program(lambda: build(*feeds(x=image)))
        return lambda x: program.apply({}, {"x": x}, key=None, mode="train").outputs[0]

    def columns(x):
        found = jax.lax.conv_general_dilated_patches(
            x, kernel, strides, [(int(top), int(bottom)), (int(left), int(right))], rhs_dilation=apart
        )
        return found.reshape(*found.shape[:2], -1)

    forms = [(of(lambda x: layers.unfold(x, kernel, stride, padding, dilation)), columns)]
    if dilation == 1:
        steps = of(lambda x: layers.im2sequence(x, kernel, stride, padding).data)
        forms.append((steps, lambda x: columns(x).swapaxes(1, 2)))
    for form, plain in forms:
        (found, back), (want, wanted) = (jax.vjp(jax.jit(f), image) for f in (form, plain))
        np.testing.assert_allclose(found, want, rtol=1e-6)
        seed = jnp.asarray(real(*want.shape, salt=1))
        np.testing.assert_allclose(back(seed)[0], wanted(seed)[0], rtol=1e-4, atol=1e-5)


def test_windows_are_exported_for_any_batch():
    for stride in (1, 2):
        program = fluid.Program(lambda s=stride: layers.unfold(*feeds(x=IMAGE), 2, s))
        gradient = jax.jit(
            jax.grad(lambda x, p=program: (p.apply({}, {"x": x}, key=None, mode="train").outputs[0] ** 2).sum())
        )
        (batch,) = jax.export.symbolic_shape("b")
        exported = jax.export.export(gradient)(jax.ShapeDtypeStruct((batch, *IMAGE.shape[1:]), "float32"))
        np.testing.assert_allclose(exported.call(IMAGE), gradient(IMAGE), rtol=1e-6)


def test_pixels_and_channels_change_places():
    x = real(2, 8, 2, 4)
    want = np.empty((2, 2, 4, 8), "float32")
    for c, i, j in np.ndindex(2, 4, 8):
        want[:, c, i, j] = x[:, c * 4 + (i % 2) * 2 + j % 2, i // 2, j // 2]
    check(lambda x: layers.pixel_shuffle(x, 2), want, x=x)
    check(lambda x: layers.shuffle_channel(x, 2), x[:, [0, 4, 1, 5, 2, 6, 3, 7]], x=x)
    got = output(lambda: layers.space_to_depth(*feeds(x=x), 2), {"x": x})
    assert got.shape == (2, 32, 1, 2) and np.array_equal(np.sort(got.ravel()), np.sort(x.ravel()))


def test_affine_channel():
    scale, bias = real(3), real(3, salt=1)
    want = np.maximum(IMAGE * scale[:, None, None] + bias[:, None, None], 0)
    check(lambda x: layers.affine_channel(x, scale, bias, act="relu"), want, x=IMAGE)


CHANNELS_LAST = {
    "conv2d": lambda x, f: layers.conv2d(x, 4, 3, padding=[1, 0, 2, 1], data_format=f),
    "conv2d_transpose": lambda x, f: layers.conv2d_transpose(x, 4, filter_size=3, stride=2, data_format=f),
    "pool2d": lambda x, f: layers.pool2d(x, 3, "avg", 2, [1, 0], ceil_mode=True, data_format=f),
    "adaptive_pool2d": lambda x, f: layers.adaptive_pool2d(x, [3, 2], "avg", data_format=f),
    "batch_norm": lambda x, f: layers.batch_norm(x, data_layout=f),
    "group_norm": lambda x, f: layers.group_norm(x, 3, param_attr="s", bias_attr="b", data_layout=f),
    "instance_norm": lambda x, f: layers.instance_norm(x, data_format=f),
    "lrn": lambda x, f: layers.lrn(x, 3, alpha=0.5, data_format=f),
    "pad2d": lambda x, f: layers.pad2d(x, [1, 0, 2, 1], "edge", data_format=f),
    "resize_bilinear": lambda x, f: layers.resize_bilinear(x, [7, 3], data_format=f),
    "resize_nearest": lambda x, f: layers.resize_nearest(x, [7, 3], data_format=f),
    "affine_channel": lambda x, f: layers.affine_channel(x, jnp.arange(3.0), data_layout=f),
    "simple_img_conv_pool": lambda x, f: nets.simple_img_conv_pool(x, 2, 2, 2, 1, data_format=f),
    "img_conv_group": lambda x, f: nets.img_conv_group(x, [2, 3], 2, conv_with_batchnorm=True, data_format=f),
    "conv3d": lambda x, f: layers.conv3d(x, 4, 2, data_format=f),
    "conv3d_transpose": lambda x, f: layers.conv3d_transpose(x, 4, filter_size=2, stride=2, data_format=f),
    "pool3d": lambda x, f: layers.pool3d(x, 2, "max", data_format=f),
    "adaptive_pool3d": lambda x, f: layers.adaptive_pool3d(x, [2, 3, 1], data_format=f),
    "resize_trilinear": lambda x, f: layers.resize_trilinear(x, [4, 3, 2], data_format=f),
    "volume_batch_norm": lambda x, f: layers.batch_norm(x, data_layout=f),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_channels_last_gives_the_same_with_channels_last(name):
    """Check that channels first and channels last give equal results and states, with filters `[out, in, ...]`."""
    build, volume = CHANNELS_LAST[name], "3d" in name or name in ("resize_trilinear", "volume_batch_norm")
    x = VOLUME if volume else IMAGE
    first, last = ("NCDHW", "NDHWC") if volume else ("NCHW", "NHWC")
    one = run(lambda: build(*feeds(x=x), first), {"x": x})
    moved = np.moveaxis(x, 1, -1)
    other = run(lambda: build(*feeds(x=moved), last), {"x": moved})
    np.testing.assert_allclose(np.moveaxis(other.outputs[0], -1, 1), one.outputs[0], rtol=1e-5, atol=1e-5)
    for state, want in one.states.items():
        np.testing.assert_allclose(other.states[state], want, rtol=1e-5, atol=1e-6)


def test_adaptive_pooling_of_volumes():
    want = np.stack([VOLUME[:, :, :2].mean((2, 3)), VOLUME[:, :, 1:].mean((2, 3))], axis=2)[:, :, :, None]
    check(lambda x: layers.adaptive_pool3d(x, [2, 1, 2], "avg"), want, x=VOLUME)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: layers.image_resize(x), "out_shape or scale"),
        (lambda x: layers.image_resize(x, [3, 3], resample="CUBIC"), "'BILINEAR'"),
        (lambda x: layers.image_resize(x, [3, 3], align_mode=2), "0 or 1"),
        (lambda x: layers.image_resize(x, [3, 3], actual_shape=x), "give out_shape"),
        (lambda x: layers.resize_nearest(x, [3, 0]), r"out_shape=0\): expected a whole number from 1 on"),
        (lambda x: layers.resize_nearest(x, scale=0.01), "expected a larger factor"),
        (lambda x: layers.image_resize_short(x, 0), r"out_short_len=0\): expected a whole number from 1 on"),
        (lambda x: layers.affine_grid(jnp.ones([1, 2, 3]), [1, 1, 0, 4]), "expected a whole number from 1 on"),
        (lambda x: layers.pixel_shuffle(x, 2), "multiple of 4"),
        (lambda x: layers.space_to_depth(layers.concat([x, x[:, :1]], axis=1), 2), "does not divide the pixels"),
        (lambda x: layers.unfold(x, 9), "smaller than a window"),
        (lambda x: layers.affine_channel(x, jnp.ones(4)), r"expected \[3\]"),
        (lambda x: layers.affine_grid(jnp.ones([1, 2, 3]), [4, 4]), "height, width"),
        (lambda x: layers.adaptive_pool2d(x, 2, require_index=True), "not possible"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(x=IMAGE)))
