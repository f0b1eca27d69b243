"""Layers that may give a variable another value: `output=`, `out=`, `cond=`, `in_place=True`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fluid import core, layers
from fluid.initializer import Constant
from fluid.static import unique_name
from fluid.static.tape.program import default_main_program
from fluid.static.tape.recording import recorded
from fluid.static.tape.variable import Persistent, Variable

# A variable, or a number or list that becomes one.
Given = Variable | float | Sequence[Any] | np.ndarray


def assign(input: Given, output: Variable | None = None, name: str | None = None) -> Any:
    """A copy of a value, in a new variable or in a given one.

    Args:
      input: a variable, or numbers.
      output: the variable that is given the value.
      name: instead of `assign_N`.

    Returns:
      The variable that has the value.

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
    return _constant(into(layers.assign, output, input, name=name), constant)


def increment(x: Variable, value: float = 1.0, in_place: bool = True, name: str | None = None) -> Any:
    """Add a number to a variable, or to a copy of it.

    Args:
      x: the variable.
      value: the number.
      in_place: whether the variable itself has the new value from now on.
      name: instead of `increment_N`.

    Returns:
      The variable that has the value.

    Example:
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     x = fluid.layers.zeros([1], "int64")
      ...     y = fluid.layers.increment(x, value=2)
      >>> y is x, fluid.Executor().run(main, fetch_list=[x])[0].tolist()
      (True, [2])
    """
    before = x.constant if isinstance(x, Variable) else None
    inside = isinstance(x, Variable) and x.made_in is not x.program.present_block
    after = None if before is None or (in_place and inside) else before + value
    made = into(layers.increment, x if in_place else None, x, value=value, in_place=False, name=name)
    return _constant(made, after)


def sums(input: Any, out: Variable | None = None, name: str | None = None) -> Any:
    """The sum of several variables, in a new variable or in a given one.

    Args:
      input: a list of variables of one shape.
      out: the variable that is given the value.
      name: instead of `sum_N`.

    Returns:
      The variable that has the value.

    Example:
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     x = fluid.layers.ones([1], "float32")
      ...     total = fluid.layers.sums([x, x], out=x)
      >>> fluid.Executor().run(main, fetch_list=[x])[0].tolist()
      [2.0]
    """
    return into(layers.sums, out, input, name=name)


def fill_constant(
    shape: Sequence[int],
    dtype: Any,
    value: float,
    force_cpu: bool = False,
    out: Variable | None = None,
    name: str | None = None,
) -> Any:
    """A variable whose elements all have one value.

    Args:
      shape: its shape.
      dtype: its dtype.
      value: the value of every element.
      force_cpu: accepted for programs written for Fluid, but has no effect: XLA decides where values lie.
      out: the variable that is given the value.
      name: instead of `fill_constant_N`.

    Returns:
      The variable that has the value.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     fluid.layers.fill_constant([1], "bool", 0).dtype
      'bool'
    """
    del force_cpu
    made = into(layers.fill_constant, out, list(shape), dtype, value, name=name)
    return _constant(made, float(value) if out is None else None)


def zeros(shape: Sequence[int], dtype: Any, force_cpu: bool = False, name: str | None = None) -> Any:
    """A variable of zeros; see `fill_constant`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     fluid.layers.zeros([2, 3], "float32").shape
      (2, 3)
    """
    return fill_constant(shape, dtype, 0, force_cpu, name=name)


def ones(shape: Sequence[int], dtype: Any, force_cpu: bool = False, name: str | None = None) -> Any:
    """A variable of ones; see `fill_constant`.

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
    """A variable that is filled with a number once, by the startup program, and may be given other values.

    Args:
      shape: its shape.
      value: the number.
      dtype: its dtype.
      persistable: whether its value outlives a run; if not, each run begins with the number.
      force_cpu: accepted for programs written for Fluid, but has no effect: XLA decides where values lie.
      name: `create_global_var_N` by default.

    Returns:
      The variable.

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
    """A variable without a value, which an assignment gives it.

    Args:
      dtype: accepted for programs written for Fluid, but has no effect: it is that of the value.
      name: `create_tensor_N` by default.
      persistable: whether its value outlives a run.

    Returns:
      The variable.

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


def autoincreased_step_counter(counter_name: str | None = None, begin: int = 1, step: int = 1) -> Any:
    """A counter that each training run increments.

    Args:
      counter_name: of the variable; programs and calls with the same name share it.
      begin: its value in the first run.
      step: what each run adds.

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


def _with_target(kind: str, keyword: str) -> Callable[..., Any]:
    """A layer of two values, or of one, that may give its result to a variable."""
    plain = getattr(layers, kind)

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("force_cpu", None)
        count = 0 if kind == "logical_not" else 1  # inputs beside x
        inputs = list(args[:count])
        rest = list(args[count:])
        if kind == "less_than" and rest and not isinstance(rest[0], Variable):
            rest = rest[1:]  # force_cpu stands there
        target = kwargs.pop(keyword, rest[0] if rest else None)
        return into(plain, target, x, *inputs, **kwargs)

    call.__name__ = call.__qualname__ = kind
    call.__doc__ = (
        f"The layer `fluid.layers.{kind}`, whose result may be given to a variable.\n\n"
        f"    Args:\n      x: a variable.\n      args: another one, where the layer takes two; then `{keyword}`.\n"
        f"      kwargs: `{keyword}`, the variable that is given the result, and what the layer takes.\n\n"
        f"    Returns:\n      The variable that has the result, bool.\n\n"
        f"    Example:\n      >>> import fluid.static as fluid\n"
        f"      >>> fluid.layers.{kind}.__name__\n      '{kind}'\n    "
    )
    return call


less_than = _with_target("less_than", "cond")
less_equal = _with_target("less_equal", "cond")
greater_than = _with_target("greater_than", "cond")
greater_equal = _with_target("greater_equal", "cond")
equal = _with_target("equal", "cond")
not_equal = _with_target("not_equal", "cond")
logical_and = _with_target("logical_and", "out")
logical_or = _with_target("logical_or", "out")
logical_xor = _with_target("logical_xor", "out")
logical_not = _with_target("logical_not", "out")


def into(function: Callable[..., Any], target: Variable | None, *args: Any, **kwargs: Any) -> Any:
    """Write a call of a layer down; its result becomes the value of a variable, if there is one to become it."""
    if target is None:
        return recorded(function)(*args, **kwargs)
    target.program.apply(function, args, kwargs, into=[target])
    return target


def _constant(made: Any, value: float | None) -> Any:
    """The same, with the number that all elements of a variable have noted."""
    if isinstance(made, Variable) and not isinstance(made, Persistent):
        made.constant = value
    return made
