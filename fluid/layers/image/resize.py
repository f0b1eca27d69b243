"""Resizing of images, volumes and signals by interpolation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, describe, layer, wide
from fluid.layers.checks import sizes_of
from fluid.layers.image.spatial import CHANNELS_FIRST, Image, images_of
from fluid.layers.kernels.data_format import along_axis

# A dict from each interpolation method to its number of spatial dimensions and its prefix of automatic layer names.
_INTERPOLATIONS = {
    "BILINEAR": (2, "bilinear_interp"),
    "TRILINEAR": (3, "trilinear_interp"),
    "NEAREST": (2, "nearest_interp"),
    "BICUBIC": (2, "bicubic_interp"),
    "LINEAR": (1, "linear_interp"),
}
# A dict from the number of spatial dimensions to the layout that has the channels first.
_LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
# The slope of the bicubic interpolation kernel at a distance of one pixel.
_CUBIC = -0.75


@layer
def image_resize(
    input: Value,
    out_shape: Sequence[int] | None = None,
    scale: float | None = None,
    name: str | None = None,
    resample: str = "BILINEAR",
    actual_shape: Value | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str | None = None,
) -> jax.Array:
    """Resize images, volumes or signals by interpolation.

    Let a dimension of `n` pixels become `m` pixels. With `align_corners`, the new pixel `k` gets the interpolated value
    at position `k * (n - 1) / (m - 1)`, so that the pixels in the corners keep their values. Without `align_corners`,
    the position is `k * n / m` for `align_mode=1`. It is `(k + 0.5) * n / m - 0.5` for `align_mode=0`, which treats
    pixels as areas.

    Args:
      input: images `[batch, channels, height, width]`; for "TRILINEAR" volumes `[batch, channels, depth, height,
        width]`; for "LINEAR" signals `[batch, channels, width]`. For a SequenceBatch of them, the result is a
        SequenceBatch too.
      out_shape: `[height', width']`; `[depth', height', width']` for "TRILINEAR", and `[width']` for "LINEAR".
      scale: the factor for all sizes, if `out_shape` is not given.
      name: name of the layer; by default `bilinear_interp_N`, `nearest_interp_N` and so on.
      resample: "LINEAR", "BILINEAR" and "TRILINEAR" compute a weighted mean of the neighbouring pixels. "NEAREST"
        copies one pixel. "BICUBIC" fits polynomials to four pixels along each dimension (Keys, 1981).
      actual_shape: not supported, because shapes cannot depend on data; only None is accepted.
      align_corners: whether the pixels in the corners keep their values.
      align_mode: 0 or 1, as described above; "NEAREST" always uses 1, and "BICUBIC" always uses 0.
      data_format: "NCHW" or "NHWC", "NCDHW" or "NDHWC", "NCW" or "NWC"; channels first by default.

    Returns:
      The resized images, volumes or signals, in the layout of the input.

    Raises:
      ArgumentError: neither `out_shape` nor `scale` is given, or an argument has an unknown value.
      ShapeError: the input has another number of dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 8, 8])
      ...     return fluid.layers.image_resize(image, out_shape=[12, 16])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 12, 16]
    """
    return _resize(input, out_shape, scale, name, resample, actual_shape, align_corners, align_mode, data_format)


@layer
def interpolate(
    input: Value,
    out_shape: Sequence[int] | None = None,
    scale: float | None = None,
    name: str | None = None,
    resample: str = "BILINEAR",
    actual_shape: Value | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str | None = None,
) -> jax.Array:
    """Resize images, volumes or signals by interpolation; an alias of `image_resize`.

    Args:
      input: images `[batch, channels, height, width]`; for "TRILINEAR" volumes `[batch, channels, depth, height,
        width]`; for "LINEAR" signals `[batch, channels, width]`.
      out_shape: `[height', width']`; `[depth', height', width']` for "TRILINEAR", and `[width']` for "LINEAR".
      scale: the factor for all sizes, if `out_shape` is not given.
      name: name of the layer; by default `bilinear_interp_N`, `nearest_interp_N` and so on.
      resample: the interpolation: "LINEAR", "BILINEAR", "TRILINEAR", "NEAREST" or "BICUBIC", see `image_resize`.
      actual_shape: not supported, because shapes cannot depend on data; only None is accepted.
      align_corners: whether the pixels in the corners keep their values.
      align_mode: without `align_corners`, 0 treats pixels as areas and 1 as points; formulas in `image_resize`.
      data_format: "NCHW" or "NHWC", "NCDHW" or "NDHWC", "NCW" or "NWC"; channels first by default.

    Returns:
      The resized images, volumes or signals, in the layout of the input.

    Raises:
      ArgumentError: neither `out_shape` nor `scale` is given, or an argument has an unknown value.
      ShapeError: the input has another number of dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 8, 8])
      ...     return fluid.layers.interpolate(image, out_shape=[12, 16], resample="BICUBIC", align_corners=False)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 12, 16]
    """
    return _resize(input, out_shape, scale, name, resample, actual_shape, align_corners, align_mode, data_format)


@layer
def resize_linear(
    input: Value,
    out_shape: Sequence[int] | None = None,
    scale: float | None = None,
    name: str | None = None,
    actual_shape: Value | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCW",
) -> jax.Array:
    """Resize signals by linear interpolation: each new value is a weighted mean of its two neighbours.

    Args:
      input: `[batch, channels, width]`, or with the channels last for "NWC".
      out_shape: `[width']`.
      scale: the factor for the width, if `out_shape` is not given.
      name: name of the layer; by default `linear_interp_N`.
      actual_shape: not supported, because shapes cannot depend on data; only None is accepted.
      align_corners: whether the values at the first and the last position of each dimension stay unchanged.
      align_mode: without `align_corners`, 0 treats values as areas and 1 as points; formulas in `image_resize`.
      data_format: "NCW" or "NWC".

    Returns:
      The resized signals, `[batch, channels, width']`, or with the channels last for "NWC".

    Raises:
      ArgumentError: neither `out_shape` nor `scale` is given, or an argument has an unknown value.
      ShapeError: the input is not a batch of signals.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.resize_linear(fluid.layers.data("sound", shape=[2, 8]), scale=1.5)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 2, 12]
    """
    return _resize(input, out_shape, scale, name, "LINEAR", actual_shape, align_corners, align_mode, data_format)


@layer
def resize_bilinear(
    input: Value,
    out_shape: Sequence[int] | None = None,
    scale: float | None = None,
    name: str | None = None,
    actual_shape: Value | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = CHANNELS_FIRST,
) -> jax.Array:
    """Resize images by bilinear interpolation: each new pixel is a weighted mean of its four neighbours.

    Args:
      input: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      out_shape: `[height', width']`.
      scale: the factor for all sizes, if `out_shape` is not given.
      name: name of the layer; by default `bilinear_interp_N`.
      actual_shape: not supported, because shapes cannot depend on data; only None is accepted.
      align_corners: whether the values at the first and the last position of each dimension stay unchanged.
      align_mode: without `align_corners`, 0 treats values as areas and 1 as points; formulas in `image_resize`.
      data_format: "NCHW" or "NHWC".

    Returns:
      The resized images, `[batch, channels, height', width']`, or with the channels last for "NHWC".

    Raises:
      ArgumentError: neither `out_shape` nor `scale` is given, or an argument has an unknown value.
      ShapeError: the input is not a batch of images.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.resize_bilinear(fluid.layers.data("image", shape=[3, 8, 8]), scale=1.5)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 12, 12]
    """
    return _resize(input, out_shape, scale, name, "BILINEAR", actual_shape, align_corners, align_mode, data_format)


@layer
def resize_trilinear(
    input: Value,
    out_shape: Sequence[int] | None = None,
    scale: float | None = None,
    name: str | None = None,
    actual_shape: Value | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCDHW",
) -> jax.Array:
    """Resize volumes by trilinear interpolation: each new value is a weighted mean of its eight neighbours.

    Args:
      input: `[batch, channels, depth, height, width]`, or with the channels last for "NDHWC".
      out_shape: `[depth', height', width']`.
      scale: the factor for all sizes, if `out_shape` is not given.
      name: name of the layer; by default `trilinear_interp_N`.
      actual_shape: not supported, because shapes cannot depend on data; only None is accepted.
      align_corners: whether the values at the first and the last position of each dimension stay unchanged.
      align_mode: without `align_corners`, 0 treats values as areas and 1 as points; formulas in `image_resize`.
      data_format: "NCDHW" or "NDHWC".

    Returns:
      The resized volumes, `[batch, channels, depth', height', width']`, or with the channels last for "NDHWC".

    Raises:
      ArgumentError: neither `out_shape` nor `scale` is given, or an argument has an unknown value.
      ShapeError: the input is not a batch of volumes.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.resize_trilinear(fluid.layers.data("scan", shape=[1, 4, 8, 8]), scale=2.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1, 8, 16, 16]
    """
    return _resize(input, out_shape, scale, name, "TRILINEAR", actual_shape, align_corners, align_mode, data_format)


@layer
def resize_nearest(
    input: Value,
    out_shape: Sequence[int] | None = None,
    scale: float | None = None,
    name: str | None = None,
    actual_shape: Value | None = None,
    align_corners: bool = True,
    data_format: str = CHANNELS_FIRST,
) -> jax.Array:
    """Resize images by nearest-neighbour interpolation: each new pixel is a copy of an old pixel.

    Args:
      input: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      out_shape: `[height', width']`.
      scale: the factor for all sizes, if `out_shape` is not given.
      name: name of the layer; by default `nearest_interp_N`.
      actual_shape: not supported, because shapes cannot depend on data; only None is accepted.
      align_corners: True keeps the values of the pixels in the corners, and rounds positions to the nearest pixel;
        False rounds positions down.
      data_format: "NCHW" or "NHWC".

    Returns:
      The resized images, `[batch, channels, height', width']`, or with the channels last for "NHWC".

    Raises:
      ArgumentError: neither `out_shape` nor `scale` is given, or an argument has an unknown value.
      ShapeError: the input is not a batch of images.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.resize_nearest(fluid.layers.data("image", shape=[3, 8, 8]), out_shape=[16, 16])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 16, 16]
    """
    return _resize(input, out_shape, scale, name, "NEAREST", actual_shape, align_corners, 1, data_format)


@layer
def image_resize_short(
    input: Value, out_short_len: int, resample: str = "BILINEAR", name: str | None = None
) -> jax.Array:
    """Resize images so that the shorter side gets a given length, and keep the aspect ratio.

    Args:
      input: `[batch, channels, height, width]`.
      out_short_len: the new length of the shorter side.
      resample: "BILINEAR", "NEAREST" or "BICUBIC".
      name: name of the layer; by default `bilinear_interp_N`, `nearest_interp_N` or `bicubic_interp_N`.

    Returns:
      The resized images, `[batch, channels, height', width']`.

    Raises:
      ArgumentError: `out_short_len` is not a positive integer, or `resample` is unknown.
      ShapeError: the input is not a batch of images.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.image_resize_short(fluid.layers.data("image", shape=[3, 8, 12]), out_short_len=4)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 4, 6]
    """
    this = _layer_of(resample, name)
    image = images_of(this, input, 4, CHANNELS_FIRST)
    short = min(image.pixels)
    core.whole_number(this.name, "out_short_len", out_short_len)
    sizes = [out_short_len if p == short else int(p * (out_short_len / short) + 0.5) for p in image.pixels]
    return this.output(image.back(_resampled(image, sizes, resample, True, 1)))


def _resize(
    input: Any, out_shape: Any, scale: Any, name: str | None, resample: str, actual_shape: Any, align_corners: bool,
    align_mode: int, data_format: str | None,
) -> Any:  # fmt: skip
    """Resize images, volumes or signals, and record the result as output of the layer; see `image_resize`."""
    this = _layer_of(resample, name)
    dims = _INTERPOLATIONS[resample.upper()][0]
    image = images_of(this, input, dims + 2, data_format or (CHANNELS_FIRST if dims == 2 else _LAYOUTS[dims]))
    if actual_shape is not None:
        raise errors.ArgumentError(
            f"{this.name}: actual_shape gives a size that depends on data, which no shape can; give out_shape="
        )
    if align_mode not in (0, 1):
        raise errors.ArgumentError(f"{this.name}: align_mode={align_mode!r}; expected 0 or 1")
    if out_shape is not None:
        sizes = sizes_of(this, "out_shape", out_shape, dims)
    elif scale:
        sizes = tuple(int(p * scale) for p in image.pixels)
    else:
        raise errors.ArgumentError(f"{this.name} needs out_shape or scale, as in scale=2.0")
    if min(sizes) < 1:
        raise errors.ArgumentError(
            f"{this.name}: scale={scale} leaves {list(sizes)} pixels of {describe(input)}; "
            f"expected a larger factor, as in scale=2.0"
        )
    return this.output(image.back(_resampled(image, sizes, resample, align_corners, align_mode)))


def _layer_of(resample: Any, name: str | None) -> Layer:
    """Return a Layer whose automatic name begins with the interpolation method, such as `bilinear_interp_0`."""
    if not isinstance(resample, str) or resample.upper() not in _INTERPOLATIONS:
        raise errors.ArgumentError(f"resample={resample!r}: expected {', '.join(map(repr, _INTERPOLATIONS))}")
    return Layer(_INTERPOLATIONS[resample.upper()][1], name)


def _resampled(image: Image, sizes: Sequence[int], resample: str, corners: bool, mode: int) -> Any:
    """Resize the array of images to `sizes` pixels; `image_resize` describes the other arguments."""
    nearest = resample.upper() == "NEAREST"
    result = image.array if nearest else wide(image.array)
    table = {"NEAREST": _nearest, "BICUBIC": _cubic}.get(resample.upper(), functools.partial(_linear, mode=mode))
    for axis, pixels, size in zip(image.axes, image.pixels, sizes, strict=True):
        places, weights = table(pixels, size, corners)
        result = _weighted_sum(result, axis, np.clip(places, 0, pixels - 1), weights.astype(result.dtype))
    return result.astype(image.array.dtype)


def _weighted_sum(x: Any, axis: int, places: np.ndarray, weights: np.ndarray) -> Any:
    """Interpolate an array along an axis: compute `sum_k weights[:, k] * x[places[:, k]]`.

    Args:
      places: the indices of the old pixels that each new pixel reads, `[size, taps]`.
      weights: the weights of these old pixels, `[size, taps]`.
    """
    if (weights == 1).all():
        return jnp.take(x, places[:, 0], axis=axis)
    shape = along_axis(axis, x.ndim)
    return sum(jnp.take(x, places[:, k], axis=axis) * weights[:, k].reshape(shape) for k in range(places.shape[1]))


def _nearest(pixels: int, size: int, corners: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the old pixel that each new pixel copies, and the weights 1, as arrays `[size, 1]`."""
    places = _places(pixels, size, corners, 1)
    return np.floor(places + 0.5 if corners else places).astype(int)[:, None], np.ones((size, 1))


