"""Agreement: what several processes tell each other between two steps, so that all take the same ones."""

import logging
from collections.abc import Callable

from fluid.distributed import Group
from fluid.trainer.signals import Signals

log = logging.getLogger("fluid")


class Agreement:
    """Has all processes of a training end it, and each epoch, after the same step; alone it has nothing to do.

    What one process is told, by `stop()`, `pause()` or a signal, ends the training of all. An epoch ends for all when
    the data of one has ended.

    Args:
      group: of the processes.
      signals: that come to this one.
      told: whether this process was told to stop, and whether it shall then be possible to continue.
      stop: stops the training in this process.
      pause: pauses it.

    Example:
      >>> from fluid.distributed import Group
      >>> agreement = Agreement(Group(), Signals(), told=lambda: (False, False), stop=print, pause=print)
      >>> agreement.after_step(epoch=0, step=1, ended=True)
      True
    """

    def __init__(
        self,
        group: Group,
        signals: Signals,
        told: Callable[[], tuple[bool, bool]],
        stop: Callable[[], None],
        pause: Callable[[], None],
    ):
        self._group = group
        self._signals = signals
        self._told = told
        self._stop = stop
        self._pause = pause

    @property
    def needs_end(self) -> bool:
        """Whether it must be known after each step if another minibatch comes, however long reading takes."""
        return self._group.size > 1

    def before_epoch(self, epoch: int, ended: bool) -> bool:
        """Agree on whether an epoch has a first step.

        Args:
          epoch: its number.
          ended: whether this process has no minibatch.

        Returns:
          Whether the epoch ends here because another process has none.
        """
        return self._group.size > 1 and self._agree(epoch, 0, ended) and not ended

    def after_step(self, epoch: int, step: int, ended: bool) -> bool:
        """Agree after a step.

        Args:
          epoch: the number of the epoch.
          step: how many of its steps are done.
          ended: whether this process has no further minibatch.

        Returns:
          Whether the epoch ends here.
        """
        return ended if self._group.size == 1 else self._agree(epoch, step, ended)

    def _agree(self, epoch: int, step: int, ended: bool) -> bool:
        here = [*self._told(), self._signals.told, ended]
        told = self._group.exchange(f"what comes after step {step} of epoch {epoch}", here)
        stopping, pausing, signals, ends = ([each[i] for each in told] for i in range(4))
        if any(pausing):
            self._pause()
        elif any(stopping):
            self._stop()
        self._signals.arrived = next((number for number in signals if number is not None), None)
        if any(ends) and not all(ends) and not any(stopping) and self._signals.arrived is None:
            log.warning(
                "epoch %d ends after %d steps: process %s has no further minibatch, others have; expected a reader "
                "that gives the same minibatches in all processes",
                epoch,
                step,
                ", ".join(str(i) for i, end in enumerate(ends) if end),
            )
        return any(ends)
