"""Intervals of handlers: a number of steps or epochs, from the argument `every=`."""

import math
import re

from fluid import errors
from fluid._util.text import counted
from fluid.core import whole_number
from fluid.trainer.events import EndEpochEvent

Interval = int | str
"""The type of `every=`, the interval of a handler: a number of steps, or a string such as "epoch" or "100 steps"."""


class Every:
    """The interval of a handler, from its argument `every=`.

    Raises:
      ArgumentError: `value` is not a valid interval.

    Example:
      >>> every = Every("100 steps", "TestEvery")
      >>> every.at_step(100), every.at_step(101)
      (True, False)
    """

    def __init__(self, value: Interval, owner: str):
        words = re.fullmatch(r"(?:([1-9]\d*) )?(step|epoch)s?", value) if isinstance(value, str) else None
        try:
            self._count = int(words[1] or 1) if words else whole_number(owner, "every", value)
        except errors.ArgumentError:
            raise errors.ArgumentError(
                f"{owner}(every={value!r}): expected a number of steps, or one of epochs; "
                f'write every=100, every="epoch" or every="2 epochs"'
            ) from None
        self._unit = words[2] if words else "step"

    def __str__(self) -> str:
        return counted(self._count, self._unit)

    def at_step(self, done: int) -> bool:
        """Return whether an interval ends after `done` training steps; False for an interval of epochs."""
        return self._unit == "step" and done % self._count == 0

    def steps_left(self, done: int) -> float:
        """Return the number of steps from `done` to the end of the interval; infinity for an interval of epochs."""
        return self._count - done % self._count if self._unit == "step" else math.inf

    def at_epoch(self, event: EndEpochEvent) -> bool:
        """Return whether an interval of epochs ends with this epoch; False for a stopped epoch."""
        return self._unit == "epoch" and event.completed and (event.epoch + 1) % self._count == 0
