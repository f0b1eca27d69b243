"""Ctrl-C and SIGTERM during training: the first signal takes effect after a step, the second immediately.

The first signal waits until the handlers of the step are done. Only the reading of data is interrupted at once.
"""

import logging
import signal
import sys
import threading
from types import FrameType
from typing import Any

from fluid.trainer.device_calls import DeviceCall, Policy

log = logging.getLogger("fluid")


class Signals(Policy):
    """A hook of the training loop that delays SIGINT, and optionally SIGTERM, until training is between two steps.

    Inside `with signals:` the first signal is stored, and `check()` raises its exception: KeyboardInterrupt, or
    SystemExit(143). There are two inner `with` blocks in which a signal raises immediately, because no step can be
    damaged: `signals.at_once` and `signals.reading_ahead`. The end of `reading_ahead` catches the exception, and the
    next `check()` raises it. The second signal ends the process; in an interactive interpreter, it raises immediately.
    Signal handlers that the user has set stay in force. Only the main thread receives signals; in other threads this
    class does nothing.

    Args:
      together: True for a multi-process training. A signal to one process then takes effect only after all processes
        have agreed and `arrived` is set, and never raises immediately.

    Attributes:
      received: the number of the first signal that this process has received, or None.
      arrived: the number of the signal that ends training, or None.
      at_once: a context manager, in whose block a signal raises immediately.
      reading_ahead: a context manager, whose block a signal ends immediately, without an exception after the block.

    Example:
      >>> done = []
      >>> try:
      ...     with Signals() as signals:
      ...         signal.raise_signal(signal.SIGINT)
      ...         done.append("the step is finished")
      ...         signals.check()
      ... except KeyboardInterrupt:
      ...     done.append("interrupted")
      >>> done
      ['the step is finished', 'interrupted']
    """

    def __init__(self, terminate: bool = False, together: bool = False):
        self.received: int | None = None
        self.arrived: int | None = None
        self._together = together
        self.at_once = _AtOnce(self, quietly=False)
        self.reading_ahead = _AtOnce(self, quietly=True)
        # True inside the `with` blocks `at_once` and `reading_ahead`, where a signal raises immediately
        self._free = False
        self._held: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._held = {signal.SIGINT: signal.default_int_handler}
            if terminate:
                self._held[signal.SIGTERM] = signal.SIG_DFL
            self._held = {n: usual for n, usual in self._held.items() if signal.getsignal(n) == usual}

    def __enter__(self) -> "Signals":
        self._held = {number: signal.signal(number, self._receive) for number in self._held}
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        for number, previous in self._held.items():
            signal.signal(number, previous)
        if error is None:
            self.arrived = self.received if self.arrived is None else self.arrived
            self.check()

    def after_steps(self, call: DeviceCall) -> None:
        """Raise KeyboardInterrupt or SystemExit for the signal in `arrived`, unless `arrived` is None."""
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt or SystemExit for the signal in `arrived`, unless `arrived` is None."""
        if self.arrived is not None:
            raise self._meaning(self.arrived)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # A second signal raises an exception here only in an interactive interpreter. Elsewhere, SIG_DFL (the default
        # action) ends the process.
        if self.received is not None:
            raise self._meaning(number)
        self.received = number
        if not self._together:
            self.arrived = number
        if not hasattr(sys, "ps1"):
            # Restore the default action SIG_DFL, so that the next signal ends the process even during long C code, such
            # as a compilation. A signal handler in Python would not run until the C code returns.
            for held in self._held:
                signal.signal(held, signal.SIG_DFL)
        log.warning("%s: training ends after this step; once more ends it now", signal.Signals(number).name)
        if self._free:
            self.check()

    @staticmethod
    def _meaning(number: int) -> BaseException:
        return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


class _AtOnce:
    """A context manager, for example around the reading of data, in whose block a signal raises immediately."""

    def __init__(self, signals: Signals, quietly: bool):
        self._signals = signals
        self._quietly = quietly

    def __enter__(self) -> None:
        self._signals._free = True
        if self._signals.arrived is not None and not self._quietly:
            self._signals._free = False
            self._signals.check()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self._signals._free = False
        # Python drops an exception that is raised in a callback of garbage collection, such as the callback of JAX.
        if error is None and not self._quietly:
            self._signals.check()
        interrupted = isinstance(error, KeyboardInterrupt | SystemExit) and self._signals.arrived is not None
        return self._quietly and interrupted
