"""Control flow blocks that assign variables: While, Switch, IfElse and ParallelDo.

While, Switch and IfElse run as `while_loop`, `case` and `where` of `fluid.layers`. In PaddlePaddle programs of
2017, several devices compute the block of a ParallelDo; in this module, one device computes the whole batch.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors, layers
from fluid.layers.control.tensor_array import TensorArray
from fluid.layers.structured.beam import Beams
from fluid.place import CPUPlace, CUDAPlace
from fluid.static.framework import cpu_places, cuda_places
from fluid.static.layers.arrays import ArrayVariable, at_present_batch, enter, most_turns, present_batch
from fluid.static.layers.beam import BeamVariable
from fluid.static.tape.calls import Block, Environment, outer_environment, run_calls
from fluid.static.tape.program import Program, default_main_program
from fluid.static.tape.variable import Variable


class While:
    """A loop that runs a block while the variable `cond` is true.

    Args:
      cond: a bool variable `[1]`, which the block must assign.
      is_test: accepted for programs written for Fluid, but has no effect: a loop uses memory for gradients only if a
        gradient is computed.
      max_iterations: the maximum number of iterations. A gradient needs this number. By default fluid computes the
        number, if the block adds a constant to a counter and compares the counter with a constant.

    Example:
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     i = fluid.layers.zeros([1], "int64")
      ...     n = fluid.layers.fill_constant([1], "int64", 5)
      ...     total = fluid.layers.zeros([1], "float32")
      ...     cond = fluid.layers.less_than(i, n)
      ...     loop = fluid.layers.While(cond)
      ...     with loop.block():
      ...         x = fluid.layers.assign(total + 2.0, output=total)
      ...         x = fluid.layers.increment(i)
      ...         x = fluid.layers.less_than(i, n, cond=cond)
      >>> fluid.Executor().run(main, fetch_list=[total])[0].tolist()
      [10.0]
    """

    def __init__(
        self, cond: Variable, is_test: bool = False, name: str | None = None, max_iterations: int | None = None
    ):
        del is_test, name
        if not isinstance(cond, Variable):
            raise errors.ArgumentTypeError(
                "layers.While is for programs that are written down, whose blocks assign to variables; inside a "
                "program function write layers.while_loop(cond, body, loop_vars)"
            )
        self._cond = cond
        self._most = max_iterations

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Return a context manager that records the block of the loop: `with loop.block():`.

        Raises:
          ProgramError: the block never assigns the condition.
        """
        program = self._cond.program
        constants = {v: v.constant for v in program.variables.values() if v.constant is not None}
        with program.writing(enter(self._cond, program.present_block, constants)) as block:
            yield
        carried = block.assigned()
        if self._cond not in carried:
            raise errors.ProgramError(
                "layers.While: the block never assigns its condition, so it would run for ever; end it with "
                "layers.less_than(x=i, y=n, cond=cond)"
            )
        program.apply(_BlockLoop(block, self._cond, carried, self._most), blocks=(block,), into=carried)


class _BlockLoop:
    """A function that runs a recorded block in a loop."""

    def __init__(self, block: Block, cond: Variable, carried: Sequence[Variable], most: int | None):
        self._block = block
        self._cond = cond
        self._carried = carried
        self._most = most
        self._by_row = {v for v in carried if block.beam is not None and v.follows_batch}

    def __call__(self) -> list[Any]:
        """Run the loop of a While; return the values of the loop variables (`carried`) after the last iteration."""
        outer = outer_environment("layers.While")
        place = self._carried.index(self._cond)

        def turn(*held: Any) -> list[Any]:
            return _run(self._block, outer, self._carried, held)

        start = [self._start(outer, variable) for variable in self._carried]
        return layers.while_loop(
            lambda *held: held[place], turn, start, max_iterations=self._most or most_turns(self._block)
        )

    def _start(self, outer: Environment, variable: Variable) -> Any:
        """Return the value of a variable before the loop; for a beam search, repeat each row `beam_size` times."""
        if isinstance(variable, BeamVariable):
            return variable.start(present_batch())
        content = _content(outer, variable)
        if variable not in self._by_row:
            return content
        repeat = functools.partial(jnp.repeat, repeats=self._block.beam.size)
        if isinstance(content, TensorArray):
            return TensorArray(repeat(content.data, axis=1), content.length)
        return jax.tree.map(lambda v: repeat(v, axis=0), content)


