"""Mapping: apply functions to rows, in this thread, or in several threads or processes."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import whole_number
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
    copied,
    function,
    marked,
    opened,
    seeded_maps,
)


def map(func: Callable[..., Any], *readers: ReaderLike, seed: int | None = None) -> Reader:
    """Apply a function to each row, or to the rows of several readers side by side.

    A function that needs random numbers, for example to crop images, takes them from the NumPy Generator that `seed`
    appends to its arguments. The numbers depend only on the seed, the number of the pass and the index of the row in
    the pass: every pass has new numbers, and training that resumes in the middle of a pass gets equal numbers. Nested
    maps with equal seeds draw different numbers.

    The function may change its rows in place: it receives copies of their arrays, lists and dicts, so the data of the
    reader stays unchanged in every pass. It may also return one buffer for every row, because the result is copied.

    Args:
      func: takes one row of each reader; with a seed also a `numpy.random.Generator`, as the last argument.
      readers: readers of rows; the shortest ends the pass.
      seed: at least 0; None for a function without random numbers.

    Returns:
      A Reader of the results of the function.

    Raises:
      ArgumentError: `seed` is below 0, or there is no reader.
      ArgumentTypeError: `func` is not a function, or takes another number of arguments.

    Example:
      >>> list(map(lambda x: x * 10, [1, 2, 3]))
      [10, 20, 30]
      >>> list(map(lambda x, y: x + y, [1, 2], [10, 20]))
      [11, 22]
      >>> def noisy(x, rng):
      ...     return x + rng.normal()
      >>> list(map(noisy, [1, 2], seed=0)) == list(map(noisy, [1, 2], seed=0))
      True
    """
    function("reader.map", func)
    many = as_readers("reader.map", readers)
    random = None if seed is None else _Generators("reader.map", seed, many)
    _check_arguments("reader.map", func, len(many), seed)
    return _mapped(many, random, lambda *rows: copied(func(*copied(rows))), _one_after_the_other)


def xmap(
    mapper: Callable[..., Any],
    reader: ReaderLike,
    process_num: int | None = None,
    buffer_size: int | None = None,
    order: bool = False,
    *,
    processes: int | None = None,
    seed: int | None = None,
) -> Reader:
    """Apply a function to each row in several threads or processes.

    Threads suit functions that wait, or that compute outside Python, for example in NumPy or image decoders. Processes
    suit functions that compute in Python. Processes find the function by its name, so define the function at the top
    level of a module. Put the work of a script under `if __name__ == "__main__":`. Processes start with the first row,
    which takes as long as importing that module. They stay for later passes, and end when the Reader is dropped or
    Python exits. Rows are read in this process, and rows and results are copied between processes. Map whole
    minibatches to reduce this cost: `xmap(augment, reader.batch(rows, 32), processes=4)`.

    Args:
      mapper: takes a row, with a seed also a `numpy.random.Generator`; called from many threads at once, or in other
        processes, which do not share the variables of this process. It may change the row, as for `map`.
      reader: a reader of rows.
      process_num: the number of threads, at least 1; the name comes from Fluid.
      buffer_size: the number of rows to read ahead, at least 1; by default twice the number of threads or processes.
      order: accepted for programs written for Fluid. Rows always come in the order of the reader, because positions
        need this order.
      processes: the number of processes, instead of threads.
      seed: as for `map`; the numbers of a row do not depend on its thread or process.

    Returns:
      A Reader of the results of the function.

    Raises:
      ArgumentError: a number is too small, or `process_num` and `processes` are both given or both absent.
      ArgumentTypeError: `mapper` is not a function, other processes cannot find it, or it takes another number of
        arguments.
      ReaderError: raised while reading: a process has died, or a row cannot be sent to a process.

    Example:
      >>> list(xmap(str, [1, 2, 3], process_num=2, buffer_size=4))
      ['1', '2', '3']
      >>> list(xmap(str, [1, 2, 3], processes=1))
      ['1', '2', '3']
    """
    function("reader.xmap", mapper)
    rows = as_reader("reader.xmap", reader)
    workers = _workers(process_num, processes)
    size = whole_number("reader.xmap", "buffer_size", 2 * workers if buffer_size is None else buffer_size)
    random = None if seed is None else _Generators("reader.xmap", seed, [rows])
    _check_arguments("reader.xmap", mapper, 1, seed)
    # Processes need no copies of rows and results: what is sent to another process is a copy already.
    call = (lambda *row: copied(mapper(*copied(row)))) if processes is None else _in_processes(mapper, workers)
    return _mapped([rows], random, call, lambda of, func: Ahead(of, size, func, workers).rows())


def map_readers(func: Callable[..., Any], *readers: ReaderLike) -> Reader:
    """Apply a function to each row; Fluid's name for `map`.

    Example:
      >>> list(map_readers(lambda x: -x, [1, 2]))
      [-1, -2]
    """
    return map(func, *readers)


def xmap_readers(
    mapper: Callable[[Any], Any], reader: ReaderLike, process_num: int, buffer_size: int, order: bool = False
) -> Reader:
    """Apply a function to each row in several threads; Fluid's name for `xmap`.

    Example:
      >>> list(xmap_readers(lambda x: -x, [1, 2], process_num=2, buffer_size=2))
      [-1, -2]
    """
    return xmap(mapper, reader, process_num, buffer_size, order)


class _Generators:
    """A source of NumPy Generators of random numbers: one Generator for each row."""

    def __init__(self, caller: str, seed: int, readers: list[Reader]):
        self.seed = whole_number(caller, "seed", seed, least=0)
        # `_stage` is a part of the seed of each Generator, so that nested calls of `map` draw different numbers.
        # `_stage` is at least 1, because 0 would give the random numbers of `shuffle`.
        self._stage = 1 + sum(seeded_maps(reader.plan) for reader in readers)

    def appended(self, rows: Iterator[tuple[Any, ...]], epoch: int, start: int) -> Iterator[tuple[Any, ...]]:
        """Append a NumPy Generator of random numbers to the arguments for each row.

        `start` is the index of the first row, counted within the pass over the data.
        """
        for index, row in zip(itertools.count(start), rows, strict=False):
            yield *row, np.random.Generator(np.random.PCG64([self.seed, epoch, index, self._stage]))


def _check_arguments(caller: str, func: Callable[..., Any], rows: int, seed: int | None) -> None:
    """Refuse a function that cannot be called with `rows` rows and, if `seed` is not None, a Generator."""
    try:
        # A decorator may change the arguments of a function, so the signature of the wrapped function is ignored.
        signature = inspect.signature(func, follow_wrapped=False)
    except (TypeError, ValueError):  # some functions written in C have no signature: their arguments are not checked
        return
    try:
        signature.bind(*range(rows + (seed is not None)))
        return
    except TypeError:
        pass
    name = getattr(func, "__name__", "f")
    given = f"{rows} row{'s' if rows > 1 else ''}{'' if seed is None else ' and, since it has a seed, a Generator'}"
    if seed is None:
        fix = (
            f"Random numbers come with a seed, as the last argument: {caller}({name}, rows, seed=0). The fields of a "
            f"row come as one argument: image, label = row"
        )
    else:
        fix = f"For a function without random numbers leave out seed: {caller}({name}, rows)"
    raise errors.ArgumentTypeError(f"{caller} calls its function with {given}, found {name}{signature}. {fix}")


def _mapped(
    readers: list[Reader],
    random: _Generators | None,
    call: Callable[..., Any],
    run: Callable[[Callable[[], Rows], Callable[[Any], Any]], Rows],
) -> Reader:
    """Return a Reader of the results of a function, called with rows of several readers side by side."""

    def mapped(of: list[Reader], mark: Callable[[Iterator[Any]], Iterator[Any]]) -> Iterate:
        def iterate(epoch: int, start: int) -> Rows:
            def arguments() -> Rows:
                with opened(of, epoch, start) as inner:
                    rows = zip(*inner, strict=False)
                    yield from mark(rows if random is None else random.appended(rows, epoch, start))

            return run(arguments, lambda row: row if row is ELSEWHERE else call(*row))

        return iterate

    def in_blocks(size: int, wanted: Wanted) -> Iterate:
        some = [Reader(reader.in_blocks(size, wanted), reader.plan) for reader in readers]
        return mapped(some, lambda given: marked(given, size, wanted))

    plans = [reader.plan for reader in readers]
    plan = plans[0] if len(plans) == 1 else {"map": plans}
    return Reader(mapped(readers, iter), plan if random is None else {"map": plans, "seed": random.seed}, in_blocks)


def _one_after_the_other(open_rows: Callable[[], Rows], func: Callable[[Any], Any]) -> Rows:
    with contextlib.closing(open_rows()) as rows:
        for row in rows:
            yield func(row)


def _in_processes(mapper: Callable[..., Any], count: int) -> Callable[..., Any]:
    from fluid.reader.processes import Pool  # imported on use, because multiprocessing is slow to import

    return Pool("reader.xmap", mapper, count).call


def _workers(threads: int | None, processes: int | None) -> int:
    if (threads is None) == (processes is None):
        raise errors.ArgumentError(
            f"reader.xmap(process_num={threads!r}, processes={processes!r}): expected one of them; process_num=4 for "
            f"four threads, processes=4 for four processes"
        )
    if processes is not None:
        return whole_number("reader.xmap", "processes", processes)
    return whole_number("reader.xmap", "process_num", threads)
