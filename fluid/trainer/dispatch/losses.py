"""The losses of the steps under way: how the loop waits for the device, and sees whether one is not finite."""

import math
import time
from collections import deque
from typing import Any

import numpy as np

from fluid.core import warn
from fluid.session.results import IN_FLIGHT
from fluid.trainer.dispatch.waits import Waits


class Losses:
    """The losses of the steps that the device still works on; waits for them, and warns when one is not finite.

    Args:
      waits: where the seconds are noted for which it waits.

    Example:
      >>> losses = Losses(Waits())
      >>> losses.add(np.float32(0.5), epoch=0, step=0)
      >>> losses.wait_for_all()
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._under_way: deque[tuple[Any, int, int, int]] = deque()
        self._steps = 0
        self._warned = False

    def add(self, loss: Any, epoch: int, step: int, count: int = 1) -> None:
        """Note the loss of a step that was started, or those of several steps in one call.

        Args:
          loss: a scalar, or the scalars of all these steps, `[at least count]`.
          epoch: of these steps.
          step: the first of them.
          count: how many there are.
        """
        self._under_way.append((loss, epoch, step, count))
        self._steps += count

    @property
    def idle(self) -> bool:
        """Whether the device has done all steps."""
        return not self._under_way or bool(self._under_way[-1][0].is_ready())

    def wait_for_half(self) -> bool:
        """When too many steps are under way, wait for the older half at once; returns whether it has waited.

        Waking up for each would take CPU time from the device. Only the loss that was waited for is looked at. Of calls
        with several steps one stays under way, so that the device has something to do meanwhile.
        """
        last = None
        if self._steps > IN_FLIGHT:
            while len(self._under_way) > 1 and self._steps > IN_FLIGHT // 2:
                last = self._under_way.popleft()
                self._steps -= last[-1]
        if last is not None:
            self._settle(*last)
        return last is not None

    def wait_for_all(self) -> None:
        """Wait for the last step."""
        if self._under_way:
            self._settle(*self._under_way[-1])
            self._under_way.clear()
            self._steps = 0

    def _settle(self, loss: Any, epoch: int, step: int, count: int) -> None:
        begun = time.perf_counter()
        loss = np.asarray(loss)  # to reshape it on the device would be a compilation
        self._waits.device += time.perf_counter() - begun
        if self._warned or (loss.size == 1 and math.isfinite(loss.item())):
            return
        losses = loss.reshape(-1, loss.size) if count == 1 else loss.reshape(len(loss), -1)[:count]
        if not np.isfinite(losses).all():
            self._warned = True
            bad = int(np.argmin(np.isfinite(losses).all(axis=1)))
            warn(_lost(losses[bad], f"in step {step + bad} of epoch {epoch}"))


def _lost(losses: np.ndarray, where: str) -> str:
    """What to say of a loss that is not finite, or of those of a population, one for each member."""
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
