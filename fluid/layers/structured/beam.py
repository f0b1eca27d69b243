"""Beam search: the most probable sequences that a step function can say."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, layer


class BeamSearch(NamedTuple):
    """The hypotheses that `beam_search` found, best first.

    Attributes:
      ids: int32 `[batch, beam, max_length]`, without the start, `end_id` included and behind it.
      scores: float32 `[batch, beam]`: log-probabilities, penalised for length; minus infinity where there is none.
      lengths: int32 `[batch, beam]`, `end_id` included; 0 where there is none.
    """

    ids: Any
    scores: Any
    lengths: Any


@layer
def beam_search(
    step: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    start_id: Any,
    end_id: int,
    beam_size: int,
    max_length: int,
    length_penalty: float = 0.0,
    name: str | None = None,
) -> BeamSearch:
    """Search for the most probable sequences, keeping the best few at each step.

    A hypothesis ends with `end_id`, or at `max_length`. Its score is the sum of what `step` gives its ids, divided by
    `((5 + length) / 6) ** length_penalty` (Wu et al., 2016). The search ends as soon as nothing that goes on can come
    among the best. A beam of 1 takes the best id at each step.

    Args:
      step: called with the last ids `[batch * beam]` and the state; returns log-probabilities of the next id
        `[batch * beam, ids]`, as from `layers.log_softmax`, and the new state. They are at most 0; minus infinity rules
        an id out. What `fc(act="softmax")` gives is taken for the probabilities that it is. `step` may call layers.
      state: a pytree of arrays and SequenceBatches `[batch, ...]`, which `step` meets as `[batch * beam, ...]`, each
        row beside its own hypothesis. Scalars are for all alike.
      start_id: what comes before the first id: an integer, or integers `[batch]` or `[batch, 1]`.
      end_id: the id that ends a hypothesis.
      beam_size: how many hypotheses are kept, and returned.
      max_length: of the longest hypothesis.
      length_penalty: 0 for none; the larger, the longer the hypotheses that are preferred.
      name: instead of `beam_search_N`.

    Returns:
      `BeamSearch(ids, scores, lengths)`: int32 `[batch, beam, max_length]`, float32 `[batch, beam]`, int32
      `[batch, beam]`, the best hypothesis of each row first. They carry no gradient.

    Raises:
      ArgumentError: a number is not positive, or the batch size cannot be known.
      ArgumentTypeError: ids are no integers, or `step` does not return a pair.
      ShapeError: arrays do not fit.

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
    for argument, value in (("beam_size", beam_size), ("max_length", max_length)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise errors.ArgumentError(f"{this.name}: {argument}={value!r}; expected an integer of 1 or more")
    state = jax.lax.stop_gradient(jax.tree.map(jnp.asarray, state))
    first = _first(this, state, start_id)
    first, state = jax.tree.map(lambda leaf: _spread(leaf, beam_size), (first, state))
    search = _Search(this, step, first, state, int(end_id), int(beam_size), int(max_length), float(length_penalty))
    return BeamSearch(*(this.output(value) for value in search.run()))


def _first(this: Layer, state: Any, start_id: Any) -> Any:
    """The ids before the first step, `[batch]`."""
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


def _spread(leaf: Any, beam: int) -> Any:
    return jnp.repeat(leaf, beam, axis=0) if leaf.ndim else leaf


class _Carry(NamedTuple):
    """What goes from step to step: hypotheses that go on and those that have ended, each `[batch, beam]` of them."""

    time: Any
    last: Any
    ids: Any
    totals: Any
    ended: BeamSearch
    state: Any
    states: Any


class _Search:
    """One search: what stays the same while it runs."""

    def __init__(
        self, this: Layer, step: Any, first: Any, state: Any, end: int, beam: int, longest: int, penalty: float
    ):
        self.this, self.step, self.end, self.beam, self.longest, self.penalty = this, step, end, beam, longest, penalty
        self.first, self.state, self.batch = first, state, first.shape[0] // beam
        self.body = core.Body(self._scored, [first, state], "layers.beam_search")

    def run(self) -> BeamSearch:
        """Search, and lay out what was found."""
        carry = jax.lax.while_loop(self._goes_on, self._turn, self._start())
        self.body.keep(carry.states)
        cut_off = jnp.where(carry.time == self.longest, carry.totals / self._worth(self.longest), -jnp.inf)
        found = self._best(carry.ended, BeamSearch(carry.ids, cut_off, self._all(self.longest)))
        lengths = jnp.where(found.scores > -jnp.inf, found.lengths, 0)
        ids = jnp.where(jnp.arange(self.longest) < lengths[..., None], found.ids, self.end)
        return BeamSearch(ids, found.scores, lengths)

    def _start(self) -> _Carry:
        # All hypotheses are the same at first, so that only one of each row counts.
        one = jnp.where(jnp.arange(self.beam) == 0, 0.0, -jnp.inf).astype(jnp.float32)
        nothing = jnp.full([self.batch, self.beam], -jnp.inf, jnp.float32)
        ids = jnp.full([self.batch, self.beam, self.longest], self.end, jnp.int32)
        return _Carry(
            jnp.int32(0), self.first, ids, jnp.broadcast_to(one, nothing.shape),
            BeamSearch(ids, nothing, self._all(0)), self.state, self.body.states(),
        )  # fmt: skip

    def _goes_on(self, carry: _Carry) -> Any:
        # A score only falls while a hypothesis grows; what it is divided by is largest at one of the two ends.
        most = jnp.maximum(self._worth(carry.time + 1), self._worth(self.longest))
        decided = jnp.min(carry.ended.scores, axis=1) >= jnp.max(carry.totals, axis=1) / most
        return (carry.time < self.longest) & ~jnp.all(decided)

    def _turn(self, carry: _Carry) -> _Carry:
        (scores, state, fixed), states = self.body(carry.states, carry.time, carry.last, carry.state)
        totals = carry.totals[:, :, None] + scores.reshape(self.batch, self.beam, -1)
        best, places = jax.lax.top_k(totals.reshape(self.batch, -1), self.beam)
        parents, tokens = places // scores.shape[1], places % scores.shape[1]
        ids = _of_parents(carry.ids, parents).at[:, :, carry.time].set(tokens)
        over = tokens == self.end
        worth = best / self._worth(carry.time + 1)
        new = BeamSearch(ids, jnp.where(over, worth, -jnp.inf), self._all(carry.time + 1))
        rows = (parents + self.beam * jnp.arange(self.batch)[:, None]).reshape(-1)
        state = jax.tree.map(lambda leaf, same: leaf if same or not leaf.ndim else leaf[rows], state, fixed)
        return _Carry(
            carry.time + 1, tokens.reshape(-1), ids, jnp.where(over, -jnp.inf, best),
            self._best(carry.ended, new), state, states,
        )  # fmt: skip

    def _best(self, first: BeamSearch, second: BeamSearch) -> BeamSearch:
        """The best of both; the first where they are equal."""
        ids, scores, lengths = (jnp.concatenate(pair, axis=1) for pair in zip(first, second, strict=True))
        best, places = jax.lax.top_k(scores, self.beam)
        return BeamSearch(_of_parents(ids, places), best, _of_parents(lengths, places))

    def _worth(self, length: Any) -> Any:
        return ((5 + jnp.asarray(length, jnp.float32)) / 6) ** self.penalty

    def _all(self, length: Any) -> Any:
        return jnp.full([self.batch, self.beam], length, jnp.int32)

    def _scored(self, ids: Any, state: Any) -> tuple[Any, Any, Any]:
        """Run the user's step; besides its results, say which leaves of the state it hands on as they are."""
        result = self.step(ids, state)
        if not isinstance(result, tuple) or len(result) != 2:
            raise errors.ArgumentTypeError(
                f"{self.this.name}: step(ids, state) returned {type(result).__name__}; expected a pair: "
                f"return log_probabilities, state"
            )
        logits = core.current_frame("layers.beam_search").fact(result[0], "logits")
        scores = array_of(self.this, result[0]) if logits is None else jax.nn.log_softmax(logits)
        if scores.ndim != 2 or scores.shape[0] != ids.shape[0] or not 0 <= self.end < scores.shape[1]:
            raise errors.ShapeError(
                f"{self.this.name}: step(ids, state) returned scores {describe(scores)} for {ids.shape[0]} hypotheses "
                f"(batch * beam_size) and end_id={self.end}; expected [batch * beam, ids], with end_id among the ids"
            )
        new = self._same_kind(state, result[1])
        fixed = jax.tree.map(lambda a, b: a is b, state, result[1])
        return *jax.lax.stop_gradient((scores.astype(jnp.float32), new)), fixed

    def _same_kind(self, old: Any, new: Any) -> Any:
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


def _of_parents(values: Any, parents: Any) -> Any:
    """Take `[batch, beam]` of the `[batch, ..., ...]` along the second dimension."""
    return jnp.take_along_axis(values, parents.reshape(*parents.shape, *[1] * (values.ndim - 2)), axis=1)
