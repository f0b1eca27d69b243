"""What a view of a training shows, and the words for it."""

import time
from dataclasses import dataclass, field

from fluid.trainer.events import EndTrainEvent


@dataclass
class Status:
    """How far a training is.

    Attributes:
      num_epochs: how many there will be.
      epoch: the current one, from 0.
      step: steps done in it.
      total: steps of an epoch; None while that is not known.
      values: the scalars of the program over the steps of this epoch so far, and then what was announced.
      compiling: for how many seconds XLA has been compiling; None while it is not.
      note: what else there is to say of the epoch.
      clock: since when, and how many steps were done since.
    """

    num_epochs: int = 0
    epoch: int = 0
    step: int = 0
    total: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    compiling: float | None = None
    note: str = ""
    clock: "Clock" = field(default_factory=lambda: Clock())

    @property
    def fraction(self) -> float:
        """How much of the training is done, from 0 to 1."""
        within = min(self.step / self.total, 1) if self.total else 0
        return min((self.epoch + within) / self.num_epochs, 1) if self.num_epochs else 1.0

    @property
    def left(self) -> float | None:
        """For how many seconds training will go on; None where that is not known."""
        if self.total is None or not self.clock.steps:
            return None
        missing = max((self.num_epochs - self.epoch) * self.total - self.step, 0)
        return missing / self.clock.speed if self.clock.speed else None


class Clock:
    """The speed of a training: compilations and the time between calls are not counted.

    Attributes:
      steps: done since the clock began.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._begun = time.monotonic()
        self._lost = 0.0

    @property
    def seconds(self) -> float:
        """Since the clock began."""
        return time.monotonic() - self._begun

    @property
    def speed(self) -> float:
        """Steps in a second."""
        worked = self.seconds - self._lost
        return self.steps / worked if worked > 0 else 0.0

    def lose(self, seconds: float) -> None:
        """Do not count some seconds, in which XLA compiled."""
        self._lost += seconds


def duration(seconds: float) -> str:
    """A time in words.

    Example:
      >>> duration(0.2), duration(75), duration(3725)
      ('0.2 s', '1 min 15 s', '1 h 2 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def ending(event: EndTrainEvent, status: Status) -> str:
    """How a training has ended, in words."""
    where = f"in epoch {status.epoch + 1} of {status.num_epochs}, step {status.step}"
    if isinstance(event.error, KeyboardInterrupt | SystemExit):
        return f"interrupted {where}"
    if event.error is not None:
        return f"{type(event.error).__name__} {where}"
    took = f"after {duration(status.clock.seconds)}"
    return f"stopped {where}, {took}" if event.stopped else f"{status.num_epochs} epochs done {took}"
