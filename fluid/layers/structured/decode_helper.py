"""Helpers of `BasicDecoder`: which id a step says, and what the next step is given."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import describe, is_sequence, layer, wide
from fluid.layers.checks import check_ids
from fluid.layers.recurrent.steps import steps_of
from fluid.layers.structured.same_layers import SameLayers


class KnownSteps(NamedTuple):
    """What is known of the steps of a decoding before they run.

    Attributes:
      longest: how many there are at most; None if nothing says so.
      inputs: the inputs of all steps, a pytree of arrays `[time, batch, ...]`, where they do not depend on outputs.
      ragged: whether the steps are those of sequence batches, so that the outputs are sequence batches too.
    """

    longest: int | None = None
    inputs: Any = None
    ragged: bool = False


class DecodeHelper:
    """What decides, for `BasicDecoder`, which ids are said and what the next step is given: the base class of helpers.

    A subclass defines the three methods, which may call layers.

    Args:
      The base class has none; a subclass takes what it needs.

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
        pass  # the decorator sees to it that helpers are made in a program function

    def initialize(self) -> tuple[Any, Any]:
        """What the first step is given; called once, before the loop.

        Returns:
          The inputs, an array `[batch, ...]` or a pytree of several; and which rows are finished already, bool
          `[batch]`.
        """
        raise self._undefined("def initialize(self): ... return inputs, finished")

    def sample(self, time: Any, outputs: Any, states: Any) -> Any:
        """Which ids a step says.

        Args:
          time: the number of the step, int32 `[]`.
          outputs: of the cell, after `output_fn`; `[batch, ids]`.
          states: of the cell after the step.

        Returns:
          Integers `[batch]`.
        """
        raise self._undefined("def sample(self, time, outputs, states): ... return ids")

    def next_inputs(self, time: Any, outputs: Any, states: Any, sample_ids: Any) -> tuple[Any, Any, Any]:
        """What the next step is given.

        Args:
          time: the number of this step, int32 `[]`.
          outputs: of the cell, after `output_fn`.
          states: of the cell after this step.
          sample_ids: what `sample` returned.

        Returns:
          Which rows are finished with this step, bool `[batch]`; the inputs of the next step; and its states.
        """
        raise self._undefined(
            "def next_inputs(self, time, outputs, states, sample_ids): ... return finished, inputs, states"
        )

    def known_steps(self) -> KnownSteps:
        """What is known of the steps before the loop."""
        return KnownSteps()

    def _undefined(self, example: str) -> errors.FluidError:
        return errors.ProgramError(f"{type(self).__name__} lacks a method of a DecodeHelper; define it: {example}")


