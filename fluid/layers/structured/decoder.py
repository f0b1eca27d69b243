"""Decoders for `dynamic_decode`, and decode helpers, which select the ids of a step and the inputs of the next step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import describe, is_sequence, layer, wide
from fluid.layers.checks import check_ids
from fluid.layers.recurrent.rnn import RNNCell
from fluid.layers.recurrent.steps import call_cell, check_cell, steps_of
from fluid.layers.structured.beam import SameLayers


class KnownSteps(NamedTuple):
    """The number and the inputs of decoding steps, if they are known before the decoding loop starts.

    Attributes:
      longest: the largest number of steps; None if it is unknown.
      inputs: the inputs of all steps, a pytree of arrays `[time, batch, ...]`; None if they depend on outputs.
      ragged: whether the inputs are sequence batches, so that the outputs are sequence batches too.
    """

    longest: int | None = None
    inputs: Any = None
    ragged: bool = False


class DecodeHelper:
    """The base class of helpers of `BasicDecoder`, which select the ids of a step and the inputs of the next step.

    A subclass defines the methods `initialize`, `sample` and `next_inputs`, which may call layers.

    Args:
      The base class has no arguments; a subclass defines its own.

    Returns:
      A helper for `layers.BasicDecoder`.

    Example:
      >>> import fluid
      >>> class Echo(fluid.layers.DecodeHelper):
      ...     def __init__(self, first):
      ...         self.first = first
      ...     def initialize(self):
      ...         return self.first, self.first[:, 0] > 1e9
      ...     def sample(self, time, outputs, states):
      ...         return fluid.layers.argmax(outputs, axis=-1)
      ...     def next_inputs(self, time, outputs, states, sample_ids):
      ...         return outputs[:, 0] > 0.9, outputs, states
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     decoder = fluid.layers.BasicDecoder(fluid.layers.GRUCell(hidden_size=4), Echo(x))
      ...     outputs, last = fluid.layers.dynamic_decode(decoder, x, max_step_num=6)
      ...     return outputs.cell_outputs, outputs.sample_ids
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 7, 4] int32[batch, 7]
    """

    @layer
    def __init__(self) -> None:
        pass  # The decorator `@layer` raises an error if a helper is created outside a program function.

    def initialize(self) -> tuple[Any, Any]:
        """Return the inputs of the first step. `dynamic_decode` calls this method once, before the loop.

        Returns:
          The inputs, an array `[batch, ...]` or a pytree of arrays; and the finished flags before the first step, bool
          `[batch]`.
        """
        raise self._undefined("def initialize(self): ... return inputs, finished")

    def sample(self, time: Any, outputs: Any, states: Any) -> Any:
        """Select an id, such as the index of a word, for each row at one decoding step.

        Args:
          time: the index of the step, int32 `[]`.
          outputs: the outputs of the cell, after `output_fn`; `[batch, ids]`.
          states: the states of the cell after the step.

        Returns:
          The ids, integers `[batch]`.
        """
        raise self._undefined("def sample(self, time, outputs, states): ... return ids")

    def next_inputs(self, time: Any, outputs: Any, states: Any, sample_ids: Any) -> tuple[Any, Any, Any]:
        """Return the inputs of the next step.

        Args:
          time: the index of this step, int32 `[]`.
          outputs: the outputs of the cell, after `output_fn`.
          states: the states of the cell after this step.
          sample_ids: the result of `sample`.

        Returns:
          The rows that this step finishes, bool `[batch]`; the inputs of the next step; and the states of the next
          step.
        """
        raise self._undefined(
            "def next_inputs(self, time, outputs, states, sample_ids): ... return finished, inputs, states"
        )

    def known_steps(self) -> KnownSteps:
        """Return the number of decoding steps and their inputs, if they are known before the decoding loop starts.

        By default, nothing is known. With teacher forcing, for example, the target sequences determine both.
        """
        return KnownSteps()

    def _undefined(self, example: str) -> errors.FluidError:
        return errors.ProgramError(f"{type(self).__name__} lacks a method of a DecodeHelper; define it: {example}")


class TrainingHelper(DecodeHelper):
    """A helper for teacher forcing: each step reads the next element of known sequences, not earlier outputs.

    Args:
      inputs: a SequenceBatch, an array `[batch, time, ...]`, or a list, tuple or dict of several such values.
      sequence_length: for arrays, the number of steps after which a row is finished, integers `[batch]`. By default
        every row is finished after the last step. A SequenceBatch has its own lengths.
      time_major: whether arrays are `[time, batch, ...]`.

    Returns:
      A helper for `layers.BasicDecoder`; its ids are the indices of the largest outputs.

    Raises:
      ShapeError: the inputs differ in the number of rows or steps.
      ArgumentError: `sequence_length` is given for a SequenceBatch.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[8], lod_level=1)
      ...     start = fluid.layers.data("start", shape=[4])
      ...     helper = fluid.layers.TrainingHelper(words)
      ...     decoder = fluid.layers.BasicDecoder(fluid.layers.GRUCell(hidden_size=4), helper)
      ...     outputs, last = fluid.layers.dynamic_decode(decoder, inits=start)
      ...     return fluid.layers.sequence_last_step(outputs.cell_outputs)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """

    @layer
    def __init__(self, inputs: Any, sequence_length: Value | None = None, time_major: bool = False):
        self.inputs = inputs
        self.sequence_length = sequence_length
        self.time_major = time_major
        self._steps, lengths = steps_of("TrainingHelper", inputs, sequence_length, time_major)
        time, batch = jax.tree.leaves(self._steps)[0].shape[:2]
        self._count = time
        self._lengths = jnp.full([batch], time, jnp.int32) if lengths is None else lengths

    def initialize(self) -> tuple[Any, jax.Array]:
        """Return the inputs of the first decoding step, and flags of finished rows, `[batch]`: true for empty rows."""
        return jax.tree.map(lambda v: v[0], self._steps), self._lengths == 0

    def sample(self, time: Any, outputs: Any, states: Any) -> jax.Array:
        """Return the index of the largest output of each row, int32 `[batch]`."""
        return _argmax(self, outputs)

    def next_inputs(self, time: Any, outputs: Any, states: Any, sample_ids: Any) -> tuple[jax.Array, Any, Any]:
        """Return finished flags, true for rows after their last step; the inputs of the next step; and the states."""
        following = jnp.minimum(time + 1, self._count - 1)
        return time + 1 >= self._lengths, jax.tree.map(lambda v: v[following], self._steps), states

    def known_steps(self) -> KnownSteps:
        """Return the number of decoding steps, and the inputs of all steps, which are known before the loop.

        The inputs are left out if a subclass overrides `initialize` or `next_inputs`, which may change them.
        """
        own = type(self)
        fixed = own.initialize is TrainingHelper.initialize and own.next_inputs is TrainingHelper.next_inputs
        ragged = any(map(is_sequence, jax.tree.leaves(self.inputs, is_leaf=is_sequence)))
        return KnownSteps(self._count, self._steps if fixed else None, ragged)


class GreedyEmbeddingHelper(DecodeHelper):
    """A helper that selects the id of the largest output, and feeds the embedding of that id to the next step.

    Args:
      embedding_fn: converts ids `[batch]` to the inputs of a step `[batch, ...]`, such as
        `lambda ids: fluid.embedding(ids, size=[100, 16], param_attr="table")`. All steps share the parameters of its
        layers. With named parameters, the training program shares them too.
      start_tokens: the ids before the first step: integers `[batch]` or `[batch, 1]`.
      end_token: the id that finishes a row.

    Returns:
      A helper for `layers.BasicDecoder`.

    Raises:
      ArgumentTypeError: `start_tokens` does not hold integers.
      ArgumentError: `end_token` is negative.
      ShapeError: `start_tokens` does not have one id for each row.

    Example:
      >>> import fluid
      >>> def program():
      ...     context = fluid.layers.data("context", shape=[4])
      ...     starts = fluid.layers.fill_constant_batch_size_like(context, [-1], "int64", 0)
      ...     helper = fluid.layers.GreedyEmbeddingHelper(
      ...         lambda ids: fluid.embedding(ids, size=[100, 8]), starts, end_token=1
      ...     )
      ...     cell = fluid.layers.GRUCell(hidden_size=4)
      ...     decoder = fluid.layers.BasicDecoder(cell, helper, output_fn=lambda h: fluid.layers.fc(h, size=100))
      ...     outputs, last = fluid.layers.dynamic_decode(decoder, inits=context, max_step_num=9)
      ...     return outputs.sample_ids
      >>> print(fluid.Program(program).outputs[0])
      int32[batch, 10]
    """

    @layer
    def __init__(self, embedding_fn: Callable[[Any], Any], start_tokens: Value, end_token: int):
        name = type(self).__name__
        self.embedding_fn = SameLayers(embedding_fn)
        self.start_tokens = _start_tokens(name, start_tokens)
        self.end_token = core.whole_number(name, "end_token", end_token, least=0)

    def initialize(self) -> tuple[Any, jax.Array]:
        """Return the first inputs of the decoding, the embedding of the start ids; and finished flags, all false."""
        return self.embedding_fn(self.start_tokens), jnp.zeros(self.start_tokens.shape, bool)

    def sample(self, time: Any, outputs: Any, states: Any) -> jax.Array:
        """Return the id with the largest output for each row, int32 `[batch]`."""
        return _argmax(self, outputs)

    def next_inputs(self, time: Any, outputs: Any, states: Any, sample_ids: Any) -> tuple[jax.Array, Any, Any]:
        """Return finished flags, true for rows with the id `end_token`; the embedding of the ids; and the states."""
        return sample_ids == self.end_token, self.embedding_fn(sample_ids), states


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """A helper that draws an id from the softmax of the outputs, and feeds the embedding of that id to the next step.

    Args:
      embedding_fn: converts ids `[batch]` to the inputs of a step; see `GreedyEmbeddingHelper`.
      start_tokens: the ids before the first step: integers `[batch]` or `[batch, 1]`.
      end_token: the id that finishes a row.
      softmax_temperature: a positive divisor of the outputs before the softmax; 1 by default. With a smaller divisor
        the largest output is drawn more often.
      seed: if not 0, every run of the program draws equal ids; by default the draws depend on the Session.

    Returns:
      A helper for `layers.BasicDecoder`.

    Raises:
      ArgumentTypeError: `start_tokens` does not hold integers.
      ArgumentError: `end_token` is negative, or `softmax_temperature` is not positive.
      ShapeError: `start_tokens` does not have one id for each row.

    Example:
      >>> import fluid
      >>> def program():
      ...     context = fluid.layers.data("context", shape=[4])
      ...     starts = fluid.layers.fill_constant_batch_size_like(context, [-1], "int64", 0)
      ...     helper = fluid.layers.SampleEmbeddingHelper(
      ...         lambda ids: fluid.embedding(ids, size=[100, 8]), starts, end_token=1, softmax_temperature=0.7
      ...     )
      ...     cell = fluid.layers.GRUCell(hidden_size=4)
      ...     decoder = fluid.layers.BasicDecoder(cell, helper, output_fn=lambda h: fluid.layers.fc(h, size=100))
      ...     outputs, last = fluid.layers.dynamic_decode(decoder, inits=context, max_step_num=9)
      ...     return outputs.sample_ids
      >>> print(fluid.Program(program).outputs[0])
      int32[batch, 10]
    """

    @layer
    def __init__(
        self,
        embedding_fn: Callable[[Any], Any],
        start_tokens: Value,
        end_token: int,
        softmax_temperature: float | None = None,
        seed: int | None = None,
    ):
        super().__init__(embedding_fn, start_tokens, end_token)
        self.softmax_temperature = 1.0 if softmax_temperature is None else softmax_temperature
        if not core.is_positive(self.softmax_temperature):
            raise errors.ArgumentError(
                f"SampleEmbeddingHelper(softmax_temperature={softmax_temperature!r}): expected a positive number, as "
                f"in softmax_temperature=0.7; for the largest output use GreedyEmbeddingHelper"
            )
        self.seed = seed
        frame = core.current_frame("layers.SampleEmbeddingHelper")
        self._name = frame.unique(frame.scoped("sample_embedding_helper"))

    def sample(self, time: Any, outputs: Any, states: Any) -> jax.Array:
        """Draw one id for each row from the softmax of the outputs."""
        # With a seed, fold the step index into the key. Without a seed, the random key of the program already differs
        # in each step.
        key = jax.random.fold_in(jax.random.key(self.seed), time) if self.seed else core.random_key(self._name)
        logits = jax.lax.stop_gradient(wide(logits_of(_checked_scores(self, outputs)))) / self.softmax_temperature
        return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


def logits_of(outputs: Any) -> Any:
    """Return the logits of `outputs`: the input of the softmax if `outputs` is a softmax result, else `outputs`."""
    logits = core.current_frame("layers.dynamic_decode").fact(outputs, "logits")
    return outputs if logits is None else logits


def _argmax(helper: DecodeHelper, outputs: Any) -> jax.Array:
    return jnp.argmax(_checked_scores(helper, outputs), axis=-1).astype(jnp.int32)


def _checked_scores(helper: DecodeHelper, outputs: Any) -> Any:
    """Check that the outputs of a recurrent cell are one array of scores, `[batch, ..., ids]`, and return the array."""
    if not isinstance(outputs, jax.Array) or outputs.ndim < 2:
        found = ", ".join(map(describe, jax.tree.leaves(outputs, is_leaf=is_sequence))) or repr(outputs)
        raise errors.ShapeError(
            f"{type(helper).__name__} chooses ids by the outputs of the cell, which are {found}; expected scores "
            f"[batch, ids], as from output_fn=lambda h: layers.fc(h, size=100)"
        )
    return outputs


def _start_tokens(name: str, value: Value) -> jax.Array:
    """Check `start_tokens`, and return one start id for each row, int32 `[batch]`."""
    ids = check_ids(name, value, "start_tokens")
    if is_sequence(value) or ids.ndim not in (1, 2) or ids.shape[1:] not in ((), (1,)):
        raise errors.ShapeError(
            f"{name}: start_tokens is {describe(value)}; expected one integer for each row, [batch], as in "
            f'start_tokens=layers.fill_constant_batch_size_like(x, shape=[-1], dtype="int64", value=0)'
        )
    return ids.reshape(-1).astype(jnp.int32)


class Decoder:
    """The base class of decoders for `layers.dynamic_decode`, which runs them step by step.

    A subclass defines `initialize` and `step`; the other methods have defaults. All methods may call layers.

    Args:
      The base class has no arguments; a subclass defines its own.

    Returns:
      A decoder for `layers.dynamic_decode`.

    Example:
      >>> import fluid
      >>> class Doubling(fluid.layers.Decoder):
      ...     def initialize(self, inits):
      ...         return inits, (), inits[:, 0] > 10.0
      ...     def step(self, time, inputs, states):
      ...         doubled = inputs * 2.0
      ...         return doubled, states, doubled, doubled[:, 0] > 10.0
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[1])
      ...     outputs, _, lengths = fluid.layers.dynamic_decode(Doubling(), x, max_step_num=3, return_length=True)
      ...     return outputs, lengths
      >>> outputs, lengths = fluid.Session(program).run(program, {"x": [[6.0], [2.0]]})
      >>> outputs[..., 0].tolist(), lengths.tolist()
      ([[12.0, 24.0, 48.0, 0.0], [4.0, 8.0, 16.0, 0.0]], [1, 3])
    """

    @layer
    def __init__(self) -> None:
        pass  # The decorator `@layer` raises an error if a decoder is created outside a program function.

    def initialize(self, inits: Any) -> tuple[Any, Any, Any]:
        """Return the inputs and states of the first step. `dynamic_decode` calls this method once, before the loop.

        Args:
          inits: the `inits` of `layers.dynamic_decode`.

        Returns:
          The inputs and the states, pytrees of arrays; and the finished flags before the first step, bool `[batch]` (or
          `[batch, beam]`).
        """
        raise self._undefined("def initialize(self, inits): ... return inputs, states, finished")

    def step(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any, Any]:
        """Run one step; a subclass defines it as `step(self, time, inputs, states)`, with more arguments if needed.

        Args:
          args: the index of the step, int32 `[]`; its inputs; and the previous states.
          kwargs: the further arguments of `layers.dynamic_decode`.

        Returns:
          The outputs of the step, a pytree of arrays; the new states and the inputs of the next step, with the
          structures and shapes of the old ones; and finished flags, true for rows that this step finishes.
        """
        raise self._undefined(
            "def step(self, time, inputs, states): ... return outputs, new_states, next_inputs, finished"
        )

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """Convert the results. `dynamic_decode` calls this method once, after the loop.

        By default the results stay unchanged.

        Args:
          outputs: the outputs of all steps, `[time, batch, ...]`.
          final_states: the states after the last step.
          sequence_lengths: the number of steps until each row was finished, int32 `[batch]`.

        Returns:
          Outputs and states.
        """
        return outputs, final_states

    @property
    def tracks_own_finished(self) -> bool:
        """True if the finished flags are exactly the flags that `step` returns; False by default.

        If False, a row that is finished stays finished, even if a later `step` returns False for this row.
        """
        return False

    def known_steps(self) -> KnownSteps:
        """Return the number of decoding steps and their inputs, if they are known before the decoding loop starts.

        By default, nothing is known. With teacher forcing, for example, the target sequences determine both.
        """
        return KnownSteps()

    def after_end(self, outputs: Any) -> Any:
        """Return the outputs of a decoding step that does not run, because all rows are finished; zeros by default.

        Args:
          outputs: zeros in the structure, shapes and dtypes of the outputs of a step.
        """
        return outputs

    def _undefined(self, example: str) -> errors.FluidError:
        return errors.ProgramError(f"{type(self).__name__} lacks a method of a Decoder; define it: {example}")


class BasicOutput(NamedTuple):
    """The output of one step of a `BasicDecoder`; as a result of `layers.dynamic_decode`, the outputs of all steps.

    Attributes:
      cell_outputs: the outputs of the cell, after `output_fn`; `[batch, ...]`, or a pytree of arrays.
      sample_ids: the ids that the helper selects; integers `[batch]`.
    """

    cell_outputs: Any
    sample_ids: Any


class BasicDecoder(Decoder):
    """A decoder of a cell and a helper, which selects the ids of each step and the inputs of the next step.

    Args:
      cell: an `RNNCell`, or a function of inputs and states that returns outputs and new states.
      helper: a `TrainingHelper`, `GreedyEmbeddingHelper`, `SampleEmbeddingHelper`, or another `DecodeHelper`.
      output_fn: converts the outputs of the cell to the inputs of the helper, such as a projection to all ids; None
        for no conversion.

    Returns:
      A decoder for `layers.dynamic_decode`. Its `inits` are the states of the cell; an RNNCell creates zeros by
      default. Its outputs are `(cell_outputs, sample_ids)`.

    Raises:
      ArgumentTypeError: the cell is not callable, or the helper is not a DecodeHelper.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[8], lod_level=1)
      ...     target = fluid.layers.data("target", shape=[1], dtype="int64", lod_level=1)
      ...     cell = fluid.layers.GRUCell(hidden_size=4)
      ...     helper = fluid.layers.TrainingHelper(words)
      ...     decoder = fluid.layers.BasicDecoder(cell, helper, output_fn=lambda h: fluid.layers.fc(h, size=100))
      ...     outputs, last = fluid.layers.dynamic_decode(decoder)
      ...     return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(outputs.cell_outputs, target))
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """

    OutputWrapper = BasicOutput

    @layer
    def __init__(
        self,
        cell: RNNCell | Callable[..., Any],
        helper: DecodeHelper,
        output_fn: Callable[[Any], Any] | None = None,
    ):
        check_cell("BasicDecoder", cell)
        if not isinstance(helper, DecodeHelper):
            raise errors.ArgumentTypeError(
                f"BasicDecoder: helper={helper!r}; expected a DecodeHelper, as in "
                f"layers.BasicDecoder(cell, layers.TrainingHelper(x))"
            )
        self.cell = cell
        self.helper = helper
        self.output_fn = output_fn

    def initialize(self, initial_cell_states: Any) -> tuple[Any, Any, Any]:
        """Return the inputs of the first decoding step, the states of the cell, and a finished flag for each row.

        The helper, which selects the ids and the inputs of each step, supplies the inputs and the flags.
        """
        inputs, finished = self.helper.initialize()
        if initial_cell_states is None and isinstance(self.cell, RNNCell):
            initial_cell_states = self.cell.get_initial_states(inputs)
        return inputs, initial_cell_states, finished

    def step(self, time: Any, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Any]:
        """Run the recurrent cell; then let the helper select ids and the inputs of the next step from the outputs."""
        outputs, states = call_cell("BasicDecoder", self.cell, inputs, states, kwargs)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        ids = jax.lax.stop_gradient(self.helper.sample(time=time, outputs=outputs, states=states))
        finished, inputs, states = self.helper.next_inputs(time=time, outputs=outputs, states=states, sample_ids=ids)
        return BasicOutput(outputs, ids), states, inputs, finished

    def known_steps(self) -> KnownSteps:
        """Return the number and the inputs of all decoding steps, if the helper knows them before the loop.

        The inputs are left out if a subclass overrides `initialize` or `step`, which may change them.
        """
        known = self.helper.known_steps()
        own = type(self)
        fixed = own.initialize is BasicDecoder.initialize and own.step is BasicDecoder.step
        return known if fixed else known._replace(inputs=None)
