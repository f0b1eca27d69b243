"""Parts of files from which minibatches take equal shares, so that each process reads its own parts only."""

import contextlib
from collections.abc import Sequence
from typing import Any

from fluid import core, errors
from fluid.reader.base import ELSEWHERE, Iterate, Rows, Wanted, skip
from fluid.reader.files import order
from fluid.reader.files.format import Span
from fluid.reader.files.pieces import Pieces
from fluid.reader.files.stream import Shuffling, Stream


class Parts(Stream):
    """Rows of which each minibatch takes as many from each of several parts of the files.

    The rows of a pass, in the order of its pieces, are divided evenly into parts, each of which is shuffled by itself.
    A minibatch is made of the next rows of the first part, then of those of the second one, and so on. What is left of
    the parts when one of them has too few rows makes the last, shorter minibatch.

    Args:
      pieces: which there are; each must say how many rows it has.
      shuffling: as for `Stream`; the buffers of all parts together have its size.
      parallel: as for `Stream`, of all parts together.
      parts: how many.
      batch_size: how many rows a minibatch has, a multiple of `parts`.
    """

    def __init__(self, pieces: Pieces, shuffling: Shuffling | None, parallel: int, parts: int, batch_size: int):
        super().__init__(pieces, shuffling, max(1, parallel // parts))
        self._parts = parts
        self._batch_size = batch_size

    def iterate(self, epoch: int, start: int) -> Rows:
        """The rows of all parts."""
        return self._some(epoch, start, self._batch_size, range)

    def in_blocks(self, size: int, wanted: Wanted) -> Iterate:
        """Open the parts only from which rows are needed."""
        if size != self._batch_size:
            core.warn(
                f"reader.files(batch_size={self._batch_size}) is read in minibatches of {size}, so that each process "
                f"reads more parts of the files than it needs; expected the same number: batch_size={size}"
            )
        return lambda epoch, start: self._some(epoch, start, size, wanted)

    def _some(self, epoch: int, start: int, size: int, wanted: Wanted) -> Rows:
        spans = order.divided(self._ordered(epoch), self._parts)
        counts = [sum((high or 0) - low for _, low, high in part) for part in spans]
        total = sum(counts)
        with contextlib.ExitStack() as stack:
            parts = [_Part(self._part(i, part), epoch) for i, part in enumerate(spans)]
            for part in parts:
                stack.callback(part.close)
            for low in range(start, total, size):
                mine = wanted(min(size, total - low))
                for row in range(low, min(low + size, total)):
                    if row - low in mine:
                        index, number = place(row, counts, self._batch_size // self._parts)
                        yield parts[index].row(number)
                    else:
                        yield ELSEWHERE

    def _part(self, index: int, spans: Sequence[Span]) -> Iterate:
        """The rows of a part."""
        shuffling = None if self._shuffling is None else self._shuffling.of_part(index, self._parts)
        return self._mixed(self._rows(spans), shuffling)


class _Part:
    """The rows of a part in one pass, read from the first one on that is asked for."""

    def __init__(self, iterate: Iterate, epoch: int):
        self._iterate = iterate
        self._epoch = epoch
        self._rows: Rows | None = None
        self._next = 0

    def row(self, number: int) -> Any:
        """One of the rows behind those that were asked for before.

        Raises:
          ReaderError: there is no such row.
        """
        if self._rows is None:
            self._rows = self._iterate(self._epoch, number)
            self._next = number
        skip(self._rows, number - self._next)
        self._next = number + 1
        for row in self._rows:
            return row
        raise errors.ReaderError(
            "the files have fewer rows than when they were first looked at, expected that they stay as they are while "
            "they are read; make the reader again: reader.files(...)"
        )

    def close(self) -> None:
        """End the threads that read ahead."""
        if self._rows is not None:
            self._rows.close()


def place(row: int, counts: Sequence[int], share: int) -> tuple[int, int]:
    """Where a row comes from.

    Args:
      row: its number in the pass.
      counts: how many rows each part has; the last one has the fewest, and none has more than one row more.
      share: how many rows of each part make a minibatch.

    Returns:
      The number of the part, and that of the row in it.

    Example:
      >>> [place(row, [4, 3], share=2) for row in range(7)]
      [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2)]
    """
    size = share * len(counts)
    minibatches = counts[-1] // share
    if row < minibatches * size:
        return row % size // share, row // size * share + row % share
    row -= minibatches * size
    part = 0
    while row >= counts[part] - minibatches * share:
        row -= counts[part] - minibatches * share
        part += 1
    return part, minibatches * share + row
