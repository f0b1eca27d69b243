"""`lod_reset` and `lod_append`: divide rows into sequences of given lengths."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, dense, describe, is_sequence, layer, row_dims
from fluid.layers.sequence.steps import divided, flat, nested_like


@layer
def lod_reset(
    x: core.Value,
    y: core.Value | Sequence[int] | None = None,
    target_lod: Sequence[int] | None = None,
    name: str | None = None,
) -> Any:
    """Divide rows into sequences of given lengths.

    Args:
      x: `[rows, ...]`; or a sequence batch, whose rows are the steps of all sequences, one after another.
      y: a sequence batch whose lengths are used, or an array of offsets `[sequences + 1]`.
      target_lod: offsets, used if `y` is not given: the first row of each sequence, and finally the number of rows.
        Lengths of 2 and 4 are [0, 2, 6].
      name: name of the layer; by default `lod_reset_N`.

    Returns:
      A SequenceBatch, or a NestedSequenceBatch if `y` is one. Steps for which `x` has no rows are NaN.

    Raises:
      ArgumentError: the offsets do not begin with 0 and grow, or neither `y` nor `target_lod` is given.
      ShapeError: the last offset is not the number of rows of `x`.

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
        steps = divided(x, flat(y).lengths, y.shape[row_dims(y) - 1])
        return this.output(nested_like(y, steps))
    lengths, time = _lengths(this, x, target_lod, "target_lod") if y is None else _lengths(this, x, y, "y")
    return this.output(divided(x, lengths, time))


@layer
def lod_append(x: core.Value, level: core.Value | Sequence[int], name: str | None = None) -> Any:
    """Add a level of sequences below the levels of `x`.

    Args:
      x: `[rows, ...]`, whose rows are divided into sequences, as by `lod_reset`; or a SequenceBatch. The steps of all
        its sequences, one after another, are divided into inner sequences; the lengths of `x` then count inner
        sequences.
      level: offsets as in `lod_reset`, or a SequenceBatch whose lengths are used.
      name: name of the layer; by default `lod_append_N`.

    Returns:
      A SequenceBatch, or a NestedSequenceBatch if `x` is a SequenceBatch.

    Raises:
      ArgumentError: the offsets do not begin with 0 and grow.
      ShapeError: the last offset is not the number of rows of `x`, or `x` already has two levels.

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
        lengths = level.lengths
        time = level.shape[1]
    else:
        lengths, time = _lengths(this, x, level, "level")
    inner = divided(x, lengths, time)
    if not is_sequence(x):
        return this.output(inner)
    places = (jnp.cumsum(x.lengths) - x.lengths)[:, None] + jnp.arange(x.shape[1])
    data, counts = (v.at[places].get(mode="fill", fill_value=0) for v in (inner.data, inner.lengths))
    return this.output(core.NestedSequenceBatch(data, x.lengths, counts))


def _lengths(this: Layer, x: Any, offsets: Any, argument: str) -> tuple[Any, int]:
    """Read offsets, and convert them to lengths.

    Args:
      this: the layer, for messages.
      x: the value that is divided.
      offsets: the offsets from the user: the first row of each sequence, and finally the number of rows.
      argument: the name of the argument, for messages.

    Returns:
      The lengths, integers `[sequences]`; and an upper bound for the longest length.
    """
    if offsets is None:
        raise errors.ArgumentError(
            f"{this.name}: give y=, a sequence batch, or target_lod=, as in target_lod=[0, 2, 6]"
        )
    shape = flat(x).shape if is_sequence(x) else dense(x).shape
    rows = shape[0] * shape[1] if is_sequence(x) else shape[0]
    if hasattr(offsets, "aval"):  # an array of the program: its values are unknown while the program is traced
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
