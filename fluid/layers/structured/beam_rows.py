"""A beam search over rows, as programs with blocks write it: one step of the search, and the trace of all steps."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fluid import core


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Beams:
    """The prefixes that the rows of a search continue. Each source has `beam` rows.

    Attributes:
      parent: int32 `[rows]`: the row of the previous step that each row continues.
      alive: bool `[rows]`: whether each row has a prefix.
      parents: int32 `[time, rows]`: `parent` after each step.
      lives: bool `[time, rows]`: `alive` after each step.
    """

    parent: jax.Array
    alive: jax.Array
    parents: jax.Array
    lives: jax.Array

    @classmethod
    def start(cls, sources: int, beam: int, steps: int) -> "Beams":
        """Return the state before the first step: one row of each source is alive, and continues itself."""
        rows = jnp.arange(sources * beam, dtype=jnp.int32)
        first = rows % beam == 0
        shape = (steps, sources * beam)
        return cls(rows, first, jnp.broadcast_to(rows, shape), jnp.broadcast_to(first, shape))

    def noted(self, step: jax.Array) -> "Beams":
        """Return a copy in which the present rows are recorded as the rows after a step, int32 `[]`."""
        parents = self.parents.at[step].set(self.parent, mode="drop")
        return Beams(self.parent, self.alive, parents, self.lives.at[step].set(self.alive, mode="drop"))


class Selected(NamedTuple):
    """The rows that a step keeps.

    Attributes:
      ids: int32 `[rows, 1]`.
      scores: float32 `[rows, 1]`: the log-probabilities of whole prefixes.
      parent: int32 `[rows]`, see `Beams`.
      alive: bool `[rows]`.
    """

    ids: jax.Array
    scores: jax.Array
    parent: jax.Array
    alive: jax.Array


def select(
    last: jax.Array, totals: jax.Array, ids: jax.Array, scores: jax.Array, alive: jax.Array, beam: int, end_id: int
) -> Selected:
    """Extend all prefixes by their candidates, and keep the best of each source.

    A finished prefix has itself as its only candidate. A source is dropped if all its best prefixes had finished
    earlier.

    Args:
      last: integers `[rows, 1]`: the last id of each prefix.
      totals: float32 `[rows, 1]`: the score of each prefix.
      ids: integers `[rows, candidates]`.
      scores: float32 `[rows, candidates]`: the scores of the extended prefixes.
      alive: bool `[rows]`: whether each row has a prefix.
      beam: the number of prefixes to keep for each source.
      end_id: the id that ends a prefix.
    """
    rows, candidates = scores.shape
    sources = rows // beam
    over = last.reshape(-1) == end_id
    only_first = jnp.where(jnp.arange(candidates) == 0, totals.reshape(-1, 1), -jnp.inf)
    scores = jnp.where(over[:, None], only_first, scores)
    scores = jnp.where(alive[:, None], scores, -jnp.inf)
    ids = jnp.where(over[:, None], end_id, ids.astype(jnp.int32))
    best, places = jax.lax.top_k(scores.reshape(sources, -1), beam)
    parent = places // candidates + beam * jnp.arange(sources)[:, None]
    chosen = jnp.take_along_axis(ids.reshape(sources, -1), places, axis=1)
    there = best > -jnp.inf
    goes_on = there & ~((chosen == end_id) & over[parent])
    there = there & jnp.any(goes_on, axis=1, keepdims=True)
    # Rows that continue one prefix are neighbours, as in Fluid.
    order = jnp.argsort(jnp.where(there, parent, rows), axis=1, stable=True)
    sorted_rows = [jnp.take_along_axis(v, order, axis=1).reshape(-1) for v in (chosen, best, parent, there)]
    return Selected(sorted_rows[0][:, None], sorted_rows[1][:, None], sorted_rows[2].astype(jnp.int32), sorted_rows[3])


class _Trace(NamedTuple):
    """The carry of the trace, from the last step to the first; each array is `[sources, beam, ...]`.

    Attributes:
      ids: `[..., time]`, the last id first.
      scores: `[..., time]`.
      length: the number of ids.
      row: the row of each prefix in the next step of the trace.
      found: whether the prefix exists.
    """

    ids: jax.Array
    scores: jax.Array
    length: jax.Array
    row: jax.Array
    found: jax.Array


def trace(
    ids: jax.Array, scores: jax.Array, steps: jax.Array, beams: Beams, beam: int, end_id: int
) -> tuple[core.NestedSequenceBatch, core.NestedSequenceBatch]:
    """Return the whole prefixes of a search, the best first.

    Args:
      ids: int32 `[time, rows, 1]`: the ids that each step kept, after the first ids.
      scores: float32 `[time, rows, 1]`.
      steps: int32 `[]`: the number of finished steps.
      beams: of the search.
      beam: the number of prefixes of each source.
      end_id: the id that ends a prefix; it is removed from the end of prefixes with other ids.

    Returns:
      Ids and scores, each `[sources, beam, time]`.
    """
    time, rows = ids.shape[:2]
    shape = (rows // beam, beam)

    def back(turn: jax.Array, held: _Trace) -> _Trace:
        step = time - 1 - turn
        # A source that was dropped begins with its last step.
        begins = ~jnp.any(held.found, axis=1, keepdims=True)
        row = jnp.where(begins, jnp.arange(rows).reshape(shape), held.row)
        there = jnp.where(begins, beams.lives[step].reshape(shape), held.found) & (step < steps)
        word = ids[step].reshape(-1)[row]
        takes = there & ((word != end_id) | (held.length == 0))
        here = (jnp.arange(time) == held.length[..., None]) & takes[..., None]
        return _Trace(
            jnp.where(here, word[..., None], held.ids),
            jnp.where(here, scores[step].reshape(-1)[row][..., None], held.scores),
            held.length + takes,
            jnp.where(there, beams.parents[step][row], row),
            held.found | there,
        )

    nothing = jnp.zeros(shape, jnp.int32)
    start = _Trace(
        jnp.zeros((*shape, time), jnp.int32), jnp.zeros((*shape, time), scores.dtype), nothing, nothing, nothing > 0
    )
    last = jax.lax.fori_loop(0, time, back, start)
    order = jnp.argsort(-jnp.where(last.found, last.scores[..., 0], -jnp.inf), axis=1, stable=True)
    length = jnp.take_along_axis(last.length, order, axis=1)
    places = jnp.clip(length[..., None] - 1 - jnp.arange(time), 0)

    def forward(values: jax.Array) -> core.NestedSequenceBatch:
        best_first = jnp.take_along_axis(values, order[..., None], axis=1)
        data = jnp.take_along_axis(best_first, places, axis=2)
        return core.NestedSequenceBatch(data, jnp.sum(last.found, axis=1, dtype=jnp.int32), length)

    return forward(last.ids), forward(last.scores)
