"""Ctrl-C and SIGTERM while training: the first one waits until it can do no harm, the second does not wait."""

import logging
import signal
import sys
import threading
from types import FrameType
from typing import Any

log = logging.getLogger("fluid")


class Signals:
    """Lets SIGINT, and SIGTERM if asked, wait until training is between two steps.

    While `with signals:` holds them, the first signal is remembered, and `check()` raises what it means:
    KeyboardInterrupt, or SystemExit(143). Inside `with signals.at_once:`, where nothing can break, it is raised right
    away; so it is inside `with signals.reading_ahead:`, but not beyond that block: `check()` follows. The second signal
    ends the process (where a person types commands, it raises at once). Signal handlers that the user has installed
    stay in charge, and elsewhere than in the main thread, which alone receives signals, nothing is done.

    Args:
      terminate: whether SIGTERM is held as well.

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

    def __init__(self, terminate: bool = False):
        self.arrived: int | None = None
        self.at_once, self.reading_ahead = _AtOnce(self, quietly=False), _AtOnce(self, quietly=True)
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
            self.check()

    def check(self) -> None:
        """Raise what has arrived, if anything has."""
        if self.arrived is not None:
            raise self._meaning(self.arrived)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.arrived is not None:  # possible only where a person types commands
            raise self._meaning(number)
        self.arrived = number
        if not hasattr(sys, "ps1"):
            # In C code (a compilation, say) Python handlers have to wait, the system's own need not.
            for held in self._held:
                signal.signal(held, signal.SIG_DFL)
        log.warning("%s: training ends after this step; once more ends it now", signal.Signals(number).name)
        if self._free:
            self.check()

    @staticmethod
    def _meaning(number: int) -> BaseException:
        return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


class _AtOnce:
    """A block in which signals need not wait: reading data."""

    def __init__(self, signals: Signals, quietly: bool):
        self._signals, self._quietly = signals, quietly

    def __enter__(self) -> None:
        self._signals._free = True
        if self._signals.arrived is not None and not self._quietly:
            self._signals._free = False
            self._signals.check()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self._signals._free = False
        interrupted = isinstance(error, KeyboardInterrupt | SystemExit) and self._signals.arrived is not None
        return self._quietly and interrupted
