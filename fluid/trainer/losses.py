"""Losses of the steps in flight: wait for the losses, measure the time of waiting, and warn of non-finite losses."""

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from fluid.core import warn
from fluid.runtime.in_flight import InFlight
from fluid.trainer.device_calls import DeviceCall, Policy


class Waits:
    """The time, in seconds, that a training has waited since its start for minibatches and for the device.

    Reading a minibatch costs time only while the device is idle. The loop checks after each long read, and sometimes
    after shorter ones, whether the device is idle. If so, the time of all reads since the last check is added.

    Attributes:
      data: seconds of waiting for minibatches.
      device: seconds of waiting for the results of steps.

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
        """Start to measure a pass over the data; the first `read` seconds of reading in this pass do not count."""
        self._read = read

    def look(self, read: float, idle: bool) -> None:
        """Add the time since the last call that training has spent on reading data, if the device was idle.

        The first call counts the time since `begin_pass`.

        Args:
          read: the seconds spent on reading and converting the minibatches of this pass so far.
        """
        if idle:
            self.data += read - self._read
        self._read = read


class Losses(Policy):
    """A hook of the training loop that waits for losses, to limit the steps in flight, and warns of non-finite losses.

    Args:
      waits: records the seconds of waiting.

    Attributes:
      lost: the trainings whose loss was not finite, and was warned of: {0}, or the members of a population.

    Example:
      >>> losses = Losses(Waits())
      >>> losses.add([np.float32(0.5)], epoch=0, step=0)
      >>> losses.wait_for_all()
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._in_flight: InFlight[tuple[Sequence[Any], int, int]] = InFlight()
        self.lost: set[int] = set()

    def add(self, losses: Sequence[Any], epoch: int, step: int) -> None:
        """Record the losses of the steps of one device call, for a later check.

        Args:
          losses: the loss of each step, `[]` or `[members]`.
        """
        self._in_flight.add((losses, epoch, step), len(losses))

    @property
    def idle(self) -> bool:
        """True if the device has finished all dispatched steps, or no step was dispatched."""
        newest = self._in_flight.newest
        return newest is None or bool(newest[0][-1].is_ready())

    def after_steps(self, call: DeviceCall) -> None:
        """If the device has too many unfinished steps, wait for the older half of them, and record the time."""
        if self.wait_for_half():
            self._waits.look(call.batches.seconds, self.idle)

    def wait_for_half(self) -> bool:
        """Wait for older training steps if the device still has too many steps to compute; return True after waiting.

        The method waits for the older half of these steps.
        """
        due = self._in_flight.due()
        self._settle(due)
        return bool(due)

    def wait_for_all(self) -> None:
        """Wait until the device has finished all steps."""
        self._settle(self._in_flight.rest())

    def _settle(self, calls: Sequence[tuple[Sequence[Any], int, int]]) -> None:
        """Wait for the losses of some device calls, in the order of the calls, and check every loss."""
        begun = time.perf_counter()
        # copy the losses to the host, because `reshape` on the device would need a compilation
        read = [[np.asarray(loss) for loss in losses] for losses, *_ in calls]
        self._waits.device += time.perf_counter() - begun
        for losses, (_, epoch, first) in zip(read, calls, strict=True):
            for step, loss in enumerate(losses, first):
                self._check(loss, epoch, step)

    def _check(self, loss: np.ndarray, epoch: int, step: int) -> None:
        if loss.size == 1 and math.isfinite(loss.item()):
            return
        losses = loss.reshape(-1)
        if lost := [i for i in np.flatnonzero(~np.isfinite(losses)).tolist() if i not in self.lost]:
            self.lost.update(lost)
            warn(_lost(losses, lost, f"in step {step} of epoch {epoch}"))


def _lost(losses: np.ndarray, lost: Sequence[int], where: str) -> str:
    """Return the warning for the non-finite losses at the indices `lost`; `losses` has one for each training."""
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
