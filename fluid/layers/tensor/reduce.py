"""Reductions over dimensions, such as sums, means, maxima and products; and cumulative sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
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
from fluid.layers.kernels.extremes import largest, smallest
from fluid.layers.no_effect import assigns


@layer
def cumsum(
    x: Value, axis: int | None = None, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Any:
    """Compute cumulative sums: for each element the sum of all elements up to it along a dimension.

    Args:
      x: an array of any shape, or a SequenceBatch.
      axis: the dimension; the last by default.
      exclusive: whether each sum excludes the element itself.
      reverse: whether to sum from the end of the dimension to its start.
      name: name of the layer; by default `cumsum_N`.

    Returns:
      A value with the type (array or SequenceBatch) and the shape of `x`.

    Raises:
      ArgumentError: the axis does not exist, or is the row dimension of a SequenceBatch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.cumsum(fluid.layers.data("x", shape=[3]), axis=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("cumsum", name)
    array = dense(x)
    place = inner_axis_of(this, x, -1 if axis is None else axis)
    array = jnp.flip(array, place) if reverse else array
    total = jnp.cumsum(array, axis=place, dtype=array.dtype)
    total = total - array if exclusive else total
    return this.output(like(x, jnp.flip(total, place) if reverse else total))


# `Dims` is the type of the argument `dim=` of reductions: one dimension or several; None or an empty list means all
# dimensions.
Dims = int | Sequence[int] | None


@layer
def mean(x: Value, name: str | None = None) -> jax.Array:
    """Compute the mean of all elements; for a SequenceBatch, of the elements of all valid steps.

    Args:
      x: an array of any shape, or a SequenceBatch.
      name: name of the layer; by default `mean_N`.

    Returns:
      A scalar, `[]`; for half precision inputs, float32. `trainer.test` averages the scalar over batches, weighted by
      the number of rows or valid steps.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.data("x", shape=[4]))
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("mean", name)
    return _noted(this, x, this.output(_reduced(this, on_data(wide, x), None, False, _mean)))


@layer
def reduce_mean(input: Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Compute the mean over dimensions.

    Args:
      input: `[batch, ...]`, or a SequenceBatch, in which batch and time count as one dimension, 0, and padding is
        ignored.
      dim: one or several dimensions; all by default; negative counts from the end.
      keep_dim: whether the reduced dimensions stay, with size 1.
      name: name of the layer; by default `reduce_mean_N`.

    Returns:
      An array in the shape of the input without the reduced dimensions; a SequenceBatch if the input is one and
      dimension 0 is not reduced.

    Raises:
      ArgumentError: the dimension does not exist, or it is given twice.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_mean(fluid.layers.data("x", shape=[3, 4]), dim=[1, 2])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch]
    """
    this = Layer("reduce_mean", name)
    return _noted(this, input, this.output(_reduced(this, input, dim, keep_dim, _mean)))


@layer
def reduce_sum(input: Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Compute the sum over dimensions.

    Args:
      input: `[batch, ...]`, or a SequenceBatch, in which batch and time count as one dimension, 0, and padding is
        ignored.
      dim: one or several dimensions; all by default; negative counts from the end.
      keep_dim: whether the reduced dimensions stay, with size 1.
      name: name of the layer; by default `reduce_sum_N`.

    Returns:
      An array in the shape of the input without the reduced dimensions; a SequenceBatch if the input is one and
      dimension 0 is not reduced.

    Raises:
      ArgumentError: the dimension does not exist, or it is given twice.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_sum(fluid.layers.data("x", shape=[3, 4]), dim=-1, keep_dim=True)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 1]
    """
    this = Layer("reduce_sum", name)
    return this.output(_reduced(this, input, dim, keep_dim, jnp.sum))


@layer
def reduce_max(input: Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Compute the maximum over dimensions.

    Args:
      input: `[batch, ...]`, or a SequenceBatch, in which batch and time count as one dimension, 0, and padding is
        ignored.
      dim: one or several dimensions; all by default; negative counts from the end.
      keep_dim: whether the reduced dimensions stay, with size 1.
      name: name of the layer; by default `reduce_max_N`.

    Returns:
      An array in the shape of the input without the reduced dimensions; a SequenceBatch if the input is one and
      dimension 0 is not reduced.

    Raises:
      ArgumentError: the dimension does not exist, or it is given twice.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_max(fluid.layers.data("x", shape=[3, 4]), dim=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    this = Layer("reduce_max", name)
    return this.output(_reduced(this, input, dim, keep_dim, largest))


@layer
def reduce_min(input: Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Compute the minimum over dimensions.

    Args:
      input: `[batch, ...]`, or a SequenceBatch, in which batch and time count as one dimension, 0, and padding is
        ignored.
      dim: one or several dimensions; all by default; negative counts from the end.
      keep_dim: whether the reduced dimensions stay, with size 1.
      name: name of the layer; by default `reduce_min_N`.

    Returns:
      An array in the shape of the input without the reduced dimensions; a SequenceBatch if the input is one and
      dimension 0 is not reduced.

    Raises:
      ArgumentError: the dimension does not exist, or it is given twice.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_min(fluid.layers.data("x", shape=[3, 4]), dim=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    this = Layer("reduce_min", name)
    return this.output(_reduced(this, input, dim, keep_dim, smallest))


@layer
def reduce_prod(input: Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Compute the product over dimensions.

    Args:
      input: `[batch, ...]`, or a SequenceBatch, in which batch and time count as one dimension, 0, and padding is
        ignored.
      dim: one or several dimensions; all by default; negative counts from the end.
      keep_dim: whether the reduced dimensions stay, with size 1.
      name: name of the layer; by default `reduce_prod_N`.

    Returns:
      An array in the shape of the input without the reduced dimensions; a SequenceBatch if the input is one and
      dimension 0 is not reduced.

    Raises:
      ArgumentError: the dimension does not exist, or it is given twice.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_prod(fluid.layers.data("x", shape=[3, 4]), dim=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    this = Layer("reduce_prod", name)
    return this.output(_reduced(this, input, dim, keep_dim, jnp.prod))


@layer
@assigns(out="y = layers.logsumexp(x)")
def logsumexp(
    x: Value, dim: Dims = None, keepdim: bool = False, out: Value | None = None, name: str | None = None
) -> Any:
    """Compute the logarithm of the sum of exponentials over dimensions, without overflow of the exponentials.

    Args:
      x: `[batch, ...]`, or a SequenceBatch, in which batch and time count as one dimension, 0, and padding is ignored.
      dim: one or several dimensions; all by default; negative counts from the end.
      keepdim: whether the reduced dimensions stay, with size 1.
      out: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `logsumexp_N`.

    Returns:
      An array in the shape of the input without the reduced dimensions; a SequenceBatch if the input is one and
      dimension 0 is not reduced.

    Raises:
      ArgumentError: the dimension does not exist, it is given twice, or `out` is given.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.logsumexp(fluid.layers.data("x", shape=[3]), dim=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch]
    """
    this = Layer("logsumexp", name)
    return this.output(_reduced(this, x, dim, keepdim, _logsumexp))


@layer
def reduce_all(input: Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Return whether all elements along some dimensions are true.

    Args:
      input: bool `[batch, ...]`, or a SequenceBatch, in which batch and time count as one dimension, 0, and padding is
        ignored.
      dim: one or several dimensions; all by default; negative counts from the end.
      keep_dim: whether the reduced dimensions stay, with size 1.
      name: name of the layer; by default `reduce_all_N`.

    Returns:
      bool, in the shape of the input without the reduced dimensions; a SequenceBatch if the input is one and dimension
      0 is not reduced.

    Raises:
      ArgumentError: the dimension does not exist, or it is given twice.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_all(fluid.layers.data("x", shape=[4], dtype="bool"), dim=1)
      >>> print(fluid.Program(program).outputs[0])
      bool[batch]
    """
    this = Layer("reduce_all", name)
    return this.output(_reduced(this, input, dim, keep_dim, jnp.all))


@layer
def reduce_any(input: Value, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Any:
    """Return whether any element along some dimensions is true.

    Args:
      input: bool `[batch, ...]`, or a SequenceBatch, in which batch and time count as one dimension, 0, and padding is
        ignored.
      dim: one or several dimensions; all by default; negative counts from the end.
      keep_dim: whether the reduced dimensions stay, with size 1.
      name: name of the layer; by default `reduce_any_N`.

    Returns:
      bool, in the shape of the input without the reduced dimensions; a SequenceBatch if the input is one and dimension
      0 is not reduced.

    Raises:
      ArgumentError: the dimension does not exist, or it is given twice.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.reduce_any(fluid.layers.data("x", shape=[4], dtype="bool"), dim=1)
      >>> print(fluid.Program(program).outputs[0])
      bool[batch]
    """
    this = Layer("reduce_any", name)
    return this.output(_reduced(this, input, dim, keep_dim, jnp.any))


def _reduced(this: Layer, value: Value, dim: Dims, keep: bool, function: Callable[..., Any]) -> Any:
    """Apply a reduction function to an array, or to the valid steps of a sequence batch."""
    x = dense(value)
    if not is_sequence(value):
        return function(x, axis=_axes(value, dim), keepdims=keep)
    axes = _axes(value, dim)
    _doubt_features(this, value, dim)
    axes = tuple(range(x.ndim)) if axes is None else axes
    if 0 not in axes:
        return like(value, function(x, axis=axes, keepdims=keep))
    rows = tuple(range(1, row_dims(value)))
    result = function(x, axis=tuple(sorted({*axes, *rows})), keepdims=keep, where=valid_steps(value, x.ndim))
    return jnp.squeeze(result, rows) if keep else result


def _doubt_features(this: Layer, value: Value, dim: Dims) -> None:
    """Warn if a sequence batch is reduced along `dim=1`: dimension 1 is the features, but users may expect the time."""
    dims = dim if isinstance(dim, list | tuple) else [dim]
    if 1 in dims and 0 not in dims:
        core.doubt_reading(
            f"{this.name}: dim={dim} of the sequence batch {describe(value)} is its features: batch and time "
            f"count as one dimension; write dim=-1 for the features, or layers.sequence_pool(x, 'average'), 'sum' or "
            f"'max', for the steps of each sequence"
        )


def _axes(value: Value, dim: Dims) -> tuple[int, ...] | None:
    """Convert the user's `dim` for a reduction, such as a sum, to dimensions of the array; return None for all."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return None
    dims = dim if isinstance(dim, list | tuple) else [dim]
    axes = tuple(axis_of(value, d, "dim") for d in dims)  # type: ignore[arg-type]
    if len(set(axes)) != len(axes):
        raise errors.ArgumentError(f"dim={dim} names a dimension of {describe(value)} twice")
    return axes


def _mean(x: Any, axis: Any, keepdims: bool, where: Any = None) -> Any:
    """Return the mean along axes over the elements where `where` is true; 0 if there are none."""
    if where is None:
        return jnp.mean(x, axis=axis, keepdims=keepdims)
    count = jnp.sum(jnp.broadcast_to(where, x.shape), axis=axis, keepdims=keepdims)
    total = jnp.sum(x, axis=axis, keepdims=keepdims, where=where)
    return (total / jnp.maximum(count, 1)).astype(total.dtype)


def _logsumexp(x: Any, axis: Any, keepdims: bool, where: Any = None) -> Any:
    result = jax.nn.logsumexp(wide(x), axis=axis, keepdims=keepdims, where=where)
    return result.astype(x.dtype)


def _noted(this: Layer, value: Any, result: Any) -> Any:
    """Return `result`, a reduction of `value`; for a scalar, record its weight in a mean over several batches.

    The weight is the number of rows of `value`.
    """
    if jnp.ndim(dense(result)) == 0:
        weight = rows_of(this.frame, value)
        if weight is not None:
            this.frame.note(result, weight=weight)
    return result


def rows_of(frame: core.Frame, value: Any) -> Any:
    """Return the number of rows over which a mean of `value` averages; None for a scalar that is not a mean.

    Rows are dimension 0 of an array, or the valid steps of a sequence batch. For a scalar that is itself a mean, return
    the number of rows over which it averages.
    """
    if is_sequence(value):
        return jnp.sum(value.mask, dtype=jnp.int32)
    if jnp.ndim(value) == 0:
        return frame.fact(value, "weight")
    return jnp.shape(value)[0]
