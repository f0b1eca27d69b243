"""Sequences as layers of structured prediction take them: sequence batches, or padded arrays beside their lengths."""

from typing import Any

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, row_dims
from fluid.layers.steps import one_each


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
