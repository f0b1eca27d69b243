"""`fluid.reader.files`: rows of files, here or in an object store."""

import contextlib
import itertools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from fluid import errors
from fluid.core import whole_number
from fluid.reader.ahead import read_ahead
from fluid.reader.base import Reader, Rows
from fluid.reader.decorators import shuffle as shuffled
from fluid.reader.files import order
from fluid.reader.files.csv import Csv, Tsv
from fluid.reader.files.fields import Columns, Fields, Misfit
from fluid.reader.files.format import Format, Piece, broken
from fluid.reader.files.json_lines import JsonLines
from fluid.reader.files.listing import File, Path, listed, stamps
from fluid.reader.files.npz import Npz
from fluid.reader.files.parquet import Parquet
from fluid.reader.files.tfrecord import TFRecord
from fluid.reader.files.webdataset import WebDataset

_FORMATS: tuple[Format, ...] = (Parquet(), JsonLines(), Csv(), Tsv(), Npz(), TFRecord(), WebDataset())
# Rows go from thread to thread in parts of so many.
_PART = 32


def files(
    paths: Path | Sequence[Path],
    columns: Columns | None = None,
    dtypes: Mapping[str, Any] | None = None,
    format: str | None = None,
    shuffle: bool = False,
    buf_size: int = 10_000,
    seed: int = 0,
    parallel: int = 4,
    storage_options: Mapping[str, Any] | None = None,
) -> Reader:
    """Read rows of files that lie on this machine, on a web server or in an object store.

    Addresses are those of fsspec: `train.csv`, `s3://bucket/train-*.parquet`, `gs://...`, `https://...`. Names that end
    in .gz, .zst, .bz2 or .xz are decompressed. Several files are read at once, in threads, and come in the same order
    whatever the threads do. With `shuffle` the files, of Parquet the row groups, come in another order in each pass,
    and then rows are shuffled within a buffer. The order depends on the seed and the number of the pass alone.

    The names, sizes and versions of the files are part of a position: a training is not resumed with other files.

    Args:
      paths: a path, address or pattern such as `data/**/train-*.csv`, or several; the files of a pattern are sorted by
        name.
      columns: which fields of a row are read; or for each name that a field shall have the one that it has in the
        files, `{"x": "pixels"}`; None for all.
      dtypes: of fields by name, such as `{"x": "float32", "zip": "str"}`; a value that does not fit is an error that
        names the file and the row. Without, values are what the format holds.
      format: "parquet", "jsonl", "csv", "tsv", "npz", "tfrecord" or "webdataset"; by default what the names of the
        files end in.
      shuffle: whether each pass has an order of its own.
      buf_size: how many rows the buffer of `shuffle` holds; several files' worth mixes well.
      seed: at least 0.
      parallel: how many files (or row groups) are read at once, at least 1. It has no influence on the order.
      storage_options: of the file system, for fsspec: credentials, `{"anon": True}`, an endpoint.

    Returns:
      A Reader of rows, which are dicts by field: numbers and arrays; lists of any length as arrays `[k]` (of JSON as
      lists); text; images and the like as bytes, for a function of yours to decode: `reader.xmap(decode, rows, 4)`.

    Raises:
      ArgumentError: there is no such file, the format is not known, or a number is out of range.
      ArgumentTypeError: paths or columns are none.
      ReaderError: a library is missing or the files cannot be listed; and while reading: a file is damaged, a field is
        not there or does not fit.

    Example:
      >>> import pathlib
      >>> _ = pathlib.Path("a.jsonl").write_text('{"x": [1, 2], "label": 0}')
      >>> _ = pathlib.Path("b.jsonl").write_text('{"x": [3, 4], "label": 1}')
      >>> rows = files("*.jsonl", dtypes={"x": "float32"})
      >>> list(rows)
      [{'x': array([1., 2.], dtype=float32), 'label': 0}, {'x': array([3., 4.], dtype=float32), 'label': 1}]
    """
    fields = Fields(columns, dtypes)
    size = whole_number("reader.files", "buf_size", buf_size)
    seed = whole_number("reader.files", "seed", seed, least=0)
    parallel = whole_number("reader.files", "parallel", parallel)
    found = listed(paths, storage_options)
    pieces = _Pieces(found, _format(found, format), fields, parallel)

    def iterate(epoch: int, start: int) -> Rows:
        ordered = order.permuted(pieces.all(), seed, epoch) if shuffle else pieces.all()
        left, dropped = order.behind(ordered, start)
        parts = order.in_parallel((pieces.opener(piece, skip) for piece, skip in left), parallel)
        with contextlib.closing(parts):
            yield from itertools.islice(itertools.chain.from_iterable(parts), dropped, None)

    plan = {"files": stamps(found), "format": pieces.format.name, "shuffle": seed if shuffle else None}
    reader = Reader(iterate, plan)
    return shuffled(reader, size, seed) if shuffle else reader


