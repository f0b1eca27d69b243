"""Layers that sample images at computed positions: `grid_sampler`, `affine_grid` and `deformable_conv`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.initializer import Normal
from fluid.layers.base import Layer, array_of, describe, layer, wide
from fluid.layers.checks import Sizes, sizes_of
from fluid.layers.image.spatial import Image, check_groups, finish_convolution, image_of
from fluid.layers.no_effect import no_effect
from fluid.param_attr import ParamSetting


@layer
def affine_grid(theta: Value, out_shape: Sequence[int], name: str | None = None) -> jax.Array:
    """Compute sampling positions for `grid_sampler` by an affine map of the pixels (Jaderberg et al., 2015).

    Args:
      theta: `[batch, 2, 3]`: matrices that map the position `(x, y, 1)` of a pixel in the new image to the sampling
        position `(x, y)` in the old image. In both images, -1 is the first pixel and 1 the last pixel.
      out_shape: `[batch, channels, height, width]` of the new images; only height and width are used.
      name: name of the layer; by default `affine_grid_N`.

    Returns:
      The sampling positions `(x, y)`, `[batch, height, width, 2]`.

    Raises:
      ArgumentError: `out_shape` is not a list of four integers.
      ShapeError: `theta` has another shape.

    Example:
      >>> import fluid
      >>> def program():
      ...     theta = fluid.layers.data("theta", shape=[2, 3])
      ...     return fluid.layers.affine_grid(theta, out_shape=[-1, 3, 8, 8])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 8, 8, 2]
    """
    this = Layer("affine_grid", name)
    maps = array_of(this, theta)
    if maps.ndim != 3 or maps.shape[1:] != (2, 3):
        raise errors.ShapeError(
            f"{this.name}: theta {describe(theta)}; expected [batch, 2, 3], as from layers.reshape(x, [-1, 2, 3])"
        )
    if not isinstance(out_shape, list | tuple) or len(out_shape) != 4:
        raise errors.ArgumentError(
            f"{this.name}: out_shape={out_shape!r}; expected [batch, channels, height, width], as in [-1, 3, 32, 32]"
        )
    high, broad = sizes_of(this, "out_shape", out_shape[2:], 2)
    down = np.linspace(-1, 1, high, dtype=np.float32)
    across = np.linspace(-1, 1, broad, dtype=np.float32)
    places = np.stack([*np.meshgrid(across, down), np.ones((len(down), len(across)), np.float32)], axis=-1)
    # Request precise matrix products: the less precise products that are the default on some hardware would shift the
    # sampling positions.
    exact = jax.lax.Precision.HIGHEST
    return this.output(jnp.einsum("hwk,nik->nhwi", places.astype(maps.dtype), maps, precision=exact))


@layer
def grid_sampler(x: Value, grid: Value, name: str | None = None) -> jax.Array:
    """Sample images at given positions; interpolate bilinearly between pixels, and read 0 outside of the image.

    Args:
      x: the images, `[batch, channels, height, width]`.
      grid: `[batch, height', width', 2]`: the sampling position `(x, y)` of each new pixel, where -1 is the first pixel
        and 1 the last pixel of the image.
      name: name of the layer; by default `grid_sampler_N`.

    Returns:
      `[batch, channels, height', width']`.

    Raises:
      ShapeError: the input is not a batch of images, or the grid has another shape.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 8, 8])
      ...     theta = fluid.layers.data("theta", shape=[2, 3])
      ...     return fluid.layers.grid_sampler(image, fluid.layers.affine_grid(theta, [-1, 3, 8, 8]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 8, 8]
    """
    this = Layer("grid_sampler", name)
    image = image_of(this, x, 4, "NCHW")
    places = wide(array_of(this, grid))
    if places.ndim != 4 or places.shape[-1] != 2 or places.shape[0] != image.array.shape[0]:
        raise errors.ShapeError(
            f"{this.name}: grid {describe(grid)} for images {describe(x)}; expected [batch, height', width', 2], as "
            f"from layers.affine_grid(theta, [-1, 3, 8, 8])"
        )
    high, broad = image.pixels
    across = (places[..., 0] + 1) * ((broad - 1) / 2)
    down = (places[..., 1] + 1) * ((high - 1) / 2)
    pixels = jnp.moveaxis(wide(image.array), 1, -1)
    return this.output(jnp.moveaxis(between(pixels, down, across), -1, 1).astype(image.array.dtype))


def between(pixels: Any, down: Any, across: Any) -> Any:
    """Interpolate images bilinearly at arbitrary positions, and read 0 outside of the images.

    Args:
      pixels: the images, `[batch, height, width, channels]`.
      down: the vertical positions in pixels, 0 for the first row, `[batch, height', width']`.
      across: the horizontal positions in pixels, 0 for the first column, `[batch, height', width']`.

    Returns:
      `[batch, height', width', channels]`.
    """
    left = jnp.floor(across)
    top = jnp.floor(down)
    parts = [
        (1 - jnp.abs(across - column))[..., None] * (1 - jnp.abs(down - row))[..., None] * _read(pixels, row, column)
        for row in (top, top + 1)
        for column in (left, left + 1)
    ]
    return sum(parts[1:], parts[0])


def _read(pixels: Any, row: Any, column: Any) -> Any:
    """Read pixels of images by row and column; pixels outside of the images are 0.

    Args:
      pixels: the images, `[batch, height, width, channels]`.
      row: row indices, floats with integer values, `[batch, height', width']`.
      column: column indices, floats with integer values, `[batch, height', width']`.

    Returns:
      `[batch, height', width', channels]`.
    """
    inside = (row >= 0) & (row < pixels.shape[1]) & (column >= 0) & (column < pixels.shape[2])
    images = jnp.arange(pixels.shape[0])[:, None, None]
    # The mask `inside` is false for pixels outside the image, and also for coordinates that are NaN. So only numbers
    # that fit an integer are converted.
    rows, columns = (jnp.where(inside, v, 0).astype(jnp.int32) for v in (row, column))
    return jnp.where(inside[..., None], pixels[images, rows, columns], 0)


@layer
@no_effect(im2col_step="XLA plans the memory")
def deformable_conv(
    input: Value,
    offset: Value,
    mask: Value | None,
    num_filters: int,
    filter_size: Sizes,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int | None = None,
    deformable_groups: int | None = None,
    im2col_step: int | None = None,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    modulated: bool = True,
    name: str | None = None,
) -> jax.Array:
    """Apply a deformable convolution, which samples the image at shifted positions.

    At each pixel of the result, each element of a filter has its own offset and, if `modulated`, its own weight. The
    layer interpolates the image bilinearly, and reads 0 outside of the image (Dai et al., 2017; Zhu et al., 2019).

    Args:
      input: `[batch, channels, height, width]`.
      offset: the offsets in pixels, y before x for each filter element: `[batch, deformable_groups * kh * kw * 2,
        height', width']`.
      mask: the weights of the filter elements, `[batch, deformable_groups * kh * kw, height', width']`; None if not
        `modulated`.
      num_filters: the number of filters; the result has one channel for each filter.
      filter_size: `k` or `[kh, kw]`.
      stride: one or two integers.
      padding: one or two integers.
      dilation: one or two integers: the distance in pixels between neighbouring elements of a filter.
      groups: the number of groups of channels with separate filters; 1 by default.
      deformable_groups: the number of groups of channels with separate offsets; 1 by default.
      im2col_step: accepted for programs written for Fluid, but has no effect: XLA plans the memory.
      param_attr: ParamAttr of the filters `[num_filters, channels / groups, kh, kw]`. The default
        initializer is normal with standard deviation `sqrt(2 / (kh * kw * channels))`.
      bias_attr: ParamAttr of the bias `[num_filters]`; False for none.
      modulated: whether `mask` gives weights for the filter elements.
      name: name of the layer; by default `deformable_conv_N`.

    Returns:
      `[batch, num_filters, height', width']`.

    Raises:
      ArgumentError: `mask` is missing with `modulated`, or is given without `modulated`; or a number is not positive.
      ShapeError: the shapes do not fit together, or a number of groups does not divide the channels.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[4, 8, 8])
      ...     offset = fluid.layers.conv2d(image, num_filters=18, filter_size=3, padding=1)
      ...     mask = fluid.layers.conv2d(image, num_filters=9, filter_size=3, padding=1, act="sigmoid")
      ...     return fluid.layers.deformable_conv(image, offset, mask, num_filters=6, filter_size=3, padding=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 6, 8, 8]
    """
    this = Layer("deformable_conv", name)
    image = image_of(this, input, 4, "NCHW")
    kernel = sizes_of(this, "filter_size", filter_size, 2)
    steps = sizes_of(this, "stride", stride, 2)
    pads = sizes_of(this, "padding", padding, 2, least=0)
    apart = sizes_of(this, "dilation", dilation, 2)
    split = check_groups(this, image.channels, num_filters, groups)
    own = core.whole_number(this.name, "deformable_groups", deformable_groups or 1)
    if (mask is None) == modulated:
        raise errors.ArgumentError(
            f"{this.name}: mask={'None' if mask is None else describe(mask)} with modulated={modulated}; expected "
            f"weights of the cells with modulated=True, and mask=None with modulated=False"
        )
    high, broad = (
        (size + 2 * pad - far * (cells - 1) - 1) // step + 1
        for size, pad, far, cells, step in zip(image.pixels, pads, apart, kernel, steps, strict=True)
    )
    cells = math.prod(kernel)
    moves = _per_cell(this, "offset", offset, (image.array.shape[0], own * cells * 2, high, broad))
    places = moves.reshape(-1, own, cells, 2, high, broad) + _regular(kernel, steps, pads, apart, (high, broad))
    read = _read_places(this, image, places)
    if mask is not None:
        weights = _per_cell(this, "mask", mask, (image.array.shape[0], own * cells, high, broad))
        read = read * weights.reshape(-1, own, 1, cells, high, broad)
    default = Normal(0.0, math.sqrt(2.0 / (cells * image.channels)))
    shape = [num_filters, image.channels // split, *kernel]
    filters = this.weight(param_attr, shape, image.array.dtype, default).reshape(split, -1, shape[1], cells)
    read = read.reshape(-1, split, shape[1], cells, high, broad).astype(filters.dtype)
    result = jnp.einsum("gock,ngckhw->ngohw", filters, read).reshape(-1, num_filters, high, broad)
    return finish_convolution(this, image, result.astype(image.array.dtype), bias_attr, None)


def _per_cell(this: Layer, argument: str, value: Value, shape: tuple[int, ...]) -> jax.Array:
    """Check that the argument `offset` or `mask` of `deformable_conv` has the given shape, and return its array."""
    array = wide(array_of(this, value))
    if array.shape != shape:
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(value)}; expected [batch, {', '.join(map(str, shape[1:]))}], as from "
            f"layers.conv2d(x, num_filters={shape[1]}, ...) with the same filter_size, stride and padding"
        )
    return array


def _regular(
    kernel: tuple[int, ...],
    steps: tuple[int, ...],
    pads: tuple[int, ...],
    apart: tuple[int, ...],
    size: tuple[int, int],
) -> np.ndarray:
    """Return the positions in the image that an ordinary convolution reads, without offsets.

    Returns:
      y and x for each filter element and each pixel of the result, `[kh * kw, 2, height', width']`.
    """
    ways = zip(kernel, steps, pads, apart, size, strict=True)
    down, across = (
        np.arange(cells)[:, None] * far + np.arange(count) * step - pad for cells, step, pad, far, count in ways
    )
    shape = (*kernel, *size)
    places = np.broadcast_to(down[:, None, :, None], shape), np.broadcast_to(across[None, :, None], shape)
    return np.stack([v.reshape(-1, *size) for v in places], axis=1)


def _read_places(this: Layer, image: Image, places: jax.Array) -> jax.Array:
    """Interpolate images bilinearly at positions that each group of channels has separately.

    Args:
      image: the images, `[batch, channels, height, width]`.
      places: the positions (y, x) in pixels, `[batch, groups, elements, 2, height', width']`, where `elements` is the
        number of elements of a filter.

    Returns:
      `[batch, groups, channels / groups, elements, height', width']`.
    """
    batch, groups, cells, _, high, broad = places.shape
    if image.channels % groups:
        raise errors.ShapeError(
            f"{this.name}: deformable_groups={groups} must divide the {image.channels} channels of the input; "
            f"deformable_groups=1 would"
        )
    pixels = wide(image.array).reshape(batch * groups, -1, *image.pixels)
    down, across = jnp.moveaxis(places, 3, 0).reshape(2, batch * groups, cells, high * broad)
    read = jnp.moveaxis(between(jnp.moveaxis(pixels, 1, -1), down, across), -1, 1)
    return read.reshape(batch, groups, -1, cells, high, broad)
