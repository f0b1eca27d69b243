"""What layers on sequences share: reading them from what is given, and moving steps within rows or between them."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, array_of, at_places, at_steps, dense, describe, is_sequence, row_dims
from fluid.layers.checks import check_ids


def sequences(
    this: Layer, value: Any, lengths: Any, argument: str = "length", names: str = "input"
) -> core.SequenceBatch:
    """Read a value and its lengths as a sequence batch `[batch, time, ...]`.

    Args:
      this: the layer, for messages.
      value: a SequenceBatch, or `[batch, time, ...]`.
      lengths: integers `[batch]` or `[batch, 1]` for an array; None for a SequenceBatch.
      argument: what the layer calls the lengths.
      names: what the layer calls the value.

    Raises:
      ArgumentTypeError: lengths are no integers.
      ShapeError: lengths are missing, given twice, or not one for each row.
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
    return core.SequenceBatch(array, one_each(this, array, array_of(this, lengths), argument))


def alike(this: Layer, value: Any, label: Any) -> None:
    """Refuse a sequence batch beside an array.

    Raises:
      ShapeError: only one of them is a sequence batch.
    """
    if row_dims(value) != row_dims(label):
        raise errors.ShapeError(
            f"{this.name}: one of input {describe(value)} and label {describe(label)} is a sequence batch, the other "
            f"is not; declare both with lod_level=1, or give both padded and with lengths"
        )


def step_size(this: Layer, value: Any) -> int:
    """The size of the steps of sequences `[batch, time, channels]`, or of innermost ones."""
    shape = dense(value).shape
    if len(shape) != max(row_dims(value), 2) + 1:
        raise errors.ShapeError(
            f"{this.name}: input {describe(value)} is no batch of sequences of vectors; expected "
            f"[batch, time, channels], as from layers.data(..., shape=[8], lod_level=1)"
        )
    return int(shape[-1])


def nested_as(value: Any, result: Any) -> Any:
    """A SequenceBatch computed from the innermost sequences of a value, put back in their place."""
    return value.nest(result) if isinstance(value, core.NestedSequenceBatch) else result


def check_sequence(this: Layer, value: Any, argument: str = "input") -> Any:
    """The value, which must be a sequence batch.

    Raises:
      ShapeError: it is an array.
    """
    if not is_sequence(value):
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(value)} is no sequence batch; declare it as one, "
            f"layers.data(..., lod_level=1), or give its rows lengths: layers.sequence_unpad({argument}, length)"
        )
    return value


def innermost(function: Callable[[core.SequenceBatch], Any], value: Any) -> Any:
    """Apply a function of a SequenceBatch to the innermost sequences of a value, and put the result in their place."""
    return value.nest(function(value.flat())) if isinstance(value, core.NestedSequenceBatch) else function(value)


def flat(value: Any) -> Any:
    """The innermost sequences of a sequence batch as one SequenceBatch."""
    return value.flat() if isinstance(value, core.NestedSequenceBatch) else value


def sequence_batch(data: Any, lengths: Any) -> core.SequenceBatch:
    """A SequenceBatch `[batch, time, ...]` with zeros for its padding."""
    batch = core.SequenceBatch(data, lengths.astype(jnp.int32))
    return batch.with_data(dense(batch))


def one_each(this: Layer, batch: core.SequenceBatch, value: Any, argument: str) -> Any:
    """One integer for each row, `[batch]`, of `[batch]`, `[batch, 1]`, or a number for all.

    Raises:
      ArgumentTypeError: they are no integers.
      ShapeError: there are more or less of them.
    """
    numbers = check_ids(this.name, value, f"the numbers in {argument}")
    if numbers.size not in (1, batch.shape[0]):
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(value)} does not hold one number for each sequence of "
            f'{describe(batch)}; expected [batch, 1], as from layers.data(..., shape=[1], dtype="int64")'
        )
    return jnp.broadcast_to(numbers.reshape(-1), batch.shape[:1]).astype(jnp.int32)


def step_ids(this: Layer, batch: core.SequenceBatch, argument: str = "input") -> Any:
    """One integer for each step, `[batch, time]`, of data `[batch, time]` or `[batch, time, 1]`.

    Raises:
      ArgumentTypeError: they are no integers.
      ShapeError: a step is more than one number.
    """
    ids = check_ids(this.name, batch, f"the numbers in {argument}")
    if ids.shape not in (batch.shape[:2], (*batch.shape[:2], 1)):
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(batch)} has more than one number in each step; expected one, as from "
            f'layers.data(..., shape=[1], dtype="int64", lod_level=1)'
        )
    return ids.reshape(batch.shape[:2])


def taken(batch: core.SequenceBatch, places: Any, lengths: Any) -> core.SequenceBatch:
    """The steps of each row that stand at `places [batch, n]`, of which each row has so many."""
    return sequence_batch(at_places(dense(batch), jnp.arange(batch.shape[0])[:, None], places), lengths)


def packed(batch: core.SequenceBatch, kept: Any) -> core.SequenceBatch:
    """What is kept, bool `[batch, time]`, of each row, without gaps."""
    return taken(batch, jnp.argsort(~kept, axis=1, stable=True), jnp.sum(kept, axis=1))


def shifted(data: Any, by: int, fill: Any = 0) -> Any:
    """Data `[batch, time, ...]` whose step `t` is what step `t + by` was; beyond the ends stands `fill`."""
    beyond = jnp.full((data.shape[0], abs(by), *data.shape[2:]), fill, data.dtype)
    if by < 0:
        return jnp.concatenate([beyond, data], axis=1)[:, : data.shape[1]]
    return jnp.concatenate([data, beyond], axis=1)[:, by:]


def dealt(value: Any, lengths: Any, time: int) -> core.SequenceBatch:
    """The rows of an array, or the steps of all sequences one after another, dealt out to sequences of other lengths.

    Args:
      value: `[rows, ...]`, or a sequence batch.
      lengths: integers `[n]`.
      time: the steps that each sequence has room for.

    Returns:
      A SequenceBatch `[n, time, ...]`. Steps beyond those there are hold what is no number, so that it shows.
    """
    places = (jnp.cumsum(lengths) - lengths)[:, None] + jnp.arange(time)
    return sequence_batch(at_steps(value, places), lengths)
