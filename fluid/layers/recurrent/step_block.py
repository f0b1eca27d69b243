"""`StepBlock`: the step of a recurrence as the body of a `with` block, traced once and run in a loop."""

import abc
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, is_sequence
from fluid.layers.recurrent.cells import Cell
from fluid.layers.recurrent.scan import numbered, unroll
from fluid.layers.recurrent.steps import check_no_state_written, check_same_steps, next_state


@dataclass(eq=False)
class Memory:
    """A value that each step passes to the next.

    Attributes:
      value: the traced array that represents the memory inside the block.
      init: the value in the first step, or the number that fills the first value.
      site: the user's line that created the memory.
      updated: the value in the next step, after `update_memory`; None before.
    """

    value: Any
    init: Any
    site: str
    updated: Any = None


@dataclass(frozen=True, eq=False)
class BlockCell(Cell):
    """A cell around a traced block; the inputs are pairs of step number and list of step inputs.

    Attributes:
      staged: the block as a function of the step number and the arguments; it returns the memories, then the outputs.
      arguments: the arguments of the block, in order: memories, and the indices of its step inputs in the list.
    """

    staged: core.Staged
    arguments: Sequence[Memory | int]

    def initial_state(self, batch_ref: Any) -> list[Any]:
        """Return the first values of the memories."""
        memories = [a for a in self.arguments if isinstance(a, Memory)]
        return [jnp.broadcast_to(jnp.asarray(m.init, m.value.dtype), m.value.shape) for m in memories]

    def step(self, inputs: Any, state: list[Any]) -> tuple[list[Any], list[Any]]:
        """Run the block once."""
        number, slices = inputs
        memories = iter(state)
        arguments = [slices[a] if isinstance(a, int) else next(memories) for a in self.arguments]
        values = self.staged([number, *arguments])
        return values[len(state) :], values[: len(state)]


class StepBlock(abc.ABC):
    """The base class of `DynamicRNN` and `StaticRNN`: a block that is traced once and then run for every step.

    Attributes:
      kind: the stem of automatic names.
      opening: the method that opens the block, for messages.
    """

    kind: str
    opening: str

    def __init__(self, name: str | None = None):
        self._frame = core.current_frame(f"layers.{type(self).__name__}")
        self._this = Layer(self.kind, name)
        self._stages: core.Stages | None = None  # from the opening of the block on
        self._child: core.Frame | None = None  # inside the block
        self._arguments: list[Memory | int] = []
        self._inputs: list[tuple[Any, Any]] = []  # the value inside the block, and the whole sequence
        self._outputs: list[Any] = []
        self._results: list[Any] | None = None

    def __call__(self, *args: Any) -> Any:
        """Return the outputs of all steps: one value, or a list of several."""
        if self._results is None:
            raise errors.ProgramError(
                f"{self._this.name} has no results yet; call it after its block:\n"
                f"    with rnn.{self.opening}():\n        ...\n    out = rnn()"
            )
        return self._results[0] if len(self._results) == 1 else list(self._results)

    def update_memory(self, ex_mem: jax.Array, new_mem: core.Value) -> None:
        """Set the value of a memory in the next step.

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

    def output(self, *outputs: core.Value) -> None:
        """Mark values of each step as results.

        Args:
          outputs: arrays.
        """
        self._check_inside("output")
        for value in outputs:
            self._outputs.append(jnp.asarray(array_of(self._this, value)))

    @contextlib.contextmanager
    def _block(self) -> Iterator[None]:
        """Trace the block while it runs, then run the traced block for every step."""
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
        """Compute the outputs of the traced block for all steps."""
        for inside, value in zip(staged.inside, self._computed_before(), strict=True):
            if inside and isinstance(value, jax.core.Tracer):
                raise self._computed_inside(value)
        cell = BlockCell(staged, self._arguments)
        steps = [self._steps(sequence) for _, sequence in self._inputs]
        outputs, _ = unroll(cell, numbered(steps), cell.initial_state(steps), self._lengths())
        return [self._joined(v) for v in outputs]

    def _step_input(self, sequence: Any) -> Any:
        """Return the value of a sequence at the current step."""
        if self._inputs:
            check_same_steps(self._this.name, self._inputs[0][1], sequence)
        steps = jax.eval_shape(self._steps, sequence)
        one = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype), steps)
        assert self._stages is not None and self._child is not None
        value = self._stages.argument(one)
        if (feed := self._frame.fact(sequence, "feed")) is not None:  # its integers can still be checked
            self._child.note(value, feed=feed)
        self._arguments.append(len(self._inputs))
        self._inputs.append((value, sequence))
        return value

    def _memory(self, init: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """Create a memory, and return its value at the current step; `init` is its first value, an array or number."""
        assert self._stages is not None
        value = self._stages.argument(jax.ShapeDtypeStruct(shape, dtype))
        self._arguments.append(Memory(value, init, core.user_site()))
        return value

    def _memory_from(self, init: Any) -> Any:
        """Create a memory with a given first value, which `_run` checks to be computed before the block."""
        if isinstance(init, jax.Array):
            return self._memory(init, init.shape, init.dtype)
        if is_sequence(init):
            array_of(self._this, init)
        init = np.asarray(init)
        return self._memory(init, init.shape, self._computed_dtype(init.dtype))

    def _computed_dtype(self, dtype: Any) -> Any:
        """Return the dtype in which the program computes with data of `dtype`."""
        return self._frame.compute(np.zeros((), jax.dtypes.canonicalize_dtype(dtype))).dtype

    def _computed_before(self) -> list[Any]:
        """Return the values that must be computed before the block: first values of memories, and step inputs."""
        return [*(m.init for m in self._memories()), *jax.tree.leaves([sequence for _, sequence in self._inputs])]

    def _computed_inside(self, value: Any) -> errors.FluidError:
        """Return the error for a first value or step input that is computed inside the block."""
        site = next((m.site for m in self._memories() if m.init is value), None)
        what = "the sequence of a step_input" if site is None else f"the first value of the memory made at {site}"
        return errors.ProgramError(
            f"{self._this.name}: {what} is computed inside the block, where every step computes it anew; compute it "
            f"before `with rnn.{self.opening}():`"
        )

    def _memories(self) -> list[Memory]:
        return [a for a in self._arguments if isinstance(a, Memory)]

    def _check_inside(self, what: str) -> None:
        """Raise an error if a method is called outside the block."""
        if self._child is None:
            raise errors.ProgramError(
                f"{self._this.name}: {what} belongs inside the block:\n"
                f"    with rnn.{self.opening}():\n        ... rnn.{what}(...)"
            )

    def _check_whole(self, child: core.Frame) -> None:
        """Check that a block has step inputs and outputs, updates its memories, and changes no state."""
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
        """Return a step input with time as the first dimension."""

    @abc.abstractmethod
    def _lengths(self) -> Any:
        """Return the lengths of the rows, `[batch]`, or None if all steps count."""

    @abc.abstractmethod
    def _joined(self, steps: Any) -> Any:
        """Convert an output of all steps, `[time, ...]`, to the user's format."""
