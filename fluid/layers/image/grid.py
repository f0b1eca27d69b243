"""Sampling of images at arbitrary positions, as in spatial transformers."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, layer, wide
from fluid.layers.checks import sizes_of
from fluid.layers.image.spatial import image_of


@layer
def affine_grid(theta: core.Value, out_shape: Sequence[int], name: str | None = None) -> jax.Array:
    """Compute a sampling position for each pixel of a new image by an affine map (Jaderberg et al., 2015).

    Args:
      theta: `[batch, 2, 3]`: matrices that map `(x, y, 1)` to `(x, y)`, where -1 is the first and 1 the last pixel.
      out_shape: `[batch, channels, height, width]` of the new images, of which only height and width are used.
      name: name of the layer; by default `affine_grid_N`.

    Returns:
      `[batch, height, width, 2]`, for `grid_sampler`.

    Raises:
      ArgumentError: `out_shape` is no list of four integers.
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
    # Less precise products, the default on some hardware, would shift the sampling positions.
    exact = jax.lax.Precision.HIGHEST
    return this.output(jnp.einsum("hwk,nik->nhwi", places.astype(maps.dtype), maps, precision=exact))


@layer
def grid_sampler(x: core.Value, grid: core.Value, name: str | None = None) -> jax.Array:
    """Sample images at given positions, with bilinear interpolation between pixels and 0 outside.

    Args:
      x: `[batch, channels, height, width]`.
      grid: `[batch, height', width', 2]`: the sampling position `(x, y)` of each new pixel, where -1 is the first and 1
        the last pixel.
      name: name of the layer; by default `grid_sampler_N`.

    Returns:
      `[batch, channels, height', width']`.

    Raises:
      ShapeError: the input is no batch of images, or the grid has another shape.

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
    """Interpolate images bilinearly at any positions, with 0 outside.

    Args:
      pixels: `[batch, height, width, channels]`.
      down: distances from the first row, `[batch, height', width']`.
      across: distances from the first column, of the same shape.

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
    """Read pixels `[batch, height', width', channels]` of images `[batch, height, width, channels]`.

    Rows and columns are whole numbers, floats `[batch, height', width']`; pixels outside of the images are 0.
    """
    inside = (row >= 0) & (row < pixels.shape[1]) & (column >= 0) & (column < pixels.shape[2])
    images = jnp.arange(pixels.shape[0])[:, None, None]
    # NaN, and numbers too large for an integer, are outside too.
    rows, columns = (jnp.where(inside, v, 0).astype(jnp.int32) for v in (row, column))
    return jnp.where(inside[..., None], pixels[images, rows, columns], 0)
