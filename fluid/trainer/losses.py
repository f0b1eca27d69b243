"""The losses of the steps in flight: waiting for the device, the seconds spent waiting, and non-finite losses."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fluid.core import warn
from fluid.runtime.in_flight import InFlight
from fluid.trainer.policy import Call, Policy


class Waits:
    """Seconds for which a training has waited since it began.

    Reading costs time only where the device has nothing left to do meanwhile. The loop looks after each reading that
    takes long, and now and then after others, whether that is so; if it is, what was read since the last look counts.

    Attributes:
      data: for minibatches.
      device: for the results of steps.

    Example:
      >>> waits = Waits()
      >>> waits.look(read=3.0, idle=True)
      >>> waits.look(read=3.5, idle=False)
      >>> waits.data
      3.0
    """

    def __init__(self) -> None:
        self.data = 0.0
        self.device = 0.0
        self._read = 0.0

    def begin_pass(self, read: float) -> None:
        """Begin a pass; `read` seconds of its reading were counted before."""
        self._read = read

    def look(self, read: float, idle: bool) -> None:
        """Count the seconds of reading since the last look, or since the beginning of the pass.

        Args:
          read: seconds for which minibatches of this pass were read and converted.
          idle: whether the device had nothing left to do when the last of them was there.
        """
        if idle:
            self.data += read - self._read
        self._read = read


class Losses(Policy):
    """The losses of the steps in flight. Limits their number by waiting for them, and warns of NaN and infinities.

    Args:
      waits: records the seconds spent waiting.
      waited: callback, called with the name of the program after waiting for its steps; None for nothing.

    Attributes:
      warned: whether a loss was not finite, so that a warning was given.

    Example:
      >>> losses = Losses(Waits())
      >>> losses.add(np.float32(0.5), epoch=0, step=0)
      >>> losses.wait_for_all()
    """

    def __init__(self, waits: Waits, waited: Callable[[str], None] | None = None) -> None:
        self._waits = waits
        self._waited = waited
        self._in_flight: InFlight[tuple[Any, int, int, int]] = InFlight()
        self.warned = False

    def add(self, loss: Any, epoch: int, step: int, count: int = 1) -> None:
        """Add the loss of a dispatched step, or the losses of several steps in one call.

        Args:
          loss: a scalar, or the scalars of all these steps, `[at least count]`.
          epoch: of these steps.
          step: the first of them.
          count: how many there are.
        """
        self._in_flight.add((loss, epoch, step, count), count)

    @property
    def idle(self) -> bool:
        """True if the device has done all steps."""
        newest = self._in_flight.newest
        return newest is None or bool(newest[0].is_ready())

    def after_steps(self, call: Call) -> None:
        """Wait for the older half of the steps if too many are in flight."""
        if self.wait_for_half():
            self._waits.look(call.batches.seconds, self.idle)
            if self._waited is not None:
                self._waited(call.program)

    def wait_for_half(self) -> bool:
        """Wait for the older half of the steps if too many are in flight; return whether it has waited.

        Only the newest loss of that half is read.
        """
        due = self._in_flight.due()
        if due:
            self._settle(*due[-1])
        return bool(due)

    def wait_for_all(self) -> None:
        """Wait for the last step."""
        if rest := self._in_flight.rest():
            self._settle(*rest[-1])

    def _settle(self, loss: Any, epoch: int, step: int, count: int) -> None:
        begun = time.perf_counter()
        loss = np.asarray(loss)  # to reshape it on the device would be a compilation
        self._waits.device += time.perf_counter() - begun
        if self.warned or (loss.size == 1 and math.isfinite(loss.item())):
            return
        losses = loss.reshape(-1, loss.size) if count == 1 else loss.reshape(len(loss), -1)[:count]
        if not np.isfinite(losses).all():
            self.warned = True
            bad = int(np.argmin(np.isfinite(losses).all(axis=1)))
            warn(_lost(losses[bad], f"in step {step + bad} of epoch {epoch}"))


def _lost(losses: np.ndarray, where: str) -> str:
    """Return the warning for a loss that is not finite, or for the losses of a population."""
    lost = np.flatnonzero(~np.isfinite(losses))
    if len(losses) > 1:
        members = ", ".join(map(str, lost))
        return (
            f"the loss of member {members} is {losses[lost[0]]} {where}; what is not finite stays with it, and "
            f"the others go on. population.stop([{members}]) in a handler ends its training"
        )
    return (
        f"the loss is {losses[0]} {where}, so training computes with numbers "
        f"that are not finite; handlers=[fluid.handlers.TerminateOnNaN(report=True)] ends it at the step that "
        f"made the first one, and says which layer, line and rows it came from"
    )
