"""`DynamicRNN`: a recurrence over sequences whose step is the body of a `with` block."""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import describe, is_sequence
from fluid.layers.no_effect import Warned, no_effect
from fluid.layers.recurrent.step_block import StepBlock
from fluid.layers.recurrent.steps import time_first

__all__ = ["DynamicRNN"]


class DynamicRNN(StepBlock):
    """A recurrence over sequences whose step is the body of a `with` block.

    The block describes one step of all rows. `step_input` returns the values of the sequences at this step, and
    `memory` returns the values from the previous step. The block is traced once, and becomes one loop on the device.
    Rows that have ended keep their memory. Layers create their parameters once, for all steps. `layers.rnn` takes a
    function instead of a block.

    Args:
      name: name of the layer; by default `dynamic_rnn_N`.

    Returns:
      When called after the block: the outputs of all steps, a SequenceBatch `[batch, time, ...]` or a list of several.

    Raises:
      ProgramError: a memory is not updated or starts with a value from inside; there is no step input or no output; a
        layer inside changes a state, as batch_norm does; or a method is called outside the block.

    Example:
      >>> import fluid
      >>> def program():
      ...     sentence = fluid.layers.data("sentence", shape=[8], lod_level=1)
      ...     rnn = fluid.layers.DynamicRNN()
      ...     with rnn.block():
      ...         word = rnn.step_input(sentence)
      ...         prev = rnn.memory(shape=[4])
      ...         hidden = fluid.layers.fc([word, prev], size=4, act="relu")
      ...         rnn.update_memory(prev, hidden)
      ...         rnn.output(hidden)
      ...     return rnn()
      >>> list(fluid.Program(program).parameters)
      ['fc_0.w_0', 'fc_0.w_1', 'fc_0.b_0']
    """

    kind = "dynamic_rnn"
    opening = "block"

    def block(self) -> contextlib.AbstractContextManager[None]:
        """Open the block: `with rnn.block():`."""
        return self._block()

    @no_effect(
        level=Warned(
            "steps go over the outer level",
            asks=lambda value, given: value != 0,
            instead="to go over inner sequences, open a block inside of this one",
        )
    )
    def step_input(self, x: core.Value, level: int = 0) -> Any:
        """Return the value of a sequence at the current step.

        Args:
          x: SequenceBatch `[batch, time, ...]`, with the lengths of all other step inputs.
          level: accepted for programs written for Fluid, but has no effect: steps go over the outer level.

        Returns:
          `[batch, ...]`; for nested sequences the inner ones, as a SequenceBatch.
        """
        self._check_inside("step_input")
        if not is_sequence(x):
            raise errors.ShapeError(
                f"{self._this.name} steps over sequence batches, found an array {describe(x)}; arrays [time, batch, "
                f"...] are for fluid.layers.StaticRNN(), what is the same in every step is used as it is"
            )
        return self._step_input(x)

    def static_input(self, x: core.Value) -> Any:
        """Return `x` itself: a value that all steps share, such as the whole sequence for attention."""
        self._check_inside("static_input")
        return x

    @no_effect(need_reorder="rows are never reordered")
    def memory(
        self,
        init: core.Value | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> jax.Array:
        """Create a memory, and return its value from the previous step, as set by `update_memory`.

        Args:
          init: the value in the first step, `[batch, ...]`, computed before the block.
          shape: without `init`, the sizes of the memory without the batch.
          value: without `init`, the number that fills the memory in the first step.
          need_reorder: accepted for programs written for Fluid, but has no effect: rows are never reordered.
          dtype: without `init`, the dtype of the memory.

        Returns:
          `[batch, *shape]`.
        """
        self._check_inside("memory")
        if init is not None:
            return self._memory_from(init)
        if shape is None or not self._inputs:
            raise errors.ProgramError(
                f"{self._this.name}: memory needs init=, or shape= after a step_input, which says how many rows there "
                f"are: word = rnn.step_input(sentence); prev = rnn.memory(shape=[200])"
            )
        sizes = (self._inputs[0][1].shape[0], *(int(d) for d in shape))
        return self._memory(value, sizes, self._computed_dtype(dtype))

    def _steps(self, sequence: Any) -> Any:
        return time_first(sequence)

    def _lengths(self) -> Any:
        return self._inputs[0][1].lengths

    def _joined(self, steps: Any) -> Any:
        batch = self._inputs[0][1].shape[0]
        if steps.ndim < 2 or steps.shape[1] != batch:
            raise errors.ShapeError(
                f"{self._this.name}: an output of a step is {describe(steps[0])}, expected one row for "
                f"each sequence, [batch, ...]"
            )
        return core.SequenceBatch(jnp.swapaxes(steps, 0, 1), self._lengths())
