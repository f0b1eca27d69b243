"""The status of a training, the words for it, and where it is shown: on a terminal, in a notebook or nowhere."""

import sys
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
      counted: steps done since `begun`, which the speed is computed from.
      lost: seconds since `begun` in which XLA compiled, and which the speed does not count.
      begun: when this training began, by `time.monotonic`.
    """

    num_epochs: int = 0
    epoch: int = 0
    step: int = 0
    total: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    compiling: float | None = None
    note: str = ""
    counted: int = 0
    lost: float = 0.0
    begun: float = field(default_factory=time.monotonic)

    @property
    def fraction(self) -> float:
        """How much of the training is done, from 0 to 1."""
        within = min(self.step / self.total, 1) if self.total else 0
        return min((self.epoch + within) / self.num_epochs, 1) if self.num_epochs else 1.0

    @property
    def seconds(self) -> float:
        """The time since this training began."""
        return time.monotonic() - self.begun

    @property
    def speed(self) -> float:
        """The number of steps in a second."""
        worked = self.seconds - self.lost
        return self.counted / worked if worked > 0 else 0.0

    @property
    def left(self) -> float | None:
        """The number of seconds for which training will go on; None while that is not known."""
        if self.total is None or not self.counted:
            return None
        missing = max((self.num_epochs - self.epoch) * self.total - self.step, 0)
        return missing / self.speed if self.speed else None


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
    took = f"after {duration(status.seconds)}"
    return f"stopped {where}, {took}" if event.stopped else f"{status.num_epochs} epochs done {took}"


def interactive() -> bool:
    """Return whether standard error is a terminal, or this is a notebook."""
    return in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def in_notebook() -> bool:
    """Return whether this runs in a notebook, such as those of JupyterLab, VS Code and Colab."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return getattr(shell, "kernel", None) is not None
