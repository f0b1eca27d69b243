"""Metrics for predicted sequences: precision and recall of chunks (`chunk_eval`), and the edit distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, dense, describe, layer
from fluid.layers.loss.metrics import share
from fluid.layers.sequence.step_selection import alike, packed, sequences, shifted, step_ids


class _Scheme(NamedTuple):
    """An encoding of chunks as tags: the constants of one `chunk_scheme` of `chunk_eval`.

    Attributes:
      kinds: the number of kinds of tags, such as begin and inside, for each type of chunk.
      begin: the indices of the kinds that always begin a chunk.
      end: the indices of the kinds that always end a chunk.
    """

    kinds: int
    begin: tuple[int, ...]
    end: tuple[int, ...]


_SCHEMES = {
    "plain": _Scheme(1, (), ()),
    "IOB": _Scheme(2, (0,), ()),
    "IOE": _Scheme(2, (), (1,)),
    "IOBES": _Scheme(4, (0, 3), (2, 3)),
}


class _Chunks(NamedTuple):
    """The chunks of tag sequences; each array is `[batch, time]`.

    Attributes:
      begins: bool: whether a chunk begins at each step; chunks of excluded types count as no chunks.
      types: the type of the chunk that contains each step.
      ends: the index of the last step of the chunk that contains each step.
    """

    begins: jax.Array
    types: jax.Array
    ends: jax.Array


@layer
def chunk_eval(
    input: Value,
    label: Value,
    chunk_scheme: str,
    num_chunk_types: int,
    excluded_chunk_types: Sequence[int] | None = None,
    seq_length: Value | None = None,
    name: str | None = None,
) -> tuple[jax.Array, ...]:
    """Compute precision, recall and F1 of chunks in sequences of tags, such as the names in a sentence.

    A tag is the integer `type * kinds + kind`. The kind is the place of the step in its chunk, and `kinds` is the
    number of kinds. The tag `num_chunk_types * kinds` is outside all chunks. The kinds of "IOB" are begin and inside.
    The kinds of "IOE" are inside and end. The kinds of "IOBES" are begin, inside, end and single. "plain" has one kind.
    A chunk is right if its first step, its last step and its type are right.

    Args:
      input: the predicted tags, of an integer dtype: a SequenceBatch `[batch, time, 1]`, or an array `[batch, time]`
        with `seq_length`.
      label: the right tags, with the type and shape of `input`.
      chunk_scheme: "IOB", "IOE", "IOBES" or "plain".
      num_chunk_types: number of types of chunks.
      excluded_chunk_types: types that are not counted.
      seq_length: integers `[batch]` or `[batch, 1]`, if input and label are arrays.
      name: name of the layer; by default `chunk_eval_N`.

    Returns:
      `(precision, recall, f1, found, labelled, right)`: three float32 scalars, 0 if the divisor is 0; and the numbers
      of predicted, labelled and right chunks, int32 scalars. `trainer.test` weights the first three, so that they are
      exact over all batches.

    Raises:
      ArgumentError: the scheme or an excluded type does not exist.
      ArgumentTypeError: the tags are not integers.
      ShapeError: the shapes of input, label and lengths do not match.

    Example:
      >>> import fluid
      >>> def program():
      ...     found = fluid.layers.data("found", shape=[1], dtype="int64", lod_level=1)
      ...     right = fluid.layers.data("right", shape=[1], dtype="int64", lod_level=1)
      ...     return fluid.layers.chunk_eval(found, right, chunk_scheme="IOB", num_chunk_types=2)
      >>> tags = [fluid.SequenceBatch.from_rows([row]) for row in ([0, 1, 4, 2], [0, 1, 4, 0])]
      >>> [float(v) for v in fluid.Session(program).run("program", dict(zip(["found", "right"], tags)))]
      [0.5, 0.5, 0.5, 2.0, 2.0, 1.0]
    """
    this = Layer("chunk_eval", name)
    _check_types(this, chunk_scheme, num_chunk_types, excluded_chunk_types)
    alike(this, input, label)
    batch = sequences(this, input, seq_length, "seq_length")
    if dense(label).shape not in (batch.mask.shape, (*batch.mask.shape, 1)):
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} do not fit; expected one tag for each "
            f'step of both, as from layers.data("label", shape=[1], dtype="int64", lod_level=1)'
        )
    for value in (input, label):
        core.limit_feed(value, 0, num_chunk_types * _SCHEMES[chunk_scheme].kinds + 1)
    found, truth = (
        _chunks(step_ids(this, tags, names), tags.mask, chunk_scheme, num_chunk_types, excluded_chunk_types)
        for tags, names in ((batch, "input"), (batch.with_data(dense(label)), "label"))
    )
    right = found.begins & truth.begins & (found.types == truth.types) & (found.ends == truth.ends)
    num_found, num_truth, num_right = (jnp.sum(v, dtype=jnp.int32) for v in (found.begins, truth.begins, right))
    precision = share(this, num_right, num_found)
    recall = share(this, num_right, num_truth)
    # F1 is the harmonic mean of precision and recall.
    f1 = share(this, 2 * num_right, num_found + num_truth)
    return precision, recall, f1, *(this.output(count) for count in (num_found, num_truth, num_right))


def _check_types(this: Layer, scheme: str, types: int, excluded: Sequence[int] | None) -> None:
    """Check that `chunk_scheme` is known and that the excluded chunk types exist."""
    if scheme not in _SCHEMES:
        raise errors.ArgumentError(
            f"{this.name}: chunk_scheme={scheme!r}; expected {', '.join(map(repr, sorted(_SCHEMES)))}"
        )
    types = core.whole_number(this.name, "num_chunk_types", types)
    if any(not 0 <= kind < types for kind in excluded or ()):
        raise errors.ArgumentError(
            f"{this.name}: excluded_chunk_types={excluded!r}; expected a list of types from 0 to {types - 1}"
        )


def _chunks(ids: jax.Array, mask: jax.Array, scheme: str, types: int, excluded: Sequence[int] | None) -> _Chunks:
    """Find the chunks in sequences of tags.

    Args:
      ids: the tags, integers `[batch, time]`.
      mask: bool `[batch, time]`: true for the steps of a row, false for its padding.
    """
    kinds, begin, end = _SCHEMES[scheme]
    outside = (ids < 0) | (ids >= types * kinds) | ~mask
    kind = ids % kinds
    type_ = jnp.where(outside, types, ids // kinds)
    first = (type_ != shifted(type_, -1, types)) | _among(kind, begin) | shifted(_among(kind, end), -1)
    # A chunk is a span of steps with tags of one type. It ends at a step if the next step is outside all chunks, has
    # another type, or begins another chunk.
    last = shifted(first, 1, True)
    steps = jnp.arange(ids.shape[1])
    ends = jax.lax.cummin(jnp.where(last, steps, ids.shape[1]), axis=1, reverse=True)
    counted = ~outside & ~_among(type_, tuple(excluded or ()))
    return _Chunks(first & counted, type_, ends)


def _among(values: jax.Array, some: tuple[int, ...]) -> jax.Array:
    """Return a bool array `[batch, time]`, True for each integer of `values` that occurs in the tuple `some`."""
    return jnp.isin(values, jnp.asarray(some, values.dtype))


@layer
def edit_distance(
    input: Value,
    label: Value,
    normalized: bool = True,
    ignored_tokens: Sequence[int] | None = None,
    input_length: Value | None = None,
    label_length: Value | None = None,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Count the insertions, deletions and substitutions from each sequence to its label (Levenshtein, 1966).

    Args:
      input: integers: a SequenceBatch `[batch, time, 1]`, or an array `[batch, time]` with `input_length`.
      label: integers: a SequenceBatch `[batch, label time, 1]`, or an array `[batch, label time]` with `label_length`.
      normalized: whether the distance is divided by the length of the label; the length of an empty label counts as 1.
      ignored_tokens: integers that are removed from both sequences before the comparison.
      input_length: integers `[batch]` or `[batch, 1]`, if the input is an array.
      label_length: integers `[batch]` or `[batch, 1]`, if the label is an array.
      name: name of the layer; by default `edit_distance_N`.

    Returns:
      `(distances, count)`: float32 `[batch, 1]`, and the number of rows, an int32 scalar, which `trainer.test` sums.

    Raises:
      ArgumentTypeError: the sequences do not hold integers.
      ShapeError: the shapes of input, label and lengths do not match.

    Example:
      >>> import fluid
      >>> def program():
      ...     guess = fluid.layers.data("guess", shape=[1], dtype="int64", lod_level=1)
      ...     truth = fluid.layers.data("truth", shape=[1], dtype="int64", lod_level=1)
      ...     return fluid.layers.edit_distance(guess, truth)
      >>> guess, truth = (fluid.SequenceBatch.from_rows(r) for r in ([[1, 2, 3], [5]], [[1, 3], [5]]))
      >>> distances, count = fluid.Session(program).run("program", {"guess": guess, "truth": truth})
      >>> [float(d) for d in distances[:, 0]], int(count)
      ([0.5, 0.0], 2)
    """
    this = Layer("edit_distance", name)
    alike(this, input, label)
    guess = sequences(this, input, input_length, "input_length")
    truth = sequences(this, label, label_length, "label_length", "label")
    if guess.shape[0] != truth.shape[0]:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} do not fit; expected as many rows of "
            f"both, [batch, time] and [batch, label time]"
        )
    guess = _without(ignored_tokens, guess.with_data(step_ids(this, guess, "input")))
    truth = _without(ignored_tokens, truth.with_data(step_ids(this, truth, "label")))
    result = _levenshtein(guess, truth).astype(jnp.float32)
    if normalized:
        result = result / jnp.maximum(truth.lengths, 1)
    if ignored_tokens:
        this.skip_outputs(2)
    distances = this.output(result[:, None])
    count = this.output(jnp.int32(guess.shape[0]))
    this.frame.note(count, reduced=core.Reduced("sum"))
    return distances, count


