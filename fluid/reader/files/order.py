"""Order: divide files into pieces, choose the order of the pieces, and read several pieces ahead in threads."""

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fluid import errors
from fluid.reader.ahead import Ahead
from fluid.reader.base import Rows, Wanted
from fluid.reader.files.format import Fields, Format, Misfit, Piece, Span, broken
from fluid.reader.files.listing import File


class Raw(NamedTuple):
    """A row of a file that is not decoded yet.

    Attributes:
      piece: the piece (part of a file) that holds the row.
      number: the index of the row in the file.
      value: the row as `Format.read` yielded it.
    """

    piece: Piece
    number: int
    value: Any


# A reading thread passes rows to the consumer in lists of at most `_PART` rows.
_PART = 32


class Pieces:
    """A list of the pieces of all files, such as row groups. The files are inspected once, at the first use."""

    def __init__(self, files: list[File], format: Format, fields: Fields, parallel: int):
        self.format = format
        self._files = files
        self._fields = fields
        self._parallel = parallel
        self._lock = threading.Lock()
        self._found: list[Piece] | None = None

    def all(self) -> list[Piece]:
        """Return the pieces (parts that are read separately) of all files, in the order of the files."""
        with self._lock:
            if self._found is None:
                files = Ahead(
                    lambda: (f for f in self._files), 2 * self._parallel, self._of, self._parallel, patience=None
                )
                found = list(itertools.chain.from_iterable(files.rows()))
                _check_alike(found)
                self._found = found
            return self._found

    def opener(self, span: Span, raw: bool = False) -> Callable[[], Rows]:
        """Return a function that yields the rows of a span (a range of rows in a file), in lists of several rows.

        Each row is a dict of the requested fields. If `raw` is True, it is a Raw object, which is not decoded.
        """
        return lambda: self._parts(span, Raw if raw else self._decoded)

    def decoded(self, raw: Raw) -> dict[str, Any]:
        """Decode a Raw row (a row as it is in the file), and return its requested fields by name.

        Raises:
          ReaderError: the row cannot be decoded, or a field does not fit.
        """
        try:
            return self._decoded(*raw)
        except Exception as error:
            failure = self._failure(raw.piece, raw.number, error)
        raise failure

    def _decoded(self, piece: Piece, number: int, value: Any) -> dict[str, Any]:
        return self._fields.pick(self.format.decoded(value, piece, number, self._fields))

    def _of(self, file: File) -> list[Piece]:
        try:
            return self.format.pieces(file, self._fields)
        except Misfit as misfit:
            raise errors.ReaderError(f"file {file.name}: {misfit}. {misfit.fix}") from None
        except errors.FluidError:
            raise
        except Exception as error:
            raise errors.ReaderError(f"file {file.name}: {self._not_readable(error)}") from error

    def _parts(self, span: Span, made: Callable[[Piece, int, Any], Any]) -> Rows:
        """Yield the rows of a span (a range of rows in a file) in lists of at most 32 rows.

        All rows before an unreadable row are yielded before the error is raised. `made` creates a row from the piece
        (part of a file), the index of the row in the file, and the raw row.
        """
        piece, low, high = span
        number = piece.first + low
        part: list[Any] = []
        failure: errors.FluidError | None = None
        with contextlib.closing(self.format.read(piece, low, self._fields)) as rows:
            while failure is None and (high is None or number < piece.first + high):
                try:
                    part.append(made(piece, number, next(rows)))
                    number += 1
                except StopIteration:
                    break
                except Exception as error:
                    failure = self._failure(piece, number, error)
                if len(part) == _PART:
                    yield part
                    part = []
        if part:
            yield part
        if failure is not None:
            raise failure

    def _failure(self, piece: Piece, number: int, error: Exception) -> errors.FluidError:
        """Return the ReaderError for a row whose reading or decoding has raised an exception."""
        if isinstance(error, Misfit):
            return broken(piece.file, number, str(error), error.fix)
        if isinstance(error, errors.FluidError):
            return error
        failure = errors.ReaderError(
            f"file {piece.file.name}, behind its first {number} rows: {self._not_readable(error)}"
        )
        failure.__cause__ = error
        return failure

    def _not_readable(self, error: Exception) -> str:
        return (
            f"{type(error).__name__}: {error}; expected a whole file of the format {self.format.name!r}. Is it still "
            f"there, and is that its format? reader.files(..., format='csv') says which one it is"
        )


