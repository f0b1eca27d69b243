"""Beam search: the layer `beam_search`, single search steps for loops of the user, and `gather_tree`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.core.rows import harmless
from fluid.layers.base import Layer, array_of, describe, layer
from fluid.layers.checks import check_ids


@layer
def gather_tree(ids: Value, parents: Value, name: str | None = None) -> jax.Array:
    """Return the sequences of a beam search, from the ids of each step and the indices of the extended hypotheses.

    Args:
      ids: integers `[time, batch, beam]`: the id that each step appends to each hypothesis.
      parents: integers `[time, batch, beam]`: the index, in the beam of the previous step, of the extended hypothesis.
        The indices of the first step are not used.
      name: name of the layer; by default `gather_tree_N`.

    Returns:
      `[time, batch, beam]`: for each hypothesis of the last step, its full sequence of ids along the first dimension.

    Raises:
      ShapeError: an array does not have three dimensions, or the shapes differ.
      ArgumentTypeError: an array does not hold integers.

    Example:
      >>> import fluid
      >>> def program():
      ...     ids = fluid.layers.assign([[[2, 3]], [[4, 5]]])
      ...     parents = fluid.layers.assign([[[0, 0]], [[1, 0]]])
      ...     return fluid.layers.gather_tree(ids, parents)
      >>> fluid.Session(program).run(program)[0].tolist()
      [[[3, 2]], [[4, 5]]]
    """
    this = Layer("gather_tree", name)
    tokens = check_ids(this.name, array_of(this, ids))
    places = check_ids(this.name, array_of(this, parents), "parents")
    if tokens.ndim != 3 or tokens.shape != places.shape:
        raise errors.ShapeError(
            f"{this.name}: ids {describe(ids)} and parents {describe(parents)}; expected both [time, batch, beam], as "
            f"from layers.stack(steps)"
        )
    return this.output(trace_back(tokens, places))


class Extensions(NamedTuple):
    """The best extensions of the hypotheses of a beam by one id, the best extension first.

    Attributes:
      totals: float32 `[batch, beam]`: the log-probabilities of the extended hypotheses.
      parents: int32 `[batch, beam]`: the index, in the beam before the step, of the hypothesis that was extended.
      tokens: int32 `[batch, beam]`: the appended ids.
    """

    totals: jax.Array
    parents: jax.Array
    tokens: jax.Array


def best_extensions(totals: jax.Array) -> Extensions:
    """Find the best extensions of hypotheses in a beam search: the `beam` most probable ones for each row of the batch.

    An extension is a hypothesis with one more id.

    Args:
      totals: `[batch, beam, ids]`: log-probabilities of each hypothesis extended by each id.
    """
    batch, beam, ids = totals.shape
    best, places = jax.lax.top_k(totals.reshape(batch, -1), beam)
    return Extensions(best, places // ids, places % ids)


def of_parents(values: jax.Array, parents: jax.Array) -> jax.Array:
    """Select for each new hypothesis of a beam search the value of its parent, the old hypothesis that it extends.

    Args:
      values: the values of the old hypotheses, `[batch, n, ...]`.
      parents: the index of each parent along axis 1 of `values`, `[batch, beam]`.

    Returns:
      `[batch, beam, ...]`.
    """
    return jnp.take_along_axis(values, parents.reshape(*parents.shape, *[1] * (values.ndim - 2)), axis=1)


def trace_back(tokens: jax.Array, parents: jax.Array) -> jax.Array:
    """Return for each hypothesis of the last step its sequence of ids, `[time, batch, beam]`.

    `parents` contains, for each step, the index of the extended hypothesis in the beam of the previous step.
    """

    def step(places: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        tokens, parents = now
        return of_parents(parents, places), of_parents(tokens, places)

    last = jnp.broadcast_to(jnp.arange(tokens.shape[2], dtype=parents.dtype), tokens.shape[1:])
    return jax.lax.scan(step, last, (tokens, parents), reverse=True)[1]


class BeamSearch(NamedTuple):
    """The hypotheses that `beam_search` found, best first.

    Attributes:
      ids: int32 `[batch, beam, max_length]`, without the start id; all ids after the end of a hypothesis are `end_id`.
      scores: float32 `[batch, beam]`: log-probabilities with the length penalty; minus infinity if there is no
        hypothesis.
      lengths: int32 `[batch, beam]`: the number of ids of each hypothesis, including `end_id`; 0 if there is no
        hypothesis.
    """

    ids: jax.Array
    scores: jax.Array
    lengths: jax.Array


@layer
def beam_search(
    step: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    start_id: Value | int,
    end_id: int,
    beam_size: int,
    max_length: int,
    length_penalty: float = 0.0,
    name: str | None = None,
) -> BeamSearch:
    """Search for the most probable sequences, and keep the best hypotheses at each step.

    A hypothesis ends with `end_id`, or at `max_length`. Its score is the sum of the log-probabilities of its ids,
    divided by `((5 + length) / 6) ** length_penalty` (Wu et al., 2016). The search ends when no unfinished hypothesis
    can become better than the finished hypotheses. A beam of 1 takes the best id at each step.

    Args:
      step: called with the last ids `[batch * beam]` and the state; returns log-probabilities of the next id
        `[batch * beam, ids]`, as from `layers.log_softmax`, and the new state. Log-probabilities are at most 0, and
        minus infinity excludes an id. The result of `fc(act="softmax")` is converted to log-probabilities. `step` may
        call layers.
      state: a pytree of arrays and SequenceBatches `[batch, ...]`. `step` is called with `[batch * beam, ...]`: each
        hypothesis has its own row. All hypotheses share scalars.
      start_id: the id before the first id: an integer, or integers `[batch]` or `[batch, 1]`.
      end_id: the id that ends a hypothesis.
      beam_size: the number of hypotheses to keep and return, for each row.
      max_length: length of the longest hypothesis.
      length_penalty: 0 for none; a larger number prefers longer hypotheses.
      name: name of the layer; by default `beam_search_N`.

    Returns:
      `BeamSearch(ids, scores, lengths)`: int32 `[batch, beam, max_length]`, float32 `[batch, beam]`, int32
      `[batch, beam]`. The hypotheses of each row are sorted, the best first. The results carry no gradient.

    Raises:
      ArgumentError: `beam_size` or `max_length` is no positive integer, `end_id` is negative, or neither `state` nor
        `start_id` has rows.
      ArgumentTypeError: `start_id` is no integer, or `step` does not return a pair.
      ShapeError: the numbers of rows of the arrays differ, `step` returns scores or a state of another shape, or
        `step` returns no score for `end_id`.

    Example:
      >>> import fluid
      >>> def program():
      ...     state = fluid.layers.fc(fluid.layers.data("x", shape=[8]), size=16)
      ...     def step(ids, state):
      ...         word = fluid.layers.embedding(ids[:, None], size=[100, 16])
      ...         state = fluid.layers.fc([word, state], size=16, act="tanh")
      ...         return fluid.layers.log_softmax(fluid.layers.fc(state, size=100)), state
      ...     return fluid.layers.beam_search(step, state, start_id=0, end_id=1, beam_size=4, max_length=20)
      >>> print(*fluid.Program(program).outputs)
      int32[batch, 4, 20] float32[batch, 4] int32[batch, 4]
    """
    this = Layer("beam_search", name)
    beam = core.whole_number(this.name, "beam_size", beam_size)
    longest = core.whole_number(this.name, "max_length", max_length)
    end = core.whole_number(this.name, "end_id", end_id, least=0)
    state = jax.lax.stop_gradient(jax.tree.map(jnp.asarray, state))
    first_ids = _first_ids(this, state, start_id)
    batch = first_ids.shape[0]
    first_ids = jnp.repeat(first_ids, beam)
    state = jax.tree.map(lambda leaf: jnp.repeat(leaf, beam, axis=0) if leaf.ndim else leaf, state)
    body = core.Body(_CheckedStep(this, step, end), [first_ids, state], "layers.beam_search")
    search = _Search(body, batch, beam, longest, end, float(length_penalty))
    found = search.run(first_ids, state)
    return BeamSearch(*(this.output(value) for value in found))


def _first_ids(this: Layer, state: Any, start_id: Any) -> Any:
    """In a beam search, convert `start_id`, the id before the first step, to one id for each row, int32 `[batch]`."""
    start = array_of(this, start_id)
    if not jnp.issubdtype(start.dtype, jnp.integer):
        raise errors.ArgumentTypeError(f"{this.name}: start_id is an integer, or one for each row, found {start_id!r}")
    rows = [leaf for leaf in jax.tree.leaves((state, start.reshape(-1) if start.ndim else ())) if leaf.ndim]
    if not rows:
        raise errors.ArgumentError(
            f"{this.name}: neither state nor start_id says how many rows there are; give one start for each row, as in "
            f'start_id=layers.fill_constant_batch_size_like(x, shape=[-1], dtype="int64", value=0)'
        )
    if len({leaf.shape[0] for leaf in rows}) > 1:
        raise errors.ShapeError(
            f"{this.name}: state and start_id differ in their first dimension, the batch: "
            f"{', '.join(describe(leaf) for leaf in rows)}"
        )
    return jnp.broadcast_to(start.reshape(-1), rows[0].shape[:1]).astype(jnp.int32)


@dataclass(frozen=True, eq=False)
class _CheckedStep:
    """The user's step function for `beam_search`, wrapped in checks of its results.

    Attributes:
      this: the layer, for its name in error messages.
      step: the user's function.
      end: the id that ends a hypothesis.
    """

    this: Layer
    step: Callable[[Any, Any], Any]
    end: int

    def __call__(self, ids: Any, state: Any) -> tuple[Any, Any, Any]:
        """Run the user's step function of a beam search, and check its results.

        Args:
          ids: the last ids of the hypotheses (begun sequences), `[batch * beam]`.
          state: a pytree of `[batch * beam, ...]`.

        Returns:
          Log-probabilities, float32 `[batch * beam, ids]`; the new state, in the dtypes of the old state; and one bool
          for each array of the state: true if the step returned the array unchanged.
        """
        result = self.step(ids, state)
        if not isinstance(result, tuple) or len(result) != 2:
            raise errors.ArgumentTypeError(
                f"{self.this.name}: step(ids, state) returned {type(result).__name__}; expected a pair: "
                f"return log_probabilities, state"
            )
        frame = core.current_frame("layers.beam_search")
        if frame.fact(result[0], "made") == "product":
            core.doubt(
                f"{self.this.name}: step(ids, state) returns the result of a matrix product, which may be any numbers; "
                f"expected log-probabilities: layers.log_softmax(layers.fc(state, size=ids))"
            )
        logits = frame.fact(result[0], "logits")
        scores = array_of(self.this, result[0]) if logits is None else jax.nn.log_softmax(logits)
        if scores.ndim != 2 or scores.shape[0] != ids.shape[0] or self.end >= scores.shape[1]:
            raise errors.ShapeError(
                f"{self.this.name}: step(ids, state) returned scores {describe(scores)} for {ids.shape[0]} hypotheses "
                f"(batch * beam_size) and end_id={self.end}; expected [batch * beam, ids], with end_id among the ids"
            )
        new = self._checked_state(state, result[1])
        unchanged = jax.tree.map(lambda a, b: a is b, state, result[1])
        return *jax.lax.stop_gradient((scores.astype(jnp.float32), new)), unchanged

    def _checked_state(self, old: Any, new: Any) -> Any:
        """Check that the new state has the structure and shapes of the old state; convert it to the old dtypes."""
        leaves = [jax.tree.leaves(state) for state in (old, new)]
        kinds = [[(jnp.shape(v), jnp.result_type(v).kind) for v in each] for each in leaves]
        trees: list[Any] = [jax.tree.structure(state) for state in (old, new)]
        if trees[0] != trees[1] or kinds[0] != kinds[1]:
            given, returned = (", ".join(map(describe, each)) for each in leaves)
            raise errors.ShapeError(
                f"{self.this.name}: step(ids, state) was given a state of [{given}] and returned [{returned}]; "
                f"expected the same structure and shapes"
            )
        return jax.tree.map(lambda a, b: jnp.asarray(b, a.dtype), old, new)


class _Carry(NamedTuple):
    """The carry of the loop of a beam search: the values that each step gives to the next step.

    Attributes:
      time: int32 `[]`: the number of finished steps.
      last_ids: int32 `[batch * beam]`: the last id of each unfinished hypothesis.
      ids: int32 `[batch, beam, max_length]`: all ids of the unfinished hypotheses.
      totals: float32 `[batch, beam]`: the log-probabilities of the unfinished hypotheses; minus infinity for none.
      finished: the best finished hypotheses.
      state: the state that the user's step function has returned, a pytree of `[batch * beam, ...]`.
      program_states: the states of the program that the user's step changes, by name.
    """

    time: jax.Array
    last_ids: jax.Array
    ids: jax.Array
    totals: jax.Array
    finished: BeamSearch
    state: Any
    program_states: dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Search:
    """The constants and the loop of one beam search.

    Attributes:
      body: the traced `_CheckedStep`.
      batch: the number of rows of the batch.
      beam: the number of hypotheses to keep for each row.
      longest: length of the longest hypothesis.
      end: the id that ends a hypothesis.
      penalty: exponent of the length penalty.
    """

    body: core.Body
    batch: int
    beam: int
    longest: int
    end: int
    penalty: float

    def run(self, first_ids: Any, state: Any) -> BeamSearch:
        """Run a beam search from the ids `[batch * beam]` and the initial state; return the best hypotheses."""
        carry = jax.lax.while_loop(self._undecided, self._extend, self._start(first_ids, state))
        self.body.keep(carry.program_states)
        at_limit = carry.time == self.longest
        cut_off = jnp.where(at_limit, carry.totals / self._length_penalty(self.longest), -jnp.inf)
        found = self._best(carry.finished, BeamSearch(carry.ids, cut_off, self._lengths(self.longest)))
        lengths = jnp.where(found.scores > -jnp.inf, found.lengths, 0)
        ids = jnp.where(jnp.arange(self.longest) < lengths[..., None], found.ids, self.end)
        return BeamSearch(ids, found.scores, lengths)

    def _start(self, first_ids: Any, state: Any) -> _Carry:
        """Return the loop carry (values passed from step to step) of a beam search before the first step.

        All hypotheses are without ids, and no hypothesis is finished.
        """
        # Before the first step, all hypotheses of a row are equal. So only the first one gets a finite log-probability;
        # the others get -inf.
        only_first = jnp.where(jnp.arange(self.beam) == 0, 0.0, -jnp.inf).astype(jnp.float32)
        no_scores = jnp.full([self.batch, self.beam], -jnp.inf, jnp.float32)
        ids = jnp.full([self.batch, self.beam, self.longest], self.end, jnp.int32)
        return _Carry(
            time=jnp.int32(0),
            last_ids=first_ids,
            ids=ids,
            totals=jnp.broadcast_to(only_first, no_scores.shape),
            finished=BeamSearch(ids, no_scores, self._lengths(0)),
            state=state,
            program_states=self.body.states(),
        )

    def _undecided(self, carry: _Carry) -> jax.Array:
        # The score that an unfinished hypothesis can still reach has an upper bound: its log-probability never
        # increases in later steps, and the length penalty is largest at the shortest or the longest possible length.
        penalty = jnp.maximum(self._length_penalty(carry.time + 1), self._length_penalty(self.longest))
        decided = jnp.min(carry.finished.scores, axis=1) >= jnp.max(carry.totals, axis=1) / penalty
        return (carry.time < self.longest) & ~harmless(jnp.all(decided))

    def _extend(self, carry: _Carry) -> _Carry:
        """Run one step of a beam search: extend each unfinished sequence by every id, and keep the best extensions.

        For each row of the batch, `beam` extensions are kept.
        """
        result, program_states = self.body(carry.program_states, carry.time, carry.last_ids, carry.state)
        scores, state, unchanged = result
        totals = carry.totals[:, :, None] + scores.reshape(self.batch, self.beam, -1)
        best, parents, tokens = best_extensions(totals)
        ids = of_parents(carry.ids, parents).at[:, :, carry.time].set(tokens)
        ended = tokens == self.end
        penalised = best / self._length_penalty(carry.time + 1)
        new = BeamSearch(ids, jnp.where(ended, penalised, -jnp.inf), self._lengths(carry.time + 1))
        # State arrays that the step returns unchanged are equal for all hypotheses of a row, so they need no
        # reordering.
        state = jax.tree.map(
            lambda leaf, same: leaf if same or not leaf.ndim else self._reordered(leaf, parents), state, unchanged
        )
        return _Carry(
            time=carry.time + 1,
            last_ids=tokens.reshape(-1),
            ids=ids,
            totals=jnp.where(ended, -jnp.inf, best),
            finished=self._best(carry.finished, new),
            state=state,
            program_states=program_states,
        )

    def _reordered(self, leaf: jax.Array, parents: jax.Array) -> jax.Array:
        """Return a state array `[batch * beam, ...]` in which each hypothesis has the state of its parent."""
        return of_parents(leaf.reshape(self.batch, self.beam, *leaf.shape[1:]), parents).reshape(leaf.shape)

    def _best(self, first: BeamSearch, second: BeamSearch) -> BeamSearch:
        """In a beam search, return the `beam` best hypotheses of `first` and `second` for each row.

        If two scores are equal, the hypothesis of `first` is preferred.
        """
        ids, scores, lengths = (jnp.concatenate(pair, axis=1) for pair in zip(first, second, strict=True))
        best, places = jax.lax.top_k(scores, self.beam)
        return BeamSearch(of_parents(ids, places), best, of_parents(lengths, places))

    def _length_penalty(self, length: jax.Array | int) -> jax.Array:
        return ((5 + jnp.asarray(length, jnp.float32)) / 6) ** self.penalty

    def _lengths(self, length: jax.Array | int) -> jax.Array:
        """Return an int32 array `[batch, beam]` filled with `length`."""
        return jnp.full([self.batch, self.beam], length, jnp.int32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Beams:
    """The history of a beam search in the user's loop: for each prefix (begun sequence), the prefix that it continues.

    A source is one item of the batch, such as a sentence to translate. Each source has `beam` rows, with at most one
    prefix each.

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
    def start(cls, sources: int, beam: int, steps: int) -> Beams:
        """Return the history of a beam search before step 0.

        Only the first row of each source has a prefix (a begun sequence). Each row counts as its own continuation.
        """
        rows = jnp.arange(sources * beam, dtype=jnp.int32)
        first = rows % beam == 0
        shape = (steps, sources * beam)
        return cls(rows, first, jnp.broadcast_to(rows, shape), jnp.broadcast_to(first, shape))

    def noted(self, step: jax.Array) -> Beams:
        """Return a copy in which the current step of the beam search is stored in the history.

        `parent` and `alive` describe the current step. The history is stored in `parents` and `lives`, and its
        index is `step`.
        """
        parents = self.parents.at[step].set(self.parent, mode="drop")
        return Beams(self.parent, self.alive, parents, self.lives.at[step].set(self.alive, mode="drop"))


