"""Adapters: convert NumPy arrays, loaders and iterables of minibatches to readers."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, ParamSpec

import numpy as np

from fluid import errors
from fluid.core import unmasked, warn_once, whole_number
from fluid.reader import reader_misuse
from fluid.reader.base import (
    Pass,
    Reader,
    ReaderLike,
    Rows,
    Source,
    Wanted,
    as_reader,
    exhausted,
    named,
    seed_with_shuffle,
    stages,
)
from fluid.reader.on_device import Resident, RowNumbers

# For a Trainer, `arrays` copies several small minibatches from the user's arrays at once. One such copy has at most
# `_BYTES` bytes and at most `_MOST` minibatches.
_BYTES = 1 << 18
_MOST = 16

P = ParamSpec("P")


class JointMinibatch(NamedTuple):
    """A minibatch stored as a range of rows, in arrays that hold several consecutive minibatches.

    Attributes:
      together: new arrays with the rows of several consecutive minibatches, as one dict or tuple of columns.
      first: the index in `together` of the first row of this minibatch.
      end: the index in `together` after the last row of this minibatch.

    Example:
      >>> JointMinibatch({"x": np.array([5, 6, 7])}, 1, 3).minibatch()
      {'x': array([6, 7])}
    """

    together: dict[Any, np.ndarray] | tuple[np.ndarray, ...]
    first: int
    end: int

    def minibatch(self) -> Any:
        """Return the rows of this minibatch, as a dict or tuple of columns.

        The attribute `together` also holds the rows of other minibatches, which are copied to the device at once.
        """
        if isinstance(self.together, dict):
            return {name: column[self.first : self.end] for name, column in self.together.items()}
        return tuple(column[self.first : self.end] for column in self.together)


def _one_argument(function: Callable[P, Reader]) -> Callable[P, Reader]:
    """Decorate `reader.arrays` so that `arrays(x, y)` raises an error that shows the correct call, `arrays((x, y))`."""

    @functools.wraps(function)
    def checked(*arguments: P.args, **options: P.kwargs) -> Reader:
        columns = list(itertools.takewhile(reader_misuse.is_data, arguments))
        if len(columns) > 1:
            written = "x, y" if len(columns) == 2 else ", ".join(f"x{i}" for i in range(len(columns)))
            raise errors.ArgumentTypeError(
                f"reader.arrays takes its columns as one argument, found {len(columns)} arrays: "
                f"reader.arrays(({written}), batch_size=32), or by name: reader.arrays({{'x': x, 'y': y}}, "
                f"batch_size=32)"
            )
        return function(*arguments, **options)

    return checked


@_one_argument
@seed_with_shuffle
def arrays(
    arrays: Any,
    batch_size: int,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
    *,
    on_device: bool = False,
) -> Reader:
    """Read minibatches from NumPy arrays, by slicing: the fastest reader for data in memory.

    A Trainer copies up to 16 small minibatches at a time. If you change the arrays during a pass, the next minibatches
    may therefore still hold the old values.

    Args:
      arrays: an array `[n, ...]`, a tuple of columns `[n, ...]`, a dict of columns by name, or a DataFrame, which is
        read as a dict of its columns. A column may itself be a DataFrame: `{"x": frame[["a", "b"]], "y": frame["c"]}`.
      batch_size: the number of rows of each minibatch, at least 1.
      shuffle: True reads each pass in a new order, which depends only on the seed and the number of the pass.
      seed: the seed of the random order, at least 0.
      drop_last: True leaves out a last, shorter minibatch.
      on_device: True copies all data to the device, once. Minibatches and their order are unchanged, but only row
        numbers are copied from the host for each minibatch: see `docs/speed-data.md`.

    Returns:
      A Reader of tuples of columns `[batch, ...]` (of one column for a single array), or of dicts of columns.

    Raises:
      ArgumentError: the columns differ in length, are empty, or have rows of different shapes; or a number is out of
        range.
      ArgumentTypeError: the data is not an array, tuple, dict or DataFrame; or `on_device` data holds no numbers.

    Example:
      >>> import numpy as np
      >>> read = arrays({"x": np.arange(6).reshape(3, 2), "y": np.arange(3)}, batch_size=2)
      >>> [{name: column.tolist() for name, column in minibatch.items()} for minibatch in read]
      [{'x': [[0, 1], [2, 3]], 'y': [0, 1]}, {'x': [[4, 5]], 'y': [2]}]
    """
    arrays = reader_misuse.columns_of(arrays) if reader_misuse.is_frame(arrays) else arrays
    names, columns = _columns(arrays)
    size = whole_number("reader.arrays", "batch_size", batch_size)
    seed = whole_number("reader.arrays", "seed", seed, least=0)
    count = _common_length(names, columns)
    end = count - count % size if drop_last else count
    by_name = isinstance(arrays, Mapping)
    kind = np.int32 if on_device else np.int64

    def rows(epoch: int, begin: int, length: int) -> Iterator[slice | np.ndarray]:
        order = None
        # JAX needs int32 row numbers. One cast of all row numbers is faster than one cast per minibatch.
        if shuffle:
            order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(count).astype(kind, copy=False)
        for low in range(begin, end, length):
            span = slice(low, min(low + length, end))
            yield span if order is None else order[span]

    def minibatch(picked: list[np.ndarray]) -> Any:
        return dict(zip(names, picked, strict=True)) if by_name else tuple(picked)

    def iterate(epoch: int, start: int) -> Rows:
        for wanted in rows(epoch, start * size, size):
            yield minibatch([_picked(column, wanted) for column in columns])

    def parts(epoch: int, start: int) -> Rows:
        bytes_of_one = size * sum(column.nbytes // count for column in columns)
        several = min(_MOST, _BYTES // max(1, bytes_of_one))
        if several < 2:
            yield from iterate(epoch, start)
            return
        for wanted in rows(epoch, start * size, several * size):
            picked = [_picked(column, wanted) for column in columns]
            together = minibatch([p.copy() for p in picked] if isinstance(wanted, slice) else picked)
            for first in range(0, len(picked[0]), size):
                yield JointMinibatch(together, first, min(first + size, len(picked[0])))

    plan = {"arrays": count, "batch": size, "shuffle": seed if shuffle else None, "drop_last": bool(drop_last)}
    if not on_device:
        return Reader(iterate, plan, parts=parts)
    resident = Resident(names, columns, by_name)

    def numbers(epoch: int, start: int) -> Rows:
        for wanted in rows(epoch, start * size, size):
            every = np.arange(wanted.start, wanted.stop, dtype=kind) if isinstance(wanted, slice) else wanted
            yield RowNumbers(resident, every)

    def gathered(epoch: int, start: int) -> Rows:
        for minibatch in numbers(epoch, start):
            yield resident.minibatch(minibatch.rows)

    return Reader(gathered, plan, numbers=numbers)


class Minibatches:
    """A source of passes (epochs) over the minibatches of a user's `reader=`, created by `minibatches`.

    Attributes:
      reader: the reader of the minibatches.

    Example:
      >>> passes = minibatches([[1, 2], [3]])
      >>> rows = passes()
      >>> next(rows), passes.state()["given"]
      ([1, 2], 1)
      >>> passes.restore(passes.state())
      >>> list(passes())
      [[3]]
    """

    def __init__(self, source: ReaderLike):
        # a minibatch is copied to the device before the next one is read
        self.reader = as_reader("reader=", source, kept=False)
        self._wanted: Wanted | None = None
        self._compact = False

    def compact(self) -> None:
        """Yield compact minibatches in the next passes, because they are faster to copy to a single device.

        If the data set is on the device, the minibatches are `on_device.RowNumbers`, which hold row numbers. Small
        minibatches that are copied at once are `JointMinibatch` objects. All other minibatches do not change.
        """
        self._compact = True

    def divide(self, wanted: Wanted) -> None:
        """Read only the rows that this process needs, in the passes that start after this call.

        Args:
          wanted: a function of the number of rows of a minibatch. It returns the indices of the rows that this process
            needs. All other rows of a minibatch may be replaced by copies of any row.
        """
        self._wanted = wanted

    @property
    def reads_once(self) -> bool:
        """Return whether the reader is an iterator, which can be read only once."""
        source = self.reader.source if isinstance(self.reader, Source) else None
        return hasattr(source, "__next__")

    @property
    def ready(self) -> bool:
        """Return whether the next minibatch can be read now; see `Reader.ready`."""
        return self.reader.ready

    def __call__(self) -> Rows:
        """Start the next pass over the data; after `restore`, continue the interrupted pass."""
        # `start` creates the Pass at once, not at the first minibatch, so that `state()` returns the position of the
        # new pass.
        reader = self.reader
        if self._wanted is not None:
            return self._checked(reader.start(reader.divided(self._wanted)))
        compact = (reader.numbers or reader.parts) if self._compact else None
        return self._checked(reader() if compact is None else reader.start(compact))

    def __iter__(self) -> Iterator[Any]:
        return self()

    def state(self) -> dict[str, Any]:
        """Return the position of the reader after the last yielded minibatch, as a dict for JSON."""
        return self.reader.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Make the next pass over the data continue exactly after the saved position `state`; see `Reader.restore`."""
        self.reader.restore(state)

    def _checked(self, rows: Pass) -> Rows:
        source = self.reader.source if isinstance(self.reader, Source) else self.reader
        with contextlib.closing(rows):
            try:
                # A pass over a reader must have rows. Exception: a pass that continues from a checkpoint may have no
                # rows left, because all rows were yielded before the checkpoint.
                yield from rows if rows.given else nonempty(rows, source)
            except errors.FluidError:
                raise
            except Exception as error:
                name = f" {named(source)}" if hasattr(source, "__qualname__") else ""
                error.add_note(
                    f"Your reader{name} raised this, not fluid: it was to give batch {rows.given} of pass {rows.epoch} "
                    f"(both are counted from 0)."
                )
                raise


