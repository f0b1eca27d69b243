"""Warnings of a training that changes no parameter: its optimizer never gets to an update, or its schedule gives 0."""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid.core import warn
from fluid.optimizer.base import Minimizer
from fluid.trainer.events import BeginTrainEvent, EndEpochEvent
from fluid.trainer.handlers import Handler

# How many rates of a schedule are looked at: of the steps that were done, and of those that are to come.
_BEFORE, _AFTER = 16, 4


class NoUpdates(Handler):
    """A handler that warns, once, of a training whose optimizer makes no update, or whose schedule is over.

    It looks after the first epoch of a call of `train`, when the number of its steps is known, and after the last one.
    """

    acts_on_measured = False

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Note where this call begins and ends."""
        self._begun = self.done
        self._num_epochs = event.num_epochs
        self._looks = True
        self._said = False

    def steps_ahead(self) -> float:
        """Any number: the ends of epochs are enough."""
        return math.inf

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Look at the optimizers of the program."""
        left = self._num_epochs - event.epoch - 1
        if not event.completed or len(self.trainer.programs) > 1 or self.done - self._begun < 2:
            return
        if self._looks or (not left and not self._said):
            planned = self.done + left * event.steps
            ((program, found),) = self.trainer.programs.items()
            if complaint := self._complaint([m.optimizer for m in found.minimizes], program, planned, event.steps):
                self._said = True
                warn(complaint)
            self._looks = False

    def _complaint(self, optimizers: Sequence[Minimizer], program: str, planned: int, epoch: int) -> str | None:
        """Return what to say of the updates of this call, which ends after `planned` steps."""
        steps = planned - self._begun
        for optimizer in optimizers:
            count = optimizer.accumulate_steps
            if planned // count == self._begun // count:
                return (
                    f"accumulate_steps={count} makes one update of {count} steps, found {steps} steps in this call: "
                    f"no parameter changes; write accumulate_steps={max(1, steps // 4)}, or train for more epochs"
                )
        declared = all(rate is None for rate in self.trainer.session.rates.given(program))
        if declared and all(
            _is_over(o.declared_rate, *(n // o.accumulate_steps for n in (self._begun, self.done, planned)))
            for o in optimizers
        ):
            return (
                f"the learning rate was 0 for most of the {self.done - self._begun} steps so far, and stays 0: a "
                f"schedule counts updates, not epochs, and an epoch has {epoch} steps; give its length in steps, as in "
                f"fluid.layers.cosine_decay(0.1, step_each_epoch={epoch}, epochs={self._num_epochs})"
            )
        return None


def _is_over(rate: Any, begun: int, done: int, planned: int) -> bool:
    """Return whether a schedule gave 0 for most updates, and gives 0 from now on."""
    if not callable(rate) or _is_positive(rate, done):
        return False
    if any(_is_positive(rate, count) for count in _spread(done, planned, _AFTER)):
        return False
    before = _spread(begun, done, _BEFORE)
    return sum(_is_positive(rate, count) for count in before) < len(before) / 2


def _is_positive(rate: Any, count: int) -> bool:
    """Return whether the rate after `count` updates is another one than 0; of a population any of them."""
    return bool(np.any(np.asarray(rate(jnp.int32(count))) != 0))


def _spread(first: int, end: int, most: int) -> list[int]:
    """Return at most so many numbers from `first` to below `end`, evenly spread."""
    return sorted({int(n) for n in np.linspace(first, end - 1, most)}) if end > first else []
