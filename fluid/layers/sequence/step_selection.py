"""Helpers for layers on sequences: checks of arguments, and functions that select, shift and divide steps."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, array_of, dense, describe, is_sequence, row_dims, rows_at, steps_at
from fluid.layers.checks import check_ids


def sequences(
    this: Layer, value: Any, lengths: Any, argument: str = "length", names: str = "input"
) -> core.SequenceBatch:
    """Return a value and its lengths as one SequenceBatch `[batch, time, ...]`.

    Args:
      value: a SequenceBatch, or `[batch, time, ...]`.
      lengths: integers `[batch]` or `[batch, 1]` for an array; None for a SequenceBatch.

    Raises:
      ArgumentTypeError: the lengths are not integers.
      ShapeError: the lengths are missing, are given for a SequenceBatch, or are not one for each row.
    """
    if isinstance(value, core.SequenceBatch):
        if lengths is not None:
            raise errors.ShapeError(
                f"{this.name}: {names} is a sequence batch {describe(value)}, which knows its lengths; leave out "
                f"{argument}="
            )
        return value
    array = array_of(this, value)
    if lengths is None or array.ndim < 2:
        raise errors.ShapeError(
            f"{this.name}: {names} {describe(array)} is no sequence batch; declare it with lod_level=1, or give it "
            f"padded, [batch, time, ...], with the length of each row: {argument}=..."
        )
    if array.shape[1] != this.frame.placeholder_batch:
        core.limit_feed(lengths, 0, array.shape[1] + 1)
    return core.SequenceBatch(array, one_per_row(this, array, array_of(this, lengths), argument))


def alike(this: Layer, value: Any, label: Any) -> None:
    """Check that input and label are both arrays, both SequenceBatches, or both NestedSequenceBatches.

    Raises:
      ShapeError: the types differ.
    """
    if row_dims(value) != row_dims(label):
        raise errors.ShapeError(
            f"{this.name}: one of input {describe(value)} and label {describe(label)} is a sequence batch, the other "
            f"is not; declare both with lod_level=1, or give both padded and with lengths"
        )


def step_size(this: Layer, value: Any) -> int:
    """Return the number of channels of sequences `[batch, time, channels]` or `[batch, outer, inner, channels]`.

    Raises:
      ShapeError: the value has another number of dimensions.
    """
    shape = dense(value).shape
    if len(shape) != max(row_dims(value), 2) + 1:
        raise errors.ShapeError(
            f"{this.name}: input {describe(value)} is no batch of sequences of vectors; expected "
            f"[batch, time, channels], as from layers.data(..., shape=[8], lod_level=1)"
        )
    return int(shape[-1])


def nested_like(value: Any, result: Any) -> Any:
    """Group the rows of `result` by the outer sequences of the nested sequences `value`.

    `result` has one row for each innermost sequence of `value`. If `value` is not nested, return `result` unchanged.
    """
    return value.nest(result) if isinstance(value, core.NestedSequenceBatch) else result


def check_sequence(this: Layer, value: Any, argument: str = "input") -> Any:
    """Check that a value is a SequenceBatch or a NestedSequenceBatch, and return the value.

    Raises:
      ShapeError: the value is an array.
    """
    if not is_sequence(value):
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(value)} is no sequence batch; declare it as one, "
            f"layers.data(..., lod_level=1), or give its rows lengths: layers.sequence_unpad({argument}, length)"
        )
    return value


def innermost(function: Callable[[core.SequenceBatch], Any], value: Any) -> Any:
    """Call `function` with the innermost sequences of `value`, as one SequenceBatch, and return the result.

    If `value` is a NestedSequenceBatch, group the result again by the outer sequences of `value`.
    """
    return value.nest(function(value.flat())) if isinstance(value, core.NestedSequenceBatch) else function(value)


def flat(value: Any) -> Any:
    """Return the innermost sequences of a sequence batch as one SequenceBatch `[sequences, time, ...]`."""
    return value.flat() if isinstance(value, core.NestedSequenceBatch) else value


def sequence_batch(data: Any, lengths: Any) -> core.SequenceBatch:
    """Create a SequenceBatch `[batch, time, ...]`, and fill its padding with zeros."""
    batch = core.SequenceBatch(data, lengths.astype(jnp.int32))
    return batch.with_data(dense(batch))


def one_per_row(this: Layer, batch: core.SequenceBatch, value: Any, argument: str) -> Any:
    """Convert integers `[batch]` or `[batch, 1]`, or one integer for all rows, to int32 `[batch]`.

    Raises:
      ArgumentTypeError: the numbers are not integers.
      ShapeError: the number of integers is neither 1 nor `batch`.
    """
    numbers = check_ids(this.name, value, f"the numbers in {argument}")
    if numbers.size not in (1, batch.shape[0]):
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(value)} does not hold one number for each sequence of "
            f'{describe(batch)}; expected [batch, 1], as from layers.data(..., shape=[1], dtype="int64")'
        )
    return jnp.broadcast_to(numbers.reshape(-1), batch.shape[:1]).astype(jnp.int32)


def step_ids(this: Layer, batch: core.SequenceBatch, argument: str = "input") -> Any:
    """Convert a sequence batch of integers `[batch, time]` or `[batch, time, 1]` to an array `[batch, time]`.

    Raises:
      ArgumentTypeError: the numbers are not integers.
      ShapeError: a step has more than one number.
    """
    ids = check_ids(this.name, batch, f"the numbers in {argument}")
    if ids.shape not in (batch.shape[:2], (*batch.shape[:2], 1)):
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(batch)} has more than one number in each step; expected one, as from "
            f'layers.data(..., shape=[1], dtype="int64", lod_level=1)'
        )
    return ids.reshape(batch.shape[:2])


def taken(batch: core.SequenceBatch, places: Any, lengths: Any) -> core.SequenceBatch:
    """Select steps of each sequence by their indices.

    Args:
      batch: `[batch, time, ...]`.
      places: for each step of the result, the index of the selected step in its row, integers `[batch, n]`.
      lengths: the lengths of the result, integers `[batch]`.

    Returns:
      A SequenceBatch `[batch, n, ...]`.
    """
    return sequence_batch(steps_at(dense(batch), jnp.arange(batch.shape[0])[:, None], places), lengths)


def packed(batch: core.SequenceBatch, kept: Any) -> core.SequenceBatch:
    """Remove the steps of sequences for which `kept`, bool `[batch, time]`, is false; keep the order of the others."""
    return taken(batch, jnp.argsort(~kept, axis=1, stable=True), jnp.sum(kept, axis=1))


def shifted(data: Any, by: int, fill: Any = 0) -> Any:
    """Shift data `[batch, time, ...]`: step `t` of the result is step `t + by` of `data`, or `fill` beyond the ends."""
    beyond = jnp.full((data.shape[0], abs(by), *data.shape[2:]), fill, data.dtype)
    if by < 0:
        return jnp.concatenate([beyond, data], axis=1)[:, : data.shape[1]]
    return jnp.concatenate([data, beyond], axis=1)[:, by:]


def divided(value: Any, lengths: Any, time: int) -> core.SequenceBatch:
    """Divide rows into sequences of given lengths.

    Args:
      value: `[rows, ...]`; or a sequence batch, whose rows are the steps of all sequences, one after another.
      lengths: integers `[n]`.

    Returns:
      A SequenceBatch `[n, time, ...]`. Steps for which `value` has no row are NaN, so that users notice the mistake.
    """
    places = (jnp.cumsum(lengths) - lengths)[:, None] + jnp.arange(time)
    return sequence_batch(rows_at(value, places), lengths)