def _without(ignored: Sequence[int] | None, batch: core.SequenceBatch) -> core.SequenceBatch:
    """Remove the integers in `ignored` from sequences `[batch, time]`."""
    if not ignored:
        return batch
    return packed(batch, batch.mask & ~jnp.isin(batch.data, jnp.asarray(ignored, batch.dtype)))


def _levenshtein(guess: core.SequenceBatch, truth: core.SequenceBatch) -> jax.Array:
    """Return edit distances, computed row by row with the dynamic-programming table of Wagner and Fischer (1974).

    Args:
      guess: integers `[batch, time]`, one row of the table for each step.
      truth: integers `[batch, label time]`, one column of the table for each step.

    Returns:
      int32 `[batch]`.
    """
    columns = jnp.arange(truth.shape[1] + 1)

    def step(row: Any, now: Any) -> tuple[Any, None]:
        token, real = now
        substituted = row[:, :-1] + (token[:, None] != truth.data)
        deleted = row + 1
        from_above = jnp.concatenate([deleted[:, :1], jnp.minimum(substituted, deleted[:, 1:])], axis=1)
        # Each column of the table of edit distances belongs to a step of the right sequence. An insertion moves one
        # cell to the right in the table, and adds 1 to the distance. So each cell becomes the minimum over itself and
        # all cells to its left, each plus the number of columns between the two cells.
        best = jax.lax.cummin(from_above - columns, axis=1) + columns
        return jnp.where(real[:, None], best, row), None

    start = jnp.broadcast_to(columns, (guess.shape[0], columns.shape[0]))
    row, _ = jax.lax.scan(step, start, (guess.data.T, guess.mask.T))
    return jnp.take_along_axis(row, truth.lengths[:, None], axis=1)[:, 0]
