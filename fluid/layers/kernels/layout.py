"""Images with the channels last, the order in which a CPU computes fastest, for programs that write the channels first.

A layer computes with the channels last, and returns its result transposed to the order of the program. The next layer
reads the images from before this transpose, so that XLA drops the transpose unless a value is fetched. Two transposes
around each convolution alone gain little, since XLA does not move them through the sums of a normalisation.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core

_platforms: ContextVar[tuple[str, ...]] = ContextVar("fluid_traced_for_platforms", default=("cpu",))


def on_cpu(alone: bool = False) -> bool:
    """Return whether layers may compute in a form that is made for a CPU.

    A trace for a drawing or a summary, whose equations users read, has the plain form of each layer. A trace without
    "cpu" among its platforms has the plain form too.

    Args:
      alone: True for a form that is slow on other devices: it is not chosen for an exported model that also runs there.
    """
    frame = core.present_frame()
    here = jax.default_backend() == "cpu" and not (frame is not None and frame.plain)
    platforms = _platforms.get()
    return here and "cpu" in platforms and not (alone and len(platforms) > 1)


@contextlib.contextmanager
def traced_for(platforms: Sequence[str]) -> Iterator[None]:
    """Choose forms of layers for the given platforms, such as "cpu" and "cuda", within a `with` block."""
    token = _platforms.set(tuple(platforms))
    try:
        yield
    finally:
        _platforms.reset(token)


def as_computed(x: jax.Array, axis: int, move: bool = False) -> tuple[Any, int, Callable[[Any], Any]]:
    """Return images with the channels last, if a layer computed them so; otherwise return the images as given.

    Args:
      x: images, or any other array.
      axis: the dimension of the channels.
      move: whether to transpose, on a CPU, images `[batch, channels, height, width]` that no layer computed with the
        channels last.

    Returns:
      The images; the dimension of their channels; and a function that returns a result in the order of `x`.
    """
    frame = core.present_frame()
    images = frame.fact(x, "channels_last") if frame is not None and axis == 1 else None
    if images is None and move and axis == 1 and x.ndim == 4 and on_cpu():
        images = jnp.moveaxis(x, 1, -1)
    return (x, axis, lambda result: result) if images is None else (images, images.ndim - 1, _channels_first)


def _channels_first(images: jax.Array) -> jax.Array:
    """Return images `[batch, *pixels, channels]` as `[batch, channels, *pixels]`; `as_computed` undoes this."""
    x = jnp.moveaxis(images, -1, 1)
    if (frame := core.present_frame()) is not None:
        frame.note(x, channels_last=images)
    return x


def elementwise(function: Callable[[Any], Any], x: Any) -> Any:
    """Apply a function that maps each element of an array separately, in the order in which a layer computed it."""
    images, _, as_written = as_computed(x, 1)
    return as_written(function(images))


def along_axis(axis: int, ndim: int) -> list[int]:
    """Return the shape `[1, ..., -1, ..., 1]` that aligns a vector with one axis of arrays of `ndim` dimensions."""
    return [-1 if i == axis else 1 for i in range(ndim)]


def plus_bias(x: jax.Array, bias: jax.Array, axis: int) -> jax.Array:
    """Add one number to each channel of the result of a convolution.

    Args:
      x: the result.
      bias: `[channels]`.
      axis: the dimension of the channels.
    """
    images, along, as_written = as_computed(x, axis)
    total = images + bias.reshape(along_axis(along, images.ndim))
    if (frame := core.present_frame()) is not None:
        frame.note(total, bias_of=(images, bias, along))
    return as_written(total)


def without_bias(x: jax.Array, axis: int) -> tuple[Any, Any]:
    """Return the images and the bias `[channels]` that `plus_bias` added to `x`; or `x` and 0.0 if there is none.

    A layer that adds its own number to each channel can include the bias in this number. Otherwise XLA on a CPU reads
    all images once for each of the two sums. Four convolutions with batch normalisation take 1.26 times as long without
    this function, and 1.02 for one image (32 images of 32 x 32 x 3, jax 0.10.2, two cores, 24 November 2026).
    """
    frame = core.present_frame()
    images, bias, along = (frame.fact(x, "bias_of") if frame is not None else None) or (x, 0.0, None)
    return (images, bias) if along == axis else (x, 0.0)


def by_layout(layout: str, pixels: Sequence[Any], channels: Any, batch: Any) -> tuple[Any, ...]:
    """Return one setting, such as a stride, for each dimension of images, in the order of a layout like "NHWC"."""
    settings = list(pixels)
    settings.insert(layout.index("C") - 1, channels)
    return batch, *settings