class Selected(NamedTuple):
    """The prefixes (begun sequences) that one step of a beam search selects.

    Each source (item of the batch, such as a sentence to translate) has `beam` of the `rows`.

    Attributes:
      ids: int32 `[rows, 1]`: the last id of each prefix.
      scores: float32 `[rows, 1]`: the log-probabilities of the complete prefixes.
      parent: int32 `[rows]`: the row of the previous step that each row continues.
      alive: bool `[rows]`: whether each row has a prefix.
    """

    ids: jax.Array
    scores: jax.Array
    parent: jax.Array
    alive: jax.Array


def select(
    last: jax.Array, totals: jax.Array, ids: jax.Array, scores: jax.Array, alive: jax.Array, beam: int, end_id: int
) -> Selected:
    """Extend all prefixes (begun sequences) by one id, and keep the `beam` best of each source (item of the batch).

    The only candidate of a finished prefix is `end_id`, with an unchanged score. If all selected prefixes of a source
    had finished before this step, the source has no prefixes afterwards.

    Args:
      last: integers `[rows, 1]`: the last id of each prefix.
      totals: float32 `[rows, 1]`: the score of each prefix.
      ids: integers `[rows, candidates]`: the ids that may extend each prefix.
      scores: float32 `[rows, candidates]`: the scores of the extended prefixes.
      alive: bool `[rows]`: whether each row has a prefix.
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
    # In the beam search, sort the selected prefixes (begun sequences) by the parent, the prefix that each one
    # continues. Prefixes with the same parent are then adjacent, as in Fluid.
    order = jnp.argsort(jnp.where(there, parent, rows), axis=1, stable=True)
    sorted_rows = [jnp.take_along_axis(v, order, axis=1).reshape(-1) for v in (chosen, best, parent, there)]
    return Selected(sorted_rows[0][:, None], sorted_rows[1][:, None], sorted_rows[2].astype(jnp.int32), sorted_rows[3])


class _Trace(NamedTuple):
    """The carry of a loop that collects the sequences of a finished beam search, from the last step to the first.

    Attributes:
      ids: int32 `[sources, beam, time]`: the ids collected so far, the last id of each sequence first.
      scores: `[sources, beam, time]`: for each of these ids, the score of the sequence up to this id.
      length: int32 `[sources, beam]`: the number of ids collected so far.
      row: int32 `[sources, beam]`: the row of each sequence in the step that the next iteration reads.
      found: bool `[sources, beam]`: whether the loop has already reached a step in which the sequence exists.
    """

    ids: jax.Array
    scores: jax.Array
    length: jax.Array
    row: jax.Array
    found: jax.Array


def trace(
    ids: jax.Array, scores: jax.Array, steps: jax.Array, beams: Beams, beam: int, end_id: int
) -> tuple[core.NestedSequenceBatch, core.NestedSequenceBatch]:
    """Return the complete sequences that a beam search found for each source (item of the batch), the best first.

    Args:
      ids: int32 `[time, rows, 1]`: the ids that each step selected, after the start ids.
      scores: float32 `[time, rows, 1]`: the scores of the prefixes (begun sequences) after each step.
      steps: int32 `[]`: the number of finished steps.

    Returns:
      Ids and scores, each `[sources, beam, time]`.
    """
    time, rows = ids.shape[:2]
    shape = (rows // beam, beam)

    def back(turn: jax.Array, held: _Trace) -> _Trace:
        step = time - 1 - turn
        # The loop runs from the last step to the first. In a source (an item of the batch), all prefixes (begun
        # sequences) may have finished early. Then start at the last step in which the source had prefixes.
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


class SameLayers:
    """A wrapper of a function that calls layers, so that the function can run both before a loop and inside the loop.

    The layers have equal names in both calls, so that both calls share their parameters. For example, a decoder looks
    up its first id and all later ids in one embedding table.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._counters: dict[str, int] | None = None

    def __call__(self, *args: Any) -> Any:
        """Call the wrapped function; a call in the decoding loop reuses the layer names of the call before the loop."""
        frame = core.current_frame("layers.dynamic_decode")
        if self._counters is None or not frame.inside_loop:
            self._counters = dict(frame.naming.counters)
            return self._function(*args)
        # A frame (the state of one trace) accepts each layer name only once. The call before the loop has already used
        # the layer names in the current frame. So run the function in a new frame.
        child = core.inner_frame(frame)
        child.naming.counters = dict(self._counters)
        with core.running(child):
            result = self._function(*args)
        core.leave(frame, child, "layers.dynamic_decode")
        frame.made.states.update(child.made.states)
        return result
