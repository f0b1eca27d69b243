"""`Decoder`, the base class for `dynamic_decode`; and `BasicDecoder`, composed of a cell and a helper."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fluid import errors
from fluid.layers.base import layer
from fluid.layers.recurrent.rnn_cell import RNNCell
from fluid.layers.recurrent.steps import call_cell, check_cell
from fluid.layers.structured.decode_helper import DecodeHelper, KnownSteps


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
        pass  # the decorator checks that decoders are created in a program function

    def initialize(self, inits: Any) -> tuple[Any, Any, Any]:
        """Return the inputs and states of the first step; called once, before the loop.

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
          structures and shapes of the old ones; and the rows that this step finishes.
        """
        raise self._undefined(
            "def step(self, time, inputs, states): ... return outputs, new_states, next_inputs, finished"
        )

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """Convert the results; called once, after the loop. By default the results stay unchanged.

        Args:
          outputs: of all steps, `[time, batch, ...]`.
          final_states: the states after the last step.
          sequence_lengths: the number of steps until each row was finished, int32 `[batch]`.

        Returns:
          Outputs and states.
        """
        return outputs, final_states

    @property
    def tracks_own_finished(self) -> bool:
        """True if `step` returns the finished flags of all rows. By default False: a finished row stays finished."""
        return False

    def known_steps(self) -> KnownSteps:
        """Return the facts about the steps that are known before the loop."""
        return KnownSteps()

    def after_end(self, outputs: Any) -> Any:
        """Return the outputs of the steps that are skipped because all rows are finished.

        Args:
          outputs: the outputs of a step, filled with zeros.
        """
        return outputs

    def _undefined(self, example: str) -> errors.FluidError:
        return errors.ProgramError(f"{type(self).__name__} lacks a method of a Decoder; define it: {example}")


class BasicOutput(NamedTuple):
    """The output of one step of a `BasicDecoder`; in the results of `layers.dynamic_decode`, of all steps.

    Attributes:
      cell_outputs: the outputs of the cell, after `output_fn`; `[batch, ...]`, or a pytree of several.
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
      ArgumentTypeError: the cell cannot be called, or the helper is no DecodeHelper.

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
        """Return the first inputs from the helper, the states of the cell, and the finished flags."""
        inputs, finished = self.helper.initialize()
        if initial_cell_states is None and isinstance(self.cell, RNNCell):
            initial_cell_states = self.cell.get_initial_states(inputs)
        return inputs, initial_cell_states, finished

    def step(self, time: Any, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Any]:
        """Run the cell, then the helper on the outputs of the cell."""
        outputs, states = call_cell("BasicDecoder", self.cell, inputs, states, kwargs)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        ids = jax.lax.stop_gradient(self.helper.sample(time=time, outputs=outputs, states=states))
        finished, inputs, states = self.helper.next_inputs(time=time, outputs=outputs, states=states, sample_ids=ids)
        return BasicOutput(outputs, ids), states, inputs, finished

    def known_steps(self) -> KnownSteps:
        """Return the facts from the helper, without inputs if a subclass overrides `initialize` or `step`."""
        known = self.helper.known_steps()
        own = type(self)
        fixed = own.initialize is BasicDecoder.initialize and own.step is BasicDecoder.step
        return known if fixed else known._replace(inputs=None)
