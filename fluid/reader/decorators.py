"""Reader decorators: readers that batch, shuffle, group or combine other readers."""

from __future__ import annotations

import contextlib
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import warn, whole_number
from fluid.reader.ahead import Ahead
from fluid.reader.base import (
    ELSEWHERE,
    Iterate,
    Reader,
    ReaderLike,
    Rows,
    Wanted,
    as_reader,
    as_readers,
    function,
    increasing,
    opened,
    seeded_maps,
    skip,
    stages,
)

_MISSING = object()


def batch(reader: ReaderLike, batch_size: float, drop_last: bool = False) -> Reader:
    """Group rows into minibatches: lists of `batch_size` rows.

    Args:
      reader: a reader of rows.
      batch_size: a whole number from 1 on, which may be a float, as in `total / devices`.
      drop_last: True leaves out a last, shorter minibatch.

    Returns:
      A Reader of lists of rows.

    Raises:
      ArgumentError: `batch_size` is no whole number, or below 1.

    Example:
      >>> list(batch([1, 2, 3, 4, 5], batch_size=2))
      [[1, 2], [3, 4], [5]]
    """
    rows = as_reader("reader.batch", reader)
    whole = int(batch_size) if isinstance(batch_size, float) and batch_size.is_integer() else batch_size
    size = whole_number("reader.batch", "batch_size", whole)

    def batches(of: Iterate, fill: Callable[[list[Any]], list[Any]]) -> Iterate:
        def iterate(epoch: int, start: int) -> Rows:
            with contextlib.closing(of(epoch, start * size)) as inner:
                while minibatch := list(itertools.islice(inner, size)):
                    if len(minibatch) < size and drop_last:
                        return
                    yield fill(minibatch)

        return iterate

    def divided(wanted: Wanted) -> Iterate:
        return batches(rows.in_blocks(size, wanted), _filled)

    plan = {"batch": size, "drop_last": bool(drop_last), "of": rows.plan}
    return Reader(batches(rows.iterate, lambda minibatch: minibatch), plan, divided=divided)


def shuffle(reader: ReaderLike, buf_size: int, seed: int = 0) -> Reader:
    """Shuffle rows: fill a buffer, yield its rows in random order, and fill the buffer again.

    The order depends only on the seed and the number of the pass: each pass has a new order, and two readers with an
    equal seed have equal orders.

    Args:
      reader: a reader of rows.
      buf_size: the number of rows in the buffer; a buffer as large as the data shuffles completely.
      seed: 0 or more.

    Returns:
      A Reader of the rows in another order.

    Raises:
      ArgumentError: `buf_size` is below 1 or `seed` below 0.

    Example:
      >>> sorted(shuffle(range(5), buf_size=3))
      [0, 1, 2, 3, 4]
      >>> list(shuffle(range(5), buf_size=5, seed=7)) == list(shuffle(range(5), buf_size=5, seed=7))
      True
    """
    rows = as_reader("reader.shuffle", reader)
    size = whole_number("reader.shuffle", "buf_size", buf_size)
    seed = whole_number("reader.shuffle", "seed", seed, least=0)
    if size == 1:
        warn(
            "reader.shuffle(buf_size=1) leaves every row where it is; the buffer mixes as many rows as it holds: "
            "reader.shuffle(rows, buf_size=10000)"
        )
    plan = list(stages(rows.plan))
    if plan and "batch" in plan[0] and not any(part.get("shuffle") is not None for part in plan):
        warn(
            "reader.shuffle of minibatches leaves the rows of each minibatch together; shuffle rows before they are "
            "grouped: reader.batch(reader.shuffle(rows, buf_size=10000), batch_size=32), or "
            "reader.arrays(..., shuffle=True)"
        )

    def iterate(epoch: int, start: int) -> Rows:
        first, dropped = divmod(start, size)
        with contextlib.closing(rows.iterate(epoch, first * size)) as inner:
            for number in itertools.count(first):
                window = list(itertools.islice(inner, size))
                if not window:
                    return
                # Each filling of the buffer (window) has its own random numbers, so that a reader can continue at any
                # window without reading the windows before it.
                order = np.random.Generator(np.random.PCG64([seed, epoch, number])).permutation(len(window))
                yield from (window[i] for i in order[dropped:])
                dropped = 0

    return Reader(iterate, {"shuffle": size, "seed": seed, "of": rows.plan})


