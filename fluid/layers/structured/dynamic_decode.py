"""`dynamic_decode`: run a decoder until all rows are finished."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, dense, describe, is_sequence, layer
from fluid.layers.control.pytrees import record_outputs, strongly_typed
from fluid.layers.no_effect import no_effect
from fluid.layers.recurrent.cells import kept
from fluid.layers.recurrent.steps import check_no_sequences, next_states
from fluid.layers.structured.decoder import Decoder, KnownSteps


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
    """Run a decoder until all rows are finished: one loop on the device, which has a gradient.

    The results have one size for all data: `steps` is `max_step_num + 1`, and with a `TrainingHelper` at most its
    number of steps. When all rows are finished, the remaining steps are skipped. The outputs of skipped steps are
    zeros, or, for a `BeamSearchDecoder`, the id that ends a hypothesis. A row that finishes early runs on until all
    rows are finished, and its outputs contain these steps.

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
      ArgumentError: neither `max_step_num` nor the decoder gives the largest number of steps.
      ArgumentTypeError: `decoder` is no Decoder.
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
    decoding = _Decoding(body, decoder, impute_finished or known.ragged)
    first = start._replace(program_states=body.states())
    last, outputs = decoding.run(first, steps) if known.inputs is None else decoding.follow(first, known.inputs, steps)
    body.keep(last.program_states)
    outputs, states = decoder.finalize(outputs, last.states, last.lengths)
    results = _arranged(outputs, last.lengths, known.ragged, output_time_major), states, last.lengths
    return tuple(record_outputs(this, value) for value in results[: 3 if return_length else 2])


class _Carry(NamedTuple):
    """The carry of the loop over the steps.

    Attributes:
      inputs: the inputs of the step, a pytree of `[batch, ...]`.
      states: the states before the step, a pytree of arrays.
      finished: bool `[batch]` or `[batch, beam]`.
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
    """A step of the user's decoder, with checks of its results.

    Attributes:
      this: the layer, for messages.
      decoder: the user's decoder.
      kwargs: further arguments of `decoder.step`, given to `dynamic_decode`.
      rows: the shape of the finished flags, `[batch]` or `[batch, beam]`.
    """

    this: Layer
    decoder: Decoder
    kwargs: dict[str, Any]
    rows: tuple[int, ...]

    def __call__(self, time: Any, inputs: Any, states: Any) -> tuple[Any, Any, Any, Any]:
        """Run the step, and return its outputs, new states, next inputs and finished flags.

        New states and next inputs are converted to the dtypes of the old ones.
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
    """The loop over the steps.

    Attributes:
      body: the traced `_CheckedStep`.
      decoder: the user's decoder.
      impute: whether a finished row keeps its states.
    """

    body: core.Body
    decoder: Decoder
    impute: bool

    def run(self, carry: _Carry, steps: int) -> tuple[_Carry, Any]:
        """Run up to `steps` steps, each on the inputs from the previous step; return the last carry and all outputs."""
        _, outputs = jax.eval_shape(self._advance, carry, jnp.int32(0))

        def leave_out(carry: _Carry, number: jax.Array) -> tuple[_Carry, Any]:
            return carry, self._after_end(outputs)

        def step(carry: _Carry, number: jax.Array) -> tuple[_Carry, Any]:
            return jax.lax.cond(jnp.all(carry.finished), leave_out, self._advance, carry, number)

        return jax.lax.scan(step, carry, jnp.arange(steps, dtype=jnp.int32))

    def follow(self, carry: _Carry, inputs: Any, steps: int) -> tuple[_Carry, Any]:
        """Run `steps` steps with known inputs `[time, batch, ...]`: a scan over the inputs, whose gradient is cheap."""

        def step(carry: _Carry, now: tuple[jax.Array, Any]) -> tuple[_Carry, Any]:
            number, x = now
            new, outputs = self._advance(carry._replace(inputs=x), number)
            # The step runs even if all rows are finished, and its results are dropped. Few steps are like this, and
            # a branch would slow down every step.
            results = new._replace(inputs=None), outputs
            instead = carry, self._after_end(outputs)
            return jax.tree.map(lambda a, b: jnp.where(jnp.all(carry.finished), a, b), instead, results)

        now = jnp.arange(steps, dtype=jnp.int32), jax.tree.map(lambda v: v[:steps], inputs)
        return jax.lax.scan(step, carry._replace(inputs=None), now)

    def _advance(self, carry: _Carry, number: jax.Array) -> tuple[_Carry, Any]:
        """Run one step, and return the carry after the step and the outputs of the step."""
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
        """Return the outputs of a skipped step, in the shapes and dtypes of `outputs`."""
        return self.decoder.after_end(jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), outputs))


def _number_of_steps(this: Layer, max_step_num: int | None, known: KnownSteps) -> int:
    """Return the largest number of steps.

    Raises:
      ArgumentError: the number is unknown.
    """
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
    """Return the carry before the first step.

    Raises:
      ProgramError: `initialize` does not return three results.
    """
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
    """Check the finished flags, and return them as a bool array.

    Args:
      name: the name of the method that returned the flags, for messages.
      finished: the flags.
      rows: the expected shape; None for any shape.

    Raises:
      ShapeError: the flags are no bool array of this shape.
    """
    flags = dense(finished)
    if flags.dtype != bool or flags.ndim == 0 or rows not in (None, flags.shape):
        raise errors.ShapeError(
            f"{name}: finished is {describe(finished)}, expected one bool for each row, bool[batch], in every step, as "
            f"from layers.equal(ids, end)"
        )
    return flags


def _arranged(outputs: Any, lengths: jax.Array, ragged: bool, time_major: bool) -> Any:
    """Convert the outputs of all steps to the form of the results.

    Args:
      outputs: a pytree of arrays `[steps, batch, ...]`.
      lengths: the lengths of the rows, `[batch]`.
      ragged: whether to return sequence batches, or, for `time_major`, arrays with zeros for padding.
      time_major: whether time stays the first dimension.
    """
    if not ragged:
        return outputs if time_major else jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), outputs)
    batches = jax.tree.map(lambda v: core.SequenceBatch(jnp.swapaxes(v, 0, 1), lengths), outputs)
    if not time_major:
        return batches
    return jax.tree.map(lambda batch: jnp.swapaxes(dense(batch), 0, 1), batches, is_leaf=is_sequence)
