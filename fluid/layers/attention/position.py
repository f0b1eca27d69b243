"""Positional encodings: sinusoidal encodings to add to inputs, and rotary encodings of queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, dense, describe, layer, like, wide_dtype
from fluid.layers.sequence.step_selection import step_size


@layer
def sinusoidal_position(
    position: Value | Sequence[int], size: int, dtype: str = "float32", name: str | None = None
) -> Any:
    """Compute sinusoidal position encodings (Vaswani et al., 2017), which are added to the input of each step.

    The first half of each encoding holds sines, and the second half cosines, with wavelengths from 2 pi to
    10000 * 2 pi. `layers.add_position_encoding` adds these encodings to its input. For learned encodings use an
    `embedding` of the positions.

    Args:
      position: positions `[...]`, such as `layers.range(0, time, 1, "int64")`, or a SequenceBatch of positions.
      size: the total number of sines and cosines for each position, an even number.
      dtype: the dtype of the result.
      name: name of the layer; by default `sinusoidal_position_N`.

    Returns:
      The encodings, `[..., size]`; a SequenceBatch if `position` is one.

    Raises:
      ArgumentError: `size` is not a positive even number.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[5, 8])
      ...     return x + fluid.layers.sinusoidal_position(fluid.layers.range(0, 5, 1, "int64"), size=8)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 5, 8]
    """
    this = Layer("sinusoidal_position", name)
    if core.whole_number(this.name, "size", size, least=2) % 2:
        raise errors.ArgumentError(f"{this.name}: size={size}; expected a positive even number, as in size=64")
    table = sine_table(dense(position), size, wide_dtype(dtype)).astype(dtype)
    return this.output(like(position, this.frame.compute(table)))


@layer
def rotary_position(
    x: Value, position: Value | int | None = None, base: float = 10000.0, name: str | None = None
) -> Any:
    """Apply rotary position embeddings (Su et al., 2021).

    The layer rotates pairs of numbers by angles that are proportional to the position. Number `i` of a vector is
    paired with number `i + size / 2`. After the rotation, the dot product of two vectors depends on the difference of
    their positions, but not on the positions themselves.

    Args:
      x: an array or SequenceBatch `[batch, time, size]` or `[batch, time, heads, size]`; the size is even.
      position: the positions of the steps, `[time]` or `[batch, time]`, or one number, the position of the first step;
        0, 1, 2, ... by default.
      base: the base of the wavelengths, which range from 2 pi to nearly `base * 2 pi`.
      name: name of the layer; by default `rotary_position_N`.

    Returns:
      The same shape and dtype as `x`.

    Raises:
      ShapeError: `x` does not have three or four dimensions, its size is odd, or the shape of `position` does not match
        the steps.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.rotary_position(fluid.layers.data("x", shape=[5, 2, 8]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 5, 2, 8]
    """
    this = Layer("rotary_position", name)
    array = dense(x)
    if array.ndim not in (3, 4) or array.shape[-1] % 2:
        raise errors.ShapeError(
            f"{this.name}: x is {describe(x)}; expected [batch, time, size] or [batch, time, heads, size] with an even "
            f"size"
        )
    steps = jnp.arange(array.shape[1])
    if position is not None:
        given = dense(position)
        steps = given + steps if given.ndim == 0 else given
        if steps.shape not in (array.shape[1:2], array.shape[:2]):
            raise errors.ShapeError(
                f"{this.name}: position {describe(position)} does not fit the steps of x {describe(x)}; "
                f"expected [time] or [batch, time], or the position of the first step, as in position=0"
            )
    return this.output(like(x, rotate(array, steps, base)))


def sine_table(position: Any, size: int, dtype: Any = "float32") -> Any:
    """Compute sinusoidal encodings `[..., size]` of positions `[...]`: first sines, then cosines; `size` is even."""
    half = size // 2
    # The encodings have `half` wavelengths, each `2 pi * 10000 ** exponent`. The exponents go from 0 to exactly 1, so
    # the last wavelength is `10000 * 2 pi`. A single wavelength gets the exponent 1, because a division by `half - 1`
    # would be a division by 0.
    exponents = jnp.arange(half, dtype=dtype) / (half - 1) if half > 1 else jnp.ones([1], dtype)
    angles = jnp.asarray(position, dtype)[..., None] * jnp.asarray(10000.0, dtype) ** -exponents
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def rotate(x: Any, position: Any, base: float = 10000.0) -> Any:
    """Apply rotary position embeddings to `x`, `[batch, time, ..., size]`; see `rotary_position`.

    Args:
      x: an array `[batch, time, size]` or `[batch, time, heads, size]`, with an even size.
      position: the positions of the steps, `[time]` or `[batch, time]`.
    """
    dtype = wide_dtype(x.dtype)
    half = x.shape[-1] // 2
    speeds = jnp.asarray(base, dtype) ** -(jnp.arange(half, dtype=dtype) / half)
    angles = jnp.asarray(position, dtype)[..., None] * speeds
    angles = angles.reshape(*angles.shape[:-1], *[1] * (x.ndim - 3), half)
    sine = jnp.sin(angles)
    cosine = jnp.cos(angles)
    first, second = jnp.split(x.astype(dtype), 2, axis=-1)
    rotated = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return rotated.astype(x.dtype)


@layer
def add_position_encoding(input: Value, alpha: float, beta: float, name: str | None = None) -> Any:
    """Add sinusoidal position encodings to the input (Vaswani et al., 2017): `alpha * input + beta * encoding`.

    The encoding has sines in the first half of the channels and cosines in the second half, with frequencies from 1
    down to 1 / 10000.

    Args:
      input: `[batch, time, channels]`, a SequenceBatch, or a NestedSequenceBatch, in which each innermost sequence
        begins at position 0.
      alpha: the factor of the input.
      beta: the factor of the encoding.
      name: name of the layer; by default `add_position_encoding_N`.

    Returns:
      An array or sequence batch like the input, with the same shape.

    Raises:
      ShapeError: the input is not a batch of sequences of vectors, or the number of channels is odd.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[5, 8])
      ...     return fluid.layers.add_position_encoding(x, alpha=1.0, beta=1.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 5, 8]
    """
    this = Layer("add_position_encoding", name)
    x = dense(input)
    channels = step_size(this, input)
    if channels % 2:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} has {channels} channels; expected an even number, half of them for "
            f"sines and half for cosines, as from layers.fc(x, size={channels + 1})"
        )
    table = sine_table(jnp.arange(x.shape[-2]), channels, wide_dtype(x.dtype))
    return this.output(like(input, (alpha * x + beta * table).astype(x.dtype)))
