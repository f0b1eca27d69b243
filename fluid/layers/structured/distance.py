"""Edit distance between sequences."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, describe, layer
from fluid.layers.sequence.steps import alike, packed, sequences, step_ids


@layer
def edit_distance(
    input: core.Value,
    label: core.Value,
    normalized: bool = True,
    ignored_tokens: Sequence[int] | None = None,
    input_length: core.Value | None = None,
    label_length: core.Value | None = None,
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
      ArgumentTypeError: the sequences are no integers.
      ShapeError: input, label and lengths do not fit.

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
    """Remove the ignored integers from sequences `[batch, time]`."""
    if not ignored:
        return batch
    return packed(batch, batch.mask & ~jnp.isin(batch.data, jnp.asarray(ignored, batch.dtype)))


def _levenshtein(guess: core.SequenceBatch, truth: core.SequenceBatch) -> jax.Array:
    """Return edit distances, from the table of Wagner and Fischer (1974), which is computed row by row.

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
        # With insertions, a cell is the minimum over all cells to its left, plus 1 for each column between the two.
        best = jax.lax.cummin(from_above - columns, axis=1) + columns
        return jnp.where(real[:, None], best, row), None

    start = jnp.broadcast_to(columns, (guess.shape[0], columns.shape[0]))
    row, _ = jax.lax.scan(step, start, (guess.data.T, guess.mask.T))
    return jnp.take_along_axis(row, truth.lengths[:, None], axis=1)[:, 0]
