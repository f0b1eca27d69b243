"""The order in which the rows of files are read, and threads that read several files ahead."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from fluid.reader.ahead import Ahead
from fluid.reader.base import Rows, Wanted
from fluid.reader.files.format import Piece, Span

T = TypeVar("T")
# Makes these random numbers others than those of `shuffle` and of `map`, also with the same seed.
_STAGE = (0, 0, 1)
# So many parts of each piece may wait for the consumer.
_AHEAD = 2


def permuted(pieces: Sequence[T], seed: int, epoch: int) -> list[T]:
    """The pieces in the order of one pass, which depends on the seed and the number of the pass alone.

    Example:
      >>> sorted(permuted("abc", seed=0, epoch=1))
      ['a', 'b', 'c']
    """
    order = np.random.Generator(np.random.PCG64([seed, epoch, *_STAGE])).permutation(len(pieces))
    return [pieces[i] for i in order]


def whole(pieces: Iterable[Piece]) -> list[Span]:
    """All rows of some pieces."""
    return [Span(piece, 0, piece.rows) for piece in pieces]


def behind(spans: Sequence[Span], start: int) -> tuple[list[Span], int]:
    """What is left of a pass when its first rows are left out.

    Args:
      spans: of the pass, in order.
      start: how many rows are left out.

    Returns:
      The spans to read; and how many of their rows must be read and dropped, since it is not known how many rows the
      first one has.
    """
    for index, (piece, low, high) in enumerate(spans):
        if high is None:
            return list(spans[index:]), start
        if high - low > start:
            return [Span(piece, low + start, high), *spans[index + 1 :]], 0
        start -= high - low
    return [], 0


def divided(pieces: Sequence[Piece], parts: int) -> list[list[Span]]:
    """Divide rows into parts of equal size; the first ones have a row more where that does not come out even.

    Args:
      pieces: in order; each must say how many rows it has.
      parts: how many.

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
    """Whether a process needs rows of each span.

    Args:
      spans: in order, from the first row of a minibatch on.
      size: how many rows each minibatch has; the last one may have fewer.
      wanted: which of them the process needs.

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

    # Of two minibatches' worth of rows one is a whole minibatch.
    firsts = zip([0, *ends], ends, strict=False)
    return [any(map(is_needed, range(low, min(high, low + 2 * size)))) for low, high in firsts]


def in_parallel(openers: Iterable[Callable[[], Rows]], parallel: int) -> Rows:
    """The rows of several sources, one source after the other, each read ahead by a thread of its own.

    Args:
      openers: of the sources; each is called in a thread.
      parallel: how many of them are open at once.
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