def minibatches(source: ReaderLike | Minibatches, in_order_for: str | None = None) -> Minibatches:
    """Return passes over the minibatches of a user's `reader=`.

    Args:
      source: a Reader, a function that returns an iterable, or an iterable: a list of minibatches, a torch
        `DataLoader`, a Grain loader (its own iterator state is used), a Hugging Face data set.
      in_order_for: the use of the minibatches; it decides about a warning of a reader that shuffles. "predict" and
        "test" return results for each row, so any shuffling causes the warning. "means" is a test that returns only
        means over all rows; shuffling then causes the warning only if the reader also leaves rows out. None is for
        training and causes no warning.

    Raises:
      ArgumentTypeError: `source` is not a reader.
      ReaderError: raised while reading: the reader is empty, or an iterator has ended in an earlier pass.

    Example:
      >>> passes = minibatches(lambda: iter([[(1, 2)], [(3, 4)]]))
      >>> list(passes()), passes.state()["epoch"]
      ([[(1, 2)], [(3, 4)]], 1)
    """
    if isinstance(source, Minibatches):
        return source
    reader_misuse.refuse("reader=", source, rows=False, shuffle=in_order_for is None)
    made = Minibatches(source)
    if in_order_for is not None and (how := _shuffles(made.reader, in_order_for)):
        method = "predict" if in_order_for == "predict" else "test"
        warn_once(source, in_order_for, lambda: f"the reader of {method} shuffles, {how}: {_OTHER[in_order_for]}")
    if in_order_for in ("predict", "test") and any(map(_leaves_out, stages(made.reader.plan))):
        warn_once(
            source,
            "drop_last",
            lambda: (
                f"the reader of {in_order_for} has drop_last=True, so that its last rows have no results unless they "
                f"fill a minibatch. Read without drop_last: a last, shorter minibatch may be of any size"
            ),
        )
    return made


