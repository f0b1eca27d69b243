"""Padding and cropping of arrays."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, layer


@layer
def pad(x: core.Value, paddings: Sequence[int], pad_value: float = 0.0, name: str | None = None) -> jax.Array:
    """Pad an array with elements before and after each dimension.

    Args:
      x: any shape.
      paddings: the number of elements before and after each dimension: `[before_0, after_0, before_1, ...]`.
      pad_value: the value of these elements.
      name: name of the layer; by default `pad_N`.

    Returns:
      An array; each size grows by the two paddings of its dimension.

    Raises:
      ArgumentError: there are not two paddings for each dimension, or one is negative.
      ShapeError: `x` is a sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.pad(fluid.layers.data("x", shape=[3]), paddings=[0, 0, 1, 2])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 6]
    """
    this = Layer("pad", name)
    array = array_of(this, x)
    widths = [int(p) for p in paddings]
    if len(widths) != 2 * array.ndim or min(widths, default=0) < 0:
        raise errors.ArgumentError(
            f"{this.name}: paddings={list(paddings)} for {describe(x)}; expected a before and an after for each "
            f"dimension, as in paddings={[0, 0] * (array.ndim - 1) + [1, 1]}"
        )
    pairs = list(zip(widths[::2], widths[1::2], strict=True))
    return this.output(jnp.pad(array, pairs, constant_values=np.array(pad_value, array.dtype)))


@layer
def pad_constant_like(x: core.Value, y: core.Value, pad_value: float = 0.0, name: str | None = None) -> jax.Array:
    """Pad an array after each dimension, until it has the shape of another array.

    Args:
      x: the array with the wanted shape.
      y: the array to pad; no size is larger than in `x`.
      pad_value: the value of the new elements.
      name: name of the layer; by default `pad_constant_like_N`.

    Returns:
      `y`, padded to the shape of `x`.

    Raises:
      ShapeError: `y` is larger than `x`, or has another number of dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[5]), fluid.layers.data("y", shape=[3])
      ...     return fluid.layers.pad_constant_like(x, y, pad_value=-1.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 5]
    """
    this = Layer("pad_constant_like", name)
    whole = array_of(this, x)
    part = array_of(this, y)
    if whole.ndim != part.ndim or any(a < b for a, b in zip(whole.shape, part.shape, strict=True)):
        raise errors.ShapeError(
            f"{this.name}: y {describe(y)} cannot be padded to the shape of x {describe(x)}; pad_constant_like(x, y) "
            f"pads y, which must not be larger in any dimension"
        )
    pairs = [(0, a - b) for a, b in zip(whole.shape, part.shape, strict=True)]
    return this.output(jnp.pad(part, pairs, constant_values=np.array(pad_value, part.dtype)))


@layer
def crop(
    x: core.Value,
    shape: core.Value | Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    name: str | None = None,
) -> jax.Array:
    """Cut a part with a given shape out of an array.

    Args:
      x: any shape.
      shape: the shape of the part, in which -1 stands for all elements from the offset on; or an array of that shape.
      offsets: the first index of the part in each dimension; zeros by default.
      name: name of the layer; by default `crop_N`.

    Returns:
      An array of the given shape.

    Raises:
      ArgumentError: no shape is given, or there is not one size and one offset for each dimension.
      ShapeError: the part reaches beyond `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.crop(fluid.layers.data("x", shape=[5, 6]), shape=[-1, 3, 3], offsets=[0, 1, 2])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 3]
    """
    return _crop(Layer("crop", name), x, shape, offsets)


@layer
def crop_tensor(
    x: core.Value,
    shape: core.Value | Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    name: str | None = None,
) -> jax.Array:
    """Cut a part with a given shape out of an array: a later name for `crop`.

    Args:
      x: any shape.
      shape: the shape of the part, in which -1 stands for all elements from the offset on; or an array of that shape.
      offsets: the first index of the part in each dimension; zeros by default.
      name: name of the layer; by default `crop_tensor_N`.

    Returns:
      An array of the given shape.

    Raises:
      ArgumentError: as for `crop`.
      ShapeError: as for `crop`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.crop_tensor(fluid.layers.data("x", shape=[5]), shape=[-1, 3])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return _crop(Layer("crop_tensor", name), x, shape, offsets)


def _crop(this: Layer, x: Any, shape: Any, offsets: Any) -> Any:
    """Cut out the part of an array with a given shape at given offsets, and record it; see `crop`."""
    array = array_of(this, x)
    if shape is None:
        raise errors.ArgumentError(f"{this.name}: give the shape of the part, as in shape={[-1, *array.shape[1:]]}")
    wanted = shape.shape if isinstance(shape, jax.Array) else shape
    sizes = [int(s) for s in wanted]
    starts = [0] * array.ndim if offsets is None else [int(o) for o in offsets]
    if len(sizes) != array.ndim or len(starts) != array.ndim:
        raise errors.ArgumentError(
            f"{this.name}: shape={sizes} and offsets={starts} for {describe(x)}; give one of each for each dimension"
        )
    sizes = [w - s if n == -1 else n for n, s, w in zip(sizes, starts, array.shape, strict=True)]
    ends = [s + n for s, n in zip(starts, sizes, strict=True)]
    if any(s < 0 or n < 0 or e > w for s, n, e, w in zip(starts, sizes, ends, array.shape, strict=True)):
        raise errors.ShapeError(
            f"{this.name}: a part of {sizes} from {starts} on reaches beyond {describe(x)}; use smaller sizes or "
            f"offsets"
        )
    return this.output(jax.lax.slice(array, starts, ends))
