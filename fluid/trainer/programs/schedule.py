"""Schedules: the choice of a program for each training step, with several programs."""

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fluid import errors

ScheduleLike = str | Mapping[str, float] | Callable[[int], str | int] | None
"""The argument `schedule=`: "alternate", "3:1", "epoch", weights by name, or a function from the step to a name."""

# The number of steps whose random numbers are drawn at once, with weights.
_BLOCK = 1024


class Schedule(abc.ABC):
    """The base class of schedules. The program depends only on the index of the step, so a training can resume.

    Attributes:
      by_epoch: True if all steps of an epoch train one program.
      plan: the settings of the schedule, as JSON; a position within an epoch is valid for an equal plan only.
    """

    by_epoch = False
    plan: Any = None

    @abc.abstractmethod
    def at(self, step: int, epoch: int) -> int:
        """Return the index of the program.

        Args:
          step: the number of training steps done.
          epoch: the index of the epoch within the call of `train`, from 0.
        """


class Pattern(Schedule):
    """A schedule that repeats a pattern: some steps of the first program, then some of the second, and so on.

    Args:
      counts: the number of consecutive steps of each program, at least 1.

    Example:
      >>> [Pattern([3, 1]).at(step, epoch=0) for step in range(6)]
      [0, 0, 0, 1, 0, 0]
    """

    def __init__(self, counts: Sequence[int]):
        self.plan = list(counts)
        self._turns = [number for number, count in enumerate(counts) for _ in range(count)]

    def at(self, step: int, epoch: int) -> int:
        """Return the index of the program at this position of the pattern."""
        return self._turns[step % len(self._turns)]


class ByEpoch(Schedule):
    """A schedule that trains each program for an epoch, in turn."""

    by_epoch = True

    def __init__(self, count: int):
        self.plan = ["epoch", count]
        self._count = count

    def at(self, step: int, epoch: int) -> int:
        """Return the index of the program of the epoch."""
        return epoch % self._count


class Weighted(Schedule):
    """A schedule that draws the program of each step in proportion to weights, from the seed and the step only.

    Args:
      weights: the weight of each program, above 0.
      seed: the seed of the draws.

    Example:
      >>> drawn = [Weighted([3, 1], seed=0).at(step, epoch=0) for step in range(10_000)]
      >>> round(sum(drawn) / len(drawn), 2)
      0.25
    """

    def __init__(self, weights: Sequence[float], seed: int):
        self.plan = [[float(weight) for weight in weights], seed]
        self._bounds = np.cumsum(weights)[:-1] / sum(weights)
        self._seed = seed
        self._block = -1
        self._drawn: list[int] = []

    def at(self, step: int, epoch: int) -> int:
        """Return the index of the program that is drawn for the step."""
        block, place = divmod(step, _BLOCK)
        if block != self._block:
            numbers = np.random.Generator(np.random.PCG64([self._seed, block])).random(_BLOCK)
            self._drawn = np.searchsorted(self._bounds, numbers, side="right").tolist()
            self._block = block
        return self._drawn[place]


class Chosen(Schedule):
    """A schedule by a function of the user.

    Args:
      function: a function from the number of steps done to the name or the index of a program.
      names: the names of the programs.
    """

    plan = "function"

    def __init__(self, function: Callable[[int], str | int], names: Sequence[str]):
        self._function = function
        self._names = list(names)

    def at(self, step: int, epoch: int) -> int:
        """Return the index of the program that the function returns.

        Raises:
          UnknownNameError: the function returns no name or index of a program.
        """
        found = self._function(step)
        if isinstance(found, str) and found in self._names:
            return self._names.index(found)
        if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < len(self._names):
            return found
        raise errors.UnknownNameError(
            f"schedule: the function gave {found!r} for step {step}, expected the name of a program. "
            f"{errors.nearest(str(found), self._names)}"
        )


def schedule_of(given: ScheduleLike, names: Sequence[str], seed: int) -> Schedule:
    """Return the schedule for the argument `schedule=` of a Trainer.

    Args:
      given: the argument; None for "alternate".
      names: the names of the programs, in their order.
      seed: the seed of draws by weight.

    Raises:
      ArgumentError: the argument is invalid, or would never train one of the programs.
      ArgumentTypeError: the argument has another type.
      UnknownNameError: the argument contains a name that is no program.
    """
    if given is None or given == "alternate":
        return Pattern([1] * len(names))
    if given == "epoch":
        return ByEpoch(len(names))
    if isinstance(given, str):
        return Pattern(_counts(given, names))
    if isinstance(given, Mapping):
        return Weighted(_weights(given, names), seed)
    if callable(given):
        chosen = Chosen(given, names)
        chosen.at(0, 0)
        return chosen
    raise errors.ArgumentTypeError(
        f"schedule={given!r}: expected {_forms(names)}, or a function of the number of steps done that gives a name"
    )


def _counts(text: str, names: Sequence[str]) -> list[int]:
    """Return the counts of a schedule such as "3:1"."""
    parts = text.split(":")
    if not all(part.strip().isdecimal() for part in parts):
        raise errors.ArgumentError(f"schedule={text!r}: expected {_forms(names)}")
    counts = [int(part) for part in parts]
    right = ":".join(map(str, [*counts, *([1] * len(names))][: len(names)]))
    if len(counts) != len(names):
        raise errors.ArgumentError(
            f"schedule={text!r} counts the steps of {len(counts)} programs, and there are {len(names)}: "
            f'{", ".join(names)}; write schedule="{right}"'
        )
    _refuse_idle([name for name, count in zip(names, counts, strict=True) if not count], text)
    return counts


def _weights(given: Mapping[str, float], names: Sequence[str]) -> list[float]:
    unknown = [name for name in given if name not in names]
    if unknown:
        raise errors.UnknownNameError(
            f"schedule: there is no program {unknown[0]!r}. {errors.nearest(str(unknown[0]), names)}"
        )
    for name, weight in given.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            raise errors.ArgumentError(f"schedule={dict(given)!r}: expected a number from 0 on as weight of {name!r}")
    _refuse_idle([name for name in names if not given.get(name)], dict(given))
    return [float(given[name]) for name in names]


def _refuse_idle(idle: Sequence[str], given: Any) -> None:
    if idle:
        raise errors.ArgumentError(
            f"schedule={given!r} never trains {' and '.join(map(repr, idle))}: a step of it must come at some time. "
            f"Leave a program that shall not be trained out of the Trainer; trainer.session.add(function) runs it"
        )


def _forms(names: Sequence[str]) -> str:
    ones = ":".join(["1"] * (len(names) - 1))
    weights = ", ".join(f'"{name}": {number}' for number, name in enumerate(reversed(names), 1))
    return f'"alternate", "3:{ones}", "epoch", weights {{{weights}}}'
