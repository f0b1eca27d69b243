"""Format: the interface of a file format, which divides a file into pieces and reads the rows of a piece.

The class Fields selects the fields of each row, and sets their names and dtypes.
"""

import abc
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fluid import errors
from fluid._util.text import short
from fluid.reader.base import Rows
from fluid.reader.feed_checks import class_of
from fluid.reader.files.listing import File

Columns = Iterable[str] | Mapping[str, str]
_TEXT = {"str": str, "bytes": bytes}
# `_ACCEPTS` maps the class of a requested dtype, such as "float", to the classes of dtypes whose values may be
# converted to the requested dtype.
_ACCEPTS = {"float": ("float", "int", "bool"), "int": ("int", "bool"), "bool": ("bool",)}


class Misfit(Exception):
    """An error for a field of a file that is absent, or whose value does not fit.

    The message says what was found and expected; the attribute `fix` says how to correct the file or the call.
    """

    def __init__(self, found: str, fix: str):
        super().__init__(found)
        self.fix = fix


class Fields:
    """A selection of the fields of each row of a file, with their new names and dtypes.

    Args:
      columns: the names of fields in the files; or a mapping from each new name to the name in the files; None for all
        fields with their own names.
      dtypes: dtypes of NumPy, "str" or "bytes", by new name.

    Raises:
      ArgumentError: `columns` is empty, a dtype is invalid, or a dtype is given for a field that is not in `columns`.
      ArgumentTypeError: `columns` holds values that are not names.

    Example:
      >>> fields = Fields({"x": "pixels"}, {"x": "float32"})
      >>> fields.pick({"pixels": [1, 2], "other": 0})
      {'x': array([1., 2.], dtype=float32)}
    """

    def __init__(self, columns: Columns | None, dtypes: Mapping[str, Any] | None):
        self._sources = None if columns is None else _renamed(columns)
        self.dtypes = {str(name): _dtype(name, dtype) for name, dtype in dict(dtypes or {}).items()}
        unknown = [] if self._sources is None else [name for name in self.dtypes if name not in self._sources]
        if unknown:
            raise errors.ArgumentError(
                f"reader.files(dtypes=) names {unknown[0]!r}, which is none of the columns. "
                f"{errors.nearest(unknown[0], self._sources or ())}"
            )

    @property
    def sources(self) -> list[str] | None:
        """The names that the requested fields have in the files, each name once; None if all fields are requested."""
        return None if self._sources is None else list(dict.fromkeys(self._sources.values()))

    @property
    def source_dtypes(self) -> dict[str, Any]:
        """The requested dtypes, by the names that the fields have in the files.

        If a field is requested under two new names, only the first of its dtypes is returned.
        """
        by_source: dict[str, Any] = {}
        for name, dtype in self.dtypes.items():
            by_source.setdefault(name if self._sources is None else self._sources[name], dtype)
        return by_source

    def present(self, names: Iterable[str]) -> list[str]:
        """Return the names that the requested fields have in a file; raise an error if a field is absent.

        Raises:
          Misfit: a requested field is absent, or present twice.
        """
        known = list(names)
        wanted = self.sources
        if repeated := [name for name in known if known.count(name) > 1 and (wanted is None or name in wanted)]:
            raise Misfit(f"two fields are called {repeated[0]!r}", "Give each a name of its own in the file")
        if missing := [name for name in (self.dtypes if wanted is None else wanted) if name not in known]:
            raise _missing(missing[0], known)
        return known if wanted is None else wanted

    def pick(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the requested fields of a row, with the requested names and dtypes.

        Raises:
          Misfit: a field is absent, or a value has another type.
        """
        try:
            picked = dict(row) if self._sources is None else {name: row[s] for name, s in self._sources.items()}
            for name, dtype in self.dtypes.items():
                value = picked[name]
                if getattr(value, "dtype", None) != dtype:
                    picked[name] = _converted(name, value, dtype)
        except KeyError as error:
            raise _missing(error.args[0], row) from None
        return picked


def _missing(name: str, known: Iterable[str]) -> Misfit:
    return Misfit(
        f"there is no field {name!r}", f"{errors.nearest(name, known)} Columns are named as in the file: columns=[...]"
    )


def _renamed(columns: Any) -> dict[str, str]:
    """Check the argument `columns`, and return a dict from the new name of each field to its name in the files."""
    renamed = dict(columns) if isinstance(columns, Mapping) else {}
    if not isinstance(columns, str | Mapping) and hasattr(columns, "__iter__"):
        columns = list(columns)
        renamed = {name: name for name in columns if isinstance(name, str)}
    if (
        isinstance(columns, str)
        or len(renamed) != len(columns)
        or not all(isinstance(text, str) for pair in renamed.items() for text in pair)
    ):
        raise errors.ArgumentTypeError(
            f"reader.files(columns={columns!r}): expected different names of columns, as in columns=['x', 'label'], or "
            f"those in the files by the names of the feeds: columns={{'x': 'pixels'}}"
        )
    if not renamed:
        raise errors.ArgumentError(
            "reader.files(columns=[]): expected at least one column, as in columns=['x', 'label']; or None for all"
        )
    return renamed


def _dtype(name: Any, dtype: Any) -> Any:
    """Convert one value of the argument `dtypes` to a NumPy dtype, or to the type `str` or `bytes`."""
    if dtype is str or dtype is bytes:
        return dtype
    if isinstance(dtype, str) and dtype in _TEXT:
        return _TEXT[dtype]
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or class_of(found) not in _ACCEPTS:
        raise errors.ArgumentError(
            f"reader.files(dtypes={{{name!r}: {dtype!r}}}): expected a dtype of numbers, 'str' or 'bytes', as in "
            f"dtypes={{{name!r}: 'float32'}}"
        )
    return found


def _converted(name: str, value: Any, dtype: Any) -> Any:
    if dtype in (str, bytes):
        if not isinstance(value, dtype):
            raise _wrong(name, value, dtype.__name__)
        return value
    try:
        array = np.asarray(value)
    except ValueError:
        raise _wrong(name, value, f"{dtype} in rows of one length", _RAGGED) from None
    if class_of(array.dtype) not in _ACCEPTS[class_of(dtype)] and array.size:
        raise _wrong(name, value, str(dtype))
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    too_large = class_of(dtype) == "float" and np.any(np.isinf(converted) & np.isfinite(array))
    if too_large or (class_of(dtype) == "int" and not np.array_equal(converted, array)):
        raise _wrong(name, value, f"what fits into {dtype}")
    return converted if converted.ndim else converted[()]


_RAGGED = (
    "Leave out its dtype, and declare the feed with lod_level=2: layers.data(..., lod_level=2) takes rows of sequences"
)


def _wrong(name: str, value: Any, expected: str, fix: str = "") -> Misfit:
    return Misfit(
        f"field {name!r} is {short(value)} ({type(value).__name__}), expected {expected}",
        fix or f"Correct the file, or give another dtype: dtypes={{{name!r}: ...}}",
    )


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
    """A range of consecutive rows of a piece, a part of a file that is read separately, such as a row group.

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

        Raises:
          ReaderError: a field is absent, or has a type that feeds do not support.
        """
        return [Piece(file)]

    def columns(self, file: File) -> list[str]:
        """Return the names of the columns of a file: the fields of its first row, or none for a file without rows.

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
        """Yield the rows of a piece (a part of a file) without decoding them; `decoded` decodes them later.

        Raises:
          ReaderError: a row cannot be read. The caller converts other exceptions to a ReaderError that names the file
            and the row.
        """

    def decoded(self, raw: Any, piece: Piece, number: int, fields: Fields) -> Row:
        """Decode a row that `read` has yielded to a dict of values by field name, as in the file.

        If several processes share minibatches, each process calls this method only for its own rows.

        Raises:
          ReaderError: as for `read`.
        """
        row: Row = raw
        return row


def broken(file: File, row: int, found: str, fix: str) -> errors.ReaderError:
    """Return the ReaderError for a row that cannot be read.

    Example:
      >>> raise broken(File(None, "", "a.csv", ""), 7, "found no number", "Correct the file")
      Traceback (most recent call last):
        ...
      fluid.errors.ReaderError: file a.csv, row 7 (counting from 0): found no number. Correct the file
    """
    return errors.ReaderError(f"file {file.name}, row {row} (counting from 0): {found}. {fix}")
