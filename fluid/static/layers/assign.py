"""Layers that assign variables: constants, new variables, learning rate schedules, counters and accuracy.

The constants are recorded, because `fluid.static` computes the maximum number of iterations of a loop from them. A
learning rate schedule returns a variable: each training run computes the learning rate of its update.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fluid import core, layers, lr
from fluid.initializer import Constant
from fluid.static import unique_name
from fluid.static.layers.arrays import at_present_batch
from fluid.static.tape.program import assigned, default_main_program, in_a_function, recorded
from fluid.static.tape.variable import Persistent, Variable

# The type of a value to assign: a variable, or a number, list or array, which becomes a constant.
Given = Variable | float | Sequence[Any] | np.ndarray

_assign = recorded(layers.assign)
_fill_constant = recorded(layers.fill_constant)
_increment = recorded(layers.increment)
_py_func = recorded(layers.py_func)


def assign(input: Given, output: Variable | None = None, name: str | None = None) -> Any:
    """Copy a value to a new variable or to a given variable.

    Example:
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     x = fluid.layers.fill_constant([1], "float32", 3.0)
      ...     y = fluid.layers.assign(x * 2.0, output=x)
      >>> y is x, fluid.Executor().run(main, fetch_list=[x])[0].tolist()
      (True, [6.0])
    """
    constant = input.constant if isinstance(input, Variable) else None
    return _constant(_assign(input, output, name), constant)


def increment(x: Variable, value: float = 1.0, in_place: bool = True, name: str | None = None) -> Any:
    """Add a number to a variable in place, or to a copy of the variable.

    Example:
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     x = fluid.layers.zeros([1], "int64")
      ...     y = fluid.layers.increment(x, value=2)
      >>> y is x, fluid.Executor().run(main, fetch_list=[x])[0].tolist()
      (True, [2])
    """
    if not isinstance(x, Variable):
        return layers.increment(x, value, in_place, name)
    changes_each_turn = in_place and x.made_in is not x.program.present_block
    after = None if x.constant is None or changes_each_turn else x.constant + value
    if in_place:
        return _constant(assigned(x, layers.increment, x, value=value, in_place=False, name=name), after)
    return _constant(_increment(x, value=value, in_place=False, name=name), after)


def fill_constant(
    shape: Sequence[int],
    dtype: Any,
    value: float,
    force_cpu: bool = False,
    out: Variable | None = None,
    name: str | None = None,
) -> Any:
    """Return a variable whose elements all equal `value`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     fluid.layers.fill_constant([1], "bool", 0).dtype
      'bool'
    """
    del force_cpu
    made = _fill_constant(list(shape), dtype, value, out=out, name=name)
    return _constant(made, float(value) if out is None else None)


def zeros(shape: Sequence[int], dtype: Any, force_cpu: bool = False, name: str | None = None) -> Any:
    """Return a variable of zeros; see `fill_constant`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     fluid.layers.zeros([2, 3], "float32").shape
      (2, 3)
    """
    return fill_constant(shape, dtype, 0, force_cpu, name=name)


def ones(shape: Sequence[int], dtype: Any, force_cpu: bool = False, name: str | None = None) -> Any:
    """Return a variable of ones; see `fill_constant`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     fluid.layers.ones([2, 3], "float32").shape
      (2, 3)
    """
    return fill_constant(shape, dtype, 1, force_cpu, name=name)


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    persistable: bool = False,
    force_cpu: bool = False,
    name: str | None = None,
) -> Any:
    """Return a variable that the startup program sets to a number; layers may assign new values.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     fluid.layers.create_global_var([1], 0.1, "float32", persistable=True, name="rate")
      Variable(rate: float32[1])
    """
    name = name or unique_name.generate("create_global_var")
    if not persistable:
        return fill_constant(shape, dtype, value, force_cpu, name=name)
    held = str(np.dtype(core.FeedSpec(name, (), str(dtype)).held))
    return default_main_program().persistent(core.ParameterSpec(name, tuple(shape), held, Constant(value), None))


def create_tensor(dtype: Any, name: str | None = None, persistable: bool = False) -> Variable:
    """Return a variable without a value, for a later assignment.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     x = fluid.layers.create_tensor("float32")
      ...     fluid.layers.assign([1.0, 2.0], output=x).shape
      (2,)
    """
    del dtype
    variable = default_main_program().new_variable(name or unique_name.generate("create_tensor"))
    variable.persistable = persistable
    return variable


def py_func(
    func: Callable[..., Any],
    x: Any,
    out: Any = None,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Any = None,
    name: str | None = None,
) -> Any:
    """Call a Python function of NumPy arrays on the host; see `fluid.layers.py_func`.

    Args:
      out: variables of `block.create_var(shape=..., dtype=...)` for the results, one or a list; or a value that
        `fluid.layers.py_func` accepts as `out`.

    Example:
      >>> import fluid.static as fluid, numpy as np
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     x = fluid.layers.data("x", shape=[1])
      ...     y = main.current_block().create_var(name="y", shape=[-1, 1], dtype="float32")
      ...     fluid.layers.py_func(np.sinh, x, out=y) is y
      ...     fluid.Executor().run(main, feed={"x": np.zeros((1, 1), "float32")}, fetch_list=[y])
      True
      [array([[0.]], dtype=float32)]
    """
    made = [v for v in _listed(out) if isinstance(v, Variable) and v.declared]
    if not made:
        return _py_func(func, x, out, backward_func, skip_vars_in_backward_input, name)
    skipped = _listed(skip_vars_in_backward_input)
    call = _HostCall(func, backward_func, made, [v for v in made if v in skipped], name)
    made[0].program.apply(call, (x, [v for v in skipped if v not in made]), into=made)
    return out


class _HostCall:
    """A function that calls a user's function on the host while a program runs."""

    def __init__(self, func: Any, backward_func: Any, out: list[Variable], skipped: list[Variable], name: str | None):
        self._functions = func, backward_func
        self._out = out
        self._skipped = skipped
        self._name = name

    def __call__(self, x: Any, skipped: list[Any]) -> Any:
        """Return the results of the user's function, called with `x`."""
        func, backward_func = self._functions
        looks = {v: at_present_batch(v.declared) for v in self._out}
        also = [looks[v] for v in self._skipped]
        return layers.py_func(func, x, list(looks.values()), backward_func, [*skipped, *also], self._name)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def autoincreased_step_counter(counter_name: str | None = None, begin: int = 1, step: int = 1) -> Any:
    """Return a counter that each training run increments.

    Returns:
      The counter, int32 `[1]`.

    Example:
      >>> import fluid.static as fluid
      >>> main, startup = fluid.Program(), fluid.Program()
      >>> with fluid.program_guard(main, startup):
      ...     counter = fluid.layers.autoincreased_step_counter()
      >>> exe = fluid.Executor()
      >>> with fluid.scope_guard(fluid.Scope()):
      ...     started = exe.run(startup)
      ...     [exe.run(main, fetch_list=[counter])[0].tolist() for _ in range(2)]
      [[1], [2]]
    """
    name = counter_name or "@STEP_COUNTER@"
    program = default_main_program()
    if program.has_var(name):
        return program.var(name)
    counter = create_global_var([1], begin - step, "int64", persistable=True, name=name)
    return increment(counter, step)


