"""`StaticRNN`: a recurrence over the first axis of arrays, whose step is the body of a `with` block."""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fluid import core, errors
from fluid.layers.base import array_of, dense, describe, is_sequence
from fluid.layers.recurrent.step_block import StepBlock

__all__ = ["StaticRNN"]


class StaticRNN(StepBlock):
    """A recurrence over the first axis of arrays, whose step is the body of a `with` block.

    `DynamicRNN` runs over sequences, and explains how the block is traced.

    Args:
      name: name of the layer; by default `static_rnn_N`.

    Returns:
      When called after the block: the outputs of all steps, `[time, batch, ...]`, or a list of several.

    Raises:
      ProgramError: a memory is not updated or starts with a value from inside; there is no step input or no output; a
        layer inside changes a state, as batch_norm does; or a method is called outside the block.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[7, 5, 3], append_batch_size=False)
      ...     rnn = fluid.layers.StaticRNN()
      ...     with rnn.step():
      ...         now = rnn.step_input(x)
      ...         prev = rnn.memory(shape=[-1, 4], batch_ref=now)
      ...         hidden = fluid.layers.fc([now, prev], size=4, act="relu")
      ...         rnn.update_memory(prev, hidden)
      ...         rnn.step_output(hidden)
      ...     return rnn()
      >>> print(fluid.Program(program).outputs[0])
      float32[7, 5, 4]
    """

    kind = "static_rnn"
    opening = "step"

    def step(self) -> contextlib.AbstractContextManager[None]:
        """Open the block: `with rnn.step():`."""
        return self._block()

    def step_input(self, x: core.Value) -> Any:
        """Return the value of an array at the current step.

        Args:
          x: `[time, batch, ...]`, with the `time` of all other step inputs.

        Returns:
          `[batch, ...]`.
        """
        self._check_inside("step_input")
        if is_sequence(x):
            array_of(self._this, x)
        array = x if isinstance(x, jax.Array) else np.asarray(x)
        if not array.ndim:
            raise errors.ShapeError(f"{self._this.name} steps over arrays [time, batch, ...], found {describe(x)}")
        return self._step_input(array)

    def memory(
        self,
        init: core.Value | None = None,
        shape: Sequence[int] | None = None,
        batch_ref: core.Value | None = None,
        init_value: float = 0.0,
        init_batch_dim_idx: int = 0,
        ref_batch_dim_idx: int = 1,
    ) -> jax.Array:
        """Create a memory, and return its value from the previous step, as set by `update_memory`.

        Args:
          init: the value in the first step, `[batch, ...]`, computed before the block.
          shape: without `init`, the sizes of the memory; `batch_ref` replaces the size at `init_batch_dim_idx`.
          batch_ref: without `init`, a value whose size at `ref_batch_dim_idx` is the batch. A value from `step_input`
            stands for its whole array, `[time, batch, ...]`.
          init_value: without `init`, the number that fills the memory in the first step.
          init_batch_dim_idx: the batch dimension of `shape`.
          ref_batch_dim_idx: the batch dimension of `batch_ref`.

        Returns:
          An array of the shape of `init`, or of `shape`.
        """
        self._check_inside("memory")
        if init is not None:
            return self._memory_from(init)
        if shape is None or batch_ref is None:
            raise errors.ProgramError(
                f"{self._this.name}: memory needs init=, or shape= and batch_ref=, which says how many rows there are: "
                f"prev = rnn.memory(shape=[-1, 200], batch_ref=x)"
            )
        whole = next((sequence for value, sequence in self._inputs if value is batch_ref), dense(batch_ref))
        sizes = [int(d) for d in shape]
        sizes[init_batch_dim_idx] = whole.shape[ref_batch_dim_idx]
        return self._memory(init_value, tuple(sizes), whole.dtype)

    def step_output(self, o: core.Value) -> None:
        """Mark a value of each step as a result; `output` marks several."""
        self.output(o)

    def _steps(self, sequence: Any) -> Any:
        return sequence

    def _lengths(self) -> Any:
        return None

    def _joined(self, steps: Any) -> Any:
        return steps
