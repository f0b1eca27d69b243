"""Varied hyperparameters of a population: arguments of the program function, and numbers of the optimizer."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core.discovery import discover
from fluid.core.rows import BATCHES
from fluid.optimizer.optax_chain import replaced
from fluid.runtime.fetch import RATE
from fluid.runtime.parameter_updates import Rule

Vary = Mapping[str, Sequence[float]]
"""The type of the argument `vary` of `fluid.Population`: lists with one number per member, by name."""

# `_STRUCTURE`: settings of optimizers that cannot differ in a population, because they change the optimizer state or
# the frequency of updates.
_STRUCTURE = ("accumulate_steps", "k")


class Varied:
    """The hyperparameters that differ among the members of a population, from the argument `vary` of Population.

    A name in `vary` is an argument of the program function, or else a number of the optimizer.

    Attributes:
      size: the number of members.
      arguments: for each varied argument of the program function, by name, its values `[size]`.
      numbers: for each varied number of the optimizer, by name, its values, float32 `[size]`.

    Raises:
      ArgumentError: the length of a list differs from the number of members, or an item is not a number.
      ArgumentTypeError: `vary` is not a dict of lists.

    Example:
      >>> def program(dropout=0.5): ...
      >>> varied = Varied(program, {"learning_rate": [0.1, 0.2], "dropout": [0.0, 0.5]}, size=2)
      >>> list(varied.arguments), list(varied.numbers)
      (['dropout'], ['learning_rate'])
    """

    def __init__(self, function: Callable[..., Any], vary: Vary, size: int):
        if not isinstance(vary, Mapping):
            raise errors.ArgumentTypeError(f"vary={vary!r}: expected lists by name, as in {_SPELLED}")
        self.size = size
        found = {name: _values(name, values, size) for name, values in vary.items()}
        taken = _arguments(function)
        self.arguments = {name: values for name, values in found.items() if name in taken}
        self.numbers = {n: v.astype(np.float32) for n, v in found.items() if n not in taken}
        self._function = function

    @property
    def values(self) -> dict[str, np.ndarray]:
        """The hyperparameters that differ among the trainings of a population, by name.

        Each is an array `[size]` with one number for each training.
        """
        return {**self.arguments, **self.numbers}

    def program(self, function: Callable[..., Any]) -> Callable[[], Any]:
        """Return a program function without arguments, in which the varied arguments are named values.

        A step of the population overrides these named values with the numbers of the members.

        Args:
          function: the program function, or another function with some of the varied arguments. A function without
            varied arguments is returned unchanged.

        Raises:
          ProgramError: the function has varied arguments, and also another required argument.
        """
        parameters = _arguments(function)
        mine = {name: values[0] for name, values in self.arguments.items() if name in parameters}
        waiting = [
            name for name, parameter in parameters.items() if parameter.default is parameter.empty and name not in mine
        ]
        if waiting and mine:
            raise errors.ProgramError(
                f"the program function {_name_of(function)} takes {', '.join(waiting)} as well, found vary={{...}} for "
                f"{', '.join(mine)} alone, expected a value for each; give those that are the same for all members by "
                f"functools.partial({_name_of(function)}, {waiting[0]}=...)"
            )
        return _traced(function, mine) if mine else function

    @contextlib.contextmanager
    def explaining(self, precision: str | None) -> Iterator[None]:
        """Explain errors of a `with` block that traces the program function of a population.

        A population is several trainings at once. Arguments that differ among the trainings are passed as traced
        scalars, which may cause an error.

        Raises:
          ArgumentError: the program function accepts a plain number, but raises an error for a traced scalar, because
            this argument changes the structure of the program.
        """
        try:
            yield
        except Exception as error:
            plain = self._plain(0)
            # To find the argument that causes the error, pass a traced scalar for one argument at a time, and plain
            # numbers for all other arguments.
            name = next((n for n in plain if _fails(self._with_one_traced(n, plain), precision)), None)
            if name is None or _fails(functools.partial(self._function, **plain), precision):
                raise
            raise self._structural(name, plain[name], error) from error

    def _structural(self, name: str, value: Any, error: Exception) -> errors.ArgumentError:
        called = _name_of(self._function)
        values = ", ".join(f"{number:.6g}" for number in self.arguments[name])
        return errors.ArgumentError(
            f"vary={{{name!r}: [{values}]}}: the value of {name!r} decides the structure of the "
            f"program, found {type(error).__name__} when {called}({name}=...) was run with a scalar that stands for "
            f"those of all members; expected a number that is computed with, as a factor or the probability of a "
            f"dropout is. Train a Population for each value: "
            f"fluid.Population(functools.partial({called}, {name}={value:.6g}), ...)"
        )

    def check_values(self, precision: str | None) -> None:
        """Trace the program function of a population with the smallest and the largest value of each varied argument.

        The values are plain numbers, because layers check the range of plain numbers, but not of traced scalars.

        Raises:
          FluidError: a layer refuses a number.
        """
        extremes: list[Callable[[Any], Any]] = [np.argmin, np.argmax]
        for extreme in extremes if self.arguments else ():
            plain = {name: values[extreme(values)].item() for name, values in self.arguments.items()}
            discover(functools.partial(self._function, **plain), "program", precision, BATCHES[0], {})

    def check_names(self, rules: Sequence[Rule]) -> None:
        """Check that each varied name is either an argument of the program function or a number of the optimizer.

        Raises:
          UnknownNameError: a name is neither an argument nor a number of the optimizer.
          ArgumentError: a name is both; a number of the optimizer varies, and the program calls `minimize` several
            times; or a value is out of range.
        """
        known = {name for rule in rules for name in _numbers(rule.optimizer)}
        arguments = sorted(_arguments(self._function))
        for name in self.numbers:
            if name not in known:
                shown = " and ".join(type(rule.optimizer).__name__ for rule in rules)
                raise errors.UnknownNameError(
                    f"vary: {name!r} is neither an argument of the program function nor a number of {shown}, so it "
                    f"would vary nothing. {errors.nearest(name, [*arguments, *sorted(known)])}"
                )
        if both := [name for name in self.arguments if name in known]:
            raise errors.ArgumentError(
                f"vary={{{both[0]!r}: ...}}: found an argument of the program function and a number of its optimizer "
                f"of that name, expected one of them; call the argument something else"
            )
        if self.numbers and len(rules) > 1:
            raise errors.ArgumentError(
                f"vary={{{next(iter(self.numbers))!r}: ...}}: the program calls minimize {len(rules)} times, so that "
                f"this may be of any of them; expected one optimizer: fluid.Population(program, optimizer, ...)"
            )
        for name, values in self.numbers.items():
            # Create an optimizer with each value, because `__post_init__` of the optimizer checks the value.
            for value in values:
                _with_number(rules[0].optimizer, name, float(value), _checked)

    def rules(self, rules: Sequence[Rule], numbers: Mapping[str, Any]) -> list[Rule]:
        """Return copies of the update rules for one member (one training of a population)."""
        made = list(rules)
        for name, value in numbers.items():
            made = [rule._replace(optimizer=_with_number(rule.optimizer, name, value, replaced)) for rule in made]
        return made

    def replaces_rate(self, rules: Sequence[Rule]) -> bool:
        """Return whether the learning rates of the members of a population replace a constant learning rate.

        The result is False if the rates multiply a schedule, or if the members have no separate rates.
        """
        return RATE in self.numbers and not callable(rules[0].optimizer.declared_rate)

    def _plain(self, member: int) -> dict[str, Any]:
        return {name: values[member].item() for name, values in self.arguments.items()}

    def _with_one_traced(self, name: str, plain: Mapping[str, Any]) -> Callable[[], Any]:
        others = {n: value for n, value in plain.items() if n != name}
        return _traced(functools.partial(self._function, **others), {name: self.arguments[name][0]})


_SPELLED = 'vary={"learning_rate": [0.001, 0.01]}'


def _values(name: str, values: Any, size: int) -> np.ndarray:
    """Return the list of numbers of one varied hyperparameter as an array `[size]` of float32, int32 or bool."""
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray | jax.Array):
        raise errors.ArgumentTypeError(f"vary={{{name!r}: {values!r}}}: expected a list of {size} numbers")
    if len(values) != size:
        raise errors.ArgumentError(
            f"vary={{{name!r}: ...}}: found {len(values)} values, expected one for each of the {size} members"
        )
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        raise errors.ArgumentError(f"vary={{{name!r}: {values!r}}}: expected numbers, as in {_SPELLED}")
    return array if array.dtype.kind == "b" else array.astype(np.float32 if array.dtype.kind == "f" else np.int32)


def _arguments(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function that a caller can pass by keyword, as `inspect.Parameter` by name."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in callables have no signature
        return {}
    return {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _traced(function: Callable[..., Any], values: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a program function that calls `function` with a traced, named scalar for each name in `values`.

    Each scalar has its number in `values`, unless a step of the population overrides it.
    """

    def program() -> Any:
        # `jnp.full` returns a tracer here. A step later overrides the scalar with a tracer, and a plain number would
        # behave differently.
        scalars = {name: jnp.full((), value, value.dtype) for name, value in values.items()}
        return function(**{name: core.record(name, scalar, "Population") for name, scalar in scalars.items()})

    program.__name__ = _name_of(function)
    return program


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function.func if isinstance(function, functools.partial) else function, "__name__", "program")


