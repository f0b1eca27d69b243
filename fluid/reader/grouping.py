"""Minibatches of rows of similar length, which need little padding."""

import contextlib
import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import whole_number
from fluid.reader.base import Reader, ReaderLike, Rows, as_reader, function, increasing

_NAME = "reader.bucket_by_length"
_MINIBATCHES = 100


class Grouped(list[Any]):
    """The rows of one minibatch, with facts about all rows grouped with them.

    Args:
      rows: the rows of the minibatch.
      longest: the longest row of the group of minibatches.
      together: the number of minibatches in the group.
    """

    def __init__(self, rows: Sequence[Any], longest: Any, together: int):
        super().__init__(rows)
        self.longest = longest
        self.together = together


def bucket_by_length(
    reader: ReaderLike,
    batch_size: int,
    boundaries: Sequence[int] | None = None,
    key: Callable[[Any], Any] | None = None,
    buf_size: int | None = None,
    seed: int = 0,
    drop_last: bool = False,
) -> Reader:
    """Group rows of similar length into minibatches, and yield the minibatches in random order.

    A buffer is filled, its rows are grouped, its minibatches are yielded, and the buffer is filled again. A row
    therefore waits for at most one buffer, and a position is found without grouping the rows before it. Only the last
    minibatch of a pass may be short.

    Args:
      reader: a reader of rows; shuffle them first, or each pass groups the same rows.
      batch_size: at least 1.
      boundaries: increasing lengths. Rows up to the first length form one group, rows up to the second length the next
        group, and so on. Rows keep their order in a group. Rows that fill no minibatch of their group are sorted by
        length and batched together. By default there are no groups, and rows are sorted by length.
      key: a function of a row that returns its length, or, without boundaries, any sortable value. By default the
        length of its longest field.
      buf_size: the number of rows to group at once, rounded up to whole minibatches; 100 minibatches by default.
      seed: determines the order of the minibatches, together with the number of the pass; at least 0.
      drop_last: True leaves out a last, shorter minibatch.

    Returns:
      A Reader of lists of rows.

    Raises:
      ArgumentError: a size is too small, or the boundaries do not increase.
      ReaderError: raised while reading: a row has no length, and there is no key.

    Example:
      >>> sentences = [[1, 2, 3], [4], [5, 6, 7, 8], [9, 10]]
      >>> list(bucket_by_length(sentences, batch_size=2))
      [[[4], [9, 10]], [[1, 2, 3], [5, 6, 7, 8]]]
    """
    rows = as_reader(_NAME, reader)
    size = whole_number(_NAME, "batch_size", batch_size)
    window = whole_number(_NAME, "buf_size", _MINIBATCHES * size if buf_size is None else buf_size)
    per_window = -(-window // size)
    seed = whole_number(_NAME, "seed", seed, least=0)
    length = _length if key is None else function(_NAME, key)
    bounds = None if boundaries is None else increasing(boundaries)
    if bounds == []:
        raise errors.ArgumentError(
            f"{_NAME} found boundaries={boundaries!r}, expected increasing lengths: boundaries=[16, 64, 400]"
        )

    def iterate(epoch: int, start: int) -> Rows:
        first, dropped = divmod(start, per_window)
        with contextlib.closing(rows.iterate(epoch, first * per_window * size)) as inner:
            for number in itertools.count(first):
                held = list(itertools.islice(inner, per_window * size))
                grouped = sorted(held, key=length) if bounds is None else _grouped(held, length, bounds, size)
                longest = None if not held else grouped[-1] if bounds is None else max(held, key=length)
                together = -(-len(held) // size)
                cut = [Grouped(grouped[i : i + size], longest, together) for i in range(0, len(grouped), size)]
                # The short minibatch stays last; only whole minibatches are shuffled.
                short = cut[len(held) // size :]
                order = np.random.Generator(np.random.PCG64([seed, epoch, number])).permutation(len(held) // size)
                given = [*(cut[i] for i in order), *([] if drop_last else short)]
                yield from given[dropped:]
                dropped = 0
                if len(held) < per_window * size:
                    return

    plan = {"bucket_by_length": size, "boundaries": bounds, "window": per_window, "seed": seed}
    return Reader(iterate, {**plan, "drop_last": bool(drop_last), "of": rows.plan}, batch_size=size)


def _grouped(rows: list[Any], length: Callable[[Any], Any], bounds: list[int], size: int) -> list[Any]:
    """Return rows in the order of their minibatches: first rows that fill minibatches of their group, then the rest.

    Args:
      rows: the rows of the buffer.
      length: returns the length of a row.
      bounds: the maximum length in each group but the last.
      size: the size of a minibatch.
    """
    groups: list[list[Any]] = [[] for _ in range(len(bounds) + 1)]
    for row in rows:
        groups[bisect_left(bounds, length(row))].append(row)
    filling = [row for group in groups for row in group[: len(group) // size * size]]
    others = [row for group in groups for row in group[len(group) // size * size :]]
    return filling + sorted(others, key=length)


def _length(row: Any) -> int:
    """Return the length of the longest field of a row."""
    fields = row.values() if isinstance(row, Mapping) else row if isinstance(row, tuple) else [row]
    lengths = [len(field) for field in fields if hasattr(field, "__len__") and getattr(field, "ndim", 1) != 0]
    if not lengths:
        raise errors.ReaderError(
            f"{_NAME} found a row without a sequence, {row!r}, expected a field with a length; say what the length of "
            f"a row is: bucket_by_length(reader, batch_size=32, key=lambda row: len(row[0]))"
        )
    return max(lengths)
