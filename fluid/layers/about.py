"""Facts of values: their shape, their size, whether they hold what is no number; and masks made of lengths."""

import math
from typing import Any

import jax.numpy as jnp

from fluid import errors
from fluid.layers.base import Layer, array_of, dense, describe, layer, on_data
from fluid.layers.embedding import check_ids
from fluid.layers.tensor import dtype_of


@layer
def shape(input: Any, name: str | None = None) -> Any:
    """The sizes of a value, as a value.

    In Python they are there at once, as `x.shape`; this is for what is computed with.

    Args:
      input: any shape.
      name: instead of `shape_N`.

    Returns:
      `[dimensions]`, int32.

    Raises:
      ShapeError: the input is a sequence batch.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.shape(fluid.layers.data("x", shape=[3, 4]))).outputs[0])
      int32[3]
    """
    this = Layer("shape", name)
    return this.output(jnp.asarray(array_of(this, input).shape, jnp.int32))


@layer
def rank(input: Any, name: str | None = None) -> Any:
    """The number of dimensions of a value, as a value.

    Args:
      input: any shape.
      name: instead of `rank_N`.

    Returns:
      A scalar, `[]`, int32.

    Raises:
      ShapeError: the input is a sequence batch.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.rank(fluid.layers.data("x", shape=[3, 4]))).outputs[0])
      int32[]
    """
    this = Layer("rank", name)
    return this.output(jnp.asarray(array_of(this, input).ndim, jnp.int32))


@layer
def size(input: Any, name: str | None = None) -> Any:
    """The number of elements of a value, as a value.

    Args:
      input: any shape.
      name: instead of `size_N`.

    Returns:
      A scalar, `[]`, of JAX's default integer.

    Raises:
      ShapeError: the input is a sequence batch.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.size(fluid.layers.data("x", shape=[3, 4]))).outputs[0])
      int32[]
    """
    this = Layer("size", name)
    return this.output(jnp.asarray(math.prod(array_of(this, input).shape), dtype_of("size", "int64")))


@layer
def has_inf(x: Any, name: str | None = None) -> Any:
    """Whether any element is infinite.

    Args:
      x: any shape, or a SequenceBatch, of which the valid steps count.
      name: instead of `isinf_N`.

    Returns:
      bool, `[]`.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.has_inf(fluid.layers.data("x", shape=[3]))).outputs[0])
      bool[]
    """
    this = Layer("isinf", name)
    return this.output(jnp.any(jnp.isinf(dense(x))))


@layer
def has_nan(x: Any, name: str | None = None) -> Any:
    """Whether any element is not a number.

    Args:
      x: any shape, or a SequenceBatch, of which the valid steps count.
      name: instead of `isnan_N`.

    Returns:
      bool, `[]`.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.has_nan(fluid.layers.data("x", shape=[3]))).outputs[0])
      bool[]
    """
    this = Layer("isnan", name)
    return this.output(jnp.any(jnp.isnan(dense(x))))


@layer
def increment(x: Any, value: float = 1.0, in_place: bool = True, name: str | None = None) -> Any:
    """Add a number.

    Args:
      x: any shape, or a SequenceBatch.
      value: what is added.
      in_place: has no effect: values do not change; use what is returned.
      name: instead of `increment_N`.

    Returns:
      Same shape and dtype as `x`.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.increment(fluid.layers.data("x", shape=[3]))).outputs[0])
      float32[batch, 3]
    """
    return Layer("increment", name).output(on_data(lambda v: (v + value).astype(v.dtype), x))


@layer
def sequence_mask(x: Any, maxlen: int | None = None, dtype: Any = "int64", name: str | None = None) -> Any:
    """For each length so many ones, then zeros.

    Args:
      x: lengths, integers `[...]`.
      maxlen: how many ones and zeros there are together; it must be given, as no shape depends on data.
      dtype: of the result.
      name: instead of `sequence_mask_N`.

    Returns:
      `[..., maxlen]`.

    Raises:
      ArgumentError: there is no `maxlen`.
      ArgumentTypeError: the lengths are no integers.

    Example:
      >>> import fluid
      >>> def program():
      ...     lengths = fluid.layers.data("lengths", shape=[], dtype="int64")
      ...     return fluid.layers.sequence_mask(lengths, maxlen=5, dtype="float32")
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 5]
    """
    this = Layer("sequence_mask", name)
    lengths = check_ids(this.name, array_of(this, x))
    if not isinstance(maxlen, int) or maxlen < 0:
        raise errors.ArgumentError(
            f"{this.name}: maxlen={maxlen!r} for lengths {describe(x)}; the size of the mask cannot depend on data: "
            f"give maxlen=, or the size of what is masked, as in maxlen=x.shape[1]"
        )
    return this.output((jnp.arange(maxlen) < dense(lengths)[..., None]).astype(dtype_of("sequence_mask", dtype)))
