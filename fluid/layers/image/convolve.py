"""Convolutions of images: the fastest form for the shapes on this device, with the same numbers up to rounding."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core
from fluid.layers.image.spatial import Image, Pairs
from fluid.layers.kernels.grouped_convolution import Dense, Geometry, grouped_convolution, plain_convolution

_MANY_ROWS = 5  # of a filter, from which on its gradients are computed row by row
_FEW_CHANNELS = 4  # up to which the gradient of the filters is not: rows of so few numbers make slow products
_VALID = Geometry((1, 1), [(0, 0)] * 2, (1, 1), (1, 1), "NHWC")


def convolve(
    image: Image,
    filters: jax.Array,
    strides: tuple[int, ...],
    pads: Pairs,
    dilations: tuple[int, ...],
    groups: int,
    mode: str,
) -> jax.Array:
    """Compute a convolution: for each filter, the sum over a window of pixels times the filter.

    XLA on a CPU computes some gradients of convolutions much slower than the convolutions themselves. In training,
    another form of the same sum replaces them where it is faster; `benchmarks/KERNELS.md` has the figures.

    Args:
      image: the input.
      filters: `[filters, channels / groups, kh, kw]`, or with a depth before the height.
      strides: one for each dimension of pixels.
      pads: a pair (before, after) for each dimension of pixels.
      dilations: one for each dimension of pixels.
      groups: number of groups of channels.
      mode: "train" or "test".

    Returns:
      `[batch, filters, height', width']`, or in the layout of the image.
    """
    x = image.array
    training = mode == core.TRAIN and jax.default_backend() == "cpu" and jnp.issubdtype(x.dtype, jnp.floating)
    if training:
        x = computed_once(x)
    kernel = filters.shape[2:]
    dense: Dense = plain_convolution
    # On a mesh, a matrix product with the rows of a sharded batch would be reduced once for each product.
    alone = training and not core.axes_here()
    if alone and image.layout == "NHWC" and not any(map(any, pads)):
        if kernel == (1, 1):
            dense = _product
        elif groups == 1 and strides == dilations == (1, 1) and kernel[0] >= _MANY_ROWS:
            return _convolved(x, filters)
    geometry = Geometry(strides, pads, dilations, (1,) * len(kernel), image.layout)
    return grouped_convolution(x, filters, geometry, groups, dense)


@jax.custom_jvp
def computed_once(array: jax.Array) -> jax.Array:
    """Return an equal array that XLA computes once, for a convolution and for the gradient of its filters.

    The gradient reads the input of the convolution in another order. XLA on a CPU fuses that copy with the computation
    of the input, and repeats this computation back to the convolution before. XLA does not fuse a computation that
    reads one array of this size several times, such as this `select`, which changes no number.
    """
    return jax.lax.select(array != array, -array, array)


@computed_once.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return computed_once(*primals), tangents[0]


def _product(x: jax.Array, filters: jax.Array, geometry: Geometry) -> jax.Array:
    """Compute the convolution of images `[batch, height, width, channels]` with filters of one pixel as a product."""
    chosen = x[:, :: geometry.strides[0], :: geometry.strides[1]]
    product = chosen.reshape(-1, x.shape[3]) @ filters[:, :, 0, 0].T
    return product.reshape(*chosen.shape[:3], -1)


@jax.custom_vjp
def _convolved(x: jax.Array, filters: jax.Array) -> jax.Array:
    """Compute a convolution of images `[batch, height, width, channels]` without padding, with a gradient by rows.

    With `r` rows in a filter, the gradient of the images is one convolution of the cotangents with `r` filters of one
    row, whose results are added at `r` offsets. The gradient of the filters is `r` matrix products.
    """
    return plain_convolution(x, filters, _VALID)


def _forward(x: jax.Array, filters: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolved(x, filters), (x, filters)


def _backward(saved: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, filters = saved
    slope = computed_once(slope)
    if x.shape[-1] <= _FEW_CHANNELS:
        (filter_gradient,) = jax.linear_transpose(lambda filters: plain_convolution(x, filters, _VALID), filters)(slope)
    else:
        filter_gradient = _filter_gradient(x, filters.shape, slope)
    return _image_gradient(filters, slope), filter_gradient


_convolved.defvjp(_forward, _backward)


def _image_gradient(filters: jax.Array, slope: jax.Array) -> Any:
    """Return the gradient `[batch, height, width, channels]` of the images.

    Args:
      filters: `[filters, channels, rows, columns]`.
      slope: cotangents of the result, `[batch, height', width', filters]`.
    """
    count, channels, rows, columns = filters.shape
    batch, high, wide, _ = slope.shape
    flat = filters[:, :, :, ::-1].transpose(3, 0, 2, 1).reshape(1, columns, count, rows * channels)
    by_row = jax.lax.conv_general_dilated(
        slope,
        flat,
        (1, 1),
        [(0, 0), (columns - 1, columns - 1)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    ).reshape(batch, high, wide + columns - 1, rows, channels)
    none = (0, 0, 0)
    zero = jnp.zeros((), slope.dtype)
    return sum(jax.lax.pad(by_row[:, :, :, i], zero, (none, (i, rows - 1 - i, 0), none, none)) for i in range(rows))


def _filter_gradient(x: jax.Array, shape: tuple[int, ...], slope: jax.Array) -> jax.Array:
    """Return the gradient `[filters, channels, rows, columns]` of the filters.

    Args:
      x: the images, `[batch, height, width, channels]`.
      shape: of the filters.
      slope: cotangents of the result, `[batch, height', width', filters]`.
    """
    count, channels, rows, columns = shape
    _, high, wide, _ = slope.shape
    side_by_side = computed_once(jnp.concatenate([x[:, :, j : j + wide] for j in range(columns)], axis=-1))
    flat = slope.reshape(-1, count).T
    products = [flat @ side_by_side[:, i : i + high].reshape(-1, columns * channels) for i in range(rows)]
    return jnp.stack([p.reshape(count, columns, channels) for p in products]).transpose(1, 3, 0, 2)
