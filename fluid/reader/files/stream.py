"""Streams: yield rows of files in the order of a pass over the data, or in parts that processes read separately."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fluid import core, errors
from fluid.reader.base import ELSEWHERE, Iterate, Reader, Rows, Wanted, marked, skip
from fluid.reader.decorators import shuffle as shuffled
from fluid.reader.files import order
from fluid.reader.files.format import Piece, Span
from fluid.reader.files.order import Pieces


class Shuffling(NamedTuple):
    """The settings for shuffling the rows of each pass.

    Attributes:
      seed: determines the order, together with the number of the pass.
      buf_size: the number of rows that are shuffled at once.
    """

    seed: int
    buf_size: int

    def of_part(self, index: int, parts: int) -> "Shuffling":
        """Return the shuffling settings for one of `parts` parts of the files: a new seed and a share of the buffer."""
        seed = np.random.SeedSequence([self.seed, index]).generate_state(1)[0]
        return Shuffling(int(seed), max(1, self.buf_size // parts))


class Stream:
    """A source of passes over the rows of files, piece by piece; a piece is a part of a file, such as a row group.

    With shuffling, the order of the pieces is random, and a buffer of rows is yielded in random order.
    """

    def __init__(self, pieces: Pieces, shuffling: Shuffling | None, parallel: int):
        self._pieces = pieces
        self._shuffling = shuffling
        self._parallel = parallel

    def iterate(self, epoch: int, start: int) -> Rows:
        """Yield rows for the pass `epoch` over the data, from row number `start` on.

        The threads that read the rows also decode them.
        """
        return self._mixed(self._rows(), self._shuffling)(epoch, start)

    def in_blocks(self, size: int, wanted: Wanted) -> Iterate:
        """Return a function that yields rows like `iterate`, but decodes only the rows that this process needs.

        In a training in several processes, each process needs some rows of a minibatch; see `Reader.in_blocks`. Without
        shuffling, only the pieces (parts of files) that contain these rows are opened.
        """
        read = self._mixed(self._rows(None, size, wanted, raw=True), self._shuffling)

        def some(epoch: int, start: int) -> Rows:
            with contextlib.closing(read(epoch, start)) as inner:
                for raw in marked(inner, size, wanted):
                    yield raw if raw is ELSEWHERE else self._pieces.decoded(raw)

        return some

    def _rows(
        self, spans: Sequence[Span] | None = None, size: int = 1, wanted: Wanted = range, raw: bool = False
    ) -> Iterate:
        """Return a function that yields the rows of `spans` (ranges of rows in files); by default, of all files.

        The arguments of the function are the number of the pass over the data, and the number of rows to skip. If this
        process needs no row of a span, the function yields the placeholder ELSEWHERE for each row of the span.
        """

        def iterate(epoch: int, start: int) -> Rows:
            left, dropped = order.behind(order.whole(self._ordered(epoch)) if spans is None else spans, start)
            # With shuffling, the shuffle buffer decides in which minibatch a row is, and so which rows this process
            # needs. Therefore this process must read every row.
            needed = order.needed(left, size, wanted) if self._shuffling is None else [True] * len(left)
            openers = [
                self._pieces.opener(span, raw) if is_needed else _elsewhere(span)
                for span, is_needed in zip(left, needed, strict=True)
            ]
            with contextlib.closing(order.in_parallel(openers, self._parallel)) as lists:
                yield from itertools.islice(itertools.chain.from_iterable(lists), dropped, None)

        return iterate

    def _ordered(self, epoch: int) -> list[Piece]:
        pieces = self._pieces.all()
        return pieces if self._shuffling is None else order.permuted(pieces, self._shuffling.seed, epoch)

    def _mixed(self, rows: Iterate, shuffling: Shuffling | None) -> Iterate:
        # A buffer of one row does not reorder rows: only the order of the pieces (parts of files) is random.
        if shuffling is None or shuffling.buf_size == 1:
            return rows
        return shuffled(Reader(rows, None), shuffling.buf_size, shuffling.seed).iterate


def _elsewhere(span: Span) -> Callable[[], Rows]:
    """Return a function that yields placeholders for the rows in `span`, a range that this process does not need.

    The function yields one list, which holds the placeholder ELSEWHERE for each row.
    """

    def rows() -> Rows:
        yield [ELSEWHERE] * ((span.high or 0) - span.low)

    return rows


class Parts(Stream):
    """A Stream in which each minibatch takes equal numbers of rows from each of several parts of the files.

    One pass over the files reads their pieces, such as row groups, in some order. The rows in this order are divided
    evenly into parts, and each part is shuffled separately. A minibatch consists of the next rows of the first part,
    then of the second part, and so on. When a part has too few rows, the remaining rows of all parts form the last,
    shorter minibatch.
    """

    def __init__(self, pieces: Pieces, shuffling: Shuffling | None, parallel: int, parts: int, batch_size: int):
        super().__init__(pieces, shuffling, max(1, parallel // parts))
        self._parts = parts
        self._batch_size = batch_size

    def iterate(self, epoch: int, start: int) -> Rows:
        """Yield the rows of an epoch, in the order in which they are cut into minibatches, from row `start` on.

        Each full minibatch has equally many rows from each of several parts of the files.
        """
        return self._some(epoch, start, self._batch_size, range)

    def in_blocks(self, size: int, wanted: Wanted) -> Iterate:
        """Return a function that yields rows like `iterate`, but opens only parts with rows that this process needs.

        In a training in several processes, each process needs some rows of a minibatch; see `Reader.in_blocks`. Warn if
        `size`, the number of rows of a minibatch, differs from the `batch_size` of this Stream.
        """
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
            parts = [_PartReader(self._part(i, part), epoch) for i, part in enumerate(spans)]
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
        """Return a function of `(epoch, start)` that yields the rows of part number `index` of the files.

        The rows are shuffled if this Stream shuffles.
        """
        shuffling = None if self._shuffling is None else self._shuffling.of_part(index, self._parts)
        return self._mixed(self._rows(spans), shuffling)


class _PartReader:
    """A reader of one part of the rows of files, for one pass over the data.

    The reader opens files when the first row is requested.
    """

    def __init__(self, iterate: Iterate, epoch: int):
        self._iterate = iterate
        self._epoch = epoch
        self._rows: Rows | None = None
        self._next = 0

    def row(self, number: int) -> Any:
        """Return row number `number` of this part of the files; each call must request a later row than the last."""
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
        if self._rows is not None:
            self._rows.close()


def place(row: int, counts: Sequence[int], share: int) -> tuple[int, int]:
    """Return the part of the files from which a row comes, and the index of the row in this part.

    Each minibatch takes `share` rows from each part. A shorter last minibatch takes the remaining rows of all parts.

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
