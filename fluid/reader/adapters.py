"""What users give as `reader=`, made one: NumPy arrays, and any loader, as minibatches in passes."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fluid import errors
from fluid.reader.base import Pass, Reader, Rows, Source, as_reader, exhausted, whole


def arrays(arrays: Any, batch_size: int, shuffle: bool = False, seed: int = 0, drop_last: bool = False) -> Reader:
    """Read minibatches from NumPy arrays, by slicing: the fastest reader for data in memory.

    Args:
      arrays: an array `[n, ...]`, a tuple of columns `[n, ...]`, or a dict of columns by name.
      batch_size: at least 1.
      shuffle: whether each pass has another order, which depends on the seed and the number of the pass alone.
      seed: 0 or more.
      drop_last: whether a last, shorter minibatch is left out.

    Returns:
      A Reader of tuples of columns `[batch, ...]` (of one for a single array), or of dicts of columns.

    Raises:
      ArgumentError: the columns differ in length, or are empty.
      ArgumentTypeError: that is no array, tuple or dict.

    Example:
      >>> import numpy as np
      >>> read = arrays({"x": np.arange(6).reshape(3, 2), "y": np.arange(3)}, batch_size=2)
      >>> [{name: column.tolist() for name, column in minibatch.items()} for minibatch in read]
      [{'x': [[0, 1], [2, 3]], 'y': [0, 1]}, {'x': [[4, 5]], 'y': [2]}]
    """
    names, columns = _columns(arrays)
    size, seed = whole("reader.arrays", "batch_size", batch_size, 1), whole("reader.arrays", "seed", seed, 0)
    count = _common_length(names, columns)
    end = count - count % size if drop_last else count
    by_name = isinstance(arrays, Mapping)

    def iterate(epoch: int, start: int) -> Rows:
        order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(count) if shuffle else None
        for low in range(start * size, end, size):
            high = min(low + size, end)
            if order is None:
                picked = [column[low:high] for column in columns]
            else:  # `take` is quicker than indexing when rows are long
                picked = [column.take(order[low:high], axis=0) for column in columns]
            yield dict(zip(names, picked, strict=True)) if by_name else tuple(picked)

    plan = {"arrays": count, "batch": size, "shuffle": seed if shuffle else None, "drop_last": bool(drop_last)}
    return Reader(iterate, plan)


class Minibatches:
    """Whatever was given as `reader=`, as minibatches in passes: call it for the next one. Made by `minibatches`.

    Example:
      >>> passes = minibatches([[1, 2], [3]])
      >>> rows = passes()
      >>> next(rows), passes.state()["given"]
      ([1, 2], 1)
      >>> passes.restore(passes.state())
      >>> list(passes())
      [[3]]
    """

    def __init__(self, source: Any):
        self._reader = as_reader("reader=", source)

    def __call__(self) -> Iterator[Any]:
        """Start the next pass, or continue the one that `restore` named."""
        # A Pass is made here and now, so that `state()` speaks of it before its first minibatch.
        rows = self._reader()
        return self._checked(rows)

    def __iter__(self) -> Iterator[Any]:
        return self()

    def state(self) -> dict[str, Any]:
        """The position behind the minibatch that was given last, as JSON."""
        return self._reader.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Make the next pass continue exactly behind a position; see `Reader.restore`."""
        self._reader.restore(state)

    def _checked(self, rows: Pass) -> Rows:
        with contextlib.closing(rows):
            if rows.given:  # the rest of a pass may be empty
                yield from rows
            else:
                yield from nonempty(rows, self._reader.source if isinstance(self._reader, Source) else self._reader)


def minibatches(source: Any) -> Minibatches:
    """Make passes over minibatches of whatever a user gives as `reader=`.

    Args:
      source: a Reader, a function that returns an iterable, or an iterable: a list of minibatches, a torch
        `DataLoader`, a Grain loader (its own iterator state is used), a Hugging Face data set.

    Returns:
      Something to call once for each pass, with `state()` and `restore()`. A pass without any minibatch is an error.

    Raises:
      ArgumentTypeError: that is no reader.
      ReaderError: (while reading) there is nothing to read, or an iterator is used up.

    Example:
      >>> passes = minibatches(lambda: iter([[(1, 2)], [(3, 4)]]))
      >>> list(passes()), passes.state()["epoch"]
      ([[(1, 2)], [(3, 4)]], 1)
    """
    if isinstance(source, Minibatches):
        return source
    if hasattr(source, "dtype") or (isinstance(source, tuple) and any(hasattr(c, "dtype") for c in source)):
        raise errors.ArgumentTypeError(
            "reader= needs something that gives minibatches, found arrays; say how many rows make one: "
            "reader=fluid.reader.arrays((images, labels), batch_size=32)"
        )
    return Minibatches(source)


def nonempty(rows: Iterator[Any], source: Any = None) -> Rows:
    """Pass rows on, and refuse a pass that gives none.

    Args:
      rows: of one pass.
      source: what they come from, for the message.

    Raises:
      ReaderError: there is not a single one.

    Example:
      >>> list(nonempty(iter([1, 2])))
      [1, 2]
    """
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty and hasattr(source, "__next__"):
        raise exhausted(source)
    if empty:
        raise errors.ReaderError(
            "the reader gave nothing: found a pass without a single minibatch, expected at least one. Is the data set "
            "empty, or smaller than batch_size with drop_last=True? A function must return a new iterator at each call"
        )


def _columns(data: Any) -> tuple[list[Any], list[np.ndarray]]:
    if isinstance(data, Mapping):
        names, values = list(data.keys()), list(data.values())
    elif isinstance(data, tuple):
        names, values = list(range(len(data))), list(data)
    elif hasattr(data, "shape"):
        names, values = [0], [data]
    else:
        raise errors.ArgumentTypeError(
            f"reader.arrays needs an array, a tuple of columns or a dict of columns, found {type(data).__name__}; "
            f"for example reader.arrays((np.asarray(images), np.asarray(labels)), batch_size=32)"
        )
    return names, [np.asarray(value) for value in values]


def _common_length(names: list[Any], columns: list[np.ndarray]) -> int:
    lengths = {name: len(column) if column.ndim else None for name, column in zip(names, columns, strict=True)}
    if len(set(lengths.values())) == 1 and (count := lengths[names[0]]):
        return count
    shown = ", ".join(f"{name!r}: {'a scalar' if n is None else n}" for name, n in lengths.items()) or "no column"
    raise errors.ArgumentError(
        f"reader.arrays needs columns of one length, at least 1, found {shown}; each column is [n, ...]: "
        f"reader.arrays((images, labels), batch_size=32) with len(images) == len(labels)"
    )
