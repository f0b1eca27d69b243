"""Chunks: named stretches of a sequence, written as a tag for each step."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, dense, describe, layer
from fluid.layers.loss.metrics import share
from fluid.layers.sequence.steps import alike, sequences, shifted, step_ids

# For each scheme its kinds of tags; those that begin a chunk wherever they stand; those behind which one is over.
_SCHEMES = {
    "plain": (1, (), ()),
    "IOB": (2, (0,), ()),
    "IOE": (2, (), (1,)),
    "IOBES": (4, (0, 3), (2, 3)),
}


@layer
def chunk_eval(
    input: Any,
    label: Any,
    chunk_scheme: str,
    num_chunk_types: int,
    excluded_chunk_types: Sequence[int] | None = None,
    seq_length: Any = None,
    name: str | None = None,
) -> tuple[Any, ...]:
    """Precision, recall and F1 of the chunks found in sequences of tags, such as the names in a sentence.

    A tag is `type * kinds + kind`; `num_chunk_types * kinds` is outside of all chunks. The kinds of "IOB" are begin and
    inside, of "IOE" inside and end, of "IOBES" begin, inside, end and single; "plain" has one. A chunk is right when
    its first step, last step and type are.

    Args:
      input: the tags found, of an integer dtype: a SequenceBatch `[batch, time, 1]`, or an array `[batch, time]` with
        `seq_length`.
      label: the right tags, the same.
      chunk_scheme: "IOB", "IOE", "IOBES" or "plain".
      num_chunk_types: how many types of chunks there are.
      excluded_chunk_types: types that are not counted.
      seq_length: integers `[batch]` or `[batch, 1]`, when input and label are arrays.
      name: instead of `chunk_eval_N`.

    Returns:
      `(precision, recall, f1, found, labelled, right)`: three float32 scalars, 0 where there is nothing to share, and
      three counts of chunks, int32 scalars. `trainer.test` weighs the shares so that they are exact over batches.

    Raises:
      ArgumentError: there is no such scheme or type.
      ArgumentTypeError: tags are no integers.
      ShapeError: input, label and lengths do not fit.

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
    kinds = _check(this, chunk_scheme, num_chunk_types, excluded_chunk_types)
    alike(this, input, label)
    found = sequences(this, input, seq_length, "seq_length")
    if dense(label).shape not in (found.mask.shape, (*found.mask.shape, 1)):
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} do not fit; expected one tag for each "
            f'step of both, as from layers.data("label", shape=[1], dtype="int64", lod_level=1)'
        )
    for value in (input, label):
        core.limit_feed(value, 0, num_chunk_types * kinds + 1)
    first, second = (
        _chunks(step_ids(this, batch, names), batch.mask, chunk_scheme, num_chunk_types, excluded_chunk_types)
        for batch, names in ((found, "input"), (found.with_data(dense(label)), "label"))
    )
    same = first[0] & second[0] & (first[1] == second[1]) & (first[2] == second[2])
    inferred, labelled, correct = (jnp.sum(v, dtype=jnp.int32) for v in (first[0], second[0], same))
    # F1 is the share of the right among the mean of the found and the labelled.
    shares = [(correct, inferred), (correct, labelled), (2 * correct, inferred + labelled)]
    results = [share(this, hits, count) for hits, count in shares]
    return *results, *(this.output(count) for count in (inferred, labelled, correct))


def _check(this: Layer, scheme: str, types: int, excluded: Sequence[int] | None) -> int:
    if scheme not in _SCHEMES:
        raise errors.ArgumentError(
            f"{this.name}: chunk_scheme={scheme!r}; expected {', '.join(map(repr, sorted(_SCHEMES)))}"
        )
    if not isinstance(types, int) or types < 1:
        raise errors.ArgumentError(f"{this.name}: num_chunk_types={types!r}; expected one or more")
    if any(not 0 <= kind < types for kind in excluded or ()):
        raise errors.ArgumentError(
            f"{this.name}: excluded_chunk_types={excluded!r}; expected a list of types from 0 to {types - 1}"
        )
    return _SCHEMES[scheme][0]


def _chunks(ids: Any, mask: Any, scheme: str, types: int, excluded: Sequence[int] | None) -> tuple[Any, Any, Any]:
    """At each step `[batch, time]`: whether a counted chunk begins, of which type, and where the chunk there ends."""
    kinds, begin, end = _SCHEMES[scheme]
    outside = (ids < 0) | (ids >= types * kinds) | ~mask
    kind, type_ = ids % kinds, jnp.where(outside, types, ids // kinds)
    fresh = (type_ != shifted(type_, -1, types)) | _among(kind, begin) | shifted(_among(kind, end), -1)
    # A chunk ends where the next step is outside, of another type, or the first of another chunk.
    last = shifted(fresh, 1, True)
    steps = jnp.arange(ids.shape[1])
    ends = jax.lax.cummin(jnp.where(last, steps, ids.shape[1]), axis=1, reverse=True)
    counted = ~outside & ~_among(type_, tuple(excluded or ()))
    return fresh & counted, type_, ends


def _among(values: Any, some: tuple[int, ...]) -> Any:
    return jnp.isin(values, jnp.asarray(some, values.dtype))
