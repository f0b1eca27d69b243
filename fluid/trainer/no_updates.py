"""Warnings if training learns nothing: no parameter updates, a learning rate of 0, or a loss that does not fall."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core import warn
from fluid.optimizer.base import Minimizer
from fluid.trainer.evaluation.means import output_names
from fluid.trainer.events import BeginTrainEvent, EndEpochEvent, EndTrainEvent
from fluid.trainer.handlers import Handler

log = logging.getLogger("fluid")

# The loss is expected to fall if a call of `train` has at least this number of epochs.
_EPOCHS = 3
# A check of a learning rate schedule evaluates the schedule for at most `_BEFORE` of the past updates, and for at most
# `_AFTER` of the future updates.
_BEFORE, _AFTER = 16, 4


class NoUpdates(Handler):
    """A handler that warns, once, if training updates no parameters, or if the learning rate is 0 and stays 0.

    The handler checks after the first epoch of a call of `train`, when the number of steps is known, and after the last
    epoch. At the end of training, the handler logs a warning if the loss did not fall.
    """

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Store the number of steps done before this call of `train`, and its number of epochs."""
        self._begun = self.done
        self._num_epochs = event.num_epochs
        self._looks = True
        self._said = False
        # the EndEpochEvents of the first and the last epoch of this call of `train`
        self._epochs: list[EndEpochEvent] = []

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Check, after the first and the last epoch of a call of `train`, whether training steps update parameters."""
        left = self._num_epochs - event.epoch - 1
        if not event.completed or len(self.trainer.programs) > 1 or self.done - self._begun < 2:
            return
        self._epochs = [*self._epochs[:1], event]
        if self._looks or (not left and not self._said):
            planned = self.done + left * event.steps
            ((program, found),) = self.trainer.programs.items()
            if complaint := self._complaint([m.optimizer for m in found.minimizes], program, planned, event.steps):
                self._said = True
                warn(complaint)
            self._looks = False

    def end_train(self, event: EndTrainEvent) -> None:
        """Log a warning if the loss of the last epoch is not below the loss of the first epoch."""
        epochs = [end.epoch for end in self._epochs]
        if event.stopped or event.error or self._num_epochs < _EPOCHS or epochs != [0, self._num_epochs - 1]:
            return
        (program,) = self.trainer.programs.values()
        name = output_names(program)[program.loss_output]
        first, last = (np.asarray(end.metrics.get(name, math.nan)) for end in self._epochs)
        if np.all(last >= first):
            log.warning(
                "the loss did not fall in %d epochs: %.4g in the first one, %.4g in the last one. Is the learning "
                "rate right (fluid.find_learning_rate), does each label belong to its row, and does the loss get what "
                "it takes, logits or probabilities?",
                self._num_epochs,
                np.min(first),
                np.min(last),
            )

    def _complaint(self, optimizers: Sequence[Minimizer], program: str, planned: int, epoch: int) -> str | None:
        """Return a warning if the steps of this call of `train` cannot update parameters; else None."""
        steps = planned - self._begun
        for optimizer in optimizers:
            count = optimizer.accumulate_steps
            if planned // count == self._begun // count:
                return (
                    f"accumulate_steps={count} makes one update of {count} steps, found {steps} steps in this call: "
                    f"no parameter changes; write accumulate_steps={max(1, steps // 4)}, or train for more epochs"
                )
        declared = all(rate is None for rate in self.trainer.session.engine.rates.given(program))
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
    """Return whether a learning rate schedule was 0 for most updates from `begun` to `done`, and stays 0.

    The schedule stays 0 if it is 0 for all updates from `done` to `planned`. Only some of the updates are checked. The
    result is False for a learning rate that is a number.
    """
    if not callable(rate) or _is_positive(rate, done):
        return False
    if any(_is_positive(rate, count) for count in _spread(done, planned, _AFTER)):
        return False
    before = _spread(begun, done, _BEFORE)
    return sum(_is_positive(rate, count) for count in before) < len(before) / 2


def _is_positive(rate: Any, count: int) -> bool:
    with jax.transfer_guard("allow"):
        return bool(np.any(np.asarray(rate(jnp.int32(count))) != 0))


def _spread(first: int, end: int, most: int) -> list[int]:
    return sorted({int(n) for n in np.linspace(first, end - 1, most)}) if end > first else []
