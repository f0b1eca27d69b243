"""DynamicRNN and StaticRNN: recurrent layers whose time step is a block of recorded layer calls."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from fluid import core, errors, layers
from fluid.layers.recurrent.steps import time_first
from fluid.static.tape.calls import Block, outer_environment, run_calls
from fluid.static.tape.program import default_main_program
from fluid.static.tape.variable import Variable, leaves


class _StepBlock:
    """The base class of DynamicRNN and StaticRNN, recurrent layers that record the user's code for one time step."""

    kind: Any

    def __init__(self, name: str | None = None):
        self._name = name
        self._program = default_main_program()
        self._block: Block | None = None
        self._outputs: list[Variable] = []
        self._results: list[Variable] = []

    def __call__(self, *args: Any) -> Any:
        if not self._results:
            raise errors.ProgramError(f"layers.{self.kind.__name__} has no results yet; call it after its block")
        return self._results[0] if len(self._results) == 1 else list(self._results)

    def update_memory(self, ex_mem: Variable, new_mem: Variable) -> None:
        self._method("update_memory", ex_mem, new_mem)

    def output(self, *outputs: Variable) -> None:
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
        self._results = leaves(result)

    def _method(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._block is None or self._program.present_block is not self._block:
            raise errors.ProgramError(f"layers.{self.kind.__name__}: {method} belongs inside its block")
        return self._program.apply(functools.partial(_call, self, method), args, kwargs)

    def stand_in(self, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class DynamicRNN(_StepBlock):
    """A recurrent layer over sequences: a block of recorded calls is one step. See `fluid.layers.DynamicRNN`.

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
        """Return a context manager that records the block of one step: `with rnn.block():`."""
        return self._written()

    def step_input(self, x: Variable, level: int = 0) -> Variable:
        """Return the variable of the current step of the sequences `x`, for use in the block of a recurrent layer."""
        return self._method("step_input", x, **({"level": level} if level else {}))

    def static_input(self, x: Variable) -> Variable:
        """Return the variable `x`, which every step reads unchanged."""
        return x

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> Variable:
        """Create a recurrent state; return its value from the previous step. See `fluid.layers.DynamicRNN.memory`."""
        del need_reorder
        return self._method("memory", init=init, shape=shape, value=value, dtype=dtype)

    def stand_in(self, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return a placeholder for the result of `step_input` or `memory`, while the block of an RNN is recorded."""
        if method == "step_input":
            return jax.tree.map(lambda v: v[0], time_first(args[0]))
        if kwargs["init"] is not None:
            return jax.numpy.asarray(kwargs["init"]) + 0
        batch = core.current_frame("layers.DynamicRNN").placeholder_batch or 1
        return jax.numpy.zeros((batch, *kwargs["shape"]), kwargs["dtype"])


class StaticRNN(_StepBlock):
    """A recurrent layer over the first axis of arrays: a recorded block is one step. See `fluid.layers.StaticRNN`.

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
        """Return a context manager that records the block of one step: `with rnn.step():`."""
        return self._written()

    def step_input(self, x: Variable) -> Variable:
        """Return `x[t]`, the slice of the array `x` at the current step `t`."""
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
        """Create a recurrent state; return its value from the previous step. See `fluid.layers.StaticRNN.memory`."""
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
        """Declare a variable of the step as an output; the layer returns its values at all steps."""
        self.output(o)

    def stand_in(self, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return a placeholder for the result of the RNN's method `method`: recording a block computes nothing."""
        if method == "step_input":
            return args[0][0]
        if kwargs["init"] is not None:
            return jax.numpy.asarray(kwargs["init"]) + 0
        sizes = list(kwargs["shape"])
        # Subtract 1: `ref_batch_dim_idx` counts the time dimension, but `batch_ref`, the value of one step, has none.
        inner = sizes[kwargs["init_batch_dim_idx"]] < 0
        reference = kwargs["batch_ref"]
        if inner:
            sizes[kwargs["init_batch_dim_idx"]] = reference.shape[kwargs["ref_batch_dim_idx"] - 1]
        return jax.numpy.zeros(sizes, reference.dtype)


class _Steps:
    """A function that runs the recorded block of a recurrent layer at each time step."""

    def __init__(self, owner: _StepBlock, block: Block, kind: Any, name: str | None):
        self._owner = owner
        self._block = block
        self._kind = kind
        self._name = name

    def __call__(self) -> Any:
        """Run the recurrent layer; return its outputs at all steps."""
        outer = outer_environment(f"layers.{self._kind.__name__}")
        rnn = self._kind(name=self._name)
        with rnn.block() if isinstance(rnn, layers.DynamicRNN) else rnn.step():
            run_calls(self._block.calls, {self._owner: rnn}, outer)
        return rnn()


def _call(owner: _StepBlock, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the running recurrent layer; during recording, return a placeholder of the result."""
    rnn = outer_environment(f"layers.{owner.kind.__name__}").find(owner)
    if rnn is not None:
        return getattr(rnn, method)(*args, **kwargs)
    return owner.stand_in(method, args, kwargs) if method in ("step_input", "memory") else None
