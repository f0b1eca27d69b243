"""Interrupts: delay Ctrl-C until a step has ended.

A training step donates its buffers to XLA. A KeyboardInterrupt between the call and the storing of its results would
leave a session without valid arrays. So the signal SIGINT is handled only after the results are stored.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_MAIN = threading.main_thread()


class InterruptGuard:
    """A context manager that delays SIGINT (Ctrl-C) until its block ends; then it calls the previous handler.

    Use `with guard:` around a block. A loop of many blocks is faster inside `with guard.watching():`, which installs
    the signal handler once. In other threads than the main thread, the guard does nothing: they receive no signals.

    Example:
      >>> import signal
      >>> guard, done = InterruptGuard(), []
      >>> try:
      ...     with guard:
      ...         signal.raise_signal(signal.SIGINT)
      ...         done.append("whole")
      ... except KeyboardInterrupt:
      ...     done.append("interrupted")
      >>> done
      ['whole', 'interrupted']
    """

    def __init__(self) -> None:
        self._previous: Any = None
        self._busy = False
        self._arrived: tuple[Any, Any] | None = None
        self._alone = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Install the signal handler for a block; only inner `with guard:` blocks delay the signal."""
        mine = self._hold()
        try:
            yield
        finally:
            if mine:
                self._let_go()

    def __enter__(self) -> None:
        if self._previous is None:
            self._alone = self._hold()
        self._busy = True

    def __exit__(self, *exception: Any) -> None:
        self._busy = False
        arrived = self._arrived
        self._arrived = None
        previous = self._previous
        if self._alone:
            self._let_go()
        if arrived is not None:
            previous(*arrived)

    def _hold(self) -> bool:
        previous = signal.getsignal(signal.SIGINT) if threading.current_thread() is _MAIN else None
        if self._previous is not None or not callable(previous):
            return False
        try:
            self._previous = previous
            signal.signal(signal.SIGINT, self._receive)
        except BaseException:  # a SIGINT (Ctrl-C) that arrives here raises KeyboardInterrupt
            self._let_go()
            raise
        return True

    def _let_go(self) -> None:
        # If SIGINT arrives before the next line, its KeyboardInterrupt may leave the handler of this guard installed.
        # This is harmless: between steps, the handler forwards each signal to the previous handler. A handler of
        # SIGTERM may have set the action SIG_DFL, so that the next Ctrl-C ends the process: it stays.
        if signal.getsignal(signal.SIGINT) == self._receive:
            signal.signal(signal.SIGINT, self._previous)
        self._previous = None
        self._alone = False

    def _receive(self, number: int, frame: Any) -> None:
        if self._busy:
            self._arrived = (number, frame)
        else:
            self._previous(number, frame)
