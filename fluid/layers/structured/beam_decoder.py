"""`BeamSearchDecoder`: a beam search over the outputs of a cell, for `dynamic_decode`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import describe, is_sequence, layer, wide
from fluid.layers.control.pytrees import strongly_typed
from fluid.layers.recurrent.cells import kept
from fluid.layers.recurrent.rnn import RNNCell
from fluid.layers.recurrent.steps import call_cell, check_cell, next_states
from fluid.layers.structured.beam import SameLayers, best_extensions, of_parents, trace_back
from fluid.layers.structured.decoder import Decoder, logits_of


class BeamOutput(NamedTuple):
    """The output of one step of a `BeamSearchDecoder`.

    Attributes:
      scores: float32 `[batch, beam]`: the log-probabilities of the hypotheses after the step.
      predicted_ids: int32 `[batch, beam]`: the id that extends each hypothesis in this step.
      parent_ids: int32 `[batch, beam]`: the index, in the beam before the step, of the extended hypothesis.
    """

    scores: Any
    predicted_ids: Any
    parent_ids: Any


class BeamState(NamedTuple):
    """The state between the steps of a `BeamSearchDecoder`; after the last step, the result of the search.

    Attributes:
      cell_states: the states of the cell, a pytree of `[batch, beam, ...]`.
      log_probs: float32 `[batch, beam]`: the log-probabilities of the hypotheses, the best first; minus infinity if
        there is no hypothesis.
      finished: bool `[batch, beam]`: whether each hypothesis has ended.
      lengths: int32 `[batch, beam]`: the number of ids of each hypothesis, including the id that ends the hypothesis.
    """

    cell_states: Any
    log_probs: Any
    finished: Any
    lengths: Any


class BeamSearchDecoder(Decoder):
    """A decoder that searches for the most probable sequences, and keeps the best hypotheses at each step.

    A finished hypothesis keeps its log-probability and stays in the beam until better hypotheses replace it.
    `layers.beam_search` is a beam search over a function. It keeps finished hypotheses separately, supports a length
    penalty, and ends when no better hypothesis is possible.

    Values that the cell reads besides its inputs and states, such as the words for attention, need one row for each
    hypothesis: `tile_beam_merge_with_batch` repeats their rows.

    Args:
      cell: an `RNNCell`, or a function of inputs and states that returns outputs and new states. The rows of all values
        are `[batch * beam, ...]`.
      start_token: the id before the first one.
      end_token: the id that ends a hypothesis.
      beam_size: the number of hypotheses to keep and return, for each row.
      embedding_fn: converts ids `[batch, beam]` to the inputs of the cell `[batch, beam, ...]`, such as
        `lambda ids: fluid.embedding(ids, size=[100, 16], param_attr="table")`. All steps share the parameters of its
        layers. Without `embedding_fn` the ids are the inputs.
      output_fn: converts the outputs of the cell `[batch, beam, ...]` to logits `[batch, beam, ids]`, such as
        `lambda h: layers.dense(h, size=100)`. Without `output_fn` the outputs are the logits. If the logits are the
        result of a softmax, the logits of that softmax are used.

    Returns:
      A decoder for `layers.dynamic_decode`. Its `inits` are the states of the cell `[batch, ...]`. Its outputs are the
      ids int32 `[batch, steps, beam]`, all `end_token` after the end of a hypothesis. Its final states are
      `(cell_states, log_probs, finished, lengths)`.

    Raises:
      ArgumentError: a token is no integer of at least 0, or `beam_size` is no positive integer.
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
        """Repeat every row of a value `beam_size` times, to give each hypothesis its own row.

        Args:
          x: `[batch, ...]`, a SequenceBatch, or a pytree of values.
          beam_size: the number of copies.

        Returns:
          `[batch * beam_size, ...]`: all copies of the first row, then all copies of the second, and so on.

        Example:
          >>> import fluid, numpy as np
          >>> tile = fluid.layers.BeamSearchDecoder.tile_beam_merge_with_batch
          >>> tile(np.array([1, 2]), 3).tolist()
          [1, 1, 1, 2, 2, 2]
        """
        return jax.tree.map(lambda v: jnp.repeat(jnp.asarray(v), beam_size, axis=0) if jnp.ndim(v) else v, x)

    def initialize(self, initial_cell_states: Any) -> tuple[Any, BeamState, jax.Array]:
        """Return the first inputs, the states of the cell for each hypothesis, and the finished flags.

        Raises:
          ArgumentError: there are no states, so that the number of rows is unknown.
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
        # All hypotheses of a row are equal at first, so all except the first get the log-probability -inf.
        only_first = jnp.where(jnp.arange(self.beam_size) == 0, 0.0, -jnp.inf).astype(jnp.float32)
        finished = jnp.zeros(shape, bool)
        ids = jnp.full(shape, self.start_token, jnp.int32)
        states = BeamState(cell_states, jnp.broadcast_to(only_first, shape), finished, jnp.zeros(shape, jnp.int32))
        return self._inputs(ids), states, finished

    def step(self, time: Any, inputs: Any, states: BeamState, **kwargs: Any) -> tuple[Any, Any, Any, Any]:
        """Run the cell, then keep the `beam_size` best extensions of all hypotheses of each row."""
        merged = self._merge(inputs), self._merge(states.cell_states)
        outputs, cell_states = call_cell("BeamSearchDecoder", self.cell, *merged, kwargs)
        cell_states = next_states("BeamSearchDecoder", "states", states.cell_states, self._split(cell_states))
        # The states of a finished hypothesis must not depend on the number of steps that other hypotheses still need.
        cell_states = kept(states.finished, states.cell_states, cell_states)
        output, new = self._extend(states, self._scores(outputs, states), cell_states)
        return output, new, self._inputs(output.predicted_ids), new.finished

    def finalize(self, outputs: BeamOutput, final_states: BeamState, sequence_lengths: Any) -> tuple[Any, BeamState]:
        """Return the ids of the remaining hypotheses, `[steps, batch, beam]`, and the states after the last step."""
        return trace_back(outputs.predicted_ids, outputs.parent_ids), final_states

    @property
    def tracks_own_finished(self) -> bool:
        """True: hypotheses move within the beam, and their finished flags move with them."""
        return True

    def after_end(self, outputs: BeamOutput) -> BeamOutput:
        """Return outputs in which each hypothesis is extended by `end_token`, in the order of the beam."""
        ids = outputs.predicted_ids
        return outputs._replace(
            predicted_ids=jnp.full_like(ids, self.end_token),
            parent_ids=jnp.broadcast_to(jnp.arange(self.beam_size, dtype=ids.dtype), ids.shape),
        )

    def _inputs(self, ids: jax.Array) -> Any:
        """Return the inputs of the cell for ids `[batch, beam]`."""
        return ids if self.embedding_fn is None else self.embedding_fn(ids)

    def _scores(self, outputs: Any, states: BeamState) -> jax.Array:
        """Return the log-probabilities of all ids for each hypothesis, float32 `[batch, beam, ids]`.

        Args:
          outputs: the outputs of the cell, `[batch * beam, ...]`.
          states: the state before the step.

        Raises:
          ShapeError: the scores are not one number for each hypothesis and each id.
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
        """Extend each hypothesis by all ids, and keep the `beam` best extensions of each row.

        Args:
          states: the state before the step.
          scores: the log-probabilities of all ids for each hypothesis, `[batch, beam, ids]`.
          cell_states: the states of the cell after the step, a pytree of `[batch, beam, ...]`.
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
        """Reshape arrays `[batch * beam, ...]` to `[batch, beam, ...]`; scalars stay unchanged."""
        arrays = jax.tree.map(jnp.asarray, tree)
        return jax.tree.map(lambda v: v.reshape(-1, self.beam_size, *v.shape[1:]) if v.ndim else v, arrays)

    def _merge(self, tree: Any) -> Any:
        """Reshape arrays `[batch, beam, ...]` to `[batch * beam, ...]`; scalars stay unchanged."""
        return jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:]) if v.ndim else v, tree)
