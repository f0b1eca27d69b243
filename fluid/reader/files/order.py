"""The order in which the pieces of files are read, and threads that read several of them ahead."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from fluid.reader.ahead import started
from fluid.reader.base import Rows
from fluid.reader.files.format import Piece

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


def behind(pieces: Sequence[Piece], start: int) -> tuple[list[tuple[Piece, int]], int]:
    """What is left of a pass when its first rows are left out.

    Args:
      pieces: of the pass, in order.
      start: how many rows are left out.

    Returns:
      The pieces to read, with the number of rows to leave out of each; and how many rows must be read and dropped after
      that, since it is not known how many rows the first piece has.
    """
    for index, piece in enumerate(pieces):
        if piece.rows is None:
            return [(p, 0) for p in pieces[index:]], start
        if piece.rows > start:
            return [(piece, start), *((p, 0) for p in pieces[index + 1 :])], 0
        start -= piece.rows
    return [], 0


def in_parallel(openers: Iterable[Callable[[], Rows]], parallel: int) -> Rows:
    """The rows of several sources, one source after the other, each read ahead by a thread of its own.

    Args:
      openers: of the sources; each is called in a thread.
      parallel: how many of them are open at once.
    """
    waiting = iter(openers)
    running: deque[Rows] = deque()
    try:
        while True:
            while len(running) < parallel and (opener := next(waiting, None)) is not None:
                running.append(started(opener, _AHEAD))
            if not running:
                return
            yield from running[0]
            running.popleft()
    finally:
        for rows in running:
            rows.close()
