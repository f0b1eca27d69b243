"""Minibatches of a journal: the split of its rows, and a reader whose position is the number of a minibatch.

The position of the stream is the number of a minibatch, which is the position of the reader in the Trainer's
checkpoints. After a crash, nothing else has to be compared.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fluid.core import whole_number
from fluid.online.journal import Journal
from fluid.reader.base import Reader, Rows
from fluid.remote.rows import Columns, RowFormat


class Split:
    """A split of the positions of a stream, 0, 1, 2, ..., into minibatches and test rows.

    The last of every `test_every` rows is tested on and never trained on; all others form minibatches in order. The
    span of a minibatch begins after the minibatch before, and ends with its own last row. The test rows of a span are
    tested on before its minibatch is trained on. The split depends on positions alone, so it never changes.

    Args:
      batch_size: rows of a minibatch.
      test_every: number of rows of which the last is a test row; None for no test rows.

    Example:
      >>> split = Split(batch_size=2, test_every=3)
      >>> [split.span(number) for number in range(3)]
      [range(0, 2), range(2, 5), range(5, 8)]
      >>> [split.is_test(position) for position in range(6)]
      [False, False, True, False, False, True]
    """

    def __init__(self, batch_size: int, test_every: int | None):
        self.batch_size = whole_number("OnlineTrainer", "batch_size", batch_size)
        self.test_every = None if test_every is None else whole_number("OnlineTrainer", "test_every", test_every, 2)

    def is_test(self, position: int) -> bool:
        """Return whether a row is tested on."""
        return self.test_every is not None and position % self.test_every == self.test_every - 1

    def start(self, number: int) -> int:
        """Return the position at which the span of a minibatch begins."""
        trained = number * self.batch_size
        if self.test_every is None or number == 0:
            return trained
        last = trained - 1
        return last + last // (self.test_every - 1) + 1

    def span(self, number: int) -> range:
        """Return the positions of a minibatch, and of the test rows before it."""
        return range(self.start(number), self.start(number + 1))

    def trained(self, number: int) -> Iterator[int]:
        """Return the positions of the rows of a minibatch."""
        return (position for position in self.span(number) if not self.is_test(position))

    def tested(self, number: int) -> Iterator[int]:
        """Return the positions of the test rows before a minibatch."""
        return (position for position in self.span(number) if self.is_test(position))


class Minibatches:
    """Splits the rows of a journal into minibatches to train on and rows to test with.

    Args:
      journal: with the rows.
      rows: unpacks the messages of the journal.
      split: of the rows.

    Attributes:
      journal: with the rows.
      split: of the rows.
    """

    def __init__(self, journal: Journal, rows: RowFormat, split: Split):
        self.split = split
        self.journal = journal
        self._rows = rows
        self._known: list[_Part] = []  # the unpacked entries of the last minibatch; the last entry may have more rows

    def is_there(self, number: int) -> bool:
        """Return whether the journal has all rows of a minibatch."""
        return self.journal.next >= self.split.start(number + 1)

    def trained(self, number: int) -> Columns:
        """Return the rows of a minibatch."""
        return self._at(number, list(self.split.trained(number)))

    def tested(self, number: int) -> Columns | None:
        """Return the test rows before a minibatch, or None."""
        positions = list(self.split.tested(number))
        return self._at(number, positions) if positions else None

    def _at(self, number: int, positions: Sequence[int]) -> Columns:
        """Return the rows at some positions in the span of a minibatch."""
        picked: list[Columns] = []
        for first, stop, columns in self._parts(self.split.span(number)):
            indices = [position - first for position in positions if first <= position < stop]
            picked.append({name: _picked(column, indices) for name, column in columns.items()})
        return {name: _joined([columns[name] for columns in picked]) for name in self._rows.specs}

    def _parts(self, span: range) -> "list[_Part]":
        """Return the entries that hold the rows of a span."""
        known = [part for part in self._known if part.stop > span.start]
        if known and known[0].first > span.start:  # the span lies before the known entries
            known = []
        reached = known[-1].stop if known else span.start
        if reached < span.stop:
            for entry in self.journal.read(reached, span.stop):
                columns = self._rows.unpack(entry.body, entry.head)
                known.append(_Part(entry.first, entry.first + entry.rows, columns))
        self._known = known
        return known


class _Part(NamedTuple):
    """An unpacked entry of the journal: positions of its first row and after its last row, and its rows."""

    first: int
    stop: int
    columns: Columns


class JournalReader(Reader):
    """A reader that waits for the minibatches of a journal, in one pass without an end of its own.

    Args:
      minibatches: of the journal.
      ending: called between two minibatches; returns whether to end the pass.
      end: called at the end of the pass.
    """

    def __init__(self, minibatches: Minibatches, ending: Callable[[], bool], end: Callable[[], None]):
        split = minibatches.split
        super().__init__(self._read, {"journal": split.batch_size, "test_every": split.test_every})
        self._minibatches = minibatches
        self._changed = minibatches.journal.changed
        self._ending = ending
        self._end = end
        self._number = 0  # number of a minibatch

    @property
    def ready(self) -> bool:
        """True when the next minibatch can be read, or the pass has to end."""
        return self._ending() or self._minibatches.is_there(self._number)

    def _read(self, epoch: int, start: int) -> Rows:
        for number in itertools.count(start):
            self._number = number
            # The first minibatch is always yielded: a pass without minibatches is an error.
            if number > start and not self._wait():
                self._end()
                return
            minibatch = self._minibatches.trained(number)
            self._number = number + 1
            yield minibatch

    def _wait(self) -> bool:
        """Wait for a minibatch; return False when the pass has to end first."""
        with self._changed:
            self._changed.wait_for(lambda: self.ready)
            return not self._ending()


def _picked(column: Any, indices: Sequence[int]) -> Any:
    return column[indices] if isinstance(column, np.ndarray) else [column[index] for index in indices]


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [row for part in parts for row in part]
