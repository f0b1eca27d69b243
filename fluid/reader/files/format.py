"""Format: the interface of a file format, which divides a file into pieces and reads the rows of a piece."""

import abc
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fluid import errors
from fluid.reader.base import Rows
from fluid.reader.files.fields import Fields
from fluid.reader.files.listing import File

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a file that is read separately: a row group, or the whole file.

    Attributes:
      file: the file.
      part: the index of the piece in its file.
      first: the index in the file of the first row of the piece.
      rows: the number of rows of the piece; None if it is known only after reading.
      kinds: the kind of each column by name, such as "numbers" or "text"; empty if the format does not declare it.
    """

    file: File
    part: int = 0
    first: int = 0
    rows: int | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)


class Span(NamedTuple):
    """A range of consecutive rows of a piece.

    Attributes:
      piece: the piece.
      low: the index in the piece of the first row.
      high: the index in the piece after the last row; None if the number of rows of the piece is unknown.
    """

    piece: Piece
    low: int
    high: int | None


class Format(abc.ABC):
    """A file format: lists the pieces of a file and reads their rows. A Format has no state, since threads share it.

    Attributes:
      name: the value for `format=`.
      extensions: the file name extensions of this format.
      counts_rows: True if each piece has a known number of rows.
    """

    name: str
    extensions: tuple[str, ...]
    counts_rows = False

    def pieces(self, file: File, fields: Fields) -> list[Piece]:
        """Return the pieces of a file, in order. Only the number of rows is read, not the rows.

        Args:
          file: the file.
          fields: the requested fields of its rows.

        Raises:
          ReaderError: a field is absent, or has a type that no feed has.
        """
        return [Piece(file)]

    def columns(self, file: File) -> list[str]:
        """Return the names of the columns of a file: the fields of its first row, or none for a file without rows.

        Args:
          file: the file.

        Raises:
          ReaderError: the first row cannot be read.
        """
        every = Fields(None, None)
        for piece in self.pieces(file, every):
            with contextlib.closing(self.read(piece, 0, every)) as rows:
                for raw in rows:
                    return list(self.decoded(raw, piece, piece.first, every))
        return []

    @abc.abstractmethod
    def read(self, piece: Piece, skip: int, fields: Fields) -> Rows:
        """Yield the rows of a piece in raw form, for `decoded`, with just enough work to separate rows.

        Args:
          piece: the piece.
          skip: the number of first rows to leave out; 0 if `piece.rows` is None.
          fields: the requested fields; a row may hold more.

        Raises:
          ReaderError: a row cannot be read. The caller converts other exceptions to a ReaderError that names the file
            and the row.
        """

    def decoded(self, raw: Any, piece: Piece, number: int, fields: Fields) -> Row:
        """Decode a row from `read` to values by the names in the file.

        Of several processes that share minibatches, each process calls this method only for its own rows.

        Args:
          raw: the row from `read`.
          piece: the piece of the row.
          number: the number of the row in the file.
          fields: the requested fields; a row may hold more.

        Raises:
          ReaderError: as for `read`.
        """
        row: Row = raw
        return row


def broken(file: File, row: int, found: str, fix: str) -> errors.ReaderError:
    """Return the error for a row.

    Args:
      file: the file of the row.
      row: the number of the row in the file, from 0 on.
      found: a clause that says what was found in the row, and what was expected.
      fix: a sentence that says how to correct the file or the call.

    Example:
      >>> raise broken(File(None, "", "a.csv", ""), 7, "found no number", "Correct the file")
      Traceback (most recent call last):
        ...
      fluid.errors.ReaderError: file a.csv, row 7 (counting from 0): found no number. Correct the file
    """
    return errors.ReaderError(f"file {file.name}, row {row} (counting from 0): {found}. {fix}")
