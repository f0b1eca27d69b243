"""Extraction of the pixels under a sliding window, as columns or as sequences."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, layer
from fluid.layers.checks import Sizes, check_ids, sizes_of
from fluid.layers.image.spatial import Image, Pairs, image_of
from fluid.layers.sequence.steps import taken


@layer
def unfold(
    x: core.Value,
    kernel_sizes: Sizes,
    strides: Sizes = 1,
    paddings: Sizes = 0,
    dilations: Sizes = 1,
    name: str | None = None,
) -> jax.Array:
    """Extract the pixels under a sliding window, as one column for each position.

    Args:
      x: `[batch, channels, height, width]`.
      kernel_sizes: the size of the window, `k` or `[kh, kw]`.
      strides: one or two integers.
      paddings: one integer, two, or four: `[top, left, bottom, right]`.
      dilations: one or two integers.
      name: name of the layer; by default `unfold_N`.

    Returns:
      `[batch, channels * kh * kw, places]`.

    Raises:
      ArgumentError: a setting has the wrong number of integers.
      ShapeError: the input is no batch of images, or smaller than the window.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.unfold(fluid.layers.data("x", shape=[3, 8, 8]), kernel_sizes=[3, 3])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 27, 36]
    """
    this = Layer("unfold", name)
    image = image_of(this, x, 4, "NCHW")
    kernel = sizes_of(this, "kernel_sizes", kernel_sizes, 2)
    steps = sizes_of(this, "strides", strides, 2)
    apart = sizes_of(this, "dilations", dilations, 2)
    patches = _patches(this, image, kernel, steps, _paddings(this, "paddings", paddings), apart)
    return this.output(patches.reshape(*patches.shape[:2], -1))


@layer
def im2sequence(
    input: core.Value,
    filter_size: Sizes = 1,
    stride: Sizes = 1,
    padding: Sizes = 0,
    input_image_size: core.Value | None = None,
    out_stride: Sizes = 1,
    name: str | None = None,
) -> core.SequenceBatch:
    """Extract the pixels under a sliding window, as one step of a sequence for each position, row by row.

    Args:
      input: `[batch, channels, height, width]`.
      filter_size: the size of the window, `k` or `[kh, kw]`.
      stride: one or two integers.
      padding: one integer, two, or four: `[top, left, bottom, right]`.
      input_image_size: integers `[batch, 2]`: height and width of each image before earlier layers shrank the image by
        the factor `out_stride`. The window stays inside the shrunk size.
      out_stride: the factor by which earlier layers shrank the images, one or two integers.
      name: name of the layer; by default `im2sequence_N`.

    Returns:
      A SequenceBatch `[batch, places, channels * kh * kw]`.

    Raises:
      ArgumentError: a setting has the wrong number of integers.
      ShapeError: the input is no batch of images, or smaller than the window.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.im2sequence(fluid.layers.data("x", shape=[3, 8, 8]), filter_size=[8, 1])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 8, 24]
    """
    this = Layer("im2sequence", name)
    image = image_of(this, input, 4, "NCHW")
    kernel = sizes_of(this, "filter_size", filter_size, 2)
    steps = sizes_of(this, "stride", stride, 2)
    pads = _paddings(this, "padding", padding)
    patches = _patches(this, image, kernel, steps, pads, (1, 1))
    batch, width, down, across = patches.shape
    places = core.SequenceBatch(
        jnp.moveaxis(patches.reshape(batch, width, -1), 1, 2), jnp.full([batch], down * across, jnp.int32)
    )
    if input_image_size is None:
        return this.output(places)
    sizes = check_ids(this.name, array_of(this, input_image_size))
    if sizes.shape != (batch, 2):
        raise errors.ShapeError(
            f"{this.name}: input_image_size {describe(input_image_size)} for {describe(input)}; expected the height "
            f'and width of each image, [batch, 2], as from layers.data("size", shape=[2], dtype="int64")'
        )
    seen = -(-sizes // jnp.array(sizes_of(this, "out_stride", out_stride, 2)))
    counts = (seen + jnp.array([sum(p) - k for p, k in zip(pads, kernel, strict=True)])) // jnp.array(steps) + 1
    rows, columns = jnp.clip(counts, 0, jnp.array([down, across])).T
    # The number of windows per row differs between images, and so does the position of a step.
    row, column = jnp.divmod(jnp.arange(down * across), jnp.maximum(columns, 1)[:, None])
    return this.output(taken(places, row * across + column, rows * columns))


def _paddings(this: Layer, argument: str, given: Any) -> Pairs:
    """Convert one integer, two, or `[top, left, bottom, right]` to pairs (before, after) for height and width."""
    if isinstance(given, list | tuple) and len(given) == 4:
        top, left, bottom, right = sizes_of(this, argument, given, 4, least=0)
    else:
        top, left = bottom, right = sizes_of(this, argument, given, 2, least=0)
    return [(top, bottom), (left, right)]


def _patches(this: Layer, image: Image, kernel: Any, steps: Any, pads: Any, apart: Any) -> Any:
    """Extract the pixels under each window: `[batch, channels * kh * kw, windows down, windows across]`."""
    windows = [d * (k - 1) + 1 for d, k in zip(apart, kernel, strict=True)]
    if any(size + sum(p) < window for size, p, window in zip(image.pixels, pads, windows, strict=True)):
        raise errors.ShapeError(
            f"{this.name}: {describe(image.array)} padded by {pads} is smaller than a window of {windows}; use a "
            f"smaller window, or more padding"
        )
    padded = jnp.pad(image.array, [(0, 0), (0, 0), *pads])
    counts = [
        (size + sum(p) - window) // step + 1
        for size, p, window, step in zip(image.pixels, pads, windows, steps, strict=True)
    ]
    # XLA on a CPU compiles `lax.conv_general_dilated_patches`, a grouped convolution, to slow loops: with the gradient,
    # windows of 3 x 3 of 28 x 28 x 64 take 219 ms, and 5.8 as slices (`python benchmarks/survey.py im2sequence`, jax
    # 0.10.2, two cores, 24 November 2026). Slices of large adjacent windows would take seconds to compile.
    if tuple(steps) == tuple(kernel) and tuple(apart) == (1, 1):
        height, width = (n * k for n, k in zip(counts, kernel, strict=True))
        cells = padded[:, :, :height, :width].reshape(*padded.shape[:2], counts[0], kernel[0], counts[1], kernel[1])
        patches = cells.transpose(0, 1, 3, 5, 2, 4)
    else:
        rows, columns = (
            [slice(o * d, o * d + (n - 1) * step + 1, step) for o in range(k)]
            for k, d, n, step in zip(kernel, apart, counts, steps, strict=True)
        )
        patches = jnp.stack([padded[:, :, row, column] for row in rows for column in columns], axis=2)
    return patches.reshape(patches.shape[0], padded.shape[1] * kernel[0] * kernel[1], *counts)