class TrainingHelper(DecodeHelper):
    """Teacher forcing: each step is given its part of sequences that are known, whatever the step before said.

    Args:
      inputs: a SequenceBatch, an array `[batch, time, ...]`, or a list, tuple or dict of several.
      sequence_length: integers `[batch]` for arrays, after which a row is finished; by default no row is before the
        last step. A SequenceBatch has lengths of its own.
      time_major: whether arrays are `[time, batch, ...]`.

    Returns:
      A helper for `layers.BasicDecoder`, whose ids are those of the largest outputs.

    Raises:
      ShapeError: the inputs do not have the same rows and steps.
      ArgumentError: there are lengths beside a SequenceBatch.

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
    def __init__(self, inputs: Any, sequence_length: core.Value | None = None, time_major: bool = False):
        self.inputs = inputs
        self.sequence_length = sequence_length
        self.time_major = time_major
        self._steps, lengths = steps_of("TrainingHelper", inputs, sequence_length, time_major)
        time, batch = jax.tree.leaves(self._steps)[0].shape[:2]
        self._count = time
        self._lengths = jnp.full([batch], time, jnp.int32) if lengths is None else lengths

    def initialize(self) -> tuple[Any, jax.Array]:
        """The first step; rows without steps are finished."""
        return jax.tree.map(lambda v: v[0], self._steps), self._lengths == 0

    def sample(self, time: Any, outputs: Any, states: Any) -> jax.Array:
        """The places of the largest outputs."""
        return _argmax(self, outputs)

    def next_inputs(self, time: Any, outputs: Any, states: Any, sample_ids: Any) -> tuple[jax.Array, Any, Any]:
        """The next step; rows are finished where it would be behind their end."""
        following = jnp.minimum(time + 1, self._count - 1)
        return time + 1 >= self._lengths, jax.tree.map(lambda v: v[following], self._steps), states

    def known_steps(self) -> KnownSteps:
        """All of them, unless a subclass decides otherwise what comes next."""
        own = type(self)
        fixed = own.initialize is TrainingHelper.initialize and own.next_inputs is TrainingHelper.next_inputs
        ragged = any(map(is_sequence, jax.tree.leaves(self.inputs, is_leaf=is_sequence)))
        return KnownSteps(self._count, self._steps if fixed else None, ragged)


class GreedyEmbeddingHelper(DecodeHelper):
    """Each step says the id of its largest output, and the next step is given the embedding of that id.

    Args:
      embedding_fn: from ids `[batch]` to the inputs of a step `[batch, ...]`, such as
        `lambda ids: fluid.embedding(ids, size=[100, 16], param_attr="table")`. Its layers have the same parameters in
        every step. Names share them with the program that trains.
      start_tokens: what comes before the first id: integers `[batch]` or `[batch, 1]`.
      end_token: the id with which a row is finished.

    Returns:
      A helper for `layers.BasicDecoder`.

    Raises:
      ArgumentTypeError: `start_tokens` are no integers.
      ArgumentError: `end_token` is negative.
      ShapeError: `start_tokens` are not one for each row.

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
    def __init__(self, embedding_fn: Callable[[Any], Any], start_tokens: core.Value, end_token: int):
        name = type(self).__name__
        self.embedding_fn = SameLayers(embedding_fn)
        self.start_tokens = _start_tokens(name, start_tokens)
        self.end_token = core.whole_number(name, "end_token", end_token, least=0)

    def initialize(self) -> tuple[Any, jax.Array]:
        """The embedding of the start; no row is finished."""
        return self.embedding_fn(self.start_tokens), jnp.zeros(self.start_tokens.shape, bool)

    def sample(self, time: Any, outputs: Any, states: Any) -> jax.Array:
        """The places of the largest outputs."""
        return _argmax(self, outputs)

    def next_inputs(self, time: Any, outputs: Any, states: Any, sample_ids: Any) -> tuple[jax.Array, Any, Any]:
        """The embedding of the ids; rows are finished that said `end_token`."""
        return sample_ids == self.end_token, self.embedding_fn(sample_ids), states


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Each step draws an id from the softmax of its outputs, and the next step is given the embedding of that id.

    Args:
      embedding_fn: from ids `[batch]` to the inputs of a step, see `GreedyEmbeddingHelper`.
      start_tokens: what comes before the first id: integers `[batch]` or `[batch, 1]`.
      end_token: the id with which a row is finished.
      softmax_temperature: a positive number by which outputs are divided before the softmax; the smaller, the more
        often the largest output wins. 1 by default.
      seed: other than 0, gives the same draws in every run of the program; by default they depend on the Session.

    Returns:
      A helper for `layers.BasicDecoder`.

    Raises:
      ArgumentTypeError: `start_tokens` are no integers.
      ArgumentError: `end_token` is negative, or `softmax_temperature` not positive.
      ShapeError: `start_tokens` are not one for each row.

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
        start_tokens: core.Value,
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
        """Ids drawn from the softmax of the outputs."""
        # The key of a program is another one in each step already.
        key = jax.random.fold_in(jax.random.key(self.seed), time) if self.seed else core.random_key(self._name)
        logits = jax.lax.stop_gradient(wide(logits_of(_checked_scores(self, outputs)))) / self.softmax_temperature
        return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


def logits_of(outputs: Any) -> Any:
    """The outputs of a cell as logits: those that a softmax was computed from, where the outputs are its result."""
    logits = core.current_frame("layers.dynamic_decode").fact(outputs, "logits")
    return outputs if logits is None else logits


def _argmax(helper: DecodeHelper, outputs: Any) -> jax.Array:
    """The places of the largest outputs, int32 `[batch, ...]`, of `[batch, ..., ids]`."""
    return jnp.argmax(_checked_scores(helper, outputs), axis=-1).astype(jnp.int32)


def _checked_scores(helper: DecodeHelper, outputs: Any) -> Any:
    """The outputs of a cell, which must be one array `[batch, ..., ids]`.

    Raises:
      ShapeError: they are something else.
    """
    if not isinstance(outputs, jax.Array) or outputs.ndim < 2:
        found = ", ".join(map(describe, jax.tree.leaves(outputs, is_leaf=is_sequence))) or repr(outputs)
        raise errors.ShapeError(
            f"{type(helper).__name__} chooses ids by the outputs of the cell, which are {found}; expected scores "
            f"[batch, ids], as from output_fn=lambda h: layers.fc(h, size=100)"
        )
    return outputs


def _start_tokens(name: str, value: core.Value) -> jax.Array:
    """The ids before the first step, int32 `[batch]`.

    Raises:
      ShapeError: there is not one for each row.
    """
    ids = check_ids(name, value, "start_tokens")
    if is_sequence(value) or ids.ndim not in (1, 2) or ids.shape[1:] not in ((), (1,)):
        raise errors.ShapeError(
            f"{name}: start_tokens is {describe(value)}; expected one integer for each row, [batch], as in "
            f'start_tokens=layers.fill_constant_batch_size_like(x, shape=[-1], dtype="int64", value=0)'
        )
    return ids.reshape(-1).astype(jnp.int32)
