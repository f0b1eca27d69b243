"""Schedules: choose the program of each training step, and read the minibatches of several programs in this order.

A Batch (a minibatch on the device) holds the index of its program. The schedule depends only on the indices of the step
and of the epoch, and one saved position holds the positions of all readers. Therefore the input pipeline, checkpoints
and the training loop do not depend on the number of programs.
"""

import abc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fluid import errors
from fluid.reader.adapters import Minibatches
from fluid.reader.base import Rows

ScheduleLike = str | Mapping[str, float] | Callable[[int], str | int] | None
"""The type of `schedule=`: "alternate", "3:1", "epoch", weights by name, or a function of the step number.
"""

# The number of steps for which a Weighted schedule draws random numbers in one batch.
_BLOCK = 1024


class Schedule(abc.ABC):
    """A base class of schedules, which choose the program of a step.

    The choice depends only on the indices of the step and of the epoch, so a resumed training makes equal choices.

    Attributes:
      by_epoch: True if all steps of an epoch train one program.
      plan: the settings of the schedule, as JSON; a saved position within an epoch can be continued only with an
        equal plan.
    """

    by_epoch = False
    plan: Any = None

    @abc.abstractmethod
    def at(self, step: int, epoch: int) -> int:
        """Return the index of the program to train in the next step."""


class Pattern(Schedule):
    """A schedule that repeats a pattern: some steps of the first program, then some of the second, and so on.

    Example:
      >>> [Pattern([3, 1]).at(step, epoch=0) for step in range(6)]
      [0, 0, 0, 1, 0, 0]
    """

    def __init__(self, counts: Sequence[int]):
        self.plan = list(counts)
        self._turns = [number for number, count in enumerate(counts) for _ in range(count)]

    def at(self, step: int, epoch: int) -> int:
        """Return the index of the program that is trained at `step`; a fixed pattern of programs repeats."""
        return self._turns[step % len(self._turns)]


class ByEpoch(Schedule):
    """A schedule that trains each program for an epoch, in turn."""

    by_epoch = True

    def __init__(self, count: int):
        self.plan = ["epoch", count]
        self._count = count

    def at(self, step: int, epoch: int) -> int:
        """Return the index of the program that all steps of the epoch train."""
        return epoch % self._count


class Weighted(Schedule):
    """A schedule that draws the program of each step in proportion to weights, from the seed and the step only.

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
        """Return the index of the program that training step `step` trains; the index is drawn at random."""
        block, place = divmod(step, _BLOCK)
        if block != self._block:
            numbers = np.random.Generator(np.random.PCG64([self._seed, block])).random(_BLOCK)
            self._drawn = np.searchsorted(self._bounds, numbers, side="right").tolist()
            self._block = block
        return self._drawn[place]


class Chosen(Schedule):
    """A schedule in which a function of the user chooses the program of each step."""

    plan = "function"

    def __init__(self, function: Callable[[int], str | int], names: Sequence[str]):
        self._function = function
        self._names = list(names)

    def at(self, step: int, epoch: int) -> int:
        """Return the index of the program that the user's function chooses for a step.

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
    """Return the numbers of consecutive steps of the programs in a schedule such as "3:1"."""
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


# A sentinel that marks the end of a pass over the data.
_NONE = object()


