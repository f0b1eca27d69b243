"""Converter: the only code that converts minibatches to the feeds of a program, checked, padded, and on the device."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from fluid import errors
from fluid.core import FeedSpec, Layout
from fluid.reader.adapters import JointMinibatch
from fluid.reader.buckets import Buckets
from fluid.reader.columns import read_feed
from fluid.reader.feed_checks import NaNs
from fluid.reader.feeder import Feeder, FeedOrder
from fluid.reader.on_device import Resident, RowFeed, RowNumbers


class Separate(NamedTuple):
    """The minibatches of one step of a Population (trainings that run in parallel), one for each of its trainings."""

    minibatches: tuple[Any, ...]


class Destination(Protocol):
    """The engine of a Session, the object that runs its programs and receives the feeds.

    Attributes:
      layout: the devices to which feeds are copied.
      nans: the check that warns of NaN in feeds.
    """

    layout: Layout
    nans: NaNs

    @property
    def members(self) -> int | None:
        """The number of trainings in a Population, which runs them in parallel; None for a single training."""


class Converter:
    """A converter of the minibatches of one program to feeds on the device.

    Attributes:
      feeder: the Feeder that checks and pads minibatches.
    """

    def __init__(
        self,
        to: Destination,
        specs: Mapping[str, FeedSpec],
        order: FeedOrder = None,
        buckets: Buckets | None = None,
        only: Collection[str] | None = None,
        others: frozenset[str] = frozenset(),
        trains: bool = False,
    ):
        self.feeder = Feeder(specs, order, buckets=buckets, only=only, trains=trains)
        self._to = to
        self._only = None if only is None else frozenset(only)
        self._others = others
        self._rows_of = next(iter(self.feeder.batched), None)
        # Indices of rows have other limits in each minibatch, so that no check covers several minibatches.
        self._indexes_rows = any(spec.indexes_rows for spec in self.feeder.specs.values())
        # `_columns` holds the columns on the device of each Resident (a data set) that is still in use.
        self._columns: WeakKeyDictionary[Resident, dict[str, Any]] = WeakKeyDictionary()
        # A JointMinibatch refers to arrays that hold several minibatches. `_together` holds these arrays of the last
        # JointMinibatch. `_checked` is the feed that a check of the whole arrays returned; None if the check failed.
        self._together: Any = None
        self._checked: dict[str, np.ndarray] | None = None

    @property
    def is_ragged(self) -> bool:
        """Return whether at least one feed of the program has rows of variable length."""
        return any(spec.lod_level for spec in self.feeder.specs.values())

    def __call__(self, minibatch: Any, index: int) -> Mapping[str, Any]:
        """Return the feed of a minibatch.

        Raises:
          FeedError: data does not fit.
          UnknownNameError: a dict holds a name that is not declared.
        """
        if type(minibatch) is JointMinibatch:
            return self._part(minibatch, index)
        if isinstance(minibatch, RowNumbers):
            return self._alone(minibatch.on_host(), index) if self._indexes_rows else self._rows(minibatch)
        if isinstance(minibatch, Separate):
            return self._separate(minibatch.minibatches, index)
        return self._alone(minibatch, index)

    def place(self, value: Any) -> Any:
        """Put a tree of arrays on the device."""
        return self._to.layout.place(value)

    def examples(self, feed: Mapping[str, Any]) -> int:
        """Return the number of examples in a feed; 1 if no array has one row for each example."""
        if type(feed) is RowFeed:
            return len(feed.rows)
        return 1 if self._rows_of is None else int(feed[self._rows_of].shape[0])

    def _alone(self, minibatch: Any, index: int) -> Mapping[str, Any]:
        feed = self.feeder.feed(self._own(minibatch), index)
        self._to.nans.look(self.feeder.specs, feed, f"batch {index}")
        return self._to.layout.take(feed)

    def _part(self, part: JointMinibatch, index: int) -> Mapping[str, Any]:
        """Return the feed of a minibatch whose arrays also hold other minibatches; check all these minibatches at once.

        If this check fails, each minibatch is checked alone, so that the message names the minibatch and the sample.
        """
        together, first, end = part
        if together is not self._together:
            self._together = together
            self._checked = None if self._indexes_rows else self._check(together)
        if self._checked is None:
            return self._alone(part.minibatch(), index)
        feed = {name: array[first:end] for name, array in self._checked.items()}
        self.feeder.sorted.look(feed)
        if self._to.layout.device.platform == "cpu":
            return feed  # a CPU device needs no copy, because no other code changes these arrays
        return self._to.layout.take(feed)

    def _check(self, together: Any) -> dict[str, np.ndarray] | None:
        rows = len(next(iter(together.values() if isinstance(together, dict) else together)))
        try:
            feed = self.feeder.feed(self._own(together))
        except Exception:
            # Ignore every exception: each minibatch is then checked alone, and this check raises the exception again.
            return None
        if self._to.nans.found(self.feeder.specs, feed):
            return None
        return feed if all(len(array) == rows for array in feed.values()) else None

    def _rows(self, minibatch: RowNumbers) -> RowFeed:
        """Return the feed for a minibatch that consists of row numbers of a data set on the device.

        The first call for a data set checks it and copies it to the device.
        """
        resident = minibatch.resident
        if resident not in self._columns:
            specs = self.feeder.specs
            read = tuple((n, s.shape, s.held, s.limits, s.bounds, self.feeder.positions[n]) for n, s in specs.items())
            self._columns[resident] = resident.table(
                (read, self._only, self._to.layout.device), lambda: self._whole(resident)
            )
        return RowFeed(self._columns[resident], minibatch.rows)

    def _whole(self, resident: Resident) -> dict[str, Any]:
        feed = self.feeder.feed(self._own(resident.whole()))
        self._to.nans.look(self.feeder.specs, feed)
        there: dict[str, Any] = self._to.layout.place(self._to.layout.take(feed))
        return there

    def _separate(self, minibatches: Sequence[Any], index: int) -> Mapping[str, Any]:
        """Stack the minibatches of all members (trainings) of a Population to one feed, `[batch, members, ...]`."""
        members = self._to.members
        if len(minibatches) != members:
            raise errors.FeedError(
                f"batch {index} is of {len(minibatches)} readers, expected "
                f"{f'one for each of the {members} members' if members else 'a fluid.Population'}: "
                f"Population.separate([reader_0, reader_1, ...])"
            )
        if ragged := [name for name, spec in self.feeder.specs.items() if spec.lod_level]:
            raise errors.FeedError(
                f"{ragged[0]!r} has rows of any length, which are padded to other shapes in each minibatch, expected "
                f"feeds of one shape; give all members the same minibatches: population.train(reader)"
            )
        feeds = [self.feeder.feed(one, index) for one in minibatches]
        for member, feed in enumerate(feeds):
            self._to.nans.look(self.feeder.specs, feed, f"batch {index} of member {member}")
        stacked = {name: _of_members([feed[name] for feed in feeds], name, index) for name in feeds[0]}
        return self._to.layout.take(stacked)

    def _own(self, minibatch: Any) -> Any:
        return _without(minibatch, self._others) if self._others else minibatch


def named(
    to: Destination, specs: Mapping[str, FeedSpec], feed: Mapping[str, Any], names: Collection[str], buckets: Buckets
) -> dict[str, Any]:
    """Convert some arrays of a user's dict to feeds on the device.

    Raises:
      FeedError: data does not fit.
    """
    feeds = buckets.pad({name: read_feed(specs[name], feed[name]) for name in names})
    to.nans.look(specs, feeds)
    return to.layout.take(feeds)


def examples_in(specs: Mapping[str, FeedSpec], feed: Mapping[str, Any]) -> int:
    """Return the number of rows of the first feed that has one row for each example; 1 if there is no such feed."""
    return next((int(feed[n].shape[0]) for n, s in specs.items() if s.shape[:1] == (None,) and n in feed), 1)


def _of_members(arrays: Sequence[Any], name: str, index: int) -> np.ndarray:
    """Stack one feed's arrays of all trainings in a Population along axis 1, after the batch; scalars along axis 0."""
    shapes = {np.shape(array) for array in arrays}
    if len(shapes) > 1:
        raise errors.FeedError(
            f"{name!r} of batch {index} has the shapes {sorted(shapes)} in the minibatches of the members, expected "
            f"one shape; give each member a reader of the same number of rows, and the same batch size"
        )
    return np.stack([np.asarray(array) for array in arrays], axis=min(1, np.ndim(arrays[0])))


def _without(minibatch: Any, names: frozenset[str]) -> Any:
    """Remove the columns or fields `names` from a minibatch that is a dict of columns or a list of dicts.

    Example:
      >>> _without({"image": 1, "noise": 2}, frozenset(["image"]))
      {'noise': 2}
    """
    if isinstance(minibatch, Mapping):
        return {name: column for name, column in minibatch.items() if name not in names}
    if isinstance(minibatch, list) and minibatch and isinstance(minibatch[0], Mapping):
        return [_without(row, names) for row in minibatch]
    return minibatch
