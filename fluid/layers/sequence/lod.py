"""Rows divided into other sequences."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, dense, describe, is_sequence, layer, row_dims
from fluid.layers.sequence.steps import dealt, flat


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