_OTHER = {
    "predict": (
        "results come in the order of the reader, which differs from the data and from pass to pass. Read without "
        "shuffling; or fetch a value that identifies the rows as well: fetch=['prediction', 'label']"
    ),
    "test": (
        "the rows in its results come in the order of the reader, which differs from the data and from pass to pass. "
        "Read without shuffling; results that are single numbers do not depend on the order"
    ),
    "means": (
        "drop_last or firstn leaves out other rows in each pass, so that each test is one of other data. Read without "
        "shuffling"
    ),
}
"""The last sentences of the warning about a reader that shuffles: a dict by the use of the rows.

The use is "predict", "test", or "means" for a test that returns only means over all rows.
"""


def _shuffles(reader: Reader, method: str) -> str:
    """Return the call that shuffles the rows of a reader, for example "reader.shuffle(...)"; "" if none is known."""
    if method == "means" and not any(
        (stage.get("drop_last") or "firstn" in stage) and any(part.get("shuffle") is not None for part in stages(stage))
        for stage in stages(reader.plan)
    ):
        return ""
    for stage in stages(reader.plan):
        if stage.get("shuffle") is not None:
            if "arrays" in stage:
                return "reader.arrays(shuffle=True)"
            of = stage.get("of")
            return f"reader.{'files(shuffle=True)' if isinstance(of, Mapping) and 'files' in of else 'shuffle(...)'}"
        if "bucket_by_length" in stage and method == "predict":
            return "reader.bucket_by_length(...)"
    # A torch DataLoader shuffles if its sampler is a RandomSampler.
    if isinstance(reader, Source) and method != "means":
        sampler = getattr(reader.source, "sampler", None)
        if any(kind.__name__ == "RandomSampler" for kind in type(sampler).__mro__):
            return f"{type(reader.source).__name__}(shuffle=True)"
    return ""