def _constant(made: Any, value: float | None) -> Any:
    if isinstance(made, Variable) and not isinstance(made, Persistent):
        made.constant = value
    return made


# The name of the step counter that all learning rate schedules of a program share, as in PaddlePaddle Fluid.
_COUNTER = "@LR_DECAY_COUNTER@"


def _as_variable(schedule: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a function that returns a learning rate schedule to a layer that returns the rate as a variable."""

    @functools.wraps(schedule)
    def call(*args: Any, **kwargs: Any) -> Any:
        if in_a_function():
            return schedule(*args, **kwargs)
        # The step counter has PaddlePaddle's name and first value, so `load_persistables` can load a saved counter.
        counter = autoincreased_step_counter(_COUNTER, begin=int(schedule is lr.noam_decay), step=1)
        begin = int(counter.spec.initializer.value) + 1
        return counter.program.apply(_rate, (_Schedule(schedule, begin), counter, args, kwargs))

    return call


class _Schedule:
    """A wrapper of a function that creates a learning rate schedule; JAX treats the wrapper as one pytree leaf."""

    def __init__(self, make: Callable[..., Any], begin: int):
        self.make = make
        self.begin = begin


def _rate(schedule: _Schedule, counter: Any, args: Any, kwargs: Any) -> Any:
    """Compute the learning rate, `[1]`, of the current training step from a schedule and a step counter."""
    given, named = jax.tree.map(lambda v: _constant_rate(v) if isinstance(v, jax.Array) else v, (args, kwargs))
    return layers.assign(schedule.make(*given, **named)(counter.reshape(()) - schedule.begin))


def _constant_rate(value: Any) -> Callable[[Any], Any]:
    return lambda count: value.reshape(())


def _decay_step_counter(begin: int = 0) -> Any:
    """Return the step counter of learning rate schedules, float32 `[1]`; it counts training runs from `begin` on."""
    return recorded(layers.cast)(autoincreased_step_counter(_COUNTER, begin=begin, step=1), "float32")


exponential_decay = _as_variable(lr.exponential_decay)
natural_exp_decay = _as_variable(lr.natural_exp_decay)
inverse_time_decay = _as_variable(lr.inverse_time_decay)
polynomial_decay = _as_variable(lr.polynomial_decay)
piecewise_decay = _as_variable(lr.piecewise_decay)
noam_decay = _as_variable(lr.noam_decay)
cosine_decay = _as_variable(lr.cosine_decay)
linear_lr_warmup = _as_variable(lr.linear_lr_warmup)
warmup_cosine = _as_variable(lr.warmup_cosine)


_accuracy = recorded(layers.accuracy)
_cast = recorded(layers.cast)
_ones_like = recorded(layers.ones_like)
_reduce_sum = recorded(layers.reduce_sum)
_round = recorded(layers.round)


def accuracy(
    input: Variable,
    label: Variable,
    k: int = 1,
    correct: Variable | None = None,
    total: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Compute the fraction of rows whose label is among the `k` most probable classes; see `fluid.layers.accuracy`.

    Args:
      input: probabilities or scores `[-1, classes]`.
      label: classes `[-1, 1]` of an integer dtype.

    Example:
      >>> import numpy as np
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     scores, label = fluid.layers.data("scores", shape=[2]), fluid.layers.data("label", [1], dtype="int64")
      ...     rows = fluid.layers.create_tensor("int64")
      ...     right = fluid.layers.accuracy(scores, label, total=rows)
      >>> feed = {"scores": np.float32([[0, 1], [1, 0], [1, 0], [0, 1]]), "label": np.int64([[1], [1], [0], [1]])}
      >>> [float(found) for found in fluid.Executor().run(main, feed, [right, rows])]
      [0.75, 4.0]
    """
    if in_a_function():
        return _accuracy(input, label, k, correct, total, name)
    fraction = _accuracy(input, label, k, name=name)
    if correct is not None or total is not None:
        rows = _reduce_sum(_ones_like(_cast(label, "float32")))
        if total is not None:
            assigned(total, layers.cast, rows, "int64")
        if correct is not None:
            assigned(correct, layers.cast, _round(fraction * rows), "int64")
    return fraction
