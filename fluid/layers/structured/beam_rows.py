"""One step of a beam search over rows, as programs with blocks write it down, and what all steps found."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fluid import core


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Beams:
    """Which prefixes the rows of a search continue. Each source has as many rows as the beam is wide.

    Attributes:
      parent: int32 `[rows]`: the row of the step before that each row continues.
      alive: bool `[rows]`: which rows there are.
      parents: int32 `[time, rows]`: `parent` after each step.
      lives: bool `[time, rows]`: `alive` after each step.
    """

    parent: jax.Array
    alive: jax.Array
    parents: jax.Array
    lives: jax.Array

    @classmethod
    def start(cls, sources: int, beam: int, steps: int) -> "Beams":
        """Before the first step: one row of each source is there, and continues itself."""
        rows = jnp.arange(sources * beam, dtype=jnp.int32)
        first = rows % beam == 0
        shape = (steps, sources * beam)
        return cls(rows, first, jnp.broadcast_to(rows, shape), jnp.broadcast_to(first, shape))

    def noted(self, step: jax.Array) -> "Beams":
        """The same, with the present rows as those after a step, int32 `[]`."""
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

    A prefix that has ended is its own only candidate. A source all of whose best prefixes had ended before is left out.

    Args:
      last: integers `[rows, 1]`: the last id of each prefix.
      totals: float32 `[rows, 1]`: the score of each prefix.
      ids: integers `[rows, candidates]`.
      scores: float32 `[rows, candidates]`: of the prefixes with these candidates.
      alive: bool `[rows]`: which prefixes there are.
      beam: how many are kept for each source.
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
    # Rows that continue the same prefix stand together, as those of Fluid do.
    order = jnp.argsort(jnp.where(there, parent, rows), axis=1, stable=True)
    sorted_rows = [jnp.take_along_axis(v, order, axis=1).reshape(-1) for v in (chosen, best, parent, there)]
    return Selected(sorted_rows[0][:, None], sorted_rows[1][:, None], sorted_rows[2].astype(jnp.int32), sorted_rows[3])


class _Trace(NamedTuple):
    """What going back over the steps has found; each is `[sources, beam, ...]`.

    Attributes:
      ids: `[..., time]`, the last first.
      scores: `[..., time]`.
      length: how many of these there are.
      row: where each prefix stands in the step that is looked at next.
      found: whether there is such a prefix.
    """

    ids: jax.Array
    scores: jax.Array
    length: jax.Array
    row: jax.Array
    found: jax.Array


def trace(
    ids: jax.Array, scores: jax.Array, steps: jax.Array, beams: Beams, beam: int, end_id: int
) -> tuple[core.NestedSequenceBatch, core.NestedSequenceBatch]:
    """The whole prefixes of a search, the best first.

    Args:
      ids: int32 `[time, rows, 1]`: those that each step kept, after the first ids.
      scores: float32 `[time, rows, 1]`.
      steps: int32 `[]`: how many of the steps were done.
      beams: of the search.
      beam: how many prefixes there are for each source.
      end_id: the id that ends a prefix; it is no part of what has others before it.

    Returns:
      Ids and scores, each `[sources, beam, time]`.
    """
    time, rows = ids.shape[:2]
    shape = (rows // beam, beam)

    def back(turn: jax.Array, held: _Trace) -> _Trace:
        step = time - 1 - turn
        # A source that was left out begins with its last step.
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