def _leaves_out(stage: Mapping[str, Any]) -> bool:
    """Return whether a reader function, such as `batch`, leaves out rows because of `drop_last=True`.

    The result is False for `arrays` if the number of rows is a multiple of the batch size.
    """
    return bool(stage.get("drop_last")) and ("arrays" not in stage or stage["arrays"] % stage["batch"] > 0)


def nonempty(rows: Iterator[Any], source: Any = None) -> Rows:
    """Yield the rows of one pass over the data, and raise an error if there are none.

    Raises:
      ReaderError: the pass has no row.

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


def _picked(column: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
    # For row numbers, `ndarray.take` is faster than `column[rows]` if the rows are long.
    return column[rows] if isinstance(rows, slice) else column.take(rows, axis=0)


def _columns(data: Any) -> tuple[list[Any], list[np.ndarray]]:
    """Return the names of the columns of `data`, or their indices if they have no names, and the columns as arrays."""
    if isinstance(data, Mapping):
        columns = dict(data)
    elif isinstance(data, tuple):
        columns = dict(enumerate(data))
    elif hasattr(data, "shape"):
        columns = {0: data}
    else:
        raise errors.ArgumentTypeError(
            f"reader.arrays needs an array, a tuple of columns or a dict of columns, found {type(data).__name__}; "
            f"for example {_instead(data)}"
        )
    reader_misuse.check_indices(columns)
    return list(columns), [_array(name, column) for name, column in columns.items()]


def _array(name: Any, column: Any) -> np.ndarray:
    """Convert a column to a NumPy array."""
    try:
        array = unmasked(column, what=f"reader.arrays, column {name!r}")
        # NumPy would turn the numbers in a list of numbers and text into text.
        return np.array(column, object) if array.dtype.kind in "US" and isinstance(column, list | tuple) else array
    except ValueError as error:
        raise errors.ArgumentError(
            f"reader.arrays found column {name!r} with rows of different shapes, expected an array of equal rows. For "
            f"sequences, write a reader of rows: fluid.reader.batch(lambda: zip(words, labels), batch_size=32)"
        ) from error


def _instead(data: Any) -> str:
    """Return a correct call as text, for the error message about data that `reader.arrays` does not accept."""
    rows = [item for item in data if isinstance(item, Mapping | tuple)] if isinstance(data, list) else []
    if rows and len(rows) == len(data):
        return "reader.batch(rows, batch_size=32), since these are rows and no columns"
    return "reader.arrays((np.asarray(images), np.asarray(labels)), batch_size=32)"


def _common_length(names: list[Any], columns: list[np.ndarray]) -> int:
    """Return the number of rows of the columns; raise an error if the columns differ in length or are empty."""
    lengths = {name: len(column) if column.ndim else None for name, column in zip(names, columns, strict=True)}
    if len(set(lengths.values())) == 1 and (count := lengths[names[0]]):
        return count
    shown = ", ".join(f"{name!r}: {'a scalar' if n is None else n}" for name, n in lengths.items()) or "no column"
    raise errors.ArgumentError(
        f"reader.arrays needs columns of one length, at least 1, found {shown}; each column is [n, ...]: "
        f"reader.arrays((images, labels), batch_size=32) with len(images) == len(labels)"
    )