class Switch:
    """A branch that runs the block of the first true condition.

    Example:
      >>> import fluid.static as fluid, numpy as np
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     x = fluid.layers.data("x", shape=[1], append_batch_size=False)
      ...     sign = fluid.layers.zeros([1], "float32")
      ...     with fluid.layers.Switch() as switch:
      ...         with switch.case(x < 0.0):
      ...             y = fluid.layers.assign(np.array([-1.0], "float32"), output=sign)
      ...         with switch.default():
      ...             y = fluid.layers.assign(np.array([1.0], "float32"), output=sign)
      >>> fluid.Executor().run(main, feed={"x": np.array([-3.0], "float32")}, fetch_list=[sign])[0].tolist()
      [-1.0]
    """

    def __init__(self, name: str | None = None):
        del name
        self._program: Program = default_main_program()
        self._conditions: list[Variable] = []
        self._blocks: list[Block] = []
        self._has_default = False

    def __enter__(self) -> "Switch":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and self._blocks:
            carried = list(dict.fromkeys(v for block in self._blocks for v in block.assigned()))
            choice = _Choice(self._conditions, self._blocks, carried)
            self._program.apply(choice, tuple(self._conditions), blocks=tuple(self._blocks), into=carried)

    def case(self, condition: Variable) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that records a block for `condition`, a bool `[1]`; only the first true case runs.

        Raises:
          ProgramError: the case comes after the default.
        """
        if self._has_default:
            raise errors.ProgramError("layers.Switch: a case behind the default is never reached; put it before")
        self._conditions.append(condition)
        return self._block()

    def default(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that records the block that runs if no condition is true.

        Raises:
          ProgramError: there is no `case` before the default, or the Switch already has a default.
        """
        if not self._conditions or self._has_default:
            raise errors.ProgramError("layers.Switch has one default, behind its cases: with switch.default():")
        self._has_default = True
        return self._block()

    @contextlib.contextmanager
    def _block(self) -> Iterator[None]:
        with self._program.writing() as block:
            yield
        self._blocks.append(block)


class _Choice:
    """A function that runs the block of the first true condition."""

    def __init__(self, conditions: Sequence[Variable], blocks: Sequence[Block], carried: Sequence[Variable]):
        self._count = len(conditions)
        self._blocks = blocks
        self._carried = carried

    def __call__(self, *conditions: Any) -> list[Any]:
        """Run the block that the conditions select; return the values of the variables `carried` after the block."""
        outer = outer_environment("layers.Switch")
        before = [_content(outer, variable) for variable in self._carried]

        def branch(block: Block) -> Callable[[], list[Any]]:
            return lambda: _run(block, outer, self._carried, before)

        functions: list[Callable[[], list[Any]]] = [branch(block) for block in self._blocks]
        default = functions[self._count] if len(functions) > self._count else lambda: list(before)
        return layers.case(list(zip(conditions, functions, strict=False)), default=default)


