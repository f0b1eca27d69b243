"""The order of reading the rows of files, and threads that read several files ahead."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from fluid.reader.ahead import Ahead
from fluid.reader.base import Rows, Wanted
from fluid.reader.files.format import Piece, Span

T = TypeVar("T")
# Separates these random numbers from the numbers of `shuffle` and `map` with an equal seed.
_STAGE = (0, 0, 1)
# The maximum number of parts of each piece that wait for the consumer.
_AHEAD = 2


def permuted(pieces: Sequence[T], seed: int, epoch: int) -> list[T]:
    """Return the pieces in the order of one pass, which depends only on the seed and the number of the pass.

    Example:
      >>> sorted(permuted("abc", seed=0, epoch=1))
      ['a', 'b', 'c']
    """
    order = np.random.Generator(np.random.PCG64([seed, epoch, *_STAGE])).permutation(len(pieces))
    return [pieces[i] for i in order]


def whole(pieces: Iterable[Piece]) -> list[Span]:
    """Return spans with all rows of some pieces."""
    return [Span(piece, 0, piece.rows) for piece in pieces]


def behind(spans: Sequence[Span], start: int) -> tuple[list[Span], int]:
    """Return the rest of a pass after its first rows.

    Args:
      spans: the spans of the pass, in order.
      start: the number of rows to leave out.

    Returns:
      The spans to read, and the number of their first rows to read and drop. The second number is positive only if the
      first span has an unknown number of rows.
    """
    for index, (piece, low, high) in enumerate(spans):
        if high is None:
            return list(spans[index:]), start
        if high - low > start:
            return [Span(piece, low + start, high), *spans[index + 1 :]], 0
        start -= high - low
    return [], 0


def divided(pieces: Sequence[Piece], parts: int) -> list[list[Span]]:
    """Divide rows into parts of equal size; if the division has a remainder, the first parts have one row more.

    Args:
      pieces: in order; each must have a known number of rows.
      parts: the number of parts.

    Example:
      >>> [[span[1:] for span in part] for part in divided([Piece(None, rows=5), Piece(None, rows=2)], 3)]
      [[(0, 3)], [(3, 5)], [(0, 2)]]
    """
    least, more = divmod(sum(piece.rows or 0 for piece in pieces), parts)
    found: list[list[Span]] = [[] for _ in range(parts)]
    part = 0
    room = least + (more > 0)
    for piece in pieces:
        low = 0
        while low < (piece.rows or 0):
            high = min(piece.rows or 0, low + room)
            found[part].append(Span(piece, low, high))
            room -= high - low
            low = high
            if room == 0:
                part += 1
                room = least + (part < more)
    return found


def needed(spans: Sequence[Span], size: int, wanted: Wanted) -> list[bool]:
    """Return, for each span, whether a process needs some of its rows.

    Args:
      spans: in order, from the first row of a minibatch on.
      size: the number of rows of each minibatch; the last one may have fewer.
      wanted: returns the indices of the rows that the process needs.

    Example:
      >>> needed(whole([Piece(None, rows=2), Piece(None, rows=2), Piece(None, rows=3)]), 4, lambda count: {0, 1})
      [True, False, True]
    """
    if any(span.high is None for span in spans):
        return [True] * len(spans)
    ends = list(itertools.accumulate((span.high or 0) - span.low for span in spans))
    total = ends[-1] if ends else 0
    short = total - total % size
    of_full = wanted(size)
    of_short = wanted(total % size) if total % size else ()

    def is_needed(row: int) -> bool:
        return row % size in (of_full if row < short else of_short)

    # The rows of two minibatches contain at least one whole minibatch.
    firsts = zip([0, *ends], ends, strict=False)
    return [any(map(is_needed, range(low, min(high, low + 2 * size)))) for low, high in firsts]


def in_parallel(openers: Iterable[Callable[[], Rows]], parallel: int) -> Rows:
    """Yield the rows of several sources, one source after the other, each read ahead by its own thread.

    Args:
      openers: functions that open the sources; each is called in a thread.
      parallel: the maximum number of open sources.
    """
    waiting = iter(openers)
    running: deque[Ahead] = deque()
    try:
        while True:
            while len(running) < parallel and (opener := next(waiting, None)) is not None:
                running.append(Ahead(opener, _AHEAD, patience=None))
                running[-1].start()
            if not running:
                return
            yield from running[0].rows()
            running.popleft()
    finally:
        for ahead in running:
            ahead.end()
