"""The learning rates of a session: declared by the program, or set later.

Rates that were set are saved beside the optimizer state, as `@learning_rate/PROGRAM/0`; a file without them restores
the declared rates. The scalars are weakly typed, as Python numbers are, so that parameters of half precision keep their
dtype.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.core import warn
from fluid.optimizer.parts import replaced
from fluid.runtime.update_rules import Rule

PREFIX = "@learning_rate/"
# A negative rate stands for the declared schedule.
_AS_DECLARED = -1.0


class Rates:
    """The learning rates of the compiled steps of a session: scalars on the device, to be set at any time.

    A rate that is set replaces the declared number or schedule, until it is set to None.

    Args:
      place: a function that puts an array on the device.

    Example:
      >>> import fluid
      >>> from fluid.runtime.update_rules import rules_of
      >>> def program():
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     fluid.optimizer.SGD(0.5).minimize(loss)
      ...     return loss
      >>> rates = Rates(place=lambda value: value)
      >>> rates.add("program", rules_of(fluid.Program(program)))
      >>> rates.set("program", [0.25])
      >>> rates.of("program"), list(rates.state())
      ([0.25], ['@learning_rate/program/0'])
    """

    def __init__(self, place: Callable[[Any], Any]):
        self._place = place
        self._rules: dict[str, list[Rule]] = {}
        self._functions: dict[str, Callable[..., list[jax.Array]]] = {}
        self._set: dict[str, list[float | None]] = {}
        self._scalars: dict[str, list[Any]] = {}

    def add(self, program: str, rules: Sequence[Rule]) -> None:
        """Add the declared rates of a program."""
        self._rules[program] = list(rules)
        # Compiled, because a handler may read the rates at each step.
        self._functions[program] = jax.jit(
            lambda rates, slots: [rule.rate(r, s) for rule, r, s in zip(rules, rates, slots, strict=True)]
        )
        self.put(program, [None] * len(rules))

    def current(self, program: str, slots: Any) -> list[jax.Array]:
        """Return the learning rates of the next update, as scalars on the device.

        Args:
          program: name of the program.
          slots: optimizer state of the program.

        Raises:
          UnknownNameError: the learning rate of an optimizer is unknown.
        """
        return self._functions[program](self.of(program), slots)

    def read(self, program: str, slots: Any) -> tuple[float, ...]:
        """Return the learning rates of the next update as floats; only a schedule makes this wait for the device."""
        pairs = zip(self._set[program], self._rules[program], strict=True)
        known = [rule.optimizer.declared_rate if value is None else value for value, rule in pairs]
        if all(isinstance(value, int | float) for value in known):
            return tuple(map(float, known))
        return tuple(map(_number, self.current(program, slots)))

    def of(self, program: str) -> list[Any]:
        """Return the scalar for `Optimizer.at_rate`, for each `minimize` of a program."""
        return self._scalars[program]

    def given(self, program: str) -> list[float | None]:
        """Return the rate that was set, or None, for each `minimize` of a program."""
        return list(self._set[program])

    def put(self, program: str, values: Sequence[float | None]) -> None:
        """Set the rates of a program from the result of `given`."""
        self._set[program] = list(values)
        declared = [rule.optimizer.declared_rate for rule in self._rules[program]]
        pairs = zip(values, declared, strict=True)
        self._scalars[program] = [self._scalar(rate if value is None else value) for value, rate in pairs]

    def set(self, program: str, values: Sequence[float | None]) -> None:
        """Set the rates of a program, one for each `minimize`; None restores the declared rate.

        Raises:
          ArgumentError: a rate is no finite number from 0 up, or the number of rates differs from the `minimize` calls.
          UnknownNameError: a rate is for an optimizer whose learning rate is unknown.
        """
        rules = self._rules[program]
        if len(values) != len(rules):
            raise errors.ArgumentError(
                f"learning_rate = {list(values)!r}: the program {program} calls minimize {len(rules)} times, so it has "
                f"{len(rules)} learning rates; write learning_rate = {[0.01] * len(rules)}, with None for one that "
                f"shall be as declared"
            )
        rates = [_checked(value) for value in values]
        for rule, rate in zip(rules, rates, strict=True):
            if rate is not None:
                rule.optimizer.at_rate(rate)  # raises if the rate is unknown
                _warn_of_rows(rule)
        self.put(program, rates)

    def state(self) -> dict[str, Any]:
        """Return a float32 scalar for each rate that is set, by name; an empty dict if all rates are as declared."""
        return {name: self._place(np.float32(rate)) for name, rate in self._named().items() if rate is not None}

    def optional(self, names: Iterable[str]) -> list[str]:
        """Return the names among `names` that belong to rates of this session, set or not."""
        known = self._named()
        return [name for name in names if name in known]

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; rates without an entry are as declared."""
        for program, rules in self._rules.items():
            found = [state.get(f"{PREFIX}{program}/{i}") for i in range(len(rules))]
            self.put(program, [None if value is None else _number(value) for value in found])

    def _named(self) -> dict[str, float | None]:
        """Return the rate that was set, or None, for each `minimize` of all programs, by its name in files."""
        return {f"{PREFIX}{program}/{i}": rate for program, its in self._set.items() for i, rate in enumerate(its)}

    def _scalar(self, rate: Any) -> jax.Array:
        # A Python number makes a weakly typed scalar, so that parameters of half precision keep their dtype.
        number = _AS_DECLARED if rate is None or callable(rate) else float(rate)
        return self._place(number)


def _number(scalar: Any) -> float:
    """Return a float32 scalar as the shortest decimal that rounds to it: 0.1 instead of 0.10000000149."""
    return float(str(np.float32(scalar)))


def _checked(value: Any) -> float | None:
    """Return a rate from a user as a float, or None.

    Raises:
      ArgumentError: the rate is no finite number from 0 up.
    """
    if value is None:
        return None
    number = value.item() if isinstance(value, jax.Array | np.ndarray | np.generic) and value.ndim == 0 else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < float("inf"):
        raise errors.ArgumentError(
            f"learning_rate = {value!r}: expected a number from 0 on, or None for the rate as it was declared; a "
            f"schedule is given to the optimizer: fluid.optimizer.Adam(learning_rate=schedule)"
        )
    return float(number)


def _warn_of_rows(rule: Rule) -> None:
    """Warn if row-wise updates of a table become inexact when the learning rate changes."""
    changing = replaced(rule.optimizer, learning_rate=lambda count: 0.0)
    if rule.tables and changing.whole_tables:
        warn(
            f"the learning rate of {type(rule.optimizer).__name__} is a part of each weight, and "
            f"{', '.join(rule.tables)} are updated by rows: a row has the new rate from its next look-up on. To be "
            f"exact give the optimizer a schedule, which makes the updates dense"
        )