class IfElse:
    """A choice between two blocks for each row of a batch: a condition selects the block whose result the row gets.

    Both blocks compute all rows; then each result row is chosen. The result is correct for layers that treat each row
    separately. Layers that combine rows, for example means and batch normalisation, see all rows.

    Args:
      cond: bool, `[batch, 1]`.

    Example:
      >>> import fluid.static as fluid, numpy as np
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     x = fluid.layers.data("x", shape=[1])
      ...     choice = fluid.layers.IfElse(x < 0.0)
      ...     with choice.true_block():
      ...         choice.output(choice.input(x) * -1.0)
      ...     with choice.false_block():
      ...         choice.output(choice.input(x))
      ...     y, = choice()
      >>> fluid.Executor().run(main, feed={"x": np.array([[-3.0], [2.0]], "float32")}, fetch_list=[y])[0].tolist()
      [[3.0], [2.0]]
    """

    def __init__(self, cond: Variable, name: str | None = None):
        del name
        self._cond = cond
        self._outputs: dict[bool, list[Variable]] = {}
        self._side: bool | None = None

    def true_block(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager: the layers in its `with` block run on the rows with a true condition."""
        return self._block(True)

    def false_block(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager: the layers in its `with` block run on the rows with a false condition."""
        return self._block(False)

    def input(self, x: Variable) -> Variable:
        """Return the variable `x` itself, because both blocks of an IfElse compute all rows."""
        return x

    def output(self, *outs: Variable) -> None:
        """Declare variables of the current block as outputs of the IfElse."""
        if self._side is None:
            raise errors.ProgramError("layers.IfElse: output belongs inside a block: with choice.true_block():")
        self._outputs.setdefault(self._side, []).extend(outs)

    def __call__(self) -> list[Variable]:
        """Return the list of outputs of the IfElse; each row of an output comes from the true or the false block."""
        sides = [self._outputs.get(side, []) for side in (True, False)]
        if len(sides[0]) != len(sides[1]) or not sides[0]:
            raise errors.ProgramError(
                f"layers.IfElse: the true block has {len(sides[0])} outputs and the false block {len(sides[1])}; both "
                f"need as many, and at least one"
            )
        program = self._cond.program.guarded()
        return [program.apply(layers.where, (self._cond, a, b)) for a, b in zip(*sides, strict=True)]

    @contextlib.contextmanager
    def _block(self, side: bool) -> Iterator[None]:
        program = self._cond.program
        self._side = side
        try:
            with program.writing() as block:
                yield
        finally:
            self._side = None
        if found := block.assigned():
            raise errors.ProgramError(
                f"layers.IfElse: a block assigns {', '.join(v.name for v in found)}, which would have the value of "
                f"some rows only; hand results out with output(...), or use layers.Switch() for one condition"
            )
        program.write_behind(block)


def _run(block: Block, outer: Environment, carried: Sequence[Variable], held: Sequence[Any]) -> list[Any]:
    """Run a recorded block once, as one iteration of a loop or as a branch."""
    environment = run_calls(block.calls, dict(zip(carried, held, strict=True)), outer)
    return [environment[variable] for variable in carried]


def _content(environment: Environment, variable: Variable) -> Any:
    """Return the value of a variable before a block runs; zeros for a variable that has no value before the block."""
    found = environment.find(variable)
    if found is not None:
        return found
    if isinstance(variable, ArrayVariable):
        return variable.empty()
    # A beam search has a state only in a run. During recording JAX evaluates only shapes, so any values suffice.
    if isinstance(variable, BeamVariable):
        return Beams.start(1, 1, 1)
    if variable.structs and not variable.persistable and variable.made_in is not None and variable.unassigned:
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), at_present_batch(variable.structs))
    return variable.held()


def get_places(device_count: int | None = None, device_type: str | None = None) -> list[CPUPlace] | list[CUDAPlace]:
    """Return a list of devices for `ParallelDo(places)`; ParallelDo ignores them, and uses the Executor's device.

    Raises:
      ArgumentError: `device_type` is neither "CPU" nor "CUDA".

    Example:
      >>> import fluid.static as fluid
      >>> fluid.layers.get_places(device_count=2, device_type="CPU")
      [CPUPlace(), CPUPlace()]
    """
    if device_type not in (None, "CPU", "CUDA"):
        raise errors.ArgumentError(f'get_places(device_type={device_type!r}): expected "CPU" or "CUDA"')
    if device_type == "CPU" or (device_type is None and not cuda_places()):
        return cpu_places(device_count)
    return cuda_places(range(device_count) if device_count else None)


class ParallelDo:
    """A block that PaddlePaddle computes on several devices; fluid computes the whole batch on one device.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     x = fluid.layers.data("x", shape=[4])
      ...     pd = fluid.layers.ParallelDo(fluid.layers.get_places())
      ...     with pd.do():
      ...         pd.write_output(fluid.layers.fc(pd.read_input(x), size=2))
      ...     pd().shape
      (-1, 2)
    """

    def __init__(self, places: Any = None, use_nccl: bool = False, name: str | None = None):
        del places, use_nccl, name
        self._outputs: list[Variable] = []

    def do(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager for the block of the ParallelDo: `with pd.do():`."""
        return contextlib.nullcontext()

    def read_input(self, var: Variable) -> Variable:
        """Return the variable `var` itself, because the block of a ParallelDo computes all rows."""
        return var

    def write_output(self, var: Variable) -> None:
        """Declare a variable of the block as an output of the ParallelDo."""
        self._outputs.append(var)

    def __call__(self) -> Any:
        """Return the outputs of the block: one variable, or a list if there are several.

        Raises:
          ProgramError: the block declares no outputs with `write_output`.
        """
        if not self._outputs:
            raise errors.ProgramError("layers.ParallelDo has no outputs; in its block, call pd.write_output(loss)")
        return self._outputs[0] if len(self._outputs) == 1 else list(self._outputs)
