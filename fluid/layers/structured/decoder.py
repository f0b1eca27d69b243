"""`Decoder`: what `dynamic_decode` runs; and `BasicDecoder`, made of a cell and a helper."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fluid import errors
from fluid.layers.base import layer
from fluid.layers.recurrent.rnn_cell import RNNCell
from fluid.layers.recurrent.steps import call_cell, check_cell
from fluid.layers.structured.decode_helper import DecodeHelper, KnownSteps


class Decoder:
    """What `layers.dynamic_decode` runs step by step: the base class of `BasicDecoder`, `BeamSearchDecoder` and yours.

    A subclass defines `initialize` and `step`; the other methods have defaults. All of them may call layers.

    Args:
      The base class has none; a subclass takes what it needs.

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
        pass  # the decorator sees to it that decoders are made in a program function

    def initialize(self, inits: Any) -> tuple[Any, Any, Any]:
        """What the first step is given; called once, before the loop.

        Args:
          inits: what `layers.dynamic_decode` was given.

        Returns:
          The inputs and the states, pytrees of arrays; and which rows are finished already, bool `[batch]` (or
          `[batch, beam]`).
        """
        raise self._undefined("def initialize(self, inits): ... return inputs, states, finished")

    def step(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any, Any]:
        """One step; a subclass defines it as `step(self, time, inputs, states)`, with more arguments if it needs them.

        Args:
          args: the number of the step, int32 `[]`; its inputs; and the states before it.
          kwargs: what else `layers.dynamic_decode` was given.

        Returns:
          The outputs of the step, a pytree of arrays; the new states and the inputs of the next step, of the same
          structures and shapes as the old ones; and which rows are finished with this step.
        """
        raise self._undefined(
            "def step(self, time, inputs, states): ... return outputs, new_states, next_inputs, finished"
        )

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """What becomes of the results; called once, after the loop. By default they stay as they are.

        Args:
          outputs: of all steps, `[time, batch, ...]`.
          final_states: after the last step.
          sequence_lengths: how many steps each row took until it was finished, int32 `[batch]`.

        Returns:
          Outputs and states.
        """
        return outputs, final_states

    @property
    def tracks_own_finished(self) -> bool:
        """Whether `step` says of all rows whether they are finished. By default a row that was finished remains so."""
        return False

    def known_steps(self) -> KnownSteps:
        """What is known of the steps before the loop."""
        return KnownSteps()

    def after_end(self, outputs: Any) -> Any:
        """The outputs of the steps that are left out because all rows are finished.

        Args:
          outputs: those of a step, filled with zeros.
        """
        return outputs

    def _undefined(self, example: str) -> errors.FluidError:
        return errors.ProgramError(f"{type(self).__name__} lacks a method of a Decoder; define it: {example}")


class BasicOutput(NamedTuple):
    """What one step of a `BasicDecoder` gives; in the results of `layers.dynamic_decode`, those of all steps.

    Attributes:
      cell_outputs: of the cell, after `output_fn`; `[batch, ...]`, or a pytree of several.
      sample_ids: what the helper made of them; integers `[batch]`.
    """

    cell_outputs: Any
    sample_ids: Any


class BasicDecoder(Decoder):
    """A cell, and a helper that decides what each step says and what the next one is given.

    Args:
      cell: an `RNNCell`, or a function of inputs and states that returns outputs and new states.
      helper: a `TrainingHelper`, `GreedyEmbeddingHelper`, `SampleEmbeddingHelper`, or another `DecodeHelper`.
      output_fn: from the outputs of the cell to what the helper is given, such as a projection to all ids; None to
        leave them as they are.

    Returns:
      A decoder for `layers.dynamic_decode`, whose `inits` are the states of the cell (an RNNCell makes its own by
      default, of zeros), and whose outputs are `(cell_outputs, sample_ids)`.

    Raises:
      ArgumentTypeError: the cell cannot be called, or the helper is none.

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
        """What the helper gives the first step, and the states of the cell."""
        inputs, finished = self.helper.initialize()
        if initial_cell_states is None and isinstance(self.cell, RNNCell):
            initial_cell_states = self.cell.get_initial_states(inputs)
        return inputs, initial_cell_states, finished

    def step(self, time: Any, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Any]:
        """The cell, then what the helper makes of its outputs."""
        outputs, states = call_cell("BasicDecoder", self.cell, inputs, states, kwargs)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        ids = jax.lax.stop_gradient(self.helper.sample(time=time, outputs=outputs, states=states))
        finished, inputs, states = self.helper.next_inputs(time=time, outputs=outputs, states=states, sample_ids=ids)
        return BasicOutput(outputs, ids), states, inputs, finished

    def known_steps(self) -> KnownSteps:
        """What the helper knows, unless a subclass decides otherwise what comes next."""
        known = self.helper.known_steps()
        own = type(self)
        fixed = own.initialize is BasicDecoder.initialize and own.step is BasicDecoder.step
        return known if fixed else known._replace(inputs=None)
