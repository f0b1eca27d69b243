"""CSV: text with the column names in its first line."""

import contextlib
import csv
import io
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from fluid.reader.base import Rows
from fluid.reader.files import lent
from fluid.reader.files.fields import Fields
from fluid.reader.files.format import Format, Piece, broken
from fluid.reader.files.formats import arrow
from fluid.reader.files.listing import File, library


class Csv(Format):
    """The format of comma-separated values, which pyarrow reads in blocks.

    A column without a dtype in `dtypes=` has the type of its values in the first block.
    """

    name = "csv"
    extensions = (".csv",)
    delimiter = ","

    def columns(self, file: File) -> list[str]:
        """Return the names in the first line of a file."""
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
                lent.Stream(stream),
                read_options=pa_csv.ReadOptions(use_threads=False),  # with threads, error messages lack the row number
                parse_options=pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                convert_options=pa_csv.ConvertOptions(column_types=types),
            )
            try:
                columns = fields.present(reading.schema.names)
                number = 0
                for batch in reading:
                    yield from arrow.rows(batch.select(columns), piece.file, number)
                    number += batch.num_rows
            finally:
                reading.close()  # stops the reading thread of pyarrow
                # Releases the stream: after an exception, the traceback keeps this frame and its variables alive.
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
