"""Conversions between padded arrays and sequences: padding, and division into sequences of given lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, dense, describe, is_sequence, layer, row_dims
from fluid.layers.checks import check_ids, dtype_of
from fluid.layers.sequence.step_selection import check_sequence, divided, flat, nested_like, sequence_batch, taken


@layer
def sequence_mask(
    x: Value, maxlen: int | None = None, dtype: DTypeLike = "int64", name: str | None = None
) -> jax.Array:
    """Return a mask for each length: as many ones as the length, followed by zeros.

    Args:
      x: lengths, integers `[...]`.
      maxlen: the size of the mask. It must be given, since a shape cannot depend on data.
      dtype: the dtype of the mask.
      name: name of the layer; by default `sequence_mask_N`.

    Returns:
      `[..., maxlen]`.

    Raises:
      ArgumentError: `maxlen` is not given, or negative.
      ArgumentTypeError: the lengths are not integers.

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
    if maxlen is None:
        raise errors.ArgumentError(
            f"{this.name}: maxlen=None for lengths {describe(x)}; the size of the mask cannot depend on data: "
            f"give maxlen=, or the size of what is masked, as in maxlen=x.shape[1]"
        )
    steps = jnp.arange(core.whole_number(this.name, "maxlen", maxlen, least=0))
    return this.output((steps < lengths[..., None]).astype(dtype_of("sequence_mask", dtype)))


@layer
def sequence_pad(x: Value, pad_value: Value | float, maxlen: int | None = None, name: str | None = None) -> Any:
    """Convert a sequence batch to a padded array and lengths.

    Args:
      x: a SequenceBatch `[batch, time, ...]`; for a NestedSequenceBatch, the innermost sequences are padded.
      pad_value: the value beyond the end of each sequence: a number, or an array of the shape of a step.
      maxlen: the number of steps of the array; longer sequences are cut. The default is the `time` of `x`, which is
        at least the length of the longest sequence.
      name: name of the layer; by default `sequence_pad_N`.

    Returns:
      The array `[batch, maxlen, ...]`, and the lengths `[batch]`, of JAX's default integer dtype; for a
      NestedSequenceBatch, a SequenceBatch of each.

    Raises:
      ArgumentError: `maxlen` is not a positive integer.
      ShapeError: `x` is not a sequence batch, or `pad_value` does not fit its steps.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[1], lod_level=1)
      ...     return fluid.layers.sequence_pad(x, pad_value=-1.0, maxlen=3)
      >>> padded, lengths = fluid.Session(program).run(program, {"x": [[1, 2, 3], [4]]})
      >>> padded[:, :, 0].tolist(), lengths.tolist()
      ([[1.0, 2.0, 3.0], [4.0, -1.0, -1.0]], [3, 1])
    """
    this = Layer("sequence_pad", name)
    batch = flat(check_sequence(this, x, "x"))
    size = batch.shape[1] if maxlen is None else core.whole_number(this.name, "maxlen", maxlen)
    fill = dense(pad_value).astype(batch.dtype)
    step = batch.shape[2:]
    if fill.size != 1 and fill.shape not in (step, (1, *step)):
        raise errors.ShapeError(
            f"{this.name}: pad_value {describe(fill)} does not fit the steps of x {describe(x)}; expected a number, or "
            f"{list(step)}"
        )
    lengths = jnp.minimum(batch.lengths, size)
    whole = taken(batch, jnp.broadcast_to(jnp.arange(size), (batch.shape[0], size)), lengths)
    valid = core.spread_mask(whole, len(whole.shape))
    padded = jnp.where(valid, whole.data, fill.reshape(step if fill.size > 1 else ()))
    lengths = lengths.astype(dtype_of(this.name, "int64"))
    return this.output(nested_like(x, padded)), this.output(nested_like(x, lengths))


@layer
def sequence_unpad(x: Value, length: Value, name: str | None = None) -> core.SequenceBatch:
    """Convert a padded array and lengths to a sequence batch.

    Args:
      x: `[batch, time, ...]`.
      length: the number of valid steps of each row, integers `[batch]` or `[batch, 1]`.
      name: name of the layer; by default `sequence_unpad_N`.

    Returns:
      A SequenceBatch `[batch, time, ...]`.

    Raises:
      ArgumentTypeError: the lengths are not integers.
      ShapeError: there is not one length for each row, or there are no steps.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     return fluid.layers.sequence_unpad(x, fluid.layers.data("length", shape=[1], dtype="int64"))
      >>> found, = fluid.Session(program).run(program, {"x": [[1, 2, 3], [4, 5, 6]], "length": [2, 1]})
      >>> [row.tolist() for row in found.rows()]
      [[1.0, 2.0], [4.0]]
    """
    this = Layer("sequence_unpad", name)
    array = array_of(this, x)
    lengths = check_ids(this.name, array_of(this, length))
    if array.ndim < 2 or lengths.shape not in ((array.shape[0],), (array.shape[0], 1)):
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} and length {describe(length)} do not fit; expected [batch, time, ...] and "
            f"one length for each row, [batch] or [batch, 1]"
        )
    if array.shape[1] != this.frame.placeholder_batch:
        core.limit_feed(length, 0, array.shape[1] + 1)
    return this.output(sequence_batch(array, jnp.clip(lengths.reshape(-1), 0, array.shape[1])))


@layer
def lod_reset(
    x: Value,
    y: Value | Sequence[int] | None = None,
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
def lod_append(x: Value, level: Value | Sequence[int], name: str | None = None) -> Any:
    """Add a level of sequences below the levels of `x`.

    Args:
      x: `[rows, ...]`, or a SequenceBatch. The rows of an array are divided into sequences, as by `lod_reset`. The
        steps of a SequenceBatch, all its sequences one after another, are divided into inner sequences. The lengths
        of the SequenceBatch then count inner sequences instead of steps.
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
    """Convert the offsets of sequences to their lengths, after checking the offsets.

    Returns:
      The lengths, integers `[sequences]`; and an upper bound for the longest length.
    """
    if offsets is None:
        raise errors.ArgumentError(
            f"{this.name}: give y=, a sequence batch, or target_lod=, as in target_lod=[0, 2, 6]"
        )
    shape = flat(x).shape if is_sequence(x) else dense(x).shape
    rows = shape[0] * shape[1] if is_sequence(x) else shape[0]
    # The values of a traced array are unknown, so that they cannot be checked.
    if hasattr(offsets, "aval"):
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
