"""Keeping Ctrl-C out of the middle of a step."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_MAIN = threading.main_thread()


class InterruptGuard:
    """Lets SIGINT wait while a block runs; then it goes to the handler that it would have gone to.

    `with guard:` around a block does so. A loop of many blocks is quicker inside `with guard.watching():`, which puts
    the signal handler in place once. Elsewhere than in the main thread, which alone receives signals, nothing is done.

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
        """Hold the signal handler for a while; signals that come between guarded blocks act at once."""
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
        except BaseException:  # the signal came in this very moment
            self._let_go()
            raise
        return True

    def _let_go(self) -> None:
        # Interrupted here, it goes on holding, which does no harm: signals between steps are passed on.
        signal.signal(signal.SIGINT, self._previous)
        self._previous = None
        self._alone = False

    def _receive(self, number: int, frame: Any) -> None:
        if self._busy:
            self._arrived = (number, frame)
        else:
            self._previous(number, frame)
