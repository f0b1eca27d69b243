"""The pieces of all files: listed once, compared with each other, and read row by row."""

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from fluid import errors
from fluid.reader.ahead import Ahead
from fluid.reader.base import Rows
from fluid.reader.files.fields import Fields, Misfit
from fluid.reader.files.format import Format, Piece, Span, broken
from fluid.reader.files.listing import File


class Raw(NamedTuple):
    """A row that is not decoded yet.

    Attributes:
      piece: the piece of the row.
      number: the number of the row in the file.
      value: the raw value from the format.
    """

    piece: Piece
    number: int
    value: Any


# The number of rows that are passed between threads at once.
_PART = 32


class Pieces:
    """The pieces of all files, which are listed once.

    Args:
      files: the files.
      format: the format of all files.
      fields: the requested fields of their rows.
      parallel: the number of files to inspect at once.
    """

    def __init__(self, files: list[File], format: Format, fields: Fields, parallel: int):
        self.format = format
        self._files = files
        self._fields = fields
        self._parallel = parallel
        self._lock = threading.Lock()
        self._found: list[Piece] | None = None

    def all(self) -> list[Piece]:
        """Return the pieces, in the order of the files."""
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
        """Return a function that yields the rows of a span in lists, as dicts of the requested fields or as Raw."""
        return lambda: self._parts(span, Raw if raw else self._decoded)

    def decoded(self, raw: Raw) -> dict[str, Any]:
        """Return the requested fields of a row.

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
        """Yield rows of a piece in lists; rows before an unreadable row are yielded before the error."""
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
        """Return the error for a row whose reading or decoding has raised an exception."""
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
    """Refuse files in which a column has another kind than in the first file.

    Raises:
      ReaderError: a file has a column of another kind.
    """
    for piece in pieces:
        first = pieces[0]
        for name, kind in piece.kinds.items():
            expected = first.kinds.get(name, kind)
            if kind != expected:
                raise errors.ReaderError(
                    f"file {piece.file.name}: found {kind} in column {name!r}, expected {expected} as in "
                    f"{first.file.name}. Read other columns, columns=[...], or write the files alike"
                )
