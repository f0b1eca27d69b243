"""`BeamSearchDecoder`: the most probable sequences that a cell says, for `dynamic_decode`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import describe, is_sequence, layer, wide
from fluid.layers.control.pytrees import strongly_typed
from fluid.layers.recurrent.rnn_cell import RNNCell
from fluid.layers.recurrent.scan import kept
from fluid.layers.recurrent.steps import call_cell, check_cell, next_states
from fluid.layers.structured.decode_helper import logits_of
from fluid.layers.structured.decoder import Decoder
from fluid.layers.structured.hypotheses import best_extensions, of_parents, trace_back
from fluid.layers.structured.same_layers import SameLayers


class BeamOutput(NamedTuple):
    """What one step of a `BeamSearchDecoder` gives.

    Attributes:
      scores: float32 `[batch, beam]`: the log-probabilities of the hypotheses after the step.
      predicted_ids: int32 `[batch, beam]`: the id that each was extended by.
      parent_ids: int32 `[batch, beam]`: the place, before the step, of the hypothesis that it extended.
    """

    scores: Any
    predicted_ids: Any
    parent_ids: Any


class BeamState(NamedTuple):
    """What one step of a `BeamSearchDecoder` hands to the next; after the last one, what was found.

    Attributes:
      cell_states: of the cell, a pytree of `[batch, beam, ...]`.
      log_probs: float32 `[batch, beam]`: of the hypotheses, the best first; minus infinity where there is none.
      finished: bool `[batch, beam]`: whether they have ended.
      lengths: int32 `[batch, beam]`: how many ids they have, the end included.
    """

    cell_states: Any
    log_probs: Any
    finished: Any
    lengths: Any


class BeamSearchDecoder(Decoder):
    """Search for the most probable sequences, keeping the best few hypotheses at each step.

    A hypothesis that has ended keeps its log-probability and its place in the beam, unless others become better.
    `layers.beam_search` is such a search over a function, which sets hypotheses that have ended aside, knows a penalty
    for their length, and ends as soon as nothing better can come.

    What the cell looks at besides its inputs and states, such as the words that attention runs over, must have a row
    for each hypothesis, see `tile_beam_merge_with_batch`.

    Args:
      cell: an `RNNCell`, or a function of inputs and states that returns outputs and new states; it is given rows
        `[batch * beam, ...]`.
      start_token: the id before the first one.
      end_token: the id that ends a hypothesis.
      beam_size: how many hypotheses are kept, and returned.
      embedding_fn: from ids `[batch, beam]` to the inputs of the cell `[batch, beam, ...]`, such as
        `lambda ids: fluid.embedding(ids, size=[100, 16], param_attr="table")`; its layers have the same parameters in
        every step. Without it the cell is given the ids.
      output_fn: from the outputs of the cell `[batch, beam, ...]` to logits `[batch, beam, ids]`, such as
        `lambda h: layers.dense(h, size=100)`; without it they are logits. A result of a softmax is
        taken for what it is.

    Returns:
      A decoder for `layers.dynamic_decode`, whose `inits` are the states of the cell `[batch, ...]`, whose outputs are
      the ids int32 `[batch, steps, beam]`, all of them `end_token` after the end of a hypothesis, and whose final
      states are `(cell_states, log_probs, finished, lengths)`.

    Raises:
      ArgumentError: a token is no integer from 0 on, or `beam_size` is no positive integer.
      ArgumentTypeError: the cell cannot be called.

    Example:
      >>> import fluid
      >>> def program():
      ...     context = fluid.layers.data("context", shape=[4])
      ...     decoder = fluid.layers.BeamSearchDecoder(
      ...         fluid.layers.GRUCell(hidden_size=4),
      ...         start_token=0,
      ...         end_token=1,
      ...         beam_size=3,
      ...         embedding_fn=lambda ids: fluid.embedding(ids, size=[100, 8]),
      ...         output_fn=lambda h: fluid.layers.dense(h, size=100),
      ...     )
      ...     ids, last = fluid.layers.dynamic_decode(decoder, inits=context, max_step_num=9)
      ...     return ids, last.log_probs
      >>> print(*fluid.Program(program).outputs)
      int32[batch, 10, 3] float32[batch, 3]
    """

    OutputWrapper = BeamOutput
    StateWrapper = BeamState

    @layer
    def __init__(
        self,
        cell: RNNCell | Callable[..., Any],
        start_token: int,
        end_token: int,
        beam_size: int,
        embedding_fn: Callable[[Any], Any] | None = None,
        output_fn: Callable[[Any], Any] | None = None,
    ):
        name = "BeamSearchDecoder"
        check_cell(name, cell)
        self.cell = cell
        self.start_token = core.whole_number(name, "start_token", start_token, least=0)
        self.end_token = core.whole_number(name, "end_token", end_token, least=0)
        self.beam_size = core.whole_number(name, "beam_size", beam_size)
        self.embedding_fn = None if embedding_fn is None else SameLayers(embedding_fn)
        self.output_fn = output_fn

    @staticmethod
    def tile_beam_merge_with_batch(x: Any, beam_size: int) -> Any:
        """Give each hypothesis a row of its own: every row of a value, `beam_size` times.

        Args:
          x: `[batch, ...]`, a SequenceBatch, or a pytree of several.
          beam_size: how often.

        Returns:
          `[batch * beam_size, ...]`: the first row so many times, then the second.

        Example:
          >>> import fluid, numpy as np
          >>> tile = fluid.layers.BeamSearchDecoder.tile_beam_merge_with_batch
          >>> tile(np.array([1, 2]), 3).tolist()
          [1, 1, 1, 2, 2, 2]
        """
        return jax.tree.map(lambda v: jnp.repeat(jnp.asarray(v), beam_size, axis=0) if jnp.ndim(v) else v, x)

    def initialize(self, initial_cell_states: Any) -> tuple[Any, BeamState, jax.Array]:
        """The start, and the states of the cell for each hypothesis.

        Raises:
          ArgumentError: there are no states, which would say how many rows there are.
        """
        cell_states = strongly_typed(initial_cell_states)
        leaves = [v for v in jax.tree.leaves(cell_states) if v.ndim]
        if not leaves:
            raise errors.ArgumentError(
                f"BeamSearchDecoder: inits={initial_cell_states!r}; expected the states of the cell, which say how "
                f"many rows there are, as in layers.dynamic_decode(decoder, inits=cell.get_initial_states(x))"
            )
        shape = (leaves[0].shape[0], self.beam_size)
        cell_states = self._split(self.tile_beam_merge_with_batch(cell_states, self.beam_size))
        # All hypotheses of a row are the same at first, so that only one of them counts.
        only_first = jnp.where(jnp.arange(self.beam_size) == 0, 0.0, -jnp.inf).astype(jnp.float32)
        finished = jnp.zeros(shape, bool)
        ids = jnp.full(shape, self.start_token, jnp.int32)
        states = BeamState(cell_states, jnp.broadcast_to(only_first, shape), finished, jnp.zeros(shape, jnp.int32))
        return self._inputs(ids), states, finished

    def step(self, time: Any, inputs: Any, states: BeamState, **kwargs: Any) -> tuple[Any, Any, Any, Any]:
        """The cell, then the best extensions of all hypotheses of each row."""
        merged = self._merge(inputs), self._merge(states.cell_states)
        outputs, cell_states = call_cell("BeamSearchDecoder", self.cell, *merged, kwargs)
        cell_states = next_states("BeamSearchDecoder", "states", states.cell_states, self._split(cell_states))
        # Once a hypothesis has ended, how long others go on must not show in it.
        cell_states = kept(states.finished, states.cell_states, cell_states)
        output, new = self._extend(states, self._scores(outputs, states), cell_states)
        return output, new, self._inputs(output.predicted_ids), new.finished

    def finalize(self, outputs: BeamOutput, final_states: BeamState, sequence_lengths: Any) -> tuple[Any, BeamState]:
        """The ids of the hypotheses that are left, `[steps, batch, beam]`, and the last states."""
        return trace_back(outputs.predicted_ids, outputs.parent_ids), final_states

    @property
    def tracks_own_finished(self) -> bool:
        """Hypotheses change their places, and take with them whether they have ended."""
        return True

    def after_end(self, outputs: BeamOutput) -> BeamOutput:
        """Each hypothesis, extended by `end_token` in its place."""
        ids = outputs.predicted_ids
        return outputs._replace(
            predicted_ids=jnp.full_like(ids, self.end_token),
            parent_ids=jnp.broadcast_to(jnp.arange(self.beam_size, dtype=ids.dtype), ids.shape),
        )

    def _inputs(self, ids: jax.Array) -> Any:
        """What the cell is given for ids `[batch, beam]`."""
        return ids if self.embedding_fn is None else self.embedding_fn(ids)

    def _scores(self, outputs: Any, states: BeamState) -> jax.Array:
        """Log-probabilities of all ids for each hypothesis, float32 `[batch, beam, ids]`.

        Args:
          outputs: of the cell, `[batch * beam, ...]`.
          states: before the step.

        Raises:
          ShapeError: there are no scores for each hypothesis and each id.
        """
        if self.output_fn is None:
            logits = self._split(logits_of(outputs))
        else:
            logits = logits_of(self.output_fn(self._split(outputs)))
        beams = states.finished.shape
        if not isinstance(logits, jax.Array) or logits.shape[:-1] != beams or logits.shape[-1] <= self.end_token:
            found = ", ".join(describe(v) for v in jax.tree.leaves(logits, is_leaf=is_sequence))
            raise errors.ShapeError(
                f"BeamSearchDecoder: the logits of a step are {found}, with end_token={self.end_token}; expected "
                f"[batch, beam, ids], with end_token among the ids, as from "
                f"output_fn=lambda h: layers.dense(h, size=100)"
            )
        scores = jax.nn.log_softmax(wide(logits)).astype(jnp.float32)
        only_end = jnp.where(jnp.arange(scores.shape[-1]) == self.end_token, 0.0, -jnp.inf)
        return jnp.where(states.finished[..., None], only_end, scores)

    def _extend(self, states: BeamState, scores: jax.Array, cell_states: Any) -> tuple[BeamOutput, BeamState]:
        """Extend each hypothesis by all ids, and keep the best of the results.

        Args:
          states: before the step.
          scores: `[batch, beam, ids]`.
          cell_states: after the step, a pytree of `[batch, beam, ...]`.
        """
        totals, parents, ids = best_extensions(states.log_probs[..., None] + scores)
        finished = of_parents(states.finished, parents)
        new = BeamState(
            cell_states=jax.tree.map(lambda v: of_parents(v, parents) if v.ndim else v, cell_states),
            log_probs=totals,
            finished=finished | (ids == self.end_token),
            lengths=of_parents(states.lengths, parents) + ~finished,
        )
        return BeamOutput(totals, ids, parents), new

    def _split(self, tree: Any) -> Any:
        """Arrays `[batch * beam, ...]` as `[batch, beam, ...]`; scalars as they are."""
        arrays = jax.tree.map(jnp.asarray, tree)
        return jax.tree.map(lambda v: v.reshape(-1, self.beam_size, *v.shape[1:]) if v.ndim else v, arrays)

    def _merge(self, tree: Any) -> Any:
        """Arrays `[batch, beam, ...]` as `[batch * beam, ...]`; scalars as they are."""
        return jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:]) if v.ndim else v, tree)
