"""`DynamicRNN` and `StaticRNN`: the step of a recurrence, written down as the body of a `with`."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import array_of, dense, describe, is_sequence
from fluid.layers.no_effect import Warned, no_effect
from fluid.layers.recurrent.rnn import time_first
from fluid.layers.recurrent.step_block import StepBlock


class DynamicRNN(StepBlock):
    """A recurrence over sequences whose step is written down as a block.

    Inside the block stands one step of all rows: `step_input` gives what the sequences have there, `memory` what the
    step before left. The block runs once, to be traced; then it is one loop on the device. Rows that have ended keep
    their memory. Layers create their parameters once, for all steps. `layers.rnn` is the same with a function.

    Args:
      name: instead of `dynamic_rnn_N`.

    Returns:
      Called behind the block: the outputs of all steps, a SequenceBatch `[batch, time, ...]`, or a list of several.

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

    kind, opening = "dynamic_rnn", "block"

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
    def step_input(self, x: Any, level: int = 0) -> Any:
        """The value of a sequence at the present step.

        Args:
          x: SequenceBatch `[batch, time, ...]`, with the same lengths as all that are stepped over.
          level: accepted for programs written for Fluid, but has no effect: steps go over the outer level.

        Returns:
          `[batch, ...]`; of nested sequences the inner ones, a SequenceBatch.
        """
        self._inside("step_input")
        if not is_sequence(x):
            raise errors.ShapeError(
                f"{self._this.name} steps over sequence batches, found an array {describe(x)}; arrays [time, batch, "
                f"...] are for fluid.layers.StaticRNN(), what is the same in every step is used as it is"
            )
        return self._step_input(x)

    def static_input(self, x: Any) -> Any:
        """A value that is the same in every step: an array, or a whole sequence, as for attention. It is `x` itself."""
        self._inside("static_input")
        return x

    @no_effect(need_reorder="rows are never reordered")
    def memory(
        self,
        init: Any = None,
        shape: Any = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> Any:
        """What the step before gave to `update_memory`.

        Args:
          init: its value in the first step, `[batch, ...]`, computed before the block.
          shape: without `init`, the sizes behind the batch.
          value: without `init`, the number it is filled with.
          need_reorder: accepted for programs written for Fluid, but has no effect: rows are never reordered.
          dtype: without `init`, its dtype.

        Returns:
          `[batch, *shape]`.
        """
        self._inside("memory")
        if init is not None:
            return self._started(init)
        if shape is None or not self._inputs:
            raise errors.ProgramError(
                f"{self._this.name}: memory needs init=, or shape= behind a step_input, which says how many rows there "
                f"are: word = rnn.step_input(sentence); prev = rnn.memory(shape=[200])"
            )
        sizes = (self._inputs[0][1].shape[0], *(int(d) for d in shape))
        return self._memory(value, sizes, self._dtype(dtype))

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


class StaticRNN(StepBlock):
    """A recurrence over the first axis of arrays whose step is written down as a block; see `DynamicRNN`.

    Args:
      name: instead of `static_rnn_N`.

    Returns:
      Called behind the block: the outputs of all steps, `[time, batch, ...]`, or a list of several.

    Raises:
      ProgramError: as `DynamicRNN`.

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

    kind, opening = "static_rnn", "step"

    def step(self) -> contextlib.AbstractContextManager[None]:
        """The block: `with rnn.step():`."""
        return self._block()

    def step_input(self, x: Any) -> Any:
        """The value of an array at the present step.

        Args:
          x: `[time, batch, ...]`, with the same time as all that are stepped over.

        Returns:
          `[batch, ...]`.
        """
        self._inside("step_input")
        if is_sequence(x):
            array_of(self._this, x)
        array = x if isinstance(x, jax.Array) else np.asarray(x)
        if not array.ndim:
            raise errors.ShapeError(f"{self._this.name} steps over arrays [time, batch, ...], found {describe(x)}")
        return self._step_input(array)

    def memory(
        self,
        init: Any = None,
        shape: Any = None,
        batch_ref: Any = None,
        init_value: float = 0.0,
        init_batch_dim_idx: int = 0,
        ref_batch_dim_idx: int = 1,
    ) -> Any:
        """What the step before gave to `update_memory`.

        Args:
          init: its value in the first step, `[batch, ...]`, computed before the block.
          shape: without `init`, its sizes; that at `init_batch_dim_idx` is taken from `batch_ref`.
          batch_ref: without `init`, a value whose size at `ref_batch_dim_idx` is the batch. A value from `step_input`
            stands for the whole array it comes from, `[time, batch, ...]`.
          init_value: without `init`, the number it is filled with.
          init_batch_dim_idx: see `shape`.
          ref_batch_dim_idx: see `batch_ref`.

        Returns:
          Of the shape of `init`, or `shape`.
        """
        self._inside("memory")
        if init is not None:
            return self._started(init)
        if shape is None or batch_ref is None:
            raise errors.ProgramError(
                f"{self._this.name}: memory needs init=, or shape= and batch_ref=, which says how many rows there are: "
                f"prev = rnn.memory(shape=[-1, 200], batch_ref=x)"
            )
        whole = next((sequence for value, sequence in self._inputs if value is batch_ref), dense(batch_ref))
        sizes = [int(d) for d in shape]
        sizes[init_batch_dim_idx] = whole.shape[ref_batch_dim_idx]
        return self._memory(init_value, tuple(sizes), whole.dtype)

    def step_output(self, o: Any) -> None:
        """Say that a value of each step is a result; `output` takes several."""
        self.output(o)

    def _steps(self, sequence: Any) -> Any:
        return sequence

    def _lengths(self) -> Any:
        return None

    def _joined(self, steps: Any) -> Any:
        return steps
