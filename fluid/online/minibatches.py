"""Minibatches of a journal: split its rows into minibatches and test rows, and read them for a Trainer.

The index of a minibatch depends only on the positions of its rows. A checkpoint of the Trainer stores this index as the
position of the reader. So after a crash, the index is enough to continue with the next rows.
"""

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fluid.core import whole_number
from fluid.online.journal import Journal
from fluid.online.rows import Columns, RowFormat
from fluid.reader.base import Reader, Rows


class Split:
    """A split of the rows of a stream, at positions 0, 1, 2, ..., into minibatches and test rows.

    The last of every `test_every` rows is a test row and never trained on; all other rows form minibatches in order.
    The span of a minibatch begins after the last row of the minibatch before, and ends with its own last row. The
    program is tested on the test rows of a span before it is trained on the minibatch. The split depends only on
    positions, so it never changes, except after rows that the user skips: these rows do not count.

    Attributes:
      skipped: the positions of the rows that are neither trained nor tested on, in ascending order.

    Example:
      >>> split = Split(batch_size=2, test_every=3)
      >>> [split.span(number) for number in range(3)]
      [range(0, 2), range(2, 5), range(5, 8)]
      >>> [split.is_test(position) for position in range(6)]
      [False, False, True, False, False, True]
      >>> split.skipped = (1,)
      >>> [split.span(number) for number in range(3)], list(split.trained(0))
      ([range(0, 3), range(3, 6), range(6, 9)], [0, 2])
    """

    def __init__(self, batch_size: int, test_every: int | None):
        self.batch_size = whole_number("OnlineTrainer", "batch_size", batch_size)
        self.test_every = None if test_every is None else whole_number("OnlineTrainer", "test_every", test_every, 2)
        self.skipped: Sequence[int] = ()

    def is_test(self, position: int) -> bool:
        """Return whether the row at `position` is a test row."""
        if self.test_every is None or self._is_skipped(position):
            return False
        index = position - bisect.bisect_left(self.skipped, position)  # the index among the rows that are not skipped
        return index % self.test_every == self.test_every - 1

    def _is_skipped(self, position: int) -> bool:
        index = bisect.bisect_left(self.skipped, position)
        return index < len(self.skipped) and self.skipped[index] == position

    def start(self, number: int) -> int:
        """Return the position in the stream of the first row or test row of the minibatch with the index `number`."""
        if number == 0:
            return 0
        last = number * self.batch_size - 1
        if self.test_every is not None:
            last += last // (self.test_every - 1)
        skipped = self.skipped
        return last + bisect.bisect_right(range(len(skipped)), last, key=lambda count: skipped[count] - count) + 1

    def span(self, number: int) -> range:
        """Return the range of journal positions that belong to the minibatch with index `number`.

        The range contains the rows of the minibatch, and the test rows between them.
        """
        return range(self.start(number), self.start(number + 1))

    def trained(self, number: int) -> Iterator[int]:
        """Return the positions of the rows that form the minibatch with the index `number`, without its test rows."""
        return (place for place in self.span(number) if not self._is_skipped(place) and not self.is_test(place))

    def tested(self, number: int) -> Iterator[int]:
        """Return the positions in the journal of the test rows that belong to the minibatch with the index `number`."""
        return (position for position in self.span(number) if self.is_test(position))


class JournalMinibatches:
    """The rows of a journal, read as minibatches for training and as test rows.

    Attributes:
      journal: the Journal that holds the rows.
      split: the split of the positions into minibatches and test rows.
    """

    def __init__(self, journal: Journal, rows: RowFormat, split: Split):
        self.split = split
        self.journal = journal
        self._rows = rows
        # a cache of the rows that were unpacked last, which may belong to later minibatches too
        self._known: list[_UnpackedEntry] = []

    def is_there(self, number: int) -> bool:
        """Return whether the journal, a database of rows, has all rows and test rows of minibatch `number`."""
        return self.journal.next >= self.split.start(number + 1)

    def trained(self, number: int) -> Columns:
        """Return the rows of the minibatch with index `number`, as columns by name."""
        return self._at(number, list(self.split.trained(number)))

    def tested(self, number: int) -> Columns | None:
        """Return the test rows of the minibatch with index `number`, as columns by name; None without test rows."""
        positions = list(self.split.tested(number))
        return self._at(number, positions) if positions else None

    def _at(self, number: int, positions: Sequence[int]) -> Columns:
        """Read rows of one minibatch from the journal, and return them as columns by name."""
        picked: list[Columns] = []
        for first, stop, columns in self._parts(self.split.span(number)):
            indices = [position - first for position in positions if first <= position < stop]
            picked.append({name: _picked(column, indices) for name, column in columns.items()})
        return {name: _joined([columns[name] for columns in picked]) for name in self._rows.specs}

    def _parts(self, span: range) -> "list[_UnpackedEntry]":
        """Return the entries of the journal (a database of rows) that hold the row numbers in `span`, as columns.

        An entry has the rows of one call of `append`.
        """
        known = [part for part in self._known if part.stop > span.start]
        if known and known[0].first > span.start:  # the requested rows begin before all cached rows: discard the cache
            known = []
        reached = known[-1].stop if known else span.start
        if reached < span.stop:
            for entry in self.journal.read(reached, span.stop):
                columns = self._rows.unpack(entry.body, entry.head)
                known.append(_UnpackedEntry(entry.first, entry.first + entry.rows, columns))
        self._known = known
        return known


class _UnpackedEntry(NamedTuple):
    """Consecutive rows of the journal (rows on disk, in the order of their arrival), as columns.

    `first` is the position of the first row in the journal, and `stop` the position after the last row.
    """

    first: int
    stop: int
    columns: Columns


class JournalReader(Reader):
    """A reader that yields the minibatches of a journal and waits for new ones, in one endless epoch."""

    def __init__(self, minibatches: JournalMinibatches, ending: Callable[[], bool], end: Callable[[], None]):
        split = minibatches.split
        super().__init__(self._read, {"journal": split.batch_size, "test_every": split.test_every})
        self._minibatches = minibatches
        self._changed = minibatches.journal.changed
        self._ending = ending
        self._end = end
        self._number = 0  # the index of the minibatch to read next

    @property
    def ready(self) -> bool:
        """True when the next minibatch can be read, or the epoch has to end."""
        return self._ending() or self._minibatches.is_there(self._number)

    def _read(self, epoch: int, start: int) -> Rows:
        for number in itertools.count(start):
            self._number = number
            # Yield the first minibatch in any case, because a Trainer raises an error for an epoch without minibatches.
            if number > start and not self._wait():
                self._end()
                return
            minibatch = self._minibatches.trained(number)
            self._number = number + 1
            yield minibatch

    def _wait(self) -> bool:
        """Wait until the journal (the database of added rows) has all rows of the next minibatch.

        Return False if the epoch has to end.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.ready)
            return not self._ending()


def _picked(column: Any, indices: Sequence[int]) -> Any:
    return column[indices] if isinstance(column, np.ndarray) else [column[index] for index in indices]


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [row for part in parts for row in part]
