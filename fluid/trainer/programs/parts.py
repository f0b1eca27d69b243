"""Parts: feeds of small minibatches that were read together, which are checked together as well."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluid.reader.adapters import Part
from fluid.reader.feeder import Feeder
from fluid.session import Session


class Parts:
    """Makes feeds of the parts of what was read together, and of minibatches that were read alone.

    What has a flaw is looked at part by part, so that a message names the minibatch and the sample in it.

    Args:
      session: that is fed.
      feeder: checks columns.
      others: the names of those columns that belong to other programs.
    """

    def __init__(self, session: Session, feeder: Feeder, others: frozenset[str]):
        self._session = session
        self._feeder = feeder
        self._others = others
        self._on_host = session.device.platform == "cpu"
        self._together: Any = None
        self._checked: dict[str, np.ndarray] | None = None

    def feed(self, part: Part, index: int) -> Mapping[str, Any]:
        """The feed on the device of a minibatch and its number in the epoch; errors as for `Session.convert`."""
        together, first, end = part
        if together is not self._together:
            self._together = together
            self._checked = self._check(together)
        if self._checked is None:
            return self.alone(part.minibatch(), index)
        feed = {name: array[first:end] for name, array in self._checked.items()}
        self._feeder.sorted.look(feed)
        return feed if self._on_host else self._session.take(feed)  # nobody else has these arrays

    def alone(self, minibatch: Any, index: int) -> Mapping[str, Any]:
        """The same of a minibatch that was read by itself."""
        return self._session.convert(self._feeder, self._own(minibatch), index)

    def _own(self, minibatch: Any) -> Any:
        return without(minibatch, self._others) if self._others else minibatch

    def _check(self, together: Any) -> dict[str, np.ndarray] | None:
        """All rows as one feed; None where something is wrong with them."""
        rows = len(next(iter(together.values() if isinstance(together, dict) else together)))
        try:
            feed = self._feeder.feed(self._own(together))
        except Exception:  # of whatever kind: it is raised again by the minibatch that it belongs to
            return None
        if self._session.nans.found(self._feeder.specs, feed):
            return None
        return feed if all(len(array) == rows for array in feed.values()) else None


def without(minibatch: Any, names: frozenset[str]) -> Any:
    """A minibatch of named columns, or of rows with named fields, without those that belong to other programs.

    Example:
      >>> without({"image": 1, "noise": 2}, frozenset(["image"]))
      {'noise': 2}
    """
    if isinstance(minibatch, Mapping):
        return {name: column for name, column in minibatch.items() if name not in names}
    if isinstance(minibatch, list) and minibatch and isinstance(minibatch[0], Mapping):
        return [without(row, names) for row in minibatch]
    return minibatch