def _fails(function: Callable[[], Any], precision: str | None) -> bool:
    """Return whether tracing a program function raises an error."""
    try:
        discover(function, "program", precision, BATCHES[0], {})
    except Exception:
        return True
    return False


def _numbers(optimizer: Any) -> list[str]:
    """Return the names of the settings of an optimizer and its inner optimizer that a population can vary.

    These settings are numbers, and also a learning rate that is a schedule.
    """
    if not dataclasses.is_dataclass(optimizer):
        return []
    inner = getattr(optimizer, "inner_optimizer", None)
    names = [field.name for field in dataclasses.fields(optimizer) if field.init and field.name not in _STRUCTURE]
    found = [n for n in names if _is_number(getattr(optimizer, n)) or (n == RATE and callable(getattr(optimizer, n)))]
    return found if inner is None else [*found, *_numbers(inner)]


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _with_number(optimizer: Any, name: str, value: Any, make: Callable[..., Any]) -> Any:
    """Return a copy of an optimizer with another value of the number `name`; multiply a schedule by the value.

    Args:
      make: a function of an optimizer and new values of its fields, which returns a copy with these values. It is
        `replaced`, which checks nothing, or `_checked`, which raises an error if a value is out of range.
    """
    if name not in {field.name for field in dataclasses.fields(optimizer)}:
        return replaced(optimizer, inner_optimizer=_with_number(optimizer.inner_optimizer, name, value, make))
    declared = getattr(optimizer, name)
    if not callable(declared):
        return make(optimizer, **{name: value})
    if make is _checked:
        # This call raises an error if the factor of a schedule is no valid learning rate.
        make(optimizer, **{name: value})
    return replaced(optimizer, **{name: lambda count: value * declared(count)})


def _checked(optimizer: Any, **numbers: Any) -> Any:
    return dataclasses.replace(optimizer, **numbers)
