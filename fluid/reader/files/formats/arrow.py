"""CSV and Parquet, which pyarrow reads; and the conversion of Arrow columns to the values of rows.

The first line of a CSV file has the column names. The row groups of a Parquet file are its pieces, and only the
requested columns are read.
"""

import contextlib
import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fluid.reader.base import Rows
from fluid.reader.files import pyarrow_streams
from fluid.reader.files.format import Fields, Format, Piece, Row, broken
from fluid.reader.files.listing import File, library

Values = Sequence[Any] | np.ndarray
Missing = Callable[[int, Any], Exception]


def rows(batch: Any, file: File, first: int) -> Iterator[Row]:
    """Yield the rows of a pyarrow record batch, as dicts of values by column name.

    Raises:
      ReaderError: an integer, a boolean, a list or a tensor is absent. Absent values of other types are no error.
    """
    names = batch.schema.names
    columns = [_values(column, _missing(name, file, first)) for name, column in zip(names, batch.columns, strict=True)]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def kind(type_: Any) -> str:
    """Return the kind of values in a column, for example "numbers", "text" or "lists of numbers"."""
    import pyarrow as pa

    of = pa.types
    if of.is_dictionary(type_):
        return kind(type_.value_type)
    if isinstance(type_, pa.FixedShapeTensorType):
        return f"tensors of {kind(type_.value_type)}"
    if of.is_list(type_) or of.is_large_list(type_) or of.is_fixed_size_list(type_):
        return f"lists of {kind(type_.value_type)}"
    if of.is_integer(type_) or of.is_floating(type_) or of.is_boolean(type_):
        return "numbers"
    if of.is_string(type_) or of.is_large_string(type_) or of.is_string_view(type_):
        return "text"
    if of.is_binary(type_) or of.is_large_binary(type_) or of.is_fixed_size_binary(type_) or of.is_binary_view(type_):
        return "bytes"
    return str(type_)


def _values(column: Any, missing: Missing) -> Values:
    """Return the values of an Arrow array, one for each row.

    Numbers become an array `[rows, ...]`, in which an absent float is NaN. Lists of numbers become arrays of different
    lengths, and lists of lists become lists of arrays. Absent text is None. Values of other types are the Python
    objects of `to_pylist`.
    """
    import pyarrow as pa

    of = pa.types
    type_ = column.type
    if of.is_dictionary(type_):
        return _values(column.dictionary_decode(), missing)
    is_list = of.is_list(type_) or of.is_large_list(type_) or of.is_fixed_size_list(type_)
    is_tensor = isinstance(type_, pa.FixedShapeTensorType)
    is_number = of.is_integer(type_) or of.is_floating(type_) or of.is_boolean(type_)
    if column.null_count and (is_list or is_tensor or (is_number and not of.is_floating(type_))):
        raise missing(int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]), type_)
    if is_number or of.is_temporal(type_):
        return np.array(column.to_numpy(zero_copy_only=False))  # a copy, because the memory of Arrow is not writable
    if is_tensor:
        return np.array(column.to_numpy_ndarray())
    if is_list:
        return _lists(column, missing)
    values: list[Any] = column.to_pylist()
    return values


def _lists(column: Any, missing: Missing) -> Values:
    """Return the values of a column of lists, one for each row, as a list; lists of numbers become arrays.

    If the type of the column fixes the size of its lists of numbers, return one array `[rows, size, ...]` instead.
    """
    import pyarrow as pa

    is_fixed = pa.types.is_fixed_size_list(column.type)
    size = column.type.list_size if is_fixed else 0
    lengths = np.full(len(column), size) if is_fixed else column.value_lengths().to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths, dtype=int)
    elements = _values(
        column.flatten(), lambda index, type_: missing(int(np.searchsorted(ends, index, side="right")), type_)
    )
    if is_fixed and isinstance(elements, np.ndarray):
        return elements.reshape(len(column), size, *elements.shape[1:])
    return [elements[low:high] for low, high in zip(ends - lengths, ends, strict=True)]


def _missing(name: str, file: File, first: int) -> Missing:
    """Return a function that creates the error for a row without a value in the column `name`.

    The function takes the index of the row in its batch, and the Arrow type of the column.
    """
    fix = "Fill it or leave the row out when the file is written, or read other columns: columns=[...]"
    return lambda index, type_: broken(
        file, first + index, f"column {name!r} has no value, expected one of type {type_}", fix
    )


