"""Pace: how long a step takes, and how many of them are worth one call of the device."""

import math

# A call costs the host some tenths of a millisecond; in calls of about this many seconds that does not count any more.
_CALL = 0.04
# Steps that take longer than this gain nothing from company.
_LONG = 0.0025
MOST = 64
# So many spans between two waits are measured; the quickest of them has no test, and no other process, in it.
_SPANS = 3


class Pace:
    """Measures steps that run one by one, and says how many shall run in one call from then on.

    Example:
      >>> pace = Pace()
      >>> for mark in range(4):
      ...     pace.mark(steps=10 * mark, now=0.003 * mark)
      >>> pace.together  # at 0.3 milliseconds each
      64
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._spans: list[float] = []
        self._together = 1

    @property
    def together(self) -> int:
        """How many steps: a power of two; 1 until that is known."""
        return self._together

    def mark(self, steps: int, now: float) -> None:
        """Note that the loop has waited for a step.

        Args:
          steps: how many were started so far.
          now: the time in seconds.
        """
        if self._last is not None and steps > self._last[0] and len(self._spans) < _SPANS:
            self._spans.append((now - self._last[1]) / (steps - self._last[0]))
            if len(self._spans) == _SPANS:
                self._together = _worth_a_call(min(self._spans))
        self._last = (steps, now)

    def interrupt(self) -> None:
        """Leave the time since the last mark out, as in which something was compiled."""
        self._last = None


def _worth_a_call(seconds: float) -> int:
    """How many steps of so many seconds each are worth one call."""
    return 1 if seconds >= _LONG else min(MOST, 2 ** math.ceil(math.log2(max(_CALL / max(seconds, 1e-9), 1))))
