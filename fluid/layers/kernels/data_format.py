"""Channels-last images, the layout in which a CPU computes fastest, for programs that declare the channels first.

A layer computes with the channels last, and returns its result transposed to the channels-first order of the program.
The next layer reads the result before the transpose, so XLA drops the transpose, unless the user fetches the value. Two
transposes around each single convolution would gain little, because XLA does not move transposes through the sums of a
normalisation layer.
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
    """Return whether layers may use implementations that are made for a CPU.

    The result is True if JAX runs on a CPU, with two exceptions. It is False if a program is traced for a drawing or a
    summary, because users read the equations of the trace. It is also False if a program is traced only for other
    platforms, such as "cuda".

    Args:
      alone: True for an implementation that is slow on other devices; the result is then False for an exported model
        that also runs on other platforms.
    """
    frame = core.present_frame()
    here = jax.default_backend() == "cpu" and not (frame is not None and frame.plain)
    platforms = _platforms.get()
    return here and "cpu" in platforms and not (alone and len(platforms) > 1)


@contextlib.contextmanager
def traced_for(platforms: Sequence[str]) -> Iterator[None]:
    """Select the implementations of layers for the given platforms, such as "cpu" and "cuda", within a `with` block."""
    token = _platforms.set(tuple(platforms))
    try:
        yield
    finally:
        _platforms.reset(token)


def as_computed(x: jax.Array, axis: int, move: bool = False) -> tuple[Any, int, Callable[[Any], Any]]:
    """Return images in the layout in which the previous layer computed them: on a CPU often with the channels last.

    If a layer computed `x` by a transpose of channels-last images, return these images; otherwise return `x` itself.

    Args:
      move: True transposes images `[batch, channels, height, width]` to the channels-last layout, on a CPU, if no layer
        computed the images in this layout.
    """
    frame = core.present_frame()
    images = frame.fact(x, "channels_last") if frame is not None and axis == 1 else None
    if images is None and move and axis == 1 and x.ndim == 4 and on_cpu():
        images = jnp.moveaxis(x, 1, -1)
    return (x, axis, lambda result: result) if images is None else (images, images.ndim - 1, _channels_first)


def _channels_first(images: jax.Array) -> jax.Array:
    """Transpose channels-last images to `[batch, channels, *pixels]`, and return the result.

    The function records the channels-last images, so that the next layer can read them instead of the result.
    """
    x = jnp.moveaxis(images, -1, 1)
    if (frame := core.present_frame()) is not None:
        frame.note(x, channels_last=images)
    return x


def elementwise(function: Callable[[Any], Any], x: Any) -> Any:
    """Apply an elementwise function to an array; if a layer computed the array with channels last, use that layout."""
    images, _, as_written = as_computed(x, 1)
    return as_written(function(images))


def along_axis(axis: int, ndim: int) -> list[int]:
    """Return the shape in which a vector broadcasts along `axis` of an array: `[1, ..., -1, ..., 1]`."""
    return [-1 if i == axis else 1 for i in range(ndim)]


def plus_bias(x: jax.Array, bias: jax.Array, axis: int) -> jax.Array:
    """Add one number to each channel of the result of a convolution.

    Args:
      bias: the number for each channel, `[channels]`.
    """
    images, along, as_written = as_computed(x, axis)
    total = images + bias.reshape(along_axis(along, images.ndim))
    if (frame := core.present_frame()) is not None:
        frame.note(total, bias_of=(images, bias, along))
    return as_written(total)


def without_bias(x: jax.Array, axis: int) -> tuple[Any, Any]:
    """Return the two arrays whose sum is `x`: images, and the bias `[channels]` that `plus_bias` added to them.

    If `plus_bias` did not compute `x`, or added the bias along another dimension than `axis`, return `x` and 0.0.

    A layer that adds its own number to each channel can include the bias in this number. Otherwise XLA on a CPU reads
    all images once for each of the two sums. For 32 images of 32 x 32 x 3, four convolutions with batch normalisation
    take 1.26 times as long without this function; for one image, 1.02 times as long (jax 0.10.2, two cores, 24 November
    2026).
    """
    frame = core.present_frame()
    images, bias, along = (frame.fact(x, "bias_of") if frame is not None else None) or (x, 0.0, None)
    return (images, bias) if along == axis else (x, 0.0)


def by_layout(layout: str, pixels: Sequence[Any], channels: Any, batch: Any) -> tuple[Any, ...]:
    """Return one setting for each dimension of images, such as strides, in the order of a layout such as "NHWC".

    `pixels` are the settings of the spatial dimensions; `channels` and `batch` are the settings of the other two.
    """
    settings = list(pixels)
    settings.insert(layout.index("C") - 1, channels)
    return batch, *settings
