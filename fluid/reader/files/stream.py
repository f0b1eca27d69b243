"""Streams: the rows of all pieces in the order of a pass, one piece after the other."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fluid.reader.base import ELSEWHERE, Iterate, Reader, Rows, Wanted, marked
from fluid.reader.decorators import shuffle as shuffled
from fluid.reader.files import order
from fluid.reader.files.format import Piece, Span
from fluid.reader.files.pieces import Pieces


class Shuffling(NamedTuple):
    """The shuffling of each pass.

    Attributes:
      seed: determines the order, together with the number of the pass.
      buf_size: the number of rows that are shuffled at once.
    """

    seed: int
    buf_size: int

    def of_part(self, index: int, parts: int) -> "Shuffling":
        """Return the shuffling of one of several parts, with a share of the buffer and its own seed."""
        seed = np.random.SeedSequence([self.seed, index]).generate_state(1)[0]
        return Shuffling(int(seed), max(1, self.buf_size // parts))


class Stream:
    """Rows in passes: one piece after the other; with shuffling, the rows of a buffer in random order.

    Args:
      pieces: the pieces.
      shuffling: None reads all passes in the order of the files.
      parallel: the number of pieces to read at once.
    """

    def __init__(self, pieces: Pieces, shuffling: Shuffling | None, parallel: int):
        self._pieces = pieces
        self._shuffling = shuffling
        self._parallel = parallel

    def iterate(self, epoch: int, start: int) -> Rows:
        """Yield the rows of a pass, decoded by the threads that read them."""
        return self._mixed(self._rows(), self._shuffling)(epoch, start)

    def in_blocks(self, size: int, wanted: Wanted) -> Iterate:
        """Decode only the needed rows; without shuffling, also open only the pieces with needed rows."""
        read = self._mixed(self._rows(None, size, wanted, raw=True), self._shuffling)

        def some(epoch: int, start: int) -> Rows:
            with contextlib.closing(read(epoch, start)) as inner:
                for raw in marked(inner, size, wanted):
                    yield raw if raw is ELSEWHERE else self._pieces.decoded(raw)

        return some

    def _rows(
        self, spans: Sequence[Span] | None = None, size: int = 1, wanted: Wanted = range, raw: bool = False
    ) -> Iterate:
        """Yield the rows of spans, by default of all pieces; ELSEWHERE for each row of a span that is not needed."""

        def iterate(epoch: int, start: int) -> Rows:
            left, dropped = order.behind(order.whole(self._ordered(epoch)) if spans is None else spans, start)
            # The rows of a shuffling buffer are known only after all of them are read.
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
        if shuffling is None or shuffling.buf_size == 1:  # a buffer of one row mixes files, not rows
            return rows
        return shuffled(Reader(rows, None), shuffling.buf_size, shuffling.seed).iterate


def _elsewhere(span: Span) -> Callable[[], Rows]:
    """Return a function that yields ELSEWHERE for each row, in the form of the function that opens a piece."""

    def rows() -> Rows:
        yield [ELSEWHERE] * ((span.high or 0) - span.low)

    return rows
