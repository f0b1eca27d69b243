"""Parquet: row groups are pieces, and only the requested columns are read."""

from typing import Any

from fluid.reader.base import Rows
from fluid.reader.files import lent
from fluid.reader.files.fields import Fields
from fluid.reader.files.format import Format, Piece
from fluid.reader.files.formats import arrow
from fluid.reader.files.listing import File, library

_ROWS_AT_ONCE = 1024


class Parquet(Format):
    """The format Apache Parquet, which pyarrow reads."""

    name = "parquet"
    extensions = (".parquet", ".pq")
    counts_rows = True

    def pieces(self, file: File, fields: Fields) -> list[Piece]:
        """Return the row groups of a file as pieces, without empty row groups."""
        with file.open() as stream:
            opened = _library(file).ParquetFile(stream)
            schema = opened.schema_arrow
            metadata = opened.metadata
            kinds = {name: arrow.kind(schema.field(name).type) for name in fields.present(schema.names)}
            counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        return [Piece(file, i, sum(counts[:i]), count, kinds) for i, count in enumerate(counts) if count]

    def columns(self, file: File) -> list[str]:
        """Return the names of the columns in the schema of a file."""
        with file.open() as stream:
            return list(_library(file).ParquetFile(stream).schema_arrow.names)

    def read(self, piece: Piece, skip: int, fields: Fields) -> Rows:
        """Yield the rows of a row group, as dicts of values by column name."""
        with piece.file.open() as stream:
            opened = _library(piece.file).ParquetFile(lent.Stream(stream))
            try:
                columns = fields.present(opened.schema_arrow.names)
                number = piece.first
                for batch in opened.iter_batches(
                    _ROWS_AT_ONCE, row_groups=[piece.part], columns=columns, use_threads=False
                ):
                    left_out = min(skip, batch.num_rows)
                    skip -= left_out
                    yield from arrow.rows(batch.slice(left_out), piece.file, number + left_out)
                    number += batch.num_rows
            finally:
                # Releases the stream: after an exception, the traceback keeps this frame and its variables alive.
                del opened


def _library(file: File) -> Any:
    library("pyarrow", f"{file.name!r} is a Parquet file")
    return library("pyarrow.parquet", f"{file.name!r} is a Parquet file")
