"""`DynamicRNN`: a recurrence over sequences, whose step is written down as the body of a `with`."""

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


class DynamicRNN(StepBlock):
    """A recurrence over sequences whose step is written down as a block.

    The block describes one step of all rows: `step_input` gives what the sequences hold at that step, and `memory` what
    the step before left. The block runs once, to be traced, and becomes one loop on the device. Rows that have ended
    keep their memory. Layers create their parameters once, for all steps. `layers.rnn` does the same with a function
    instead of a block.

    Args:
      name: instead of `dynamic_rnn_N`.

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
        """The block: `with rnn.block():`."""
        return self._block()

    @no_effect(
        level=Warned(
            "steps go over the outer level",
            asks=lambda value, given: value != 0,
            instead="to go over inner sequences, open a block inside of this one",
        )
    )
    def step_input(self, x: core.Value, level: int = 0) -> Any:
        """The value of a sequence at the present step.

        Args:
          x: SequenceBatch `[batch, time, ...]`, with the same lengths as all that are stepped over.
          level: accepted for programs written for Fluid, but has no effect: steps go over the outer level.

        Returns:
          `[batch, ...]`; of nested sequences the inner ones, as a SequenceBatch.
        """
        self._check_inside("step_input")
        if not is_sequence(x):
            raise errors.ShapeError(
                f"{self._this.name} steps over sequence batches, found an array {describe(x)}; arrays [time, batch, "
                f"...] are for fluid.layers.StaticRNN(), what is the same in every step is used as it is"
            )
        return self._step_input(x)

    def static_input(self, x: core.Value) -> Any:
        """A value that is the same in every step, such as the whole sequence that attention looks at: `x` itself."""
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
        """What the step before handed on with `update_memory`.

        Args:
          init: its value in the first step, `[batch, ...]`, computed before the block.
          shape: without `init`, its sizes, leaving out the batch.
          value: without `init`, the number it is filled with.
          need_reorder: accepted for programs written for Fluid, but has no effect: rows are never reordered.
          dtype: without `init`, its dtype.

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
