"""Recurrences whose step is the body of a `with` block: `DynamicRNN` over sequences, `StaticRNN` over arrays."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, dense, describe, is_sequence
from fluid.layers.no_effect import Warned, no_effect
from fluid.layers.recurrent.cells import Cell, numbered, unroll
from fluid.layers.recurrent.steps import check_no_state_written, check_same_steps, next_state, time_first

__all__ = ["DynamicRNN", "StaticRNN"]


@dataclass(eq=False)
class Memory:
    """A value that each step of a recurrence, such as `DynamicRNN`, passes to the next step.

    Attributes:
      value: the traced array that represents the memory inside the block.
      init: the value in the first step: an array, or a number for all its elements.
      site: the line of the user's program that created the memory.
      updated: the value in the next step, after `update_memory`; None before.
    """

    value: Any
    init: Any
    site: str
    updated: Any = None


@dataclass(frozen=True, eq=False)
class BlockCell(Cell):
    """A cell whose step is a traced `with` block. The input of a step is a pair: step number and list of step inputs.

    Attributes:
      staged: the traced block, a function of the step number and the arguments. It returns first the new values of the
        memories, then the outputs.
      arguments: the arguments of the block, in order: a Memory, or the index of a step input in the list.
    """

    staged: core.Staged
    arguments: Sequence[Memory | int]

    def initial_state(self, batch_ref: Any) -> list[Any]:
        """Return the values of all memories (recurrent states) in the first step of the recurrent layer."""
        memories = [a for a in self.arguments if isinstance(a, Memory)]
        return [jnp.broadcast_to(jnp.asarray(m.init, m.value.dtype), m.value.shape) for m in memories]

    def step(self, inputs: Any, state: list[Any]) -> tuple[list[Any], list[Any]]:
        """Run the traced block of a recurrent net for one step; return outputs and new memories (recurrent states)."""
        number, slices = inputs
        memories = iter(state)
        arguments = [slices[a] if isinstance(a, int) else next(memories) for a in self.arguments]
        values = self.staged([number, *arguments])
        return values[len(state) :], values[: len(state)]


class StepBlock(abc.ABC):
    """The base class of `DynamicRNN` and `StaticRNN`: a block that is traced once and then run for every step.

    Attributes:
      kind: the automatic name of the layer without the number, such as "dynamic_rnn".
      opening: the name of the method that opens the block, such as "step"; for error messages.
    """

    kind: str
    opening: str

    def __init__(self, name: str | None = None):
        self._frame = core.current_frame(f"layers.{type(self).__name__}")
        self._this = Layer(self.kind, name)
        # `_stages` holds the JAX trace of the user's `with` block, and is None until the user opens the block.
        self._stages: core.Stages | None = None
        # `_child` is the Frame that records the values of the block while JAX traces the block. Before and after the
        # trace, `_child` is None.
        self._child: core.Frame | None = None
        self._arguments: list[Memory | int] = []
        # `_inputs` holds a pair for each step input: the traced value at one step, and the input with all steps.
        self._inputs: list[tuple[Any, Any]] = []
        self._outputs: list[Any] = []
        self._results: list[Any] | None = None

    def __call__(self, *args: Any) -> Any:
        """Return the outputs of the recurrent net for all steps, after its `with` block: one value or a list."""
        if self._results is None:
            raise errors.ProgramError(
                f"{self._this.name} has no results yet; call it after its block:\n"
                f"    with rnn.{self.opening}():\n        ...\n    out = rnn()"
            )
        return self._results[0] if len(self._results) == 1 else list(self._results)

    def update_memory(self, ex_mem: jax.Array, new_mem: Value) -> None:
        """Set the value of a memory (a value that each step passes to the next step) for the next step.

        Args:
          ex_mem: the value that `memory` returned.
          new_mem: the next value, in the shape of `ex_mem`.
        """
        self._check_inside("update_memory")
        memory = next((m for m in self._memories() if m.value is ex_mem), None)
        if memory is None:
            raise errors.ArgumentError(
                f"{self._this.name}: update_memory was given {describe(ex_mem)}, which is no memory of this block; the "
                f"first argument is what memory() returned: rnn.update_memory(prev, hidden)"
            )
        if memory.updated is not None:
            raise errors.ProgramError(f"{self._this.name}: the memory made at {memory.site} is updated twice")
        memory.updated = next_state(self._this.name, f"the memory made at {memory.site}", memory.value, new_mem)

    def output(self, *outputs: Value) -> None:
        """Add values of the current step to the outputs of the recurrence.

        Args:
          outputs: arrays `[batch, ...]`; calling the recurrence returns them for all steps.
        """
        self._check_inside("output")
        for value in outputs:
            self._outputs.append(jnp.asarray(array_of(self._this, value)))

    @contextlib.contextmanager
    def _block(self) -> Iterator[None]:
        """Trace the user's `with` block, one step of a recurrent net, and then run the traced block for every step."""
        if self._stages is not None:
            raise errors.ProgramError(f"{self._this.name} has one block; make another {type(self).__name__}()")
        frame = self._frame
        self._stages = core.Stages()
        try:
            number = self._stages.argument(jax.ShapeDtypeStruct((), jnp.int32))
            child = core.inner_frame(frame)
            if child.given.key is not None:
                child.given.key = jax.random.fold_in(child.given.key, number)
            self._child = child
            with core.running(child):
                yield
            self._check_whole(child)
            results = [*(m.updated for m in self._memories()), *self._outputs]
            staged = self._stages.close(results, self._computed_before())
        except BaseException:
            self._stages.abandon()
            raise
        finally:
            self._child = None
        core.leave(frame, child, f"layers.{type(self).__name__}")
        frame.given.states.update({n: v for n, v in child.given.states.items() if n not in frame.given.states})
        self._results = [self._this.output(v) for v in self._run(staged)]

    def _run(self, staged: core.Staged) -> list[Any]:
        """Run the traced block of the recurrent layer for every step of its sequences; return all outputs."""
        for inside, value in zip(staged.inside, self._computed_before(), strict=True):
            if inside and isinstance(value, jax.core.Tracer):
                raise self._computed_inside(value)
        cell = BlockCell(staged, self._arguments)
        steps = [self._steps(sequence) for _, sequence in self._inputs]
        outputs, _ = unroll(cell, numbered(steps), cell.initial_state(steps), self._lengths())
        return [self._joined(v) for v in outputs]

    def _step_input(self, sequence: Any) -> Any:
        """Add a sequence to the inputs of the recurrence, and return its traced value at the current step."""
        if self._inputs:
            check_same_steps(self._this.name, self._inputs[0][1], sequence)
        steps = jax.eval_shape(self._steps, sequence)
        one = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype), steps)
        assert self._stages is not None and self._child is not None
        value = self._stages.argument(one)
        # If the sequence is fed by the user, mark its value at the step as fed too: the input pipeline checks the range
        # of fed integers.
        if (feed := self._frame.fact(sequence, "feed")) is not None:
            self._child.note(value, feed=feed)
        self._arguments.append(len(self._inputs))
        self._inputs.append((value, sequence))
        return value

    def _memory(self, init: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """Create a memory of a recurrence (a value from the previous step), which is `init` in the first step.

        The result is the traced value of the memory in a step.
        """
        assert self._stages is not None
        value = self._stages.argument(jax.ShapeDtypeStruct(shape, dtype))
        self._arguments.append(Memory(value, init, core.user_site()))
        return value

    def _memory_from(self, init: Any) -> Any:
        """Create a memory (a recurrent state) with the first value `init`; return its traced value in a step."""
        if isinstance(init, jax.Array):
            return self._memory(init, init.shape, init.dtype)
        if is_sequence(init):
            array_of(self._this, init)
        init = np.asarray(init)
        return self._memory(init, init.shape, self._computed_dtype(init.dtype))

    def _computed_dtype(self, dtype: Any) -> Any:
        return self._frame.compute(np.zeros((), jax.dtypes.canonicalize_dtype(dtype))).dtype

    def _computed_before(self) -> list[Any]:
        return [*(m.init for m in self._memories()), *jax.tree.leaves([sequence for _, sequence in self._inputs])]

    def _computed_inside(self, value: Any) -> errors.FluidError:
        """Return the error for a value that is computed inside the block of a step, but must be computed before it."""
        site = next((m.site for m in self._memories() if m.init is value), None)
        what = "the sequence of a step_input" if site is None else f"the first value of the memory made at {site}"
        return errors.ProgramError(
            f"{self._this.name}: {what} is computed inside the block, where every step computes it anew; compute it "
            f"before `with rnn.{self.opening}():`"
        )

    def _memories(self) -> list[Memory]:
        return [a for a in self._arguments if isinstance(a, Memory)]

    def _check_inside(self, what: str) -> None:
        """Raise an error if the user calls the method `what`, such as "output", outside the `with` block."""
        if self._child is None:
            raise errors.ProgramError(
                f"{self._this.name}: {what} belongs inside the block:\n"
                f"    with rnn.{self.opening}():\n        ... rnn.{what}(...)"
            )

    def _check_whole(self, child: core.Frame) -> None:
        """Check the block of a recurrent layer, which computes one step.

        The block must read a sequence, update all memories, and declare an output. It must not change a state of a
        layer, such as a moving mean.
        """
        name = self._this.name
        if not self._inputs:
            raise errors.ProgramError(f"{name} steps over nothing; in its block, call x = rnn.step_input(sequence)")
        stale = [m for m in self._memories() if m.updated is None]
        if stale:
            raise errors.ProgramError(
                f"{name}: the memory made at {stale[0].site} is never updated, so it would be the same in every step; "
                f"call rnn.update_memory(prev, hidden), or use its first value as it is"
            )
        if not self._outputs:
            raise errors.ProgramError(f"{name} has no outputs; say in its block which: rnn.output(hidden)")
        check_no_state_written(name, child.made.states)

    @abc.abstractmethod
    def _steps(self, sequence: Any) -> Any:
        """Return the data of a sequence that a recurrent layer reads, with time first: `[time, batch, ...]`."""

    @abc.abstractmethod
    def _lengths(self) -> Any:
        """Return the lengths of the sequences that the block reads, `[batch]`; None if all steps are valid."""

    @abc.abstractmethod
    def _joined(self, steps: Any) -> Any:
        """Convert one output of all steps, `[time, batch, ...]`, to the array or SequenceBatch that the user gets."""


class DynamicRNN(StepBlock):
    """A recurrence over sequences whose step is the body of a `with` block.

    The block describes one step of all rows. `step_input` returns the values of the sequences at this step, and
    `memory` returns the values from the previous step. The block is traced once, and becomes one loop on the device.
    Rows that have ended keep their memory. Layers create their parameters once, for all steps. `layers.rnn` takes a
    function instead of a block.

    Args:
      name: name of the layer; by default `dynamic_rnn_N`.

    Returns:
      When called after the block: the outputs of all steps, a SequenceBatch `[batch, time, ...]`, or a list of
      SequenceBatches.

    Raises:
      ProgramError: a memory is not updated, or starts with a value that is computed inside the block; there is no step
        input or no output; a layer inside the block changes a state, as batch_norm does; or a method is called outside
        the block.

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
        """Open the block that describes one step of the recurrence: `with rnn.block():`."""
        return self._block()

    @no_effect(
        level=Warned(
            "steps go over the outer level",
            asks=lambda value, given: value != 0,
            instead="to go over inner sequences, open a block inside of this one",
        )
    )
    def step_input(self, x: Value, level: int = 0) -> Any:
        """Return the value of a sequence at the current step.

        Args:
          x: a SequenceBatch `[batch, time, ...]`; all step inputs have equal lengths.
          level: accepted for programs written for Fluid, but has no effect: steps go over the outer level.

        Returns:
          An array `[batch, ...]`; for nested sequences, a SequenceBatch of the inner sequences.
        """
        self._check_inside("step_input")
        if not is_sequence(x):
            raise errors.ShapeError(
                f"{self._this.name} steps over sequence batches, found an array {describe(x)}; arrays [time, batch, "
                f"...] are for fluid.layers.StaticRNN(), what is the same in every step is used as it is"
            )
        return self._step_input(x)

    def static_input(self, x: Value) -> Any:
        """Return `x` unchanged: a value that all steps share, such as the whole sequence for attention."""
        self._check_inside("static_input")
        return x

    @no_effect(need_reorder="rows are never reordered")
    def memory(
        self,
        init: Value | None = None,
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


class StaticRNN(StepBlock):
    """A recurrence over the first axis of arrays, whose step is the body of a `with` block.

    The block is traced once, and becomes one loop on the device. `DynamicRNN` runs over sequences in this way.

    Args:
      name: name of the layer; by default `static_rnn_N`.

    Returns:
      When called after the block: the outputs of all steps, an array `[time, batch, ...]`, or a list of arrays.

    Raises:
      ProgramError: a memory is not updated, or starts with a value that is computed inside the block; there is no step
        input or no output; a layer inside the block changes a state, as batch_norm does; or a method is called outside
        the block.

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
        """Open the block that describes one step: `with rnn.step():`."""
        return self._block()

    def step_input(self, x: Value) -> Any:
        """Return the value of an array at the current step.

        Args:
          x: an array `[time, batch, ...]`; all step inputs have equal `time`.

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
        init: Value | None = None,
        shape: Sequence[int] | None = None,
        batch_ref: Value | None = None,
        init_value: float = 0.0,
        init_batch_dim_idx: int = 0,
        ref_batch_dim_idx: int = 1,
    ) -> jax.Array:
        """Create a memory (a recurrent state); return its value from the previous step, as set by `update_memory`.

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

    def step_output(self, o: Value) -> None:
        """Add a value of the current step to the outputs of the recurrence; `output` adds several."""
        self.output(o)

    def _steps(self, sequence: Any) -> Any:
        return sequence

    def _lengths(self) -> Any:
        return None

    def _joined(self, steps: Any) -> Any:
        return steps