class Turns:
    """Passes over the minibatches of several programs; each item is the index of a program and its next minibatch.

    A pass ends when one reader, the leading reader, ends. The leading reader restarts in each pass. The other readers
    continue across passes, and restart when they end.

    Args:
      sources: the minibatches of each program. Programs that share minibatches have the same object; a program
        without a reader has None.

    Example:
      >>> from fluid.reader.adapters import minibatches
      >>> from fluid.trainer.programs.schedule import Pattern
      >>> turns = Turns([minibatches([[1], [2]]), minibatches([[3], [4], [5]])], Pattern([1, 1]), leading=0)
      >>> list(turns())
      [(0, [1]), (1, [3]), (0, [2]), (1, [4])]
      >>> list(turns())
      [(0, [1]), (1, [5]), (0, [2]), (1, [3])]
    """

    def __init__(self, sources: Sequence[Minibatches | None], schedule: Schedule, leading: int, first: int = 0):
        self._sources = list({id(source): source for source in sources if source is not None}.values())
        self._places = [None if source is None else self._sources.index(source) for source in sources]
        self._schedule = schedule
        self._leading = leading
        self._epoch = 0
        self._given = 0
        self._step = first
        self._counts = [0] * len(sources)
        self._open: dict[int, Rows] = {}
        self._plan = {"schedule": schedule.plan, "sources": self._places, "leading": leading}

    @property
    def reads_once(self) -> bool:
        """True if one of the readers is an iterator of the user, which cannot restart."""
        return any(source.reads_once for source in self._sources)

    @property
    def ready(self) -> bool:
        """True if the next minibatch of every program can be read now."""
        return all(source.ready for source in self._sources)

    @property
    def counts(self) -> list[int]:
        """For each program, the number of its minibatches so far, including the minibatches before a resume."""
        return list(self._counts)

    def __call__(self) -> Iterator[tuple[int, Any]]:
        """Start the next pass over the data, or continue the interrupted pass that `restore` has set."""
        place = self._places[self._schedule.at(self._step, self._epoch) if self._schedule.by_epoch else self._leading]
        assert place is not None
        # open the reader before the first item is read, so that `state()` already includes its position
        if place not in self._open:
            self._open[place] = self._sources[place]()
        return self._pass(place)

    def state(self) -> dict[str, Any]:
        """Return the position of all readers after the last minibatch that was read, as JSON for `restore`."""
        position = {"epoch": self._epoch, "given": self._given, "step": self._step, "counts": list(self._counts)}
        return {**position, "reader": self._plan, "readers": [source.state() for source in self._sources]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Make the next pass over the data continue exactly from a position that `state` has returned.

        Raises:
          ArgumentError: the position belongs to other readers, or to another schedule.
        """
        readers = state.get("readers", ())
        if len(readers) != len(self._sources) or state.get("reader", self._plan) != self._plan:
            raise errors.ArgumentError(
                f"this position was taken with other programs, readers or another schedule: found "
                f"{state.get('reader')} and {len(readers)} readers, expected {self._plan} and {len(self._sources)}. "
                f"Give the Trainer the same schedule, and train() the same readers, as when it was saved"
            )
        for source, position in zip(self._sources, readers, strict=True):
            source.restore(position)
        self._open = {}
        self._epoch = state["epoch"]
        self._given = state["given"]
        self._step = state["step"]
        self._counts = list(state["counts"])

    def close(self) -> None:
        """End the current passes of all readers, so that each reader begins a new pass when it is read next."""
        self._end_all()
        for source in self._sources:
            position = source.state()
            if position["given"]:
                source.restore({"epoch": position["epoch"] + 1, "given": 0})

    def _pass(self, leading: int) -> Iterator[tuple[int, Any]]:
        """Yield pairs (program index, minibatch) of one pass, until the reader with the index `leading` ends."""
        ended = False
        try:
            while True:
                number = self._schedule.at(self._step, self._epoch)
                place = self._places[number]
                minibatch = () if place is None else next(self._open_at(place), _NONE)
                if minibatch is _NONE and place == leading:
                    ended = True
                    self._epoch += 1
                    self._given = 0
                    return
                if minibatch is _NONE:
                    assert place is not None
                    del self._open[place]
                    # restart the reader; a reader without any minibatch raises an error here, instead of an endless
                    # loop
                    minibatch = next(self._open_at(place))
                self._step += 1
                self._given += 1
                self._counts[number] += 1
                yield number, minibatch
        finally:
            if ended:
                self._open.pop(leading).close()
            else:
                self._end_all()

    def _open_at(self, place: int) -> Rows:
        if place not in self._open:
            self._open[place] = self._sources[place]()
        return self._open[place]

    def _end_all(self) -> None:
        for rows in self._open.values():
            rows.close()
        self._open = {}
