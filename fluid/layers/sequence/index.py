"""Layers on sequences of ids or indices: windows of ids, removal of ids, and addition at indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, dense, describe, layer
from fluid.layers.sequence.step_selection import check_sequence, innermost, packed, shifted, step_ids


@layer
def sequence_enumerate(input: Value, win_size: int, pad_value: int = 0, name: str | None = None) -> Any:
    """Return for each step the window of `win_size` ids that begins with this step.

    Args:
      input: a SequenceBatch of integer ids `[batch, time, 1]`; for a NestedSequenceBatch, the innermost sequences are
        read.
      win_size: the number of ids in each window.
      pad_value: the id that fills windows beyond the end of a sequence.
      name: name of the layer; by default `sequence_enumerate_N`.

    Returns:
      A SequenceBatch `[batch, time, win_size]`.

    Raises:
      ArgumentError: `win_size` is not a positive integer.
      ArgumentTypeError: the ids are not integers.
      ShapeError: the input is not a sequence batch of one id in each step.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
      ...     return fluid.layers.sequence_enumerate(words, win_size=2)
      >>> fluid.Session(program).run(program, {"words": [[5, 6, 7]]})[0].rows()[0].tolist()
      [[5, 6], [6, 7], [7, 0]]
    """
    this = Layer("sequence_enumerate", name)
    core.whole_number(this.name, "win_size", win_size)

    def windows(batch: core.SequenceBatch) -> Any:
        ids = jnp.where(batch.mask, step_ids(this, batch), pad_value)
        return batch.with_data(jnp.stack([shifted(ids, i, pad_value) for i in range(win_size)], axis=-1))

    return this.output(innermost(windows, check_sequence(this, input)))


@layer
def sequence_erase(x: Value, tokens: Sequence[int], name: str | None = None) -> Any:
    """Remove some ids from each sequence.

    Args:
      x: a SequenceBatch of integer ids `[batch, time]` or `[batch, time, 1]`; for a NestedSequenceBatch, the innermost
        sequences are shortened.
      tokens: the ids to remove.
      name: name of the layer; by default `sequence_erase_N`.

    Returns:
      A value of the type of `x`, with shorter sequences.

    Raises:
      ArgumentTypeError: the ids are not integers.
      ShapeError: the input is not a sequence batch of one id in each step.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
      ...     return fluid.layers.sequence_erase(words, tokens=[0, 2])
      >>> found, = fluid.Session(program).run(program, {"words": [[2, 1, 0, 3], [2]]})
      >>> [row.ravel().tolist() for row in found.rows()]
      [[1, 3], []]
    """
    this = Layer("sequence_erase", name)

    def erase(batch: core.SequenceBatch) -> Any:
        ids = step_ids(this, batch)
        return packed(batch, batch.mask & ~jnp.isin(ids, jnp.asarray(list(tokens), ids.dtype)))

    return this.output(innermost(erase, check_sequence(this, x, "x")))


@layer
def sequence_scatter(input: Value, index: Value, updates: Value, name: str | None = None) -> jax.Array:
    """Add numbers to each row at the indices in a sequence.

    Args:
      input: `[batch, n, ...]`.
      index: a SequenceBatch of integers `[batch, time, 1]`, the indices from 0 to `n - 1`.
      updates: a SequenceBatch with the lengths of `index`, `[batch, time, ...]` or `[batch, time, 1]`: the numbers to
        add.
      name: name of the layer; by default `sequence_scatter_N`.

    Returns:
      An array of the shape of the input.

    Raises:
      ArgumentTypeError: the index does not hold integers.
      ShapeError: input, index and updates do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     index = fluid.layers.data("index", shape=[1], dtype="int64", lod_level=1)
      ...     return fluid.layers.sequence_scatter(x, index, fluid.layers.data("updates", shape=[1], lod_level=1))
      >>> feed = {"x": [[0, 0, 0], [1, 1, 1]], "index": [[0, 0], [2]], "updates": [[1, 2], [3]]}
      >>> fluid.Session(program).run(program, feed)[0].tolist()
      [[3.0, 0.0, 0.0], [1.0, 1.0, 4.0]]
    """
    this = Layer("sequence_scatter", name)
    array = array_of(this, input)
    batch = check_sequence(this, index, "index")
    places = step_ids(this, batch, "index")
    values = dense(check_sequence(this, updates, "updates"))
    step = array.shape[2:]
    if (
        array.ndim < 2
        or values.shape[:2] != places.shape
        or values.shape[2:] not in (step, (*step, 1))
        or places.shape[0] != array.shape[0]
    ):
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)}, index {describe(index)} and updates {describe(updates)} do not "
            f"fit; expected [batch, n], and for each row as many places as numbers, [batch, time, 1]"
        )
    core.limit_feed(index, 0, array.shape[1])
    # Give padding an index after the last one, which `mode="drop"` ignores.
    places = jnp.where(batch.mask, places, array.shape[1])
    rows = jnp.arange(array.shape[0])[:, None]
    added = values.reshape(*places.shape, *step).astype(array.dtype)
    return this.output(array.at[rows, places].add(added, mode="drop", wrap_negative_indices=False))
