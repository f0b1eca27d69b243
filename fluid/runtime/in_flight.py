"""Steps in flight: steps that run on the device, and for whose results the host has not waited yet."""

from collections import deque
from typing import Generic, TypeVar

# Maximum number of steps in flight, after which a loop waits for the device. It is large enough to keep the device
# busy, and small enough to limit memory use and the delay of an error message.
IN_FLIGHT = 8

Item = TypeVar("Item")


class InFlight(Generic[Item]):
    """A queue of steps in flight: they run on the device, and the host has not yet waited for their results.

    The queue limits their number, but never waits: its user waits for the steps that `due` returns. Training, testing
    and `Session.step` use the queue.

    Example:
      >>> steps = InFlight()
      >>> for number in range(9):
      ...     steps.add(number)
      >>> steps.due(), len(steps), steps.due()
      ([0, 1, 2, 3, 4], 4, [])
    """

    def __init__(self) -> None:
        self._items: deque[tuple[Item, int]] = deque()
        self._steps = 0

    def __len__(self) -> int:
        return self._steps

    @property
    def newest(self) -> Item | None:
        """The item (results that the device computes) that was added last; None if no item is in flight."""
        return self._items[-1][0] if self._items else None

    def add(self, item: Item, steps: int = 1) -> None:
        """Add the results of a device call that runs `steps` steps; the caller has not waited for these results yet."""
        self._items.append((item, steps))
        self._steps += steps

    def due(self) -> list[Item]:
        """Remove and return the older half of the items if too many steps are in flight; else return an empty list.

        An item has the results of one or several steps that the device may still compute. The caller waits once for
        several items, because waking a Python thread after each step would take CPU time from the computation. At
        least one item stays in flight, so that the device is never idle.
        """
        found: list[Item] = []
        if self._steps > IN_FLIGHT:
            while len(self._items) > 1 and self._steps > IN_FLIGHT // 2:
                found.append(self._remove())
        return found

    def rest(self) -> list[Item]:
        """Remove and return the results of all steps for which the host has not waited yet, oldest first."""
        return [self._remove() for _ in range(len(self._items))]

    def _remove(self) -> Item:
        item, steps = self._items.popleft()
        self._steps -= steps
        return item