def buffered(reader: ReaderLike, size: int) -> Reader:
    """Read ahead in a background thread: for readers that wait for disks or networks.

    Rows, their order and the reader's exceptions do not change. The thread ends with the pass, also if the iterator is
    closed or dropped.

    Args:
      reader: a reader of rows.
      size: the number of rows to read ahead, at least 1.

    Returns:
      A Reader of the same rows.

    Example:
      >>> list(buffered([1, 2, 3], size=2))
      [1, 2, 3]
    """
    rows = as_reader("reader.buffered", reader)
    size = whole_number("reader.buffered", "size", size)

    def ahead(of: Iterate) -> Iterate:
        return lambda epoch, start: Ahead(lambda: of(epoch, start), size).rows()

    return Reader(
        ahead(rows.iterate),
        rows.plan,
        in_blocks=lambda block, wanted: ahead(rows.in_blocks(block, wanted)),
        divided=lambda wanted: ahead(rows.divided(wanted)),
    )


def chain(*readers: ReaderLike) -> Reader:
    """Read the rows of several readers, one reader after the other.

    Args:
      readers: at least one.

    Returns:
      A Reader of all their rows.

    Example:
      >>> list(chain([1, 2], [3]))
      [1, 2, 3]
    """
    many = as_readers("reader.chain", readers)

    def iterate(epoch: int, start: int) -> Rows:
        for reader in many:
            with contextlib.closing(reader.iterate(epoch, 0)) as inner:
                for row in inner:
                    if start == 0:
                        yield row
                    else:
                        start -= 1

    return Reader(iterate, {"chain": [r.plan for r in many]})


def compose(*readers: ReaderLike, check_alignment: bool = True) -> Reader:
    """Join the rows of several readers, side by side, into one flat tuple.

    Args:
      readers: at least one; rows that are tuples are joined field by field.
      check_alignment: True raises an error for readers of different length; False ends the pass when the shortest
        reader ends.

    Returns:
      A Reader of tuples.

    Raises:
      ReaderError: raised while reading: one reader ends before another.

    Example:
      >>> list(compose([1, 2], [("a", "b"), ("c", "d")]))
      [(1, 'a', 'b'), (2, 'c', 'd')]
    """
    many = as_readers("reader.compose", readers)
    if any(map(_shuffles, many)) and any(
        not _shuffles(made) and _has_order(given, made) for given, made in zip(readers, many, strict=True)
    ):
        warn(
            "reader.compose joins a reader that shuffles with data in a fixed order, so that the parts of a row do not "
            "belong together; shuffle what is joined: reader.shuffle(reader.compose(images, labels), buf_size=10000)"
        )

    def iterate(epoch: int, start: int) -> Rows:
        with opened(many, epoch, start) as inner:
            # Without `check_alignment`, `zip` joins the rows, because it stops reading once one reader has ended.
            joined: Iterator[tuple[Any, ...]] = zip(*inner, strict=False)
            if check_alignment:
                joined = itertools.zip_longest(*inner, fillvalue=_MISSING)
            for number, rows in enumerate(joined, start):
                if ended := [i for i, row in enumerate(rows) if row is _MISSING]:
                    raise errors.ReaderError(
                        f"reader.compose was given readers of different lengths: found that number {ended[0]} "
                        f"(counting from 0) ended after {number} rows, expected as many as of the others; "
                        f"compose(..., check_alignment=False) stops at the shortest"
                    )
                yield tuple(itertools.chain.from_iterable(r if isinstance(r, tuple) else (r,) for r in rows))

    return Reader(iterate, {"compose": [r.plan for r in many], "check_alignment": bool(check_alignment)})


def _shuffles(reader: Reader) -> bool:
    return any(stage.get("shuffle") is not None for stage in stages(reader.plan))


def _has_order(given: ReaderLike, made: Reader) -> bool:
    """Return whether a reader certainly yields its rows in a fixed order: a list, tuple or array, `arrays` or `files`.

    A function does not count, because its rows may be random.
    """
    return isinstance(given, list | tuple | np.ndarray) or any(
        "arrays" in stage or "files" in stage for stage in stages(made.plan)
    )


def firstn(reader: ReaderLike, n: int) -> Reader:
    """Read only the first rows of each pass.

    Args:
      reader: a reader of rows; rows after the last yielded row are not read.
      n: the number of rows, at least 0.

    Returns:
      A Reader of at most `n` rows.

    Example:
      >>> import itertools
      >>> list(firstn(itertools.count, n=3))
      [0, 1, 2]
    """
    rows = as_reader("reader.firstn", reader)
    n = whole_number("reader.firstn", "n", n, least=0)

    def iterate(epoch: int, start: int) -> Rows:
        if start < n:
            with contextlib.closing(rows.iterate(epoch, start)) as inner:
                yield from itertools.islice(inner, n - start)

    return Reader(iterate, {"firstn": n, "of": rows.plan})


