"""Layers on sequences of integer ids, sequences as positions, and rows dealt out to other sequences."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, dense, describe, is_sequence, layer, row_dims
from fluid.layers.steps import check_sequence, dealt, flat, innermost, packed, shifted, step_ids


@layer
def sequence_enumerate(input: Any, win_size: int, pad_value: int = 0, name: str | None = None) -> Any:
    """For each step the ids from it on: the windows of `win_size` steps.

    Args:
      input: a SequenceBatch of integer ids `[batch, time, 1]`; of a NestedSequenceBatch the innermost sequences.
      win_size: ids in each window.
      pad_value: the id that stands behind the end of a sequence.
      name: instead of `sequence_enumerate_N`.

    Returns:
      A SequenceBatch `[batch, time, win_size]`.

    Raises:
      ArgumentError: the windows are empty.
      ArgumentTypeError: the ids are no integers.
      ShapeError: the input is no sequence batch of one id in each step.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
      ...     return fluid.layers.sequence_enumerate(words, win_size=2)
      >>> fluid.Session(program).run(program, {"words": [[5, 6, 7]]})[0].rows()[0].tolist()
      [[5, 6], [6, 7], [7, 0]]
    """
    this = Layer("sequence_enumerate", name)
    if not isinstance(win_size, int) or win_size < 1:
        raise errors.ArgumentError(f"{this.name}: win_size={win_size!r}; expected a positive integer")

    def windows(batch: core.SequenceBatch) -> Any:
        ids = jnp.where(batch.mask, step_ids(this, batch), pad_value)
        return batch.with_data(jnp.stack([shifted(ids, i, pad_value) for i in range(win_size)], axis=-1))

    return this.output(innermost(windows, check_sequence(this, input)))


@layer
def sequence_erase(x: Any, tokens: Sequence[int], name: str | None = None) -> Any:
    """Leave out some ids of each sequence.

    Args:
      x: a SequenceBatch of integer ids `[batch, time]` or `[batch, time, 1]`; of a NestedSequenceBatch the innermost
        sequences.
      tokens: the ids to leave out.
      name: instead of `sequence_erase_N`.

    Returns:
      A SequenceBatch like `x`, of shorter sequences.

    Raises:
      ArgumentTypeError: the ids are no integers.
      ShapeError: the input is no sequence batch of one id in each step.

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
def sequence_scatter(input: Any, index: Any, updates: Any, name: str | None = None) -> Any:
    """Add numbers to each row at the places that a sequence lists.

    Args:
      input: `[batch, n, ...]`.
      index: a SequenceBatch of integers `[batch, time, 1]`: places from 0 to `n - 1`.
      updates: a SequenceBatch of the same lengths, `[batch, time, ...]` or `[batch, time, 1]`: what is added there.
      name: instead of `sequence_scatter_N`.

    Returns:
      Same shape as the input.

    Raises:
      ArgumentTypeError: the places are no integers.
      ShapeError: the three do not fit together.

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
    places = step_ids(this, check_sequence(this, index, "index"), "index")
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
    places = jnp.where(index.mask, places, array.shape[1])  # what is padding goes nowhere
    rows = jnp.arange(array.shape[0])[:, None]
    added = values.reshape(*places.shape, *step).astype(array.dtype)
    return this.output(array.at[rows, places].add(added, mode="drop", wrap_negative_indices=False))


@layer
def lod_reset(x: Any, y: Any = None, target_lod: Sequence[int] | None = None, name: str | None = None) -> Any:
    """Deal rows, or the steps of all sequences one after another, out to sequences of other lengths.

    Args:
      x: `[rows, ...]`, or a sequence batch.
      y: a sequence batch whose lengths are taken, or an array of offsets `[sequences + 1]`.
      target_lod: offsets instead: where each sequence begins, and the end: [0, 2, 6] for lengths of 2 and 4.
      name: instead of `lod_reset_N`.

    Returns:
      A SequenceBatch, or a NestedSequenceBatch for such a `y`. Steps that `x` does not have are no numbers.

    Raises:
      ArgumentError: offsets do not begin with 0 and grow, or neither `y` nor `target_lod` is given.
      ShapeError: `x` has another number of rows.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4, 1], append_batch_size=False)
      ...     return fluid.layers.sequence_pool(fluid.layers.lod_reset(x, target_lod=[0, 1, 4]), "sum")
      >>> fluid.Session(program).run(program, {"x": [[1], [2], [3], [4]]})[0].tolist()
      [[1.0], [9.0]]
    """
    this = Layer("lod_reset", name)
    if is_sequence(y):
        time = y.shape[row_dims(y) - 1]
        dealt_out = dealt(x, flat(y).lengths, time)
        return this.output(y.nest(dealt_out) if isinstance(y, core.NestedSequenceBatch) else dealt_out)
    return this.output(dealt(x, *_lengths(this, x, target_lod if y is None else y, "target_lod" if y is None else "y")))


@layer
def lod_append(x: Any, level: Any, name: str | None = None) -> Any:
    """Part sequences into sequences of steps: the rows of `x` stay together, and a level is put below them.

    Args:
      x: `[rows, ...]`, which becomes a SequenceBatch, or a SequenceBatch, which becomes a NestedSequenceBatch: its
        lengths then count inner sequences.
      level: offsets where each new sequence begins, and the end, as in `lod_reset`; or a SequenceBatch whose lengths
        are taken.
      name: instead of `lod_append_N`.

    Returns:
      A sequence batch of one more level.

    Raises:
      ArgumentError: offsets do not begin with 0 and grow.
      ShapeError: `x` has another number of rows, or two levels.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[1], lod_level=1)
      ...     return fluid.layers.lod_append(x, level=[0, 2, 2, 3])
      >>> found, = fluid.Session(program).run(program, {"x": [[5, 6], [7]]})
      >>> [[steps.ravel().tolist() for steps in row] for row in found.rows()]
      [[[5.0, 6.0], []], [[7.0]]]
    """
    this = Layer("lod_append", name)
    if isinstance(x, core.NestedSequenceBatch):
        raise errors.ShapeError(f"{this.name}: x {describe(x)} has two levels; more are not possible")
    if isinstance(level, core.SequenceBatch):
        lengths, time = level.lengths, level.shape[1]
    else:
        lengths, time = _lengths(this, x, level, "level")
    inner = dealt(x, lengths, time)
    if not is_sequence(x):
        return this.output(inner)
    places = (jnp.cumsum(x.lengths) - x.lengths)[:, None] + jnp.arange(x.shape[1])
    data, counts = (v.at[places].get(mode="fill", fill_value=0) for v in (inner.data, inner.lengths))
    return this.output(core.NestedSequenceBatch(data, x.lengths, counts))


def _lengths(this: Layer, x: Any, offsets: Any, argument: str) -> tuple[Any, int]:
    """The lengths that offsets mean, and how many steps the longest may have."""
    if offsets is None:
        raise errors.ArgumentError(
            f"{this.name}: give y=, a sequence batch, or target_lod=, as in target_lod=[0, 2, 6]"
        )
    shape = flat(x).shape if is_sequence(x) else dense(x).shape
    rows = shape[0] * shape[1] if is_sequence(x) else shape[0]
    if hasattr(offsets, "aval"):  # data, which nobody knows yet
        bounds = array_of(this, offsets).reshape(-1)
        return jnp.maximum(jnp.diff(bounds), 0), rows
    known = np.asarray(offsets)
    sizes = np.diff(known)
    if known.ndim != 1 or len(known) < 2 or known.dtype.kind not in "iu" or known[0] != 0 or (sizes < 0).any():
        raise errors.ArgumentError(
            f"{this.name}: {argument}={offsets!r}; expected offsets that begin with 0 and grow: [0, 2, 6] for "
            f"lengths of 2 and 4"
        )
    if not is_sequence(x) and rows not in (known[-1], this.frame.placeholder_batch):
        raise errors.ShapeError(
            f"{this.name}: {argument}={offsets!r} ends at {known[-1]}, but x {describe(x)} has {rows} rows; expected "
            f"offsets that end there, as in [0, {rows}]"
        )
    return jnp.asarray(sizes), int(sizes.max())
