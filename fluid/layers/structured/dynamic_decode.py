"""`dynamic_decode`: run a decoder until all rows are finished; and `BeamSearchDecoder`, which searches with a cell."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core.rows import harmless
from fluid.layers.base import Layer, dense, describe, is_sequence, layer, wide
from fluid.layers.control.branch import record_outputs, strongly_typed
from fluid.layers.no_effect import no_effect
from fluid.layers.recurrent.cells import kept
from fluid.layers.recurrent.rnn import RNNCell
from fluid.layers.recurrent.steps import call_cell, check_cell, check_no_sequences, next_states
from fluid.layers.structured.beam import SameLayers, best_extensions, of_parents, trace_back
from fluid.layers.structured.decoder import Decoder, KnownSteps, logits_of


@layer
@no_effect(is_test="memory for a gradient is used only where one is computed")
def dynamic_decode(
    decoder: Decoder,
    inits: Any = None,
    max_step_num: int | None = None,
    output_time_major: bool = False,
    impute_finished: bool = False,
    is_test: bool = False,
    return_length: bool = False,
    name: str | None = None,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """Run a decoder until all rows are finished, in one differentiable loop on the device.

    The size of the results does not depend on the data: `steps` is `max_step_num + 1`. With a `TrainingHelper`, `steps`
    is at most the number of steps of its inputs. When all rows are finished, the remaining steps are skipped. The
    outputs of skipped steps are zeros, or, for a `BeamSearchDecoder`, the id that ends a hypothesis. A row that
    finishes early continues until all rows are finished, and its outputs contain these steps too.

    Args:
      decoder: a `BasicDecoder`, a `BeamSearchDecoder` or another `Decoder`.
      inits: the argument of `decoder.initialize`: the initial states of a cell.
      max_step_num: the index of the last step, counted from 0. Required except with a `TrainingHelper`.
      output_time_major: whether the outputs are arrays `[steps, batch, ...]`.
      impute_finished: whether a finished row keeps its states while other rows continue. This is always so for
        sequence batches, and never for a decoder that reorders its rows, such as a beam search.
      is_test: accepted for programs written for Fluid, but has no effect: memory for a gradient is used only where one
        is computed.
      return_length: whether to return the lengths.
      name: name of the layer; by default `dynamic_decode_N`.
      kwargs: passed to `decoder.step`; the decoders of fluid pass them to the cell.

    Returns:
      The outputs of all steps, arrays `[batch, steps, ...]` in the structure of the outputs of a step; SequenceBatches
      if a `TrainingHelper` reads sequence batches. Then the states after the last step. With `return_length`, also the
      number of steps until each row was finished, int32 `[batch]` (for beams `[batch, beam]`).

    Raises:
      ArgumentError: neither `max_step_num` nor the decoder limits the number of steps.
      ArgumentTypeError: `decoder` is not a Decoder.
      ShapeError: a step returns states or inputs with another structure or shape than its arguments.
      ProgramError: a method of the decoder is missing, or returns a wrong number of results.

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
      ...     ids, last, lengths = fluid.layers.dynamic_decode(decoder, context, max_step_num=9, return_length=True)
      ...     return ids, last.log_probs, lengths
      >>> print(*fluid.Program(program).outputs)
      int32[batch, 10, 3] float32[batch, 3] int32[batch, 3]
    """
    this = Layer("dynamic_decode", name)
    if not isinstance(decoder, Decoder):
        raise errors.ArgumentTypeError(
            f"{this.name}: decoder={decoder!r}; expected a Decoder, as in "
            f"layers.dynamic_decode(layers.BasicDecoder(cell, helper), inits=states)"
        )
    known = decoder.known_steps()
    steps = _number_of_steps(this, max_step_num, known)
    start = _start(this, decoder, inits)
    step = _CheckedStep(this, decoder, kwargs, start.finished.shape)
    body = core.Body(step, [jnp.int32(0), start.inputs, start.states], "layers.dynamic_decode")
    decoding = _Decoding(
        body, decoder, impute_finished or known.ragged, known.ragged or isinstance(decoder, BeamSearchDecoder)
    )
    first = start._replace(program_states=body.states())
    last, outputs = decoding.run(first, steps) if known.inputs is None else decoding.follow(first, known.inputs, steps)
    body.keep(last.program_states)
    outputs, states = decoder.finalize(outputs, last.states, last.lengths)
    results = _arranged(outputs, last.lengths, known.ragged, output_time_major), states, last.lengths
    return tuple(record_outputs(this, value) for value in results[: 3 if return_length else 2])


class _Carry(NamedTuple):
    """The carry of the loop over decoding steps.

    Attributes:
      inputs: the inputs of the next step, a pytree of `[batch, ...]`; None if they were known before the loop.
      states: the states before the next step, a pytree of arrays.
      finished: bool `[batch]` or `[batch, beam]`: whether each row is finished.
      lengths: int32, in the shape of `finished`: the number of steps until each row was finished.
      program_states: the states of the program that the decoder changes, by name.
    """

    inputs: Any
    states: Any
    finished: jax.Array
    lengths: jax.Array
    program_states: dict[str, Any]


@dataclass(frozen=True, eq=False)
class _CheckedStep:
    """A step of the user's decoder, wrapped in checks of its results.

    Attributes:
      this: the layer, for its name in error messages.
      decoder: the user's decoder.
      kwargs: further arguments of `decoder.step`, given to `dynamic_decode`.
      rows: the shape of the finished flags, `[batch]` or `[batch, beam]`.
    """

    this: Layer
    decoder: Decoder
    kwargs: dict[str, Any]
    rows: tuple[int, ...]

    def __call__(self, time: Any, inputs: Any, states: Any) -> tuple[Any, Any, Any, Any]:
        """Run one step of the decoder, and return outputs, new states, inputs of the next step, and finished flags.

        New states and next inputs are converted to the dtypes of the old states and inputs.
        """
        result = self.decoder.step(time, inputs, states, **self.kwargs)
        name = f"{self.this.name}, {type(self.decoder).__name__}.step"
        if not isinstance(result, list | tuple) or len(result) != 4:
            raise errors.ProgramError(
                f"{name} returned {type(result).__name__}; it returns four things: "
                f"outputs, new_states, next_inputs, finished"
            )
        outputs, new_states, next_inputs, finished = result
        check_no_sequences(name, outputs)
        new_states = next_states(name, "states", states, new_states)
        next_inputs = next_states(name, "inputs", inputs, next_inputs)
        return strongly_typed(outputs), new_states, next_inputs, _flags(name, finished, self.rows)


@dataclass(frozen=True, eq=False)
class _Decoding:
    """The loop of `dynamic_decode`, which repeats one step of a decoder.

    Attributes:
      body: the function of one iteration, traced from a `_CheckedStep` (a step of the decoder with checks).
      decoder: the user's decoder.
      impute: whether a finished row keeps its states while other rows continue.
      alone: whether the results of a finished row stay as they are while other rows continue.
    """

    body: core.Body
    decoder: Decoder
    impute: bool
    alone: bool

    def run(self, carry: _Carry, steps: int) -> tuple[_Carry, Any]:
        """Run at most `steps` steps of the decoder; each step returns the inputs of the next step.

        Return the carry of the loop after the last step, and the outputs of all steps.
        """
        _, outputs = jax.eval_shape(self._advance, carry, jnp.int32(0))

        def leave_out(carry: _Carry, number: jax.Array) -> tuple[_Carry, Any]:
            return carry, self._after_end(outputs)

        def step(carry: _Carry, number: jax.Array) -> tuple[_Carry, Any]:
            return jax.lax.cond(self._have_ended(carry), leave_out, self._advance, carry, number)

        return jax.lax.scan(step, carry, jnp.arange(steps, dtype=jnp.int32))

    def follow(self, carry: _Carry, inputs: Any, steps: int) -> tuple[_Carry, Any]:
        """Run a decoder for `steps` steps with known inputs `[time, batch, ...]`, such as the right words in training.

        Return the loop carry after the last step, and the outputs of all steps.
        """

        def step(carry: _Carry, now: tuple[jax.Array, Any]) -> tuple[_Carry, Any]:
            number, x = now
            new, outputs = self._advance(carry._replace(inputs=x), number)
            # Run the decoder step even if all rows are finished, and drop the results of this step. With known inputs,
            # only a few steps are dropped, but a branch that skips them would slow down every step.
            results = new._replace(inputs=None), outputs
            instead = carry, self._after_end(outputs)
            return jax.tree.map(lambda a, b: jnp.where(self._have_ended(carry), a, b), instead, results)

        now = jnp.arange(steps, dtype=jnp.int32), jax.tree.map(lambda v: v[:steps], inputs)
        return jax.lax.scan(step, carry._replace(inputs=None), now)

    def _have_ended(self, carry: _Carry) -> jax.Array:
        ended = jnp.all(carry.finished)
        return harmless(ended) if self.alone else ended

    def _advance(self, carry: _Carry, number: jax.Array) -> tuple[_Carry, Any]:
        """Run one decoding step, and return the loop carry after the step and the outputs of the step."""
        result, program_states = self.body(carry.program_states, number, number, carry.inputs, carry.states)
        outputs, states, inputs, finished = result
        if self.decoder.tracks_own_finished:
            lengths = getattr(states, "lengths", carry.lengths).astype(jnp.int32)
            return _Carry(inputs, states, finished, lengths, program_states), outputs
        if self.impute:
            states = kept(carry.finished, carry.states, states)
        lengths = carry.lengths + ~carry.finished
        return _Carry(inputs, states, finished | carry.finished, lengths, program_states), outputs

    def _after_end(self, outputs: Any) -> Any:
        return self.decoder.after_end(jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), outputs))


def _number_of_steps(this: Layer, max_step_num: int | None, known: KnownSteps) -> int:
    """Return the largest possible number of decoding steps."""
    if max_step_num is None:
        if known.longest is None:
            raise errors.ArgumentError(
                f"{this.name}: max_step_num=None, and the number of steps depends on data, while the results of a "
                f"compiled program have a fixed size; say how many there are at most: max_step_num=50"
            )
        return known.longest
    steps = core.whole_number(this.name, "max_step_num", max_step_num, least=0) + 1
    return steps if known.longest is None else min(steps, known.longest)


def _start(this: Layer, decoder: Decoder, inits: Any) -> _Carry:
    """Call `initialize` of the decoder, and return the loop carry before the first step."""
    name = f"{this.name}, {type(decoder).__name__}.initialize"
    result = decoder.initialize(inits)
    if not isinstance(result, list | tuple) or len(result) != 3:
        raise errors.ProgramError(
            f"{name} returned {type(result).__name__}; it returns three things: inputs, states, finished"
        )
    inputs, states, finished = result
    finished = _flags(name, finished)
    return _Carry(strongly_typed(inputs), strongly_typed(states), finished, jnp.zeros(finished.shape, jnp.int32), {})


def _flags(name: str, finished: Any, rows: tuple[int, ...] | None = None) -> jax.Array:
    """Check the finished flags that a method of the decoder returned, and return them as a bool array."""
    flags = dense(finished)
    if flags.dtype != bool or flags.ndim == 0 or rows not in (None, flags.shape):
        raise errors.ShapeError(
            f"{name}: finished is {describe(finished)}, expected one bool for each row, bool[batch], in every step, as "
            f"from layers.equal(ids, end)"
        )
    return flags


def _arranged(outputs: Any, lengths: jax.Array, ragged: bool, time_major: bool) -> Any:
    """Convert the outputs of all steps to the results of `dynamic_decode`.

    Args:
      outputs: a pytree of arrays `[steps, batch, ...]`.
      lengths: the number of steps of each row, `[batch]`.
    """
    if not ragged:
        return outputs if time_major else jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), outputs)
    batches = jax.tree.map(lambda v: core.SequenceBatch(jnp.swapaxes(v, 0, 1), lengths), outputs)
    if not time_major:
        return batches
    return jax.tree.map(lambda batch: jnp.swapaxes(dense(batch), 0, 1), batches, is_leaf=is_sequence)


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

    Values that the cell reads besides its inputs and states, such as the encoded words for attention, need one row
    for each hypothesis: `tile_beam_merge_with_batch` repeats their rows.

    Args:
      cell: an `RNNCell`, or a function of inputs and states that returns outputs and new states. The rows of all values
        are `[batch * beam, ...]`.
      start_token: the id before the first predicted id.
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
      ArgumentError: a token is not an integer of at least 0, or `beam_size` is not a positive integer.
      ArgumentTypeError: the cell is not callable.

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
        # Before the first step, all hypotheses of a row are equal. So only the first one gets a finite log-probability;
        # the others get -inf.
        only_first = jnp.where(jnp.arange(self.beam_size) == 0, 0.0, -jnp.inf).astype(jnp.float32)
        finished = jnp.zeros(shape, bool)
        ids = jnp.full(shape, self.start_token, jnp.int32)
        states = BeamState(cell_states, jnp.broadcast_to(only_first, shape), finished, jnp.zeros(shape, jnp.int32))
        return self._inputs(ids), states, finished

    def step(self, time: Any, inputs: Any, states: BeamState, **kwargs: Any) -> tuple[Any, Any, Any, Any]:
        """Run the cell, then select the `beam_size` best extensions among all hypotheses of each row."""
        merged = self._merge(inputs), self._merge(states.cell_states)
        outputs, cell_states = call_cell("BeamSearchDecoder", self.cell, *merged, kwargs)
        cell_states = next_states("BeamSearchDecoder", "states", states.cell_states, self._split(cell_states))
        # Do not update the states of a finished hypothesis: they must not depend on the number of steps of other
        # hypotheses.
        cell_states = kept(states.finished, states.cell_states, cell_states)
        output, new = self._extend(states, self._scores(outputs, states), cell_states)
        return output, new, self._inputs(output.predicted_ids), new.finished

    def finalize(self, outputs: BeamOutput, final_states: BeamState, sequence_lengths: Any) -> tuple[Any, BeamState]:
        """Return the ids of the hypotheses in the last beam, `[steps, batch, beam]`, and the last states."""
        return trace_back(outputs.predicted_ids, outputs.parent_ids), final_states

    @property
    def tracks_own_finished(self) -> bool:
        """True: each step returns the finished flags of all hypotheses, as hypotheses change positions in the beam."""
        return True

    def after_end(self, outputs: BeamOutput) -> BeamOutput:
        """Return the outputs of a beam search for a step that is skipped, because all hypotheses have ended.

        The outputs append `end_token` to each hypothesis, and keep the order of the hypotheses.
        """
        ids = outputs.predicted_ids
        return outputs._replace(
            predicted_ids=jnp.full_like(ids, self.end_token),
            parent_ids=jnp.broadcast_to(jnp.arange(self.beam_size, dtype=ids.dtype), ids.shape),
        )

    def _inputs(self, ids: jax.Array) -> Any:
        """Convert ids `[batch, beam]` to the inputs of the cell, by `embedding_fn` if given."""
        return ids if self.embedding_fn is None else self.embedding_fn(ids)

    def _scores(self, outputs: Any, states: BeamState) -> jax.Array:
        """Return the log-probability of each id as the next id of each hypothesis of a beam search.

        The result is float32 `[batch, beam, ids]`.

        Args:
          outputs: the outputs of the cell, `[batch * beam, ...]`.
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
        """Give the hypotheses of a beam search their own dimension; scalars stay unchanged.

        Arrays `[batch * beam, ...]` become `[batch, beam, ...]`.
        """
        arrays = jax.tree.map(jnp.asarray, tree)
        return jax.tree.map(lambda v: v.reshape(-1, self.beam_size, *v.shape[1:]) if v.ndim else v, arrays)

    def _merge(self, tree: Any) -> Any:
        """Reshape arrays `[batch, beam, ...]` to `[batch * beam, ...]`; scalars stay unchanged."""
        return jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:]) if v.ndim else v, tree)
