"""How a convolution is computed, chosen by its shape and by the device."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core
from fluid.layers.image.spatial import Image, Pairs
from fluid.layers.kernels.grouped_convolution import Dense, Geometry, grouped_convolution, plain_convolution

_MANY_ROWS = 5  # of a filter, from which on its gradients are computed row by row
_FEW_CHANNELS = 4  # up to which the gradient of the filters is not: rows of so few numbers make slow products


def convolve(
    image: Image,
    filters: jax.Array,
    strides: tuple[int, ...],
    pads: Pairs,
    dilations: tuple[int, ...],
    groups: int,
    mode: str,
) -> jax.Array:
    """The sum over each window of the pixels times a filter.

    A CPU computes some gradients of convolutions much slower than the convolutions themselves. Where another way to the
    same numbers is faster, it is taken in training; `benchmarks/KERNELS.md` has the figures.

    Args:
      image: the input.
      filters: `[filters, channels / groups, kh, kw]`, or with a depth before the height.
      strides: one for each dimension of pixels.
      pads: a pair (before, after) for each.
      dilations: one for each.
      groups: into how many the channels are divided.
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
    # On a mesh each product with the rows of a batch that is divided would be added up by itself.
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
    """The same array, which XLA computes once for a convolution and for the gradient of its filters.

    The gradient reads the input of the convolution in another order. XLA on a CPU computes that copy from whatever the
    input is made of, back to the convolution before; through the sums of a residual net, back to the first one. It does
    not copy a computation that takes several arrays of this size, which this is, in a way that changes no number.
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
    """The convolution of images `[batch, height, width, channels]`, without padding, whose gradient is that of rows.

    With `r` the rows of a filter, the gradient of the images is a convolution of what comes back with `r` filters of
    one row at once, whose results are added in `r` places; and that of the filters are `r` matrix products.
    """
    return _plain(x, filters)


def _plain(x: jax.Array, filters: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, filters, (1, 1), "VALID", dimension_numbers=("NHWC", "OIHW", "NHWC"))


def _forward(x: jax.Array, filters: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolved(x, filters), (x, filters)


def _backward(saved: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, filters = saved
    slope = computed_once(slope)
    if x.shape[-1] <= _FEW_CHANNELS:
        (filter_gradient,) = jax.linear_transpose(lambda filters: _plain(x, filters), filters)(slope)
    else:
        filter_gradient = _filter_gradient(x, filters.shape, slope)
    return _image_gradient(filters, slope), filter_gradient


_convolved.defvjp(_forward, _backward)


def _image_gradient(filters: jax.Array, slope: jax.Array) -> Any:
    """The gradient `[batch, height, width, channels]` of the images.

    Args:
      filters: `[filters, channels, rows, columns]`.
      slope: of the result, `[batch, height', width', filters]`.
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
    """The gradient `[filters, channels, rows, columns]` of the filters, which have this shape.

    Args:
      x: the images, `[batch, height, width, channels]`.
      shape: of the filters.
      slope: of the result, `[batch, height', width', filters]`.
    """
    count, channels, rows, columns = shape
    _, high, wide, _ = slope.shape
    side_by_side = computed_once(jnp.concatenate([x[:, :, j : j + wide] for j in range(columns)], axis=-1))
    flat = slope.reshape(-1, count).T
    products = [flat @ side_by_side[:, i : i + high].reshape(-1, columns * channels) for i in range(rows)]
    return jnp.stack([p.reshape(count, columns, channels) for p in products]).transpose(1, 3, 0, 2)
