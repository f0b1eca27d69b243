"""Layers that reverse, repeat, join, cut and reshape sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, dense, describe, is_sequence, layer, row_dims
from fluid.layers.sequence.step_selection import (
    check_sequence,
    flat,
    innermost,
    nested_like,
    one_per_row,
    packed,
    sequence_batch,
    taken,
)


@layer
def sequence_reverse(x: Value, name: str | None = None) -> Any:
    """Reverse the order of the steps of each sequence.

    Args:
      x: a SequenceBatch `[batch, time, ...]`; for a NestedSequenceBatch, the innermost sequences are reversed.
      name: name of the layer; by default `sequence_reverse_N`.

    Returns:
      A value of the type and shape of `x`.

    Raises:
      ShapeError: `x` is not a sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.sequence_reverse(fluid.layers.data("x", shape=[1], lod_level=1))
      >>> fluid.Session(program).run(program, {"x": [[1, 2, 3], [4]]})[0].rows()[0].tolist()
      [[3.0], [2.0], [1.0]]
    """
    this = Layer("sequence_reverse", name)

    def reverse(batch: core.SequenceBatch) -> Any:
        return taken(batch, batch.lengths[:, None] - 1 - jnp.arange(batch.shape[1]), batch.lengths)

    return this.output(innermost(reverse, check_sequence(this, x, "x")))


@layer
def sequence_expand(x: Value, y: Value, ref_level: int = -1, name: str | None = None) -> Any:
    """Repeat each row, or each sequence, of `x`; the lengths of `y` are the numbers of copies.

    Args:
      x: `[batch, ...]`, or a SequenceBatch. If the lengths of inner sequences of `y` are used, a SequenceBatch with one
        step for each inner sequence.
      y: the SequenceBatch or NestedSequenceBatch whose lengths are used.
      ref_level: the level of lengths of `y`: 0 for the rows, 1 for the inner sequences, -1 for the last level.
      name: name of the layer; by default `sequence_expand_N`.

    Returns:
      For an array `x`, a SequenceBatch `[batch, time of y, ...]` with the lengths of `y`, whose steps are the copies.
      For a SequenceBatch `x`, a NestedSequenceBatch `[batch, time of y, time of x, ...]`, whose inner sequences are the
      copies. If the lengths of inner sequences of `y` are used, a NestedSequenceBatch `[batch, outer, inner, ...]`,
      whose steps are the copies.

    Raises:
      ArgumentError: `y` has no such level.
      ShapeError: `x` does not fit `y`, or `y` is not a sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[2])
      ...     return fluid.layers.sequence_expand(x, fluid.layers.data("y", shape=[1], lod_level=1))
      >>> found, = fluid.Session(program).run(program, {"x": [[1, 2], [3, 4]], "y": [[0, 0, 0], [0]]})
      >>> [row.tolist() for row in found.rows()]
      [[[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]], [[3.0, 4.0]]]
    """
    this = Layer("sequence_expand", name)
    guide = check_sequence(this, y, "y")
    levels = row_dims(guide) - 1
    if ref_level not in (-1, *range(levels)):
        raise errors.ArgumentError(
            f"{this.name}: ref_level={ref_level!r} of y {describe(y)}; expected -1 for the last of its levels, or "
            f"{' or '.join(map(str, range(levels)))}"
        )
    if ref_level == 0 and levels == 2:
        guide = core.SequenceBatch(jnp.zeros(guide.shape[:2]), guide.lengths)
    return this.output(_expanded(this, x, guide))


@layer
def sequence_expand_as(x: Value, y: Value, name: str | None = None) -> Any:
    """Repeat each row of `x`, once for each step of the sequence in the same row of `y`.

    Args:
      x: `[batch, ...]`; for a NestedSequenceBatch `y`, a SequenceBatch of one step for each inner sequence.
      y: a SequenceBatch or NestedSequenceBatch.
      name: name of the layer; by default `sequence_expand_as_N`.

    Returns:
      A sequence batch `[batch, time, ...]` with the lengths of `y`; its steps are the copies.

    Raises:
      ShapeError: the rows of `x` do not match the sequences of `y`, or `y` is not a sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[4], lod_level=1)
      ...     whole = fluid.layers.sequence_pool(words, "average")
      ...     return words - fluid.layers.sequence_expand_as(whole, words)
      >>> [row.tolist() for row in fluid.Session(program).run(program, {"words": [[[1, 2, 3, 4]]]})[0].rows()]
      [[[0.0, 0.0, 0.0, 0.0]]]
    """
    this = Layer("sequence_expand_as", name)
    if row_dims(x) != row_dims(check_sequence(this, y, "y")) - 1:
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} has not one row for each sequence of y {describe(y)}; pool it first, "
            f"sequence_pool(x, 'last'), or repeat whole sequences by layers.sequence_expand(x, y)"
        )
    return this.output(_expanded(this, x, y))


@layer
def sequence_concat(input: Sequence[Value], name: str | None = None) -> Any:
    """Join the sequences of several batches end to end, row by row.

    Args:
      input: a list of SequenceBatches `[batch, time_i, ...]`, whose steps have one shape; or of NestedSequenceBatches,
        whose inner sequences are joined.
      name: name of the layer; by default `sequence_concat_N`.

    Returns:
      A SequenceBatch `[batch, sum of time_i, ...]`.

    Raises:
      ShapeError: the values are not sequence batches, or do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = [fluid.layers.data(name, shape=[1], lod_level=1) for name in ("x", "y")]
      ...     return fluid.layers.sequence_concat([x, y])
      >>> found, = fluid.Session(program).run(program, {"x": [[1, 2], [3]], "y": [[4], [5, 6]]})
      >>> [row.ravel().tolist() for row in found.rows()]
      [[1.0, 2.0, 4.0], [3.0, 5.0, 6.0]]
    """
    this = Layer("sequence_concat", name)
    values: list[Any] = list(input) if isinstance(input, list | tuple) else [input]
    if not values:
        raise errors.ArgumentError(f"{this.name} was given nothing to join; as in sequence_concat([x, y])")
    time = row_dims(check_sequence(this, values[0])) - 1
    if len({(row_dims(v), v.shape[:time], v.shape[time + 1 :]) for v in values if is_sequence(v)}) > 1 or any(
        not is_sequence(v) for v in values
    ):
        raise errors.ShapeError(
            f"{this.name}: {' and '.join(describe(v) for v in values)} cannot be joined; expected sequence batches of "
            f"as many rows, whose steps have one shape"
        )
    batches = [flat(v) for v in values]
    data, kept = (jnp.concatenate(parts, axis=1) for parts in zip(*((dense(b), b.mask) for b in batches), strict=True))
    whole = core.SequenceBatch(data, jnp.full(data.shape[:1], data.shape[1]))
    return this.output(nested_like(values[0], packed(whole, kept)))


@layer
def sequence_slice(input: Value, offset: Value | int, length: Value | int, name: str | None = None) -> Any:
    """Cut a slice out of each sequence.

    Args:
      input: a SequenceBatch `[batch, time, ...]`; for a NestedSequenceBatch, the innermost sequences are cut.
      offset: the first step of each slice, integers `[batch, 1]`, or one integer for all sequences.
      length: the number of steps of each slice, integers `[batch, 1]`, or one integer for all sequences. A slice ends
        at the end of its sequence.
      name: name of the layer; by default `sequence_slice_N`.

    Returns:
      A SequenceBatch `[batch, time, ...]` with the lengths of the slices.

    Raises:
      ArgumentTypeError: offset or length does not hold integers.
      ShapeError: the input is not a sequence batch, or there is not one number for each sequence.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[1], lod_level=1)
      ...     return fluid.layers.sequence_slice(x, offset=1, length=2)
      >>> found, = fluid.Session(program).run(program, {"x": [[1, 2, 3, 4], [5, 6]]})
      >>> [row.ravel().tolist() for row in found.rows()]
      [[2.0, 3.0], [6.0]]
    """
    this = Layer("sequence_slice", name)

    def cut(batch: core.SequenceBatch) -> Any:
        begin = jnp.clip(one_per_row(this, batch, offset, "offset"), 0, batch.lengths)
        count = jnp.clip(one_per_row(this, batch, length, "length"), 0, batch.lengths - begin)
        return taken(batch, begin[:, None] + jnp.arange(batch.shape[1]), count)

    return this.output(innermost(cut, check_sequence(this, input)))


@layer
def sequence_reshape(input: Value, new_dim: int, name: str | None = None) -> core.SequenceBatch:
    """Divide the numbers of each sequence into steps of another size.

    Args:
      input: a SequenceBatch `[batch, time, size]`; for a NestedSequenceBatch, the innermost sequences are reshaped.
      new_dim: the size of the new steps. If the numbers of a sequence do not fill its last step, zeros follow.
      name: name of the layer; by default `sequence_reshape_N`.

    Returns:
      A SequenceBatch `[batch, time * size / new_dim, new_dim]`.

    Raises:
      ArgumentError: `new_dim` is not a positive integer.
      ShapeError: the input is not a sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.sequence_reshape(fluid.layers.data("x", shape=[4], lod_level=1), new_dim=2)
      >>> fluid.Session(program).run(program, {"x": [[[1, 2, 3, 4]]]})[0].rows()[0].tolist()
      [[1.0, 2.0], [3.0, 4.0]]
    """
    this = Layer("sequence_reshape", name)
    core.whole_number(this.name, "new_dim", new_dim)

    def deal(batch: core.SequenceBatch) -> Any:
        size = math.prod(batch.shape[2:])
        numbers = dense(batch).reshape(batch.shape[0], batch.shape[1] * size)
        numbers = jnp.pad(numbers, [(0, 0), (0, -numbers.shape[1] % new_dim)])
        return sequence_batch(numbers.reshape(batch.shape[0], -1, new_dim), -(-batch.lengths * size // new_dim))

    return this.output(innermost(deal, check_sequence(this, input)))


def _expanded(this: Layer, x: Any, y: Any) -> Any:
    """Repeat each item of `x` as often as the innermost sequence of `y` at the same index has steps.

    Args:
      x: the items. For a SequenceBatch `y`: rows `[batch, ...]`, or sequences `[batch, time, ...]`. For a
        NestedSequenceBatch `y`: the steps of a SequenceBatch `[batch, outer, ...]`.
      y: a SequenceBatch `[batch, copies, ...]`, or a NestedSequenceBatch `[batch, outer, copies, ...]`.

    Returns:
      The copies, with the lengths of `y`: `[batch, copies, ...]` for rows, `[batch, copies, time, ...]` for sequences,
      and `[batch, outer, copies, ...]` for steps.
    """
    lead = row_dims(y) - 1
    copies = y.shape[lead]
    array = dense(x)
    whole = is_sequence(x) and lead == 1
    if array.shape[:lead] != y.shape[:lead] or row_dims(x) != (2 if whole else lead):
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} has not one item for each sequence of y {describe(y)}; expected "
            f"{list(y.shape[:lead])} of them, as from layers.sequence_pool(..., 'last')"
        )
    repeated = jnp.repeat(jnp.expand_dims(array, lead), copies, axis=lead)
    if not whole:
        result = y.with_data(repeated)
        return result.with_data(dense(result))
    lengths = jnp.repeat(x.lengths[:, None], copies, axis=1)
    return core.NestedSequenceBatch(repeated, y.lengths, lengths)
