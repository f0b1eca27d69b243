"""The learning rates of a session: as declared, or as they were set since."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.core import warn
from fluid.optimizer.parts import replaced
from fluid.runtime.update_rules import Rule

PREFIX = "@learning_rate/"
# Where a schedule was declared it decides while the rate is negative.
_AS_DECLARED = -1.0


class Rates:
    """What the compiled steps of a session take for learning rates: scalars on the device, to be set at any time.

    A rate that is set takes the place of the declared number or schedule, until it is set to None.

    Args:
      place: puts an array on the device.

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
        """Take the declared rates of a program."""
        self._rules[program] = list(rules)
        # Compiled where it is used, as it is by a handler at each step.
        self._functions[program] = jax.jit(
            lambda rates, slots: [rule.rate(r, s) for rule, r, s in zip(rules, rates, slots, strict=True)]
        )
        self.put(program, [None] * len(rules))

    def current(self, program: str, slots: Any) -> list[jax.Array]:
        """The learning rates of the next update, as scalars on the device.

        Args:
          program: its name.
          slots: those of the program.

        Raises:
          UnknownNameError: an optimizer does not tell its rate.
        """
        return self._functions[program](self.of(program), slots)

    def read(self, program: str, slots: Any) -> tuple[float, ...]:
        """The same as floats; only that of a schedule is computed, which waits for the device."""
        pairs = zip(self._set[program], self._rules[program], strict=True)
        known = [rule.optimizer.declared_rate if value is None else value for value, rule in pairs]
        if all(isinstance(value, int | float) for value in known):
            return tuple(map(float, known))
        return tuple(map(_number, self.current(program, slots)))

    def of(self, program: str) -> list[Any]:
        """For each `minimize` of a program the scalar that `Optimizer.at_rate` takes."""
        return self._scalars[program]

    def given(self, program: str) -> list[float | None]:
        """For each `minimize` of a program the rate that was set, or None."""
        return list(self._set[program])

    def put(self, program: str, values: Sequence[float | None]) -> None:
        """Set the rates of a program to what `given` returned."""
        self._set[program] = list(values)
        declared = [rule.optimizer.declared_rate for rule in self._rules[program]]
        pairs = zip(values, declared, strict=True)
        self._scalars[program] = [self._scalar(rate if value is None else value) for value, rate in pairs]

    def set(self, program: str, values: Sequence[float | None]) -> None:
        """Set the rates of a program, one for each `minimize`; None stands for what was declared.

        Raises:
          ArgumentError: a value is no number from 0 on, or there are more or fewer of them than `minimize` calls.
          UnknownNameError: one is for an optimizer that does not tell its rate.
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
                rule.optimizer.at_rate(rate)  # raises where there is no rate
                _warn_of_rows(rule)
        self.put(program, rates)

    def state(self) -> dict[str, Any]:
        """Float32 scalars by name, one for each rate that is set: none for a training with the rates as declared."""
        return {name: self._place(np.float32(rate)) for name, rate in self._named().items() if rate is not None}

    def optional(self, names: Iterable[str]) -> list[str]:
        """Which of the names that a file holds are those of rates, whether they are set here or not."""
        known = self._named()
        return [name for name in names if name in known]

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned; rates that it does not hold are as declared."""
        for program, rules in self._rules.items():
            found = [state.get(f"{PREFIX}{program}/{i}") for i in range(len(rules))]
            self.put(program, [None if value is None else _number(value) for value in found])

    def _named(self) -> dict[str, float | None]:
        """Return for each `minimize` of all programs the rate that was set, or None, by its name in files."""
        return {f"{PREFIX}{program}/{i}": rate for program, its in self._set.items() for i, rate in enumerate(its)}

    def _scalar(self, rate: Any) -> jax.Array:
        # A Python number, so that the scalar is weakly typed: parameters of half precision stay what they are.
        number = _AS_DECLARED if rate is None or callable(rate) else float(rate)
        return self._place(number)


def _number(scalar: Any) -> float:
    """A float32 scalar as the shortest decimal that stands for it: 0.1, and not 0.10000000149."""
    return float(str(np.float32(scalar)))


def _checked(value: Any) -> float | None:
    """A rate that somebody sets, as a float, or None.

    Raises:
      ArgumentError: it is no number from 0 on.
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
    """Warn where the update of a table by rows is not exact once the learning rate changes."""
    changing = replaced(rule.optimizer, learning_rate=lambda count: 0.0)
    if rule.tables and changing.whole_tables:
        warn(
            f"the learning rate of {type(rule.optimizer).__name__} is a part of each weight, and "
            f"{', '.join(rule.tables)} are updated by rows: a row has the new rate from its next look-up on. To be "
            f"exact give the optimizer a schedule, which makes the updates dense"
        )