def _linear(pixels: int, size: int, corners: bool, mode: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the two old pixels next to each new pixel, and their weights, as arrays `[size, 2]`."""
    places = np.maximum(_places(pixels, size, corners, mode), 0)
    low = np.minimum(places.astype(int), pixels - 1)
    share = (places - low).astype(np.float32)
    return np.stack([low, low + 1], axis=1), np.stack([1 - share, share], axis=1)


def _cubic(pixels: int, size: int, corners: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the four old pixels next to each new pixel, and their weights, as arrays `[size, 4]`."""
    places = _places(pixels, size, corners, 0)
    steps = np.floor(places).astype(int)[:, None] + np.arange(-1, 3)
    far = np.abs(places[:, None] - steps)
    near = ((_CUBIC + 2) * far - (_CUBIC + 3)) * far * far + 1
    return steps, np.where(far <= 1, near, _CUBIC * (((far - 5) * far + 8) * far - 4))


def _places(pixels: int, size: int, corners: bool, mode: int) -> np.ndarray:
    """Return the position of each of `size` new pixels among `pixels` old pixels, float32 `[size]`."""
    # Compute positions in float32, as Fluid does. In another precision, some positions would round to other pixels.
    k = np.arange(size, dtype=np.float32)
    if corners:
        return k * np.float32((pixels - 1) / (size - 1) if size > 1 else 0)
    ratio = np.float32(pixels / size)
    return ratio * (k + np.float32(0.5)) - np.float32(0.5) if mode == 0 else k * ratio