class _Pieces:
    """The pieces of all files, which are found out once.

    Args:
      files: which there are.
      format: of all of them.
      fields: what is wanted of their rows.
      parallel: how many files are looked at at once.
    """

    def __init__(self, files: list[File], format: Format, fields: Fields, parallel: int):
        self.format = format
        self._files = files
        self._fields = fields
        self._parallel = parallel
        self._lock = threading.Lock()
        self._found: list[Piece] | None = None

    def all(self) -> list[Piece]:
        """The pieces, in the order of the files."""
        with self._lock:
            if self._found is None:
                by_file = read_ahead(lambda: (f for f in self._files), 2 * self._parallel, self._of, self._parallel)
                found = list(itertools.chain.from_iterable(by_file))
                _check_alike(found)
                self._found = found
            return self._found

    def opener(self, piece: Piece, skip: int) -> Any:
        """A function that opens a piece: its rows in parts, behind so many that are left out."""
        return lambda: self._parts(piece, skip)

    def _of(self, file: File) -> list[Piece]:
        try:
            return self.format.pieces(file, self._fields)
        except Misfit as misfit:
            raise errors.ReaderError(f"file {file.name}: {misfit}. {misfit.fix}") from None
        except errors.FluidError:
            raise
        except Exception as error:
            raise errors.ReaderError(f"file {file.name}: {self._not_readable(error)}") from error

    def _parts(self, piece: Piece, skip: int) -> Rows:
        """The rows of a piece in lists; those before a row that cannot be read are given before the error."""
        number = piece.first + skip
        part: list[dict[str, Any]] = []
        failure: errors.FluidError | None = None
        with contextlib.closing(self._rows(piece, skip)) as rows:
            while failure is None:
                try:
                    part.append(self._fields.pick(next(rows)))
                    number += 1
                except StopIteration:
                    break
                except Misfit as misfit:
                    failure = broken(piece.file, number, str(misfit), misfit.fix)
                except errors.FluidError as error:
                    failure = error
                except Exception as error:
                    failure = errors.ReaderError(
                        f"file {piece.file.name}, behind its first {number} rows: {self._not_readable(error)}"
                    )
                    failure.__cause__ = error
                if len(part) == _PART:
                    yield part
                    part = []
        if part:
            yield part
        if failure is not None:
            raise failure

    def _rows(self, piece: Piece, skip: int) -> Rows:
        yield from self.format.read(piece, skip, self._fields)

    def _not_readable(self, error: Exception) -> str:
        return (
            f"{type(error).__name__}: {error}; expected a whole file of the format {self.format.name!r}. Is it still "
            f"there, and is that its format? reader.files(..., format='csv') says which one it is"
        )


def _check_alike(pieces: list[Piece]) -> None:
    """Refuse files in which a column holds something else than in the first one.

    Raises:
      ReaderError: there is such a file.
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


def _format(files: list[File], name: str | None) -> Format:
    """The format of all files.

    Raises:
      ArgumentError: it is not known, or not the same for all.
    """
    if name is not None:
        for format in _FORMATS:
            if format.name == name:
                return format
        raise errors.ArgumentError(f"reader.files(format={name!r}). {errors.nearest(name, (f.name for f in _FORMATS))}")
    by_extension = {extension: format for format in _FORMATS for extension in format.extensions}
    found = {file: by_extension.get(file.extension) for file in files}
    first = found[files[0]]
    for file, known in found.items():
        if known is None or first is None:
            raise errors.ArgumentError(
                f"reader.files does not know the format of {os.path.basename(file.path)!r} by its name, expected one "
                f"of {', '.join(by_extension)}; say which it is: reader.files(..., format='csv')"
            )
        if known is not first:
            raise errors.ArgumentError(
                f"reader.files found files of two formats, {os.path.basename(files[0].path)!r} and "
                f"{os.path.basename(file.path)!r}, expected one; read each by itself: "
                f"reader.chain(reader.files('*.csv'), reader.files('*.npz'))"
            )
    assert first is not None  # or an error was raised
    return first
