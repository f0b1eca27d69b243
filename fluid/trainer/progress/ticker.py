"""A thread that draws while the main one is busy."""

import contextvars
import threading
import time
from collections.abc import Callable


class Ticker:
    """Calls a function once a second, from a thread, between `start` and `stop`.

    Args:
      draw: called with the seconds since the start; the first time at once, by `start` itself.
      interval: seconds between two calls.
    """

    def __init__(self, draw: Callable[[float], None], interval: float = 1.0):
        self._draw = draw
        self._interval = interval
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._begun = 0.0

    def start(self) -> None:
        """Begin to tick; a ticker that runs is begun again."""
        self.stop()
        self._begun = time.monotonic()
        self._ended = threading.Event()
        self._draw(0.0)
        # Outputs of a notebook belong to the cell that the context says.
        context = contextvars.copy_context()
        arguments = (self._run, self._ended)
        self._thread = threading.Thread(target=context.run, args=arguments, name="fluid-ticker", daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """End; returns for how long it ran, 0 if it did not."""
        if self._thread is None:
            return 0.0
        self._ended.set()
        self._thread.join()
        self._thread = None
        return time.monotonic() - self._begun

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(self._interval):
            self._draw(time.monotonic() - self._begun)
