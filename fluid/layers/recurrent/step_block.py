"""`StepBlock`: the step of a recurrence as the body of a `with`, which is traced and then run in a loop."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, is_sequence
from fluid.layers.recurrent.rnn import check_together, next_state, refuse_changes
from fluid.layers.recurrent.scan import scan_time


@dataclass(eq=False)
class Memory:
    """What one step hands to the next: its first value, or how to make it; its value inside; and the new one."""

    value: Any
    init: Any
    site: str
    updated: Any = None


class StepBlock:
    """What both kinds have in common: a block that is traced once and then run for every step."""

    kind, opening = "", ""

    def __init__(self, name: str | None = None):
        self._frame = core.current_frame(f"layers.{type(self).__name__}")
        self._this = Layer(self.kind, name)
        self._stages: core.Stages | None = None
        self._child: core.Frame | None = None
        self._arguments: list[Memory | int] = []
        self._inputs: list[tuple[Any, Any]] = []
        self._outputs: list[Any] = []
        self._results: list[Any] | None = None

    def __call__(self, *args: Any) -> Any:
        """The outputs of all steps: one value, or a list of several."""
        if self._results is None:
            raise errors.ProgramError(
                f"{self._this.name} has no results yet; call it behind its block:\n"
                f"    with rnn.{self.opening}():\n        ...\n    out = rnn()"
            )
        return self._results[0] if len(self._results) == 1 else list(self._results)

    def update_memory(self, ex_mem: Any, new_mem: Any) -> None:
        """Say which value a memory has in the next step.

        Args:
          ex_mem: from `memory`.
          new_mem: its next value, of the same shape.
        """
        self._inside("update_memory")
        memory = next((m for m in self._memories() if m.value is ex_mem), None)
        if memory is None:
            raise errors.ArgumentError(
                f"{self._this.name}: update_memory was given {describe(ex_mem)}, which is no memory of this block; the "
                f"first argument is what memory() returned: rnn.update_memory(prev, hidden)"
            )
        if memory.updated is not None:
            raise errors.ProgramError(f"{self._this.name}: the memory made at {memory.site} is updated twice")
        memory.updated = next_state(self._this.name, f"the memory made at {memory.site}", memory.value, new_mem)

    def output(self, *outputs: Any) -> None:
        """Say which values of each step are results.

        Args:
          outputs: arrays.
        """
        self._inside("output")
        for value in outputs:
            self._outputs.append(jnp.asarray(array_of(self._this, value)))

    @contextlib.contextmanager
    def _block(self) -> Iterator[None]:
        if self._stages is not None:
            raise errors.ProgramError(f"{self._this.name} has one block; make another {type(self).__name__}()")
        frame, self._stages = self._frame, core.Stages()
        try:
            turn = self._stages.argument(jax.ShapeDtypeStruct((), jnp.int32))
            self._child = core.inner_frame(frame)
            if frame.given.key is not None:
                self._child.given.key = jax.random.fold_in(frame.given.key, turn)
            with core.running(self._child):
                yield
            self._check()
            memories = self._memories()
            results = [*(m.updated for m in memories), *self._outputs]
            sequences = [sequence for _, sequence in self._inputs]
            staged = self._stages.close(results, [*(m.init for m in memories), *jax.tree.leaves(sequences)])
        except BaseException:
            self._stages.abandon()
            raise
        finally:
            child, self._child = self._child, None
        core.leave(frame, child, f"layers.{type(self).__name__}")
        frame.given.states.update({n: v for n, v in child.given.states.items() if n not in frame.given.states})
        self._results = [self._this.output(v) for v in self._run(staged, memories, sequences)]

    def _run(self, staged: core.Staged, memories: list[Memory], sequences: list[Any]) -> list[Any]:
        for inside, value in zip(
            staged.inside, [*(m.init for m in memories), *jax.tree.leaves(sequences)], strict=True
        ):
            if inside and isinstance(value, jax.core.Tracer):
                site = next((m.site for m in memories if m.init is value), None)
                raise self._computed_inside(site)
        starts = [jnp.broadcast_to(jnp.asarray(m.init, m.value.dtype), m.value.shape) for m in memories]

        def step(turn: Any, states: list[Any], inputs: list[Any]) -> tuple[list[Any], list[Any]]:
            left = iter(states)
            arguments = [inputs[a] if isinstance(a, int) else next(left) for a in self._arguments]
            values = staged([turn, *arguments])
            return values[: len(states)], values[len(states) :]

        outputs = scan_time(step, starts, [self._steps(s) for s in sequences], self._lengths())[1]
        return [self._joined(v) for v in outputs]

    def _step_input(self, sequence: Any) -> Any:
        """The value of a sequence at the present step."""
        if self._inputs:
            check_together(self._this.name, self._inputs[0][1], sequence)
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
        """The value that a memory has in the present step; `init` is an array, or the number it is filled with."""
        assert self._stages is not None
        value = self._stages.argument(jax.ShapeDtypeStruct(shape, dtype))
        self._arguments.append(Memory(value, init, core.user_site()))
        return value

    def _started(self, init: Any) -> Any:
        """A memory with a given first value; that is looked at behind the block, outside of which it belongs."""
        if isinstance(init, jax.Array):
            return self._memory(init, init.shape, init.dtype)
        if is_sequence(init):
            array_of(self._this, init)
        init = np.asarray(init)
        return self._memory(init, init.shape, self._dtype(init.dtype))

    def _dtype(self, dtype: Any) -> Any:
        return self._frame.compute(np.zeros((), jax.dtypes.canonicalize_dtype(dtype))).dtype

    def _computed_inside(self, site: str | None) -> errors.FluidError:
        what = "the sequence of a step_input" if site is None else f"the first value of the memory made at {site}"
        return errors.ProgramError(
            f"{self._this.name}: {what} is computed inside the block, where every step computes it anew; compute it "
            f"before `with rnn.{self.opening}():`"
        )

    def _memories(self) -> list[Memory]:
        return [m for m in self._arguments if isinstance(m, Memory)]

    def _inside(self, what: str) -> None:
        if self._child is None:
            raise errors.ProgramError(
                f"{self._this.name}: {what} belongs into the block:\n"
                f"    with rnn.{self.opening}():\n        ... rnn.{what}(...)"
            )

    def _check(self) -> None:
        assert self._child is not None
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
        refuse_changes(name, self._child.made.states)

    def _steps(self, sequence: Any) -> Any:
        raise NotImplementedError

    def _lengths(self) -> Any:
        raise NotImplementedError

    def _joined(self, steps: Any) -> Any:
        raise NotImplementedError