def cache(reader: ReaderLike) -> Reader:
    """Keep the rows of the first whole pass in memory, and yield them in every later pass.

    Args:
      reader: a reader of rows, which is read only once. Put `shuffle` and a `map` with a seed outside the cache. Inside
        the cache, they cause a FluidWarning, because every pass repeats the order and the random numbers of the first
        pass.

    Returns:
      A Reader of the same rows.

    Example:
      >>> rows = cache(lambda: iter([1, 2]))
      >>> list(rows), list(rows)
      ([1, 2], [1, 2])
    """
    rows = as_reader("reader.cache", reader)
    if seeded_maps(rows.plan):
        warn(
            "reader.cache keeps rows that reader.map(seed=...) made with random numbers, so that every pass has the "
            "same ones. Put the cache inside: reader.map(augment, reader.cache(rows), seed=0)"
        )
    elif _shuffles(rows) and not any("firstn" in stage for stage in stages(rows.plan)):
        # A reader with `firstn` causes no warning: the user may want to repeat one fixed sample of the rows.
        warn(
            "reader.cache keeps the order in which the reader inside it has shuffled the first pass, so that every "
            "pass has the same one. Put the cache inside: reader.shuffle(reader.cache(rows), buf_size=10000)"
        )
    kept: list[Any] | None = None

    def iterate(epoch: int, start: int) -> Rows:
        nonlocal kept
        if kept is not None:
            yield from itertools.islice(kept, start, None)
            return
        # Fill the cache with the rows of pass 0 of the inner reader, also if `epoch` is another pass. Otherwise
        # the cached rows would depend on the number of the first pass.
        filling: list[Any] = []
        with contextlib.closing(rows.iterate(0, 0)) as inner:
            for row in inner:
                filling.append(row)
                if len(filling) > start:
                    yield row
        kept = filling

    return Reader(iterate, {"cache": rows.plan})


def shard(reader: ReaderLike, num_shards: int, index: int) -> Reader:
    """Read the rows of one of several workers: every `num_shards`-th row, from row number `index` on.

    Args:
      reader: a reader of rows, equal for every worker.
      num_shards: the number of workers.
      index: the index of this worker, from 0 on.

    Returns:
      A Reader of the rows of this worker.

    Raises:
      ArgumentError: `index` is not below `num_shards`.

    Example:
      >>> list(shard(range(5), num_shards=2, index=0)), list(shard(range(5), num_shards=2, index=1))
      ([0, 2, 4], [1, 3])
    """
    rows = as_reader("reader.shard", reader)
    shards = whole_number("reader.shard", "num_shards", num_shards)
    index = whole_number("reader.shard", "index", index, least=0)
    if index >= shards:
        raise errors.ArgumentError(
            f"reader.shard found index={index} with num_shards={shards}, expected an index from 0 to {shards - 1}: "
            f"reader.shard(rows, num_shards={shards}, index={shards - 1})"
        )

    def iterate(epoch: int, start: int) -> Rows:
        with contextlib.closing(rows.iterate(epoch, start * shards)) as inner:
            skip(inner, index)
            yield from itertools.islice(inner, 0, None, shards)

    return Reader(iterate, {"shard": [shards, index], "of": rows.plan})


def _filled(minibatch: list[Any]) -> list[Any]:
    """Replace placeholders in a minibatch by its first real row.

    Each placeholder stands for a row that only another process has read.
    """
    mine = next((row for row in minibatch if row is not ELSEWHERE), None)
    return [mine if row is ELSEWHERE else row for row in minibatch]


_NAME = "reader.bucket_by_length"
_MINIBATCHES = 100


class Grouped(list[Any]):
    """A list of the rows of one minibatch from `bucket_by_length`.

    The reader `bucket_by_length` fills a buffer with rows, and divides this buffer into several minibatches.
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
    therefore waits for at most one buffer, and a restored reader groups no rows of earlier buffers. Only the last
    minibatch of a pass may be short.

    Args:
      reader: a reader of rows; shuffle them first, or each pass groups the same rows.
      batch_size: the number of rows of each minibatch, at least 1.
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
                # Only full minibatches are shuffled. A shorter minibatch stays the last one of the pass.
                short = cut[len(held) // size :]
                order = np.random.Generator(np.random.PCG64([seed, epoch, number])).permutation(len(held) // size)
                given = [*(cut[i] for i in order), *([] if drop_last else short)]
                yield from given[dropped:]
                dropped = 0
                if len(held) < per_window * size:
                    return

    plan = {"bucket_by_length": size, "boundaries": bounds, "window": per_window, "seed": seed}
    return Reader(iterate, {**plan, "drop_last": bool(drop_last), "of": rows.plan})


def _grouped(rows: list[Any], length: Callable[[Any], Any], bounds: list[int], size: int) -> list[Any]:
    """Return the rows of a buffer in the order in which they are cut into minibatches.

    Rows that fill whole minibatches of their group come first, all other rows follow, sorted by length.
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
