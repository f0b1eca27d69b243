"""Beam search: the most probable sequences under a function that returns the log-probabilities of the next id."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, layer
from fluid.layers.structured.hypotheses import best_extensions, of_parents


class BeamSearch(NamedTuple):
    """The hypotheses that `beam_search` found, best first.

    Attributes:
      ids: int32 `[batch, beam, max_length]`, without the start id; all ids after the end of a hypothesis are `end_id`.
      scores: float32 `[batch, beam]`: log-probabilities with the length penalty; minus infinity if there is no
        hypothesis.
      lengths: int32 `[batch, beam]`, including `end_id`; 0 if there is no hypothesis.
    """

    ids: jax.Array
    scores: jax.Array
    lengths: jax.Array


@layer
def beam_search(
    step: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    start_id: core.Value | int,
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
    """Return the ids before the first step, int32 `[batch]`."""
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
    """The user's step function, with checks of its results.

    Attributes:
      this: the layer, for messages.
      step: the user's function.
      end: the id that ends a hypothesis.
    """

    this: Layer
    step: Callable[[Any, Any], Any]
    end: int

    def __call__(self, ids: Any, state: Any) -> tuple[Any, Any, Any]:
        """Run the step.

        Args:
          ids: `[batch * beam]`.
          state: a pytree of `[batch * beam, ...]`.

        Returns:
          Log-probabilities, float32 `[batch * beam, ids]`; the new state, in the dtypes of the old state; and for each
          array of the state whether the step returned the array unchanged.
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
        """Check that the new state has the structure and the shapes of the old one; return it in the old dtypes."""
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
    """The carry of the search loop.

    Attributes:
      time: int32 `[]`: the number of finished steps.
      last_ids: int32 `[batch * beam]`: the last id of each unfinished hypothesis.
      ids: int32 `[batch, beam, max_length]`: all ids of the unfinished hypotheses.
      totals: float32 `[batch, beam]`: the log-probabilities of these hypotheses; minus infinity if there is none.
      finished: the best finished hypotheses.
      state: the state from the user's step, a pytree of `[batch * beam, ...]`.
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
    """The constants of one search, and the search loop.

    Attributes:
      body: a `_CheckedStep`.
      batch: number of rows.
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
        """Search from the first ids `[batch * beam]` and the initial state."""
        carry = jax.lax.while_loop(self._undecided, self._extend, self._start(first_ids, state))
        self.body.keep(carry.program_states)
        at_limit = carry.time == self.longest
        cut_off = jnp.where(at_limit, carry.totals / self._length_penalty(self.longest), -jnp.inf)
        found = self._best(carry.finished, BeamSearch(carry.ids, cut_off, self._lengths(self.longest)))
        lengths = jnp.where(found.scores > -jnp.inf, found.lengths, 0)
        ids = jnp.where(jnp.arange(self.longest) < lengths[..., None], found.ids, self.end)
        return BeamSearch(ids, found.scores, lengths)

    def _start(self, first_ids: Any, state: Any) -> _Carry:
        """Return the carry before the first step: hypotheses without ids, and no finished hypothesis."""
        # All hypotheses of a row are equal at first, so only one of them counts.
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
        """Return whether an unfinished hypothesis of any row can still become one of the best."""
        # Log-probabilities only fall, and the penalty is largest at the shortest or the longest length.
        penalty = jnp.maximum(self._length_penalty(carry.time + 1), self._length_penalty(self.longest))
        decided = jnp.min(carry.finished.scores, axis=1) >= jnp.max(carry.totals, axis=1) / penalty
        return (carry.time < self.longest) & ~jnp.all(decided)

    def _extend(self, carry: _Carry) -> _Carry:
        """Extend each unfinished hypothesis by all ids, and keep the best extensions."""
        result, program_states = self.body(carry.program_states, carry.time, carry.last_ids, carry.state)
        scores, state, unchanged = result
        totals = carry.totals[:, :, None] + scores.reshape(self.batch, self.beam, -1)
        best, parents, tokens = best_extensions(totals)
        ids = of_parents(carry.ids, parents).at[:, :, carry.time].set(tokens)
        ended = tokens == self.end
        penalised = best / self._length_penalty(carry.time + 1)
        new = BeamSearch(ids, jnp.where(ended, penalised, -jnp.inf), self._lengths(carry.time + 1))
        rows = (parents + self.beam * jnp.arange(self.batch)[:, None]).reshape(-1)
        # Unchanged arrays are equal for all hypotheses of a row, and need not be reordered.
        state = jax.tree.map(lambda leaf, same: leaf if same or not leaf.ndim else leaf[rows], state, unchanged)
        return _Carry(
            time=carry.time + 1,
            last_ids=tokens.reshape(-1),
            ids=ids,
            totals=jnp.where(ended, -jnp.inf, best),
            finished=self._best(carry.finished, new),
            state=state,
            program_states=program_states,
        )

    def _best(self, first: BeamSearch, second: BeamSearch) -> BeamSearch:
        """Return the best hypotheses of both; hypotheses of `first` come first if scores are equal."""
        ids, scores, lengths = (jnp.concatenate(pair, axis=1) for pair in zip(first, second, strict=True))
        best, places = jax.lax.top_k(scores, self.beam)
        return BeamSearch(of_parents(ids, places), best, of_parents(lengths, places))

    def _length_penalty(self, length: jax.Array | int) -> jax.Array:
        """Return the divisor of a log-probability for a length (Wu et al., 2016)."""
        return ((5 + jnp.asarray(length, jnp.float32)) / 6) ** self.penalty

    def _lengths(self, length: jax.Array | int) -> jax.Array:
        """Return one length for all hypotheses, `[batch, beam]`."""
        return jnp.full([self.batch, self.beam], length, jnp.int32)
