"""Picking elements: slices, rows, largest ones, classes."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import (
    Layer,
    axis_of,
    dense,
    describe,
    is_sequence,
    layer,
    like,
    on_data,
    row_dims,
    valid_steps,
    wide,
)
from fluid.layers.checks import inner_axis_of


@layer
def cumsum(
    x: core.Value, axis: int | None = None, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Any:
    """Sums of all elements so far along a dimension.

    Args:
      x: any shape, or a SequenceBatch.
      axis: the dimension; the last by default.
      exclusive: whether an element itself does not count.
      reverse: whether to sum from the end.
      name: instead of `cumsum_N`.

    Returns:
      Same shape as `x`.

    Raises:
      ArgumentError: there is no such axis.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.cumsum(fluid.layers.data("x", shape=[3]), axis=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("cumsum", name)
    array, place = dense(x), inner_axis_of(this, x, -1 if axis is None else axis)
    array = jnp.flip(array, place) if reverse else array
    total = jnp.cumsum(array, axis=place, dtype=array.dtype)
    total = total - array if exclusive else total
    return this.output(like(x, jnp.flip(total, place) if reverse else total))


Dims = int | Sequence[int] | None


@layer
def mean(x: core.Value, name: str | None = None) -> jax.Array:
    """Mean of all elements; of a SequenceBatch, of all elements of the valid steps.

    Args:
      x: any shape, or a SequenceBatch.
      name: instead of `mean_N`.

    Returns:
      A scalar, `[]`, float32 for half precision too. `trainer.test` weighs it by the rows, or steps, that it is the
      mean of.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.data("x", shape=[4]))
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("mean", name)
    return _noted(this, x, this.output(_reduced(on_data(wide, x), None, False, _mean)))


@layer
def reduce_mean(input: core.Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Mean over dimensions.

    Args:
      input: `[batch, ...]`, or a SequenceBatch, whose first dimension counts as its valid steps.
      dim: one or several dimensions; all by default. Negative counts from the end.
      keep_dim: whether reduced dimensions stay, with size 1.
      name: instead of `reduce_mean_N`.

    Returns:
      The input's shape without those dimensions.

    Raises:
      ArgumentError: there is no such dimension.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_mean(fluid.layers.data("x", shape=[3, 4]), dim=[1, 2])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch]
    """
    this = Layer("reduce_mean", name)
    return _noted(this, input, this.output(_reduced(input, dim, keep_dim, _mean)))


@layer
def reduce_sum(input: core.Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Sum over dimensions.

    Args:
      input: `[batch, ...]`, or a SequenceBatch, whose first dimension counts as its valid steps.
      dim: one or several dimensions; all by default. Negative counts from the end.
      keep_dim: whether reduced dimensions stay, with size 1.
      name: instead of `reduce_sum_N`.

    Returns:
      The input's shape without those dimensions.

    Raises:
      ArgumentError: there is no such dimension.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_sum(fluid.layers.data("x", shape=[3, 4]), dim=-1, keep_dim=True)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 1]
    """
    return Layer("reduce_sum", name).output(_reduced(input, dim, keep_dim, jnp.sum))


@layer
def reduce_max(input: core.Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Largest element over dimensions.

    Args:
      input: `[batch, ...]`, or a SequenceBatch, whose first dimension counts as its valid steps.
      dim: one or several dimensions; all by default. Negative counts from the end.
      keep_dim: whether reduced dimensions stay, with size 1.
      name: instead of `reduce_max_N`.

    Returns:
      The input's shape without those dimensions.

    Raises:
      ArgumentError: there is no such dimension.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_max(fluid.layers.data("x", shape=[3, 4]), dim=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    return Layer("reduce_max", name).output(_reduced(input, dim, keep_dim, largest))


@layer
def reduce_min(input: core.Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Smallest element over dimensions.

    Args:
      input: `[batch, ...]`, or a SequenceBatch, whose first dimension counts as its valid steps.
      dim: one or several dimensions; all by default. Negative counts from the end.
      keep_dim: whether reduced dimensions stay, with size 1.
      name: instead of `reduce_min_N`.

    Returns:
      The input's shape without those dimensions.

    Raises:
      ArgumentError: there is no such dimension.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_min(fluid.layers.data("x", shape=[3, 4]), dim=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    return Layer("reduce_min", name).output(_reduced(input, dim, keep_dim, smallest))


@layer
def reduce_prod(input: core.Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Product over dimensions.

    Args:
      input: `[batch, ...]`, or a SequenceBatch, whose first dimension counts as its valid steps.
      dim: one or several dimensions; all by default. Negative counts from the end.
      keep_dim: whether reduced dimensions stay, with size 1.
      name: instead of `reduce_prod_N`.

    Returns:
      The input's shape without those dimensions.

    Raises:
      ArgumentError: there is no such dimension.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_prod(fluid.layers.data("x", shape=[3, 4]), dim=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    return Layer("reduce_prod", name).output(_reduced(input, dim, keep_dim, jnp.prod))


@layer
def reduce_all(input: core.Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Whether all elements over dimensions are true.

    Args:
      input: bool `[batch, ...]`, or a SequenceBatch, whose first dimension counts as its valid steps.
      dim: one or several dimensions; all by default. Negative counts from the end.
      keep_dim: whether reduced dimensions stay, with size 1.
      name: instead of `reduce_all_N`.

    Returns:
      bool, the input's shape without those dimensions.

    Raises:
      ArgumentError: there is no such dimension.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_all(fluid.layers.data("x", shape=[4], dtype="bool"), dim=1)
      >>> print(fluid.Program(program).outputs[0])
      bool[batch]
    """
    return Layer("reduce_all", name).output(_reduced(input, dim, keep_dim, jnp.all))


@layer
def reduce_any(input: core.Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Whether any element over dimensions is true.

    Args:
      input: bool `[batch, ...]`, or a SequenceBatch, whose first dimension counts as its valid steps.
      dim: one or several dimensions; all by default. Negative counts from the end.
      keep_dim: whether reduced dimensions stay, with size 1.
      name: instead of `reduce_any_N`.

    Returns:
      bool, the input's shape without those dimensions.

    Raises:
      ArgumentError: there is no such dimension.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_any(fluid.layers.data("x", shape=[4], dtype="bool"), dim=1)
      >>> print(fluid.Program(program).outputs[0])
      bool[batch]
    """
    return Layer("reduce_any", name).output(_reduced(input, dim, keep_dim, jnp.any))


def _reduced(value: Any, dim: Dims, keep: bool, function: Callable[..., Any]) -> Any:
    x = dense(value)
    if not is_sequence(value):
        return function(x, axis=_axes(value, dim), keepdims=keep)
    axes = _axes(value, dim)
    axes = tuple(range(x.ndim)) if axes is None else axes
    if 0 not in axes:
        return like(value, function(x, axis=axes, keepdims=keep))
    rows = tuple(range(1, row_dims(value)))
    result = function(x, axis=tuple(sorted({*axes, *rows})), keepdims=keep, where=valid_steps(value, x.ndim))
    return jnp.squeeze(result, rows) if keep else result


def _axes(value: Any, dim: Dims) -> tuple[int, ...] | None:
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return None
    dims = dim if isinstance(dim, list | tuple) else [dim]
    axes = tuple(axis_of(value, d, "dim") for d in dims)  # type: ignore[arg-type]
    if len(set(axes)) != len(axes):
        raise errors.ArgumentError(f"dim={dim} names a dimension of {describe(value)} twice")
    return axes


def _mean(x: Any, axis: Any, keepdims: bool, where: Any = None) -> Any:
    if where is None:
        return jnp.mean(x, axis=axis, keepdims=keepdims)
    # A batch of empty sequences has mean 0.
    count = jnp.sum(jnp.broadcast_to(where, x.shape), axis=axis, keepdims=keepdims)
    total = jnp.sum(x, axis=axis, keepdims=keepdims, where=where)
    return (total / jnp.maximum(count, 1)).astype(total.dtype)


def largest(x: Any, axis: Any, keepdims: bool = False, where: Any = None) -> Any:
    """The largest elements along axes; minus infinity, or the smallest integer, where there are none."""
    return jnp.max(x, axis=axis, keepdims=keepdims, where=where, initial=None if where is None else _extreme(x, True))


def smallest(x: Any, axis: Any, keepdims: bool = False, where: Any = None) -> Any:
    """The smallest elements along axes; infinity, or the largest integer, where there are none."""
    return jnp.min(x, axis=axis, keepdims=keepdims, where=where, initial=None if where is None else _extreme(x, False))


def _extreme(x: Any, lowest: bool) -> Any:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return -jnp.inf if lowest else jnp.inf
    info = jnp.iinfo(x.dtype)
    return info.min if lowest else info.max


def _noted(this: Layer, value: Any, result: Any) -> Any:
    if jnp.ndim(dense(result)) == 0:
        weight = rows_of(this.frame, value)
        if weight is not None:
            this.frame.note(result, weight=weight)
    return result


def rows_of(frame: core.Frame, value: Any) -> Any:
    """How many rows a mean over this value is a mean of: its first dimension, or its valid steps; None if not known."""
    if is_sequence(value):
        return jnp.sum(value.mask, dtype=jnp.int32)
    if jnp.ndim(value) == 0:
        return frame.fact(value, "weight")
    return jnp.shape(value)[0]
