"""The rows of all pieces in the order of a pass: one piece after the other."""

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
    """How each pass gets an order of its own.

    Attributes:
      seed: of the order, together with the number of the pass.
      buf_size: how many rows are shuffled at once.
    """

    seed: int
    buf_size: int

    def of_part(self, index: int, parts: int) -> "Shuffling":
        """How one of several parts is shuffled: with a share of the buffer, in another order than the others."""
        seed = np.random.SeedSequence([self.seed, index]).generate_state(1)[0]
        return Shuffling(int(seed), max(1, self.buf_size // parts))


class Stream:
    """Rows in passes: one piece after the other; then, where passes are shuffled, the rows of a buffer in random order.

    Args:
      pieces: which there are.
      shuffling: None where all passes have the order of the files.
      parallel: how many pieces are read at once.
    """

    def __init__(self, pieces: Pieces, shuffling: Shuffling | None, parallel: int):
        self._pieces = pieces
        self._shuffling = shuffling
        self._parallel = parallel

    def iterate(self, epoch: int, start: int) -> Rows:
        """The rows of a pass, decoded by the threads that read them."""
        return self._mixed(self._rows(), self._shuffling)(epoch, start)

    def in_blocks(self, size: int, wanted: Wanted) -> Iterate:
        """Decode the rows only that are needed, and where the order is that of the files open only their pieces."""
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
            # Which rows a buffer brings together is only known when all are there.
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
        if shuffling is None or shuffling.buf_size == 1:  # which mixes files, not rows
            return rows
        return shuffled(Reader(rows, None), shuffling.buf_size, shuffling.seed).iterate


def _elsewhere(span: Span) -> Callable[[], Rows]:
    """A function that gives ELSEWHERE for each row, as the one that opens a piece gives its rows."""

    def rows() -> Rows:
        yield [ELSEWHERE] * ((span.high or 0) - span.low)

    return rows
