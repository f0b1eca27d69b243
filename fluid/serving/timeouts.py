"""Timeouts: the same time limit for many things at once, with one timer for all of them."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Timeouts(Generic[T]):
    """Tells what is still watched after some seconds. A timer for each would cost more than what most of them wait for.

    Args:
      seconds: the limit.
      late: called with what has reached it, which is no longer watched then.

    Example:
      >>> async def main():
      ...     late = []
      ...     timeouts = Timeouts(0.001, late.append)
      ...     timeouts.watch("slow")
      ...     timeouts.watch("quick")
      ...     timeouts.forget("quick")
      ...     while not late:
      ...         await asyncio.sleep(0)
      ...     return late, "slow" in timeouts
      >>> asyncio.run(main())
      (['slow'], False)
    """

    def __init__(self, seconds: float, late: Callable[[T], object]):
        self._seconds, self._late = seconds, late
        self._ends: dict[T, float] = {}  # who came first ends first
        self._is_set = False

    def watch(self, one: T) -> None:
        """Begin; the time runs from now on."""
        loop = asyncio.get_running_loop()
        self._ends[one] = loop.time() + self._seconds
        if not self._is_set:
            self._is_set = True
            loop.call_later(self._seconds, self._look, loop)

    def forget(self, one: T) -> None:
        """It has come in time, or was late."""
        self._ends.pop(one, None)

    def __contains__(self, one: T) -> bool:
        return one in self._ends

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._ends:
            one, end = next(iter(self._ends.items()))
            if end > loop.time():
                loop.call_at(end, self._look, loop)
                return
            del self._ends[one]
            self._late(one)
        self._is_set = False