class Csv(Format):
    """The format of comma-separated values, which pyarrow reads in blocks.

    A column without a dtype in `dtypes=` has the type of its values in the first block.
    """

    name = "csv"
    extensions = (".csv",)
    delimiter = ","

    def columns(self, file: File) -> list[str]:
        """Return the names of the columns, which are in the first line of the file."""
        with file.open() as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
            return next(csv.reader(text, delimiter=self.delimiter), [])

    def read(self, piece: Piece, skip: int, fields: Fields) -> Rows:
        """Yield the rows of a file, as dicts of values by column name."""
        name = piece.file.name
        pa = library("pyarrow", f"{name!r} is a file of comma separated values")
        pa_csv = library("pyarrow.csv", f"{name!r} is a file of comma separated values")
        types = {source: _type(pa, dtype) for source, dtype in fields.source_dtypes.items()}
        with piece.file.open() as stream, _named_rows(pa, piece.file):
            reading = pa_csv.open_csv(
                pyarrow_streams.LentStream(stream),
                # pyarrow reads without threads here, because its error messages lack the row number if it uses threads.
                read_options=pa_csv.ReadOptions(use_threads=False),
                parse_options=pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                convert_options=pa_csv.ConvertOptions(column_types=types),
            )
            try:
                columns = fields.present(reading.schema.names)
                number = 0
                for batch in reading:
                    yield from rows(batch.select(columns), piece.file, number)
                    number += batch.num_rows
            finally:
                reading.close()  # this stops the thread in which pyarrow reads
                # Delete the variable: otherwise the traceback of an exception would refer to it, and so keep the stream
                # open.
                del reading


class Tsv(Csv):
    """The format of tab-separated values."""

    name = "tsv"
    extensions = (".tsv",)
    delimiter = "\t"


@contextlib.contextmanager
def _named_rows(pa: Any, file: File) -> Iterator[None]:
    """Convert a pyarrow error in the `with` block to an error that names the file and the row, counted from 0.

    pyarrow counts the header of the file as row 1.
    """
    try:
        yield
    except pa.ArrowInvalid as error:
        row = re.search(r"Row #(\d+)", str(error))
        if row is None:
            raise
        fix = "Correct the file; or say what the column holds, dtypes={'x': 'float32'}: its first values told its type"
        raise broken(
            file, int(row[1]) - 2, f"{str(error).removesuffix('.')}, which is not as in the rows before", fix
        ) from error


def _type(pa: Any, dtype: Any) -> Any:
    return {str: pa.string(), bytes: pa.binary()}.get(dtype) or pa.from_numpy_dtype(np.dtype(dtype))


_ROWS_AT_ONCE = 1024


class Parquet(Format):
    """The format Apache Parquet, which pyarrow reads."""

    name = "parquet"
    extensions = (".parquet", ".pq")
    counts_rows = True

    def pieces(self, file: File, fields: Fields) -> list[Piece]:
        """Return the row groups of a Parquet file as pieces (parts to read separately), without empty row groups."""
        with file.open() as stream:
            opened = _library(file).ParquetFile(stream)
            schema = opened.schema_arrow
            metadata = opened.metadata
            kinds = {name: kind(schema.field(name).type) for name in fields.present(schema.names)}
            counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        return [Piece(file, i, sum(counts[:i]), count, kinds) for i, count in enumerate(counts) if count]

    def columns(self, file: File) -> list[str]:
        """Return the names of the columns in the schema of a file."""
        with file.open() as stream:
            return list(_library(file).ParquetFile(stream).schema_arrow.names)

    def read(self, piece: Piece, skip: int, fields: Fields) -> Rows:
        """Yield the rows of a row group, as dicts of values by column name."""
        with piece.file.open() as stream:
            opened = _library(piece.file).ParquetFile(
                pyarrow_streams.LentStream(stream), page_checksum_verification=True
            )
            try:
                columns = fields.present(opened.schema_arrow.names)
                number = piece.first
                for batch in opened.iter_batches(
                    _ROWS_AT_ONCE, row_groups=[piece.part], columns=columns, use_threads=False
                ):
                    left_out = min(skip, batch.num_rows)
                    skip -= left_out
                    yield from rows(batch.slice(left_out), piece.file, number + left_out)
                    number += batch.num_rows
            finally:
                # The variable is deleted to release the stream: the traceback of an exception would keep it alive.
                del opened


def _library(file: File) -> Any:
    library("pyarrow", f"{file.name!r} is a Parquet file")
    return library("pyarrow.parquet", f"{file.name!r} is a Parquet file")