def _check_alike(pieces: list[Piece]) -> None:
    """Refuse files with a column whose kind, such as "numbers" or "text", differs from its kind in the first file."""
    for piece in pieces:
        first = pieces[0]
        for name, kind in piece.kinds.items():
            expected = first.kinds.get(name, kind)
            if kind != expected:
                raise errors.ReaderError(
                    f"file {piece.file.name}: found {kind} in column {name!r}, expected {expected} as in "
                    f"{first.file.name}. Read other columns, columns=[...], or write the files alike"
                )


T = TypeVar("T")
# `_STAGE` is a part of the random seed for the order of pieces (parts of files). So the random numbers for this order
# differ from the numbers that `shuffle` and `map` draw with an equal `seed=`.
_STAGE = (0, 0, 1)
# For each piece (a part of a file), at most `_AHEAD` lists of rows are read before the consumer takes them.
_AHEAD = 2


def permuted(pieces: Sequence[T], seed: int, epoch: int) -> list[T]:
    """Shuffle pieces (parts of files) for one pass over the data; the order depends only on the seed and the pass.

    The argument `epoch` is the number of the pass.

    Example:
      >>> sorted(permuted("abc", seed=0, epoch=1))
      ['a', 'b', 'c']
    """
    order = np.random.Generator(np.random.PCG64([seed, epoch, *_STAGE])).permutation(len(pieces))
    return [pieces[i] for i in order]


def whole(pieces: Iterable[Piece]) -> list[Span]:
    """Return for each piece (a part of a file) a Span (a range of rows) that covers all rows of the piece."""
    return [Span(piece, 0, piece.rows) for piece in pieces]


def behind(spans: Sequence[Span], start: int) -> tuple[list[Span], int]:
    """Return the part of a pass that remains after its first `start` rows."""
    for index, (piece, low, high) in enumerate(spans):
        if high is None:
            return list(spans[index:]), start
        if high - low > start:
            return [Span(piece, low + start, high), *spans[index + 1 :]], 0
        start -= high - low
    return [], 0


def divided(pieces: Sequence[Piece], parts: int) -> list[list[Span]]:
    """Divide the rows of files into parts of equal size; if a remainder is left, the first parts have one row more.

    Example:
      >>> [[span[1:] for span in part] for part in divided([Piece(None, rows=5), Piece(None, rows=2)], 3)]
      [[(0, 3)], [(3, 5)], [(0, 2)]]
    """
    least, more = divmod(sum(piece.rows or 0 for piece in pieces), parts)
    found: list[list[Span]] = [[] for _ in range(parts)]
    part = 0
    capacity = least + (more > 0)
    for piece in pieces:
        low = 0
        while low < (piece.rows or 0):
            high = min(piece.rows or 0, low + capacity)
            found[part].append(Span(piece, low, high))
            capacity -= high - low
            low = high
            if capacity == 0:
                part += 1
                capacity = least + (part < more)
    return found


def needed(spans: Sequence[Span], size: int, wanted: Wanted) -> list[bool]:
    """Return for each span (a range of rows in a file) whether this process needs at least one of its rows.

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

    # For each part of the files, test only the first `2 * size` rows, where `size` is the batch size. These rows
    # contain a whole minibatch, so later rows of the part have no other index in a minibatch.
    firsts = zip([0, *ends], ends, strict=False)
    return [any(map(is_needed, range(low, min(high, low + 2 * size)))) for low, high in firsts]


def in_parallel(openers: Iterable[Callable[[], Rows]], parallel: int) -> Rows:
    """Yield the rows of the first source, then of the second one, and so on; threads read several sources ahead."""
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
