"""Measurements: the count of values that a handler waits for, and the warning if none of them was of use."""

from typing import Any

import numpy as np

from fluid._util.text import counted
from fluid.core import warn
from fluid.trainer.events import EndTrainEvent


class Measurements:
    """The measurements of one value in a call of `train`, for a handler that has nothing to do without them.

    Example:
      >>> measurements = Measurements()
      >>> measurements.begin(done=0, known=False)
      >>> measurements.add(0.5)
      >>> measurements.check(EndTrainEvent(1), 10, "SaveBest follows 'test_loss', which", "test more often")
    """

    def __init__(self) -> None:
        self._first = 0  # the number of completed training steps at the start of this call of `train`
        self._count = 0
        self._useful = False

    def begin(self, done: int, known: bool) -> None:
        """Begin a call of `train`."""
        self._first = done
        self._count = 0
        self._useful = known

    def add(self, value: Any = 0.0) -> None:
        """Count a measurement; an array `[members]` has the values of a Population."""
        self._count += 1
        self._useful = self._useful or bool(np.isfinite(value).any())

    def check(self, event: EndTrainEvent, done: int, subject: str, remedy: str) -> None:
        """Warn if training has ended, not by an error, and no measurement was finite, or there was none.

        Without a measurement, a training that was stopped early gets no warning.
        """
        steps = done - self._first
        if event.error is not None or self._useful or steps == 0:
            return
        trained = f"in a training of {counted(steps, 'step')}"
        if self._count:
            warn(
                f"{subject} was NaN or infinite each time that it was measured {trained}, so that no value is "
                f"the best; handlers=[fluid.handlers.TerminateOnNaN(report=True)] says where the first NaN came from"
            )
        elif not event.stopped:
            warn(f"{subject} was not measured once {trained}; {remedy}")
