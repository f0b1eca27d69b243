"""Recurrences whose step is a block: DynamicRNN and StaticRNN, written down."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from fluid import core, errors, layers
from fluid.layers.recurrent.steps import time_first
from fluid.static.tape import values
from fluid.static.tape.calls import Block, outer_environment, run_calls
from fluid.static.tape.program import default_main_program
from fluid.static.tape.variable import Variable


class _StepBlock:
    """What both have in common.

    Args:
      name: instead of `dynamic_rnn_N` or `static_rnn_N`.
    """

    kind: Any

    def __init__(self, name: str | None = None):
        self._name = name
        self._program = default_main_program()
        self._block: Block | None = None
        self._outputs: list[Variable] = []
        self._results: list[Variable] = []

    def __call__(self, *args: Any) -> Any:
        """The outputs of all steps: one variable, or a list of several."""
        if not self._results:
            raise errors.ProgramError(f"layers.{self.kind.__name__} has no results yet; call it after its block")
        return self._results[0] if len(self._results) == 1 else list(self._results)

    def update_memory(self, ex_mem: Variable, new_mem: Variable) -> None:
        """Say which value a memory has in the next step."""
        self._method("update_memory", ex_mem, new_mem)

    def output(self, *outputs: Variable) -> None:
        """Say which variables of each step are results."""
        self._method("output", *outputs)
        self._outputs.extend(outputs)

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        with self._program.writing() as block:
            self._block = block
            yield
        if found := block.assigned():
            raise errors.ProgramError(
                f"layers.{self.kind.__name__}: the block assigns {', '.join(v.name for v in found)}, which stands "
                f"outside of it; what goes from step to step is a memory: rnn.update_memory(prev, new)"
            )
        result = self._program.apply(_Steps(self, block, self.kind, self._name), blocks=(block,))
        self._results = values.leaves(result)

    def _method(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Write a call of a method of the layer down."""
        if self._block is None or self._program.present_block is not self._block:
            raise errors.ProgramError(f"layers.{self.kind.__name__}: {method} belongs inside its block")
        return self._program.apply(functools.partial(_call, self, method), args, kwargs)

    def stand_in(self, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What a method returns while its shape is found out."""
        raise NotImplementedError


class DynamicRNN(_StepBlock):
    """A recurrence over sequences whose step is a block; see `fluid.layers.DynamicRNN`.

    Args:
      name: instead of `dynamic_rnn_N`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     sentence = fluid.layers.data("sentence", shape=[8], lod_level=1)
      ...     rnn = fluid.layers.DynamicRNN()
      ...     with rnn.block():
      ...         word = rnn.step_input(sentence)
      ...         prev = rnn.memory(shape=[4])
      ...         hidden = fluid.layers.fc([word, prev], size=4, act="relu")
      ...         rnn.update_memory(prev, hidden)
      ...         rnn.output(hidden)
      ...     hiddens = rnn()
      >>> hiddens.shape, hiddens.lod_level
      ((-1, 4), 1)
    """

    kind = layers.DynamicRNN

    def block(self) -> contextlib.AbstractContextManager[None]:
        """The block: `with rnn.block():`."""
        return self._written()

    def step_input(self, x: Variable, level: int = 0) -> Variable:
        """The value of a sequence at the present step."""
        return self._method("step_input", x, **({"level": level} if level else {}))

    def static_input(self, x: Variable) -> Variable:
        """A value that is the same in every step."""
        return x

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> Variable:
        """What the step before handed on; see `fluid.layers.DynamicRNN.memory`."""
        del need_reorder
        return self._method("memory", init=init, shape=shape, value=value, dtype=dtype)

    def stand_in(self, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What a method returns while its shape is found out."""
        if method == "step_input":
            return jax.tree.map(lambda v: v[0], time_first(args[0]))
        if kwargs["init"] is not None:
            return jax.numpy.asarray(kwargs["init"]) + 0
        batch = core.current_frame("layers.DynamicRNN").placeholder_batch or 1
        return jax.numpy.zeros((batch, *kwargs["shape"]), kwargs["dtype"])


class StaticRNN(_StepBlock):
    """A recurrence over the first axis of arrays whose step is a block; see `fluid.layers.StaticRNN`.

    Args:
      name: instead of `static_rnn_N`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     x = fluid.layers.data("x", shape=[7, 5, 3], append_batch_size=False)
      ...     rnn = fluid.layers.StaticRNN()
      ...     with rnn.step():
      ...         now = rnn.step_input(x)
      ...         prev = rnn.memory(shape=[-1, 4], batch_ref=now)
      ...         hidden = fluid.layers.fc([now, prev], size=4, act="relu")
      ...         rnn.update_memory(prev, hidden)
      ...         rnn.step_output(hidden)
      ...     hiddens = rnn()
      >>> hiddens.shape
      (7, 5, 4)
    """

    kind = layers.StaticRNN

    def step(self) -> contextlib.AbstractContextManager[None]:
        """The block: `with rnn.step():`."""
        return self._written()

    def step_input(self, x: Variable) -> Variable:
        """The value of an array at the present step."""
        return self._method("step_input", x)

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        batch_ref: Variable | None = None,
        init_value: float = 0.0,
        init_batch_dim_idx: int = 0,
        ref_batch_dim_idx: int = 1,
    ) -> Variable:
        """What the step before handed on; see `fluid.layers.StaticRNN.memory`."""
        return self._method(
            "memory",
            init=init,
            shape=shape,
            batch_ref=batch_ref,
            init_value=init_value,
            init_batch_dim_idx=init_batch_dim_idx,
            ref_batch_dim_idx=ref_batch_dim_idx,
        )

    def step_output(self, o: Variable) -> None:
        """Say that a variable of each step is a result."""
        self.output(o)

    def stand_in(self, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What a method returns while its shape is found out."""
        if method == "step_input":
            return args[0][0]
        if kwargs["init"] is not None:
            return jax.numpy.asarray(kwargs["init"]) + 0
        sizes = list(kwargs["shape"])
        # A value from `step_input` stands for the whole array, of which it lacks the first dimension.
        inner = sizes[kwargs["init_batch_dim_idx"]] < 0
        reference = kwargs["batch_ref"]
        if inner:
            sizes[kwargs["init_batch_dim_idx"]] = reference.shape[kwargs["ref_batch_dim_idx"] - 1]
        return jax.numpy.zeros(sizes, reference.dtype)


class _Steps:
    """Runs the block of a recurrence.

    Args:
      owner: what was written down.
      block: its block.
      kind: the layer.
      name: of the layer.
    """

    def __init__(self, owner: _StepBlock, block: Block, kind: Any, name: str | None):
        self._owner = owner
        self._block = block
        self._kind = kind
        self._name = name

    def __call__(self) -> Any:
        """The outputs of all steps."""
        outer = outer_environment(f"layers.{self._kind.__name__}")
        rnn = self._kind(name=self._name)
        with rnn.block() if isinstance(rnn, layers.DynamicRNN) else rnn.step():
            run_calls(self._block.calls, {self._owner: rnn}, outer)
        return rnn()


def _call(owner: _StepBlock, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the layer that runs; while its block is written none does, and shapes are all that matters."""
    rnn = outer_environment(f"layers.{owner.kind.__name__}").find(owner)
    if rnn is not None:
        return getattr(rnn, method)(*args, **kwargs)
    return owner.stand_in(method, args, kwargs) if method in ("step_input", "memory") else None
