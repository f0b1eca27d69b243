"""What a format of files has to offer: the pieces of a file, and the rows of a piece."""

import abc
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
    """A part of a file that is read by itself: a row group, or the whole file.

    Attributes:
      file: which one.
      part: number of the piece in its file.
      first: number of its first row in the file.
      rows: how many it has; None where only reading would tell.
      kinds: what its columns hold, where the format says so.
    """

    file: File
    part: int = 0
    first: int = 0
    rows: int | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)


class Span(NamedTuple):
    """Rows of a piece that follow each other.

    Attributes:
      piece: which one.
      low: number of the first row in the piece.
      high: number of the row behind the last one; None where it is not known how many rows the piece has.
    """

    piece: Piece
    low: int
    high: int | None


class Format(abc.ABC):
    """How files of one format are read. Nothing is kept in it, since several threads read at once.

    Attributes:
      name: as `format=` takes it.
      extensions: of the names of such files.
      counts_rows: whether each piece says how many rows it has.
    """

    name: str
    extensions: tuple[str, ...]
    counts_rows = False

    def pieces(self, file: File, fields: Fields) -> list[Piece]:
        """The pieces of a file, in order. What says how many rows there are is read; the rows are not.

        Args:
          file: which one.
          fields: what is wanted of its rows.

        Raises:
          ReaderError: a field is not there, or has a type that no feed has.
        """
        return [Piece(file)]

    @abc.abstractmethod
    def read(self, piece: Piece, skip: int, fields: Fields) -> Rows:
        """The rows of a piece, each as `decoded` takes it: as little is done as tells one row from the next.

        Args:
          piece: which one.
          skip: how many of its first rows are left out; 0 where `piece.rows` is None.
          fields: what is wanted; a row may hold more.

        Raises:
          ReaderError: a row cannot be read; other exceptions are made into one that names file and row.
        """

    def decoded(self, raw: Any, piece: Piece, number: int, fields: Fields) -> Row:
        """What `read` gave for a row as the values by the names that they have in the file.

        Of several processes that share minibatches, each calls this for its own rows only.

        Args:
          raw: what `read` gave.
          piece: where it comes from.
          number: of the row in the file.
          fields: what is wanted; a row may hold more.

        Raises:
          ReaderError: as for `read`.
        """
        row: Row = raw
        return row


def broken(file: File, row: int, found: str, fix: str) -> errors.ReaderError:
    """The error about a row.

    Args:
      file: where it is.
      row: its number in the file, from 0 on.
      found: what was found, and what was expected.
      fix: a sentence that says what to do.

    Example:
      >>> raise broken(File(None, "", "a.csv", ""), 7, "found no number", "Correct the file")
      Traceback (most recent call last):
        ...
      fluid.errors.ReaderError: file a.csv, row 7 (counting from 0): found no number. Correct the file
    """
    return errors.ReaderError(f"file {file.name}, row {row} (counting from 0): {found}. {fix}")
