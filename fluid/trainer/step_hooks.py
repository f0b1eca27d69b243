"""Policies: hooks of the training loop between two calls of the device."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fluid.reader.pipeline import Batches
from fluid.runtime import Results


class Call(NamedTuple):
    """One finished call of the device with one or several steps, after handlers were notified of its steps.

    Attributes:
      program: the name of the program that was trained.
      results: for each step its outputs, and the values that handlers have requested, by name.
      batches: the open pass over the minibatches; some of the next minibatches may already be read.
    """

    program: str
    results: Sequence[tuple[Results, Results]]
    batches: Batches


class Policy:
    """A hook of the training loop that runs between two calls of the device, such as saving checkpoints.

    One call of the device runs at most as many steps as the smallest `steps_ahead` of all policies.

    Example:
      >>> class Every(Policy):
      ...     done = 0
      ...     def steps_ahead(self):
      ...         return 5 - self.done % 5
      ...     def after_steps(self, call):
      ...         self.done += len(call.results)
      >>> Every().steps_ahead()
      5
    """

    def steps_ahead(self) -> float:
        """Return the maximum number of steps in the next call of the device, at least 1."""
        return math.inf

    def after_steps(self, call: Call) -> None:
        """Act after the steps of one call of the device."""
